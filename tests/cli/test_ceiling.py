import json

import pytest
from tiny import write_tiny

from foredraft import LLM
from foredraft.cli import main

ROWS = ["1", "2", "3", "4", "5", "6", "8", "12", "16", "24", "32"]


def test_arithmetic_of_a_described_machine(capsys):
    assert main(["ceiling", "--bandwidth", "273", "--params", "70e9", "--bits", "16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "model": None,
        "bandwidth_gb_s": 273.0,
        "weight_bytes": 140e9,
        "ceiling_tok_s": pytest.approx(1.95),
        "pass_ms": {},
    }


def test_sixteen_bits_are_the_default(capsys):
    assert main(["ceiling", "--bandwidth", "273", "--params", "70e9"]) == 0
    text = capsys.readouterr().out
    assert "273.0 GB/s" in text
    assert "140 GB" in text
    assert "1.95 tokens/s" in text


def test_model_is_measured(tmp_path, capsys):
    path = str(write_tiny(tmp_path / "tiny.gguf", "gemma3"))
    assert main(["ceiling", "-m", path, "--json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out.splitlines()[-1])
    assert list(answer) == ["model", "bandwidth_gb_s", "weight_bytes", "ceiling_tok_s", "pass_ms"]
    with LLM(path) as llm:
        assert answer["weight_bytes"] == llm.target.model.weight_bytes
    assert answer["model"] == path
    assert answer["ceiling_tok_s"] == pytest.approx(answer["bandwidth_gb_s"] * 1e9 / answer["weight_bytes"])
    assert list(answer["pass_ms"]) == ROWS
    assert min(answer["pass_ms"].values()) > 0


def test_table_has_a_line_for_every_number_of_rows(tmp_path, capsys):
    path = str(write_tiny(tmp_path / "tiny.gguf", "llama"))
    assert main(["ceiling", "-m", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-len(ROWS) :]] == ROWS


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "either -m MODEL"),
        (["--bandwidth", "273"], "either -m MODEL"),
        (["--params", "70e9"], "either -m MODEL"),
        (["-m", "x.gguf", "--bits", "4"], "--bits"),
        (["--bandwidth", "-1", "--params", "1"], "bandwidth is -1"),
        (["--bandwidth", "1", "--params", "nan"], "params is nan"),
        (["--bandwidth", "1", "--params", "1", "--bits", "inf"], "bits is inf"),
    ],
)
def test_wrong_use_is_told(capsys, options, complaint):
    assert main(["ceiling", *options]) == 2
    assert complaint in capsys.readouterr().err
