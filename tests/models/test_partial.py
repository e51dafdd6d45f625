import pytest
from sources import BODY, Heard, entry

from foredraft.errors import DownloadError
from foredraft.models.partial import Partial, exclusive

MODEL = entry(num_wheels=3)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "partial"


def grow(partial: Partial, stop: int) -> None:
    partial.append(iter([BODY[partial.size : stop]]), Heard().advance)


def test_a_record_survives_and_what_follows_it_is_cut_off(folder):
    partial = Partial(MODEL, folder)
    grow(partial, 1000)
    partial.record_parts(1)
    grow(partial, 1700)
    again = Partial(MODEL, folder)
    assert again.size == 1700
    assert again.back_to_whole_parts() == 1
    assert again.path.read_bytes() == BODY[:1000]


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", "null", '{"sha256": "other", "parts": 1, "bytes": 10}', '{"parts": 1}', '{"parts": []}'],
)
def test_a_record_that_makes_no_sense_is_no_record(folder, record):
    partial = Partial(MODEL, folder)
    grow(partial, 1000)
    (folder / "parts.json").write_text(record)
    assert partial.back_to_whole_parts() == 0
    assert partial.size == 0


@pytest.mark.parametrize(("parts", "size"), [(1, 1001), (4, 1000), (-1, 1000), (1, -1)])
def test_a_record_that_does_not_fit_the_file_is_no_record(folder, parts, size):
    partial = Partial(MODEL, folder)
    grow(partial, 1000)
    (folder / "parts.json").write_text(f'{{"sha256": "{MODEL.sha256}", "parts": {parts}, "bytes": {size}}}')
    assert partial.back_to_whole_parts() == 0


def test_it_never_grows_beyond_the_whole_file(folder):
    partial = Partial(MODEL, folder)
    with pytest.raises(DownloadError, match="another file"):
        partial.append(iter([BODY, b"x"]), Heard().advance)
    assert partial.path.read_bytes() == BODY


def test_a_file_that_is_already_too_long_starts_again(folder):
    folder.mkdir()
    (folder / f"{MODEL.name}.gguf.partial").write_bytes(BODY + b"x")
    assert Partial(MODEL, folder).size == 0


def test_a_short_file_is_not_verified_and_is_kept(folder):
    partial = Partial(MODEL, folder)
    grow(partial, 1000)
    with pytest.raises(DownloadError, match="1000 bytes came"):
        partial.verify()
    assert partial.size == 1000


def test_a_verified_file_gets_its_name_and_the_folder_goes(folder, tmp_path):
    partial = Partial(MODEL, folder)
    grow(partial, len(BODY))
    partial.verify()
    target = tmp_path / "models" / "name.gguf"
    partial.install(target)
    assert target.read_bytes() == BODY
    assert not folder.exists()


def test_the_lock_file_is_gone_after_use_and_after_a_failure(tmp_path):
    lock = tmp_path / "folder" / "a.lock"
    heard = Heard()
    with exclusive(lock, lambda: heard.note("waiting")):
        assert lock.exists()
    assert not lock.exists()
    with pytest.raises(ValueError, match="inside"), exclusive(lock, lambda: heard.note("waiting")):
        raise ValueError("inside")
    assert not lock.exists()
    assert heard.notes == []
