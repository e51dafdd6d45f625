import io
import json
import os
import subprocess
import sys

import pytest
from real import real_model
from tiny import write_tiny

from foredraft import LLM, Sampling
from foredraft.cli import main

KEYS = {
    "drafters",
    "k",
    *("model", "drafter", "rule", "text", "ids", "prompt_tokens", "tokens", "finish_reason", "seed"),
    *("ttft_s", "decode_s", "total_s", "tok_s", "rounds", "drafted", "accepted", "acceptance", "alpha"),
    *("tokens_per_round", "by_drafter", "draft_s", "verify_s", "ceiling_tok_s", "load_s"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("run") / "tiny.gguf", "qwen2", seed=5))


def stdin(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


def test_text_goes_to_stdout_and_figures_to_stderr(model, capsys):
    with LLM(model) as llm:
        expected = llm.generate("the fox", Sampling(max_tokens=8))
    assert main(["run", "-m", model, "-d", "off", "-n", "8", "the fox"]) == 0
    captured = capsys.readouterr()
    assert captured.out.rstrip("\n") == expected.text.rstrip("\n")
    assert captured.out.endswith("\n")
    assert captured.err.startswith("[8 tokens")
    assert captured.err.count("\n") == 1


def test_json_has_every_key_and_nothing_was_drafted(model, capsys):
    asked = ["-d", "off", "-n", "8", "--ignore-eos", "--temp", "1", "--seed", "4", "--json"]
    assert main(["run", "-m", model, *asked, "the fox"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    answer = json.loads(lines[0])
    assert set(answer) == KEYS
    with LLM(model) as llm:
        expected = llm.generate("the fox", Sampling(max_tokens=8, ignore_eos=True, temperature=1, seed=4))
    assert answer["text"] == expected.text
    assert tuple(answer["ids"]) == expected.ids
    assert answer["prompt_tokens"] == expected.prompt_tokens
    assert (answer["model"], answer["drafter"], answer["rule"]) == (model, "off", "match")
    assert (answer["tokens"], answer["rounds"], answer["finish_reason"], answer["seed"]) == (
        8,
        8,
        "length",
        4,
    )
    assert (answer["drafted"], answer["accepted"], answer["acceptance"], answer["alpha"]) == (
        0,
        0,
        None,
        None,
    )
    assert (answer["tokens_per_round"], answer["by_drafter"]) == (1.0, {})
    assert answer["tok_s"] == pytest.approx(7 / answer["decode_s"])
    assert answer["total_s"] == pytest.approx(answer["ttft_s"] + answer["decode_s"])
    assert 0 < answer["verify_s"] <= answer["total_s"]
    assert answer["load_s"] > 0
    assert answer["ceiling_tok_s"] > 0


def test_one_token_has_no_rate(model, capsys):
    assert main(["run", "-m", model, "-n", "1", "--json", "the fox"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["tokens"], answer["tok_s"], answer["decode_s"]) == (1, None, 0.0)


def test_prompt_from_stdin_is_taken_as_it_is(model, capsys, monkeypatch):
    stdin(monkeypatch, "été\n".encode())
    assert main(["run", "-m", model, "--raw", "-n", "1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == len(b"\xc3\xa9t\xc3\xa9\n")


def test_seed_that_was_drawn_is_shown_and_repeats_the_text(model, capsys):
    asked = ["run", "-m", model, "-n", "8", "--temp", "1.5", "the fox"]
    assert main(asked) == 0
    first = capsys.readouterr()
    seed = first.err.split("seed ")[1].split(" ")[0]
    assert main([*asked, "--seed", seed]) == 0
    assert capsys.readouterr().out == first.out


def test_system_message_and_raw_change_the_prompt(model, capsys):
    counts = []
    for extra in ([], ["--raw"], ["--system", "be brief"]):
        assert main(["run", "-m", model, "-n", "1", "--json", *extra, "the fox"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["prompt_tokens"])
    assert counts[1] < counts[0] < counts[2]


def test_trace_has_one_line_of_json_a_round(model, capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    assert (
        main(["run", "-m", model, "-n", "5", "--ignore-eos", "--json", "--trace", str(path), "the fox"]) == 0
    )
    rounds = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["round"] for entry in rounds] == list(range(len(rounds)))
    assert [token for entry in rounds for token in entry["tokens"]] == json.loads(capsys.readouterr().out)[
        "ids"
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--temp", "-1", "x"], "temperature is -1"),
        (["--top-p", "0", "x"], "top_p is 0"),
        (["-n", "0", "x"], "max_tokens is 0"),
        (["--seed", "-1", "x"], "seed is -1"),
        (["--logit-bias", "nonsense", "x"], "'nonsense'"),
        (["--threads", "-1", "x"], "threads is -1"),
        (["--threads", "100000", "x"], "threads is 100000"),
        (["--ctx", "1", "x"], "ctx is 1"),
        (["--ctx", "100000", "x"], "trained"),
        (["--raw", "--system", "s", "x"], "--system"),
        (["--trace", "/nonexistent/trace", "x"], "--trace"),
        ([""], "empty"),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(model, capsys, options, complaint):
    assert main(["run", "-m", model, *options]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("options", [["--kv", "f8", "x"], ["--rule", "guess", "x"], ["-n", "some", "x"], []])
def test_parser_refuses_with_2(model, capsys, options):
    with pytest.raises(SystemExit) as caught:
        main(["run", "-m", model, *options])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--logit-bias", "300=1", "x"], "token 300"),
        (["--ctx", "64", "--raw", "x" * 100], "100 tokens"),
    ],
)
def test_failure_exits_with_1(model, capsys, options, complaint):
    assert main(["run", "-m", model, *options]) == 1
    assert complaint in capsys.readouterr().err


def test_stdin_that_is_not_utf8_is_told(model, capsys, monkeypatch):
    stdin(monkeypatch, b"caf\xe9")
    assert main(["run", "-m", model, "-"]) == 2
    assert "byte 0xe9 at offset 3" in capsys.readouterr().err


def test_argument_that_is_not_utf8_is_told(model):
    command = [sys.executable, "-m", "foredraft", "run", "-m", model, b"caf\xe9"]
    ended = subprocess.run(command, capture_output=True)
    assert ended.returncode == 2
    assert b"not valid UTF-8" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_output_that_cannot_show_a_character_goes_on(model):
    command = [
        sys.executable,
        "-m",
        "foredraft",
        "run",
        "-m",
        model,
        "-n",
        "40",
        "--temp",
        "3",
        "--seed",
        "1",
        "x",
    ]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0, ended.stderr


def test_real_model_stops_at_a_stop_string(capsys):
    model = str(real_model("smollm2-135m"))
    asked = ["run", "-m", model, "--raw", "-n", "24", "--json", "The capital of France is"]
    assert main(asked) == 0
    free = json.loads(capsys.readouterr().out)
    stop = free["text"][10:14]
    assert main([*asked, "--stop", stop]) == 0
    stopped = json.loads(capsys.readouterr().out)
    assert stopped["text"] == free["text"][: free["text"].index(stop)]
    assert stopped["ids"] == free["ids"][: len(stopped["ids"])]
    assert stopped["finish_reason"] == "stop"
