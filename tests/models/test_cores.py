import os

from foredraft.models.cores import physical_cores


def test_hyper_threads_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for cpu in range(4):
        topology = tmp_path / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    assert physical_cores(tmp_path, tmp_path / "none") == 2


def test_control_group_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert physical_cores(tmp_path, tmp_path / "cpu.max") == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert physical_cores(tmp_path, tmp_path / "cpu.max") == 4


def test_this_machine_has_some():
    assert 1 <= physical_cores() <= len(os.sched_getaffinity(0))
