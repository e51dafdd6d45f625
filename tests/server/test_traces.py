import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from foredraft.core.trace import RoundEvent
from foredraft.errors import UsageError
from foredraft.server.traces import MOST_OPEN, Traces, file_name

EVENT = RoundEvent(
    round=0,
    position=9,
    drafted=(5, 6, 7),
    parents=(-1, 0, 0),
    drafters=("suffix", "suffix", "ngram"),
    chances=(0.5, 0.25, 0.125),
    picks=(5, 7, 1, 2),
    accepted=2,
    tokens=(5, 7, 2),
    draft_s=0.001,
    verify_s=0.03,
    predicted_s=0.025,
    predicted_tokens=1.75,
    reason="",
)


def events(path):
    """The file's lines as events again."""
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in json.loads(line).items()
        }
        yield RoundEvent(**fields)


def rounds(count, start=0):
    return [replace(EVENT, round=start + index, position=9 + 3 * index) for index in range(count)]


def test_a_file_is_what_was_traced(tmp_path):
    traces = Traces(tmp_path / "new" / "folder")
    first, second = traces.open("cmpl-1"), traces.open("cmpl-2")
    traces.open("without-a-round")
    for event in rounds(5):
        first(event)
        second(replace(event, reason="no guess"))
    traces.close("cmpl-1")
    traces.close("without-a-round")
    traces.finish()
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["cmpl-1.jsonl", "cmpl-2.jsonl"]
    assert list(events(folder / "cmpl-1.jsonl")) == rounds(5)
    assert [asdict(event)["reason"] for event in events(folder / "cmpl-2.jsonl")] == ["no guess"] * 5


def num_open(folder):
    links = Path("/proc/self/fd").iterdir()
    return sum(str(folder) in str(link.readlink()) for link in links if link.exists())


def test_more_requests_than_open_files_lose_nothing(tmp_path):
    traces, count = Traces(tmp_path), MOST_OPEN + 9
    opened = [traces.open(f"id-{number}") for number in range(count)]
    for event in rounds(3):
        for note in opened:
            note(event)
    traces._background.close()  # all is written, and nothing closed that did not have to be
    assert num_open(tmp_path) == MOST_OPEN
    for number in range(count):
        assert list(events(tmp_path / f"id-{number}.jsonl")) == rounds(3)
    traces._files.close_all()
    assert num_open(tmp_path) == 0


def test_a_request_that_ended_leaves_no_open_file(tmp_path):
    traces = Traces(tmp_path)
    note = traces.open("x")
    note(EVENT)
    traces.close("x")
    traces.close("never-opened")
    traces._background.close()
    assert num_open(tmp_path) == 0


def test_an_id_that_comes_back_goes_on_in_its_file(tmp_path):
    traces = Traces(tmp_path)
    for start in (0, 2):
        note = traces.open("x")
        for event in rounds(2, start):
            note(event)
        traces.close("x")
    traces.finish()
    assert [event.round for event in events(tmp_path / "x.jsonl")] == [0, 1, 2, 3]


IDS = [
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a_b",
    "a b",
    "é",
    "a\0b",
    "x" * 5000,
    "x" * 5001,
    "\udcff",
]


def test_any_id_is_one_file_in_the_folder(tmp_path):
    folder = tmp_path / "traces"
    traces = Traces(folder)
    for request_id in IDS:
        traces.open(request_id)(EVENT)
    traces.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]
    files = list(folder.iterdir())
    assert len(files) == len(IDS)
    assert all(list(events(path)) == [EVENT] for path in files)
    assert file_name("chatcmpl-0123_abcXYZ") == "chatcmpl-0123_abcXYZ"


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/folder: Not a directory"):
        Traces(tmp_path / "file" / "folder")


def test_a_folder_that_goes_away_is_reported_once(tmp_path, caplog):
    traces = Traces(tmp_path / "traces")
    (tmp_path / "traces").rmdir()
    note = traces.open("x")
    with caplog.at_level(logging.WARNING):
        for event in rounds(3):
            note(event)
        traces.finish()
    assert len(caplog.records) == 1
    assert "No such file or directory" in caplog.records[0].message
