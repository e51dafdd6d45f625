import pytest

from foredraft.errors import OutOfMemoryError
from foredraft.models.memory import available_bytes, check_fits

GIB = 2**30


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_unknown_where_the_system_says_nothing(tmp_path):
    assert available_bytes(tmp_path) is None


def test_system_value_is_read_in_bytes(tmp_path):
    write(tmp_path / "proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert available_bytes(tmp_path) == 2048 * 1024


def test_control_group_limits_less_what_is_used_but_not_cached(tmp_path):
    write(tmp_path / "proc/meminfo", "MemAvailable: 1000000 kB\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", "1000\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "700\n")
    write(tmp_path / "sys/fs/cgroup/memory.stat", "anon 100\ninactive_file 50\n")
    assert available_bytes(tmp_path) == 350


def test_control_group_without_limit_does_not_count(tmp_path):
    write(tmp_path / "proc/meminfo", "MemAvailable: 10 kB\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/memory.current", "700\n")
    write(tmp_path / "sys/fs/cgroup/memory.stat", "inactive_file 50\n")
    assert available_bytes(tmp_path) == 10240


def test_real_machine_knows():
    assert available_bytes() > 0


def test_too_long_a_context_is_refused_with_the_one_that_fits():
    with pytest.raises(OutOfMemoryError, match=r"--ctx \d+"):
        check_fits("m", GIB, 2**20, 4096, 64, 3 * GIB)


def test_advised_context_fits_and_the_next_does_not():
    with pytest.raises(OutOfMemoryError) as caught:
        check_fits("m", GIB, 2**20, 4096, 64, 3 * GIB)
    blocks = int(str(caught.value).split("--ctx ")[1].split(")")[0]) // 64
    check_fits("m", GIB, 2**20, blocks, 64, 3 * GIB)
    with pytest.raises(OutOfMemoryError):
        check_fits("m", GIB, 2**20, blocks + 1, 64, 3 * GIB)


def test_weights_that_do_not_fit_are_said_so():
    with pytest.raises(OutOfMemoryError, match="smaller model"):
        check_fits("m", 4 * GIB, 2**20, 1, 64, 3 * GIB)


def test_unknown_memory_is_not_checked():
    check_fits("m", 4 * GIB, 2**20, 1, 64, None)
