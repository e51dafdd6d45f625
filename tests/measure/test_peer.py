import json

import pytest

from foredraft.errors import MeasurementError, UsageError
from foredraft.measure.peer import LlamaBench, Load, PeerRun, parse

TEST = {
    "build_commit": "abc123",
    "build_number": 11434,
    "model_filename": "model.gguf",
    "n_threads": 2,
    "n_prompt": 0,
    "n_gen": 64,
    "n_depth": 128,
    "avg_ts": 40.1,
    "samples_ts": [40.25],
}
LOAD = Load(generated=64, depth=128)


def answer(**changes):
    return json.dumps([TEST | changes])


def test_rate_and_build_are_read():
    assert parse(answer(), LOAD, 2) == PeerRun(40.25, "11434 (abc123)")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "load failed",
        "{}",
        "[]",
        "[1]",
        json.dumps([TEST, TEST]),
        json.dumps([{key: value for key, value in TEST.items() if key != "n_depth"}]),
        answer(samples_ts=[]),
        answer(samples_ts=[1.0, 2.0]),
        answer(samples_ts=None),
        answer(samples_ts=["fast"]),
    ],
)
def test_what_is_not_understood_is_told(text):
    with pytest.raises(MeasurementError, match="not understood"):
        parse(text, LOAD, 2)


@pytest.mark.parametrize(
    "changes", [{"n_threads": 4}, {"n_gen": 32}, {"n_depth": 0}, {"samples_ts": [0.0]}, {"samples_ts": [-1]}]
)
def test_what_was_not_asked_for_is_refused(changes):
    with pytest.raises(MeasurementError, match="asked for"):
        parse(answer(**changes), LOAD, 2)


def script(path, text, mode=0o755):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def test_program_is_told_what_to_measure(tmp_path):
    program = script(tmp_path / "llama-bench", f"echo \"$@\" > {tmp_path}/asked\necho '{answer()}'")
    bench = LlamaBench(program, tmp_path / "model.gguf", 2)
    assert bench.build is None
    assert bench.tok_s(LOAD) == 40.25
    assert bench.build == "11434 (abc123)"
    asked = (tmp_path / "asked").read_text().split()
    options = dict(zip(asked[::2], asked[1::2], strict=True))
    assert options == {
        "-m": str(tmp_path / "model.gguf"),
        "-t": "2",
        "-p": "0",
        "-n": "64",
        "-d": "128",
        "-r": "1",
        "-ngl": "0",
        "-o": "json",
    }


def test_program_that_fails_is_told_with_what_it_said(tmp_path):
    program = script(tmp_path / "llama-bench", "echo no such model >&2; exit 3")
    with pytest.raises(MeasurementError, match=r"ended with 3: no such model"):
        LlamaBench(program, tmp_path / "model.gguf", 2).tok_s(LOAD)


def test_path_that_is_no_program_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        LlamaBench(tmp_path / "missing", tmp_path, 2)
    with pytest.raises(UsageError, match="no such file"):
        LlamaBench(tmp_path, tmp_path, 2)
    with pytest.raises(UsageError, match="not an executable"):
        LlamaBench(script(tmp_path / "text", "", 0o644), tmp_path, 2)


def test_file_that_only_claims_to_be_a_program_is_refused(tmp_path):
    (tmp_path / "data").write_bytes(b"\x00\x01\x02")
    (tmp_path / "data").chmod(0o755)
    with pytest.raises(UsageError, match="cannot be run"):
        LlamaBench(tmp_path / "data", tmp_path, 2).tok_s(LOAD)
