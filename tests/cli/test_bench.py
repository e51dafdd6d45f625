import json

import pytest
from real import real_model
from tiny import write_tiny

from foredraft.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("bench") / "tiny.gguf", "llama", seed=5))


def test_json_is_the_last_line_and_samples_are_kept(model, capsys, tmp_path):
    out = tmp_path / "result.json"
    asked = ["--only", "overhead,context", "--repeat", "2", "--threads", "1", "--json", "--out", str(out)]
    assert main(["bench", "-m", model, *asked]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out.splitlines()[-1])
    kept = json.loads(out.read_text())
    assert [figure["name"] for figure in answer["figures"]] == ["context", "overhead"]
    assert {key: value for key, value in kept.items() if key in answer} == answer
    assert set(kept) - set(answer) == {"settings", "samples"}
    assert answer["model"] == model
    assert answer["threads"] == 1
    assert len(answer["load_average"]) == 2
    assert "passes: round 2 of 2" in captured.err


def test_table_goes_to_standard_output(model, capsys):
    assert main(["bench", "-m", model, "--only", "pick", "--repeat", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{model}: ")
    assert lines[1].startswith("FIGURE")
    assert lines[2].startswith("picking 8 rows")
    assert "Goals" not in "".join(
        lines
    )  # they are for the default contexts, for which this model has no room


def test_missed_goal_is_no_failure(capsys):
    model = real_model("smollm2-135m")
    assert main(["bench", "-m", str(model), "--only", "memory,load", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert "MISS" in out  # a small model's buffers are large against its file
    assert "Goals are those of" in out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--only", "speed"], "no figure 'speed'"),
        (["--repeat", "0"], "repeat is 0"),
        (["--threads", "-1"], "threads is -1"),
        (["--peer", "/nonexistent/llama-bench"], "--peer /nonexistent/llama-bench: no such file"),
        (["--peer", __file__], "not an executable"),
        (["--out", "/nonexistent/folder/result.json"], "--out"),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(model, capsys, options, complaint):
    assert main(["bench", "-m", model, *options]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_peer_that_is_not_understood_is_a_failure(model, capsys):
    assert main(["bench", "-m", model, "--only", "prompt", "--repeat", "1", "--peer", "/bin/echo"]) == 1
    assert "not understood" in capsys.readouterr().err


def test_model_that_is_not_there_is_told(capsys):
    assert main(["bench", "-m", "missing.gguf"]) == 1
    assert "missing.gguf" in capsys.readouterr().err
