import json

import pytest
from tiny import write_tiny

from foredraft.cli import main
from foredraft.measure.regret import kept_regrets

PROMPTS = (
    {
        "kind": "code",
        "name": "dog",
        "prompt": "the quick brown fox jumps over the lazy dog and then the quick",
    },
    {"kind": "chat", "name": "tree", "prompt": "what is drafted here is checked there; what is drafted"},
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("bench") / "tiny.gguf", "qwen2", seed=5))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    path.write_text("\n".join(json.dumps(prompt) for prompt in PROMPTS))
    return str(path)


def test_drafting_is_compared_with_not_drafting(model, prompts, capsys, tmp_path):
    out = tmp_path / "result.json"
    asked = [
        "--prompts",
        prompts,
        "--tokens",
        "24",
        "--repeat",
        "2",
        "--threads",
        "1",
        "--json",
        "--out",
        str(out),
    ]
    assert main(["bench", "--speculation", "-m", model, *asked]) == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    answer, kept = json.loads(last), json.loads(out.read_text())
    assert {key: value for key, value in kept.items() if key in answer} == answer
    assert set(kept) - set(answer) == {"samples", "answers"}
    assert answer["settings"] == {"drafters": ["suffix", "auto"], "tokens": 24, "repeat": 2}
    assert answer["identical"] is True
    assert answer["different"] == []
    assert answer["draft_step"] is None  # nobody has a drafter for this model
    assert {"bandwidth_gb_s", "pass_ms", "figures", "missed", "regret", "method", "left_out"} <= set(answer)
    assert set(answer["pass_ms"]) == {*map(str, range(1, 17)), "24", "32"}
    measured = [(one["kind"], one["name"], one["drafter"]) for one in answer["prompts"]]
    named = [prompt for prompt in PROMPTS if f"{prompt['kind']}-{prompt['name']}" not in answer["left_out"]]
    assert measured == [
        (prompt["kind"], prompt["name"], drafter) for drafter in ("suffix", "auto") for prompt in named
    ]
    assert all(one["speed"]["n"] == one["total"]["n"] == 2 for one in answer["prompts"])
    assert [one["prompt"] for one in answer["regret"]] == [f"{one['kind']}-{one['name']}" for one in named]
    assert table[0].startswith(f"{model}: 1 threads")
    assert any(line.startswith("PROMPT") for line in table)
    assert "round 2 of 2" in captured.err
    replayed = {one.prompt: one.auto_s for one in kept_regrets(out)}
    assert replayed == pytest.approx({one["prompt"]: one["auto_s"] for one in answer["regret"]})


def test_only_some_prompts_and_one_configuration(model, prompts, capsys):
    asked = [
        "--prompts",
        prompts,
        "--only",
        "tree",
        "-d",
        "ngram",
        "--tokens",
        "8",
        "--repeat",
        "1",
        "--threads",
        "1",
    ]
    assert main(["bench", "--speculation", "-m", model, *asked]) == 0
    out = capsys.readouterr().out
    assert "chat-tree" in out
    assert "code-dog" not in out
    assert "A single pair of runs has no interval" in out
    assert "Goals of speed are for answers of 400 tokens" in out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--speculation", "--kinds", "jsom"], "did you mean json"),
        (["--speculation", "--only", "nothing"], "there is no 'nothing'"),
        (["--speculation", "--tokens", "1"], "tokens is 1"),
        (["--speculation", "--repeat", "0"], "repeat is 0"),
        (["--speculation", "--threads", "-1"], "threads is -1"),
        (["--speculation", "-d", "off"], "off is measured beside them anyway"),
        (["--speculation", "-d", "magic"], "there is no drafter 'magic'"),
        (["--speculation", "--prompts", "/nonexistent.jsonl"], "--prompts /nonexistent.jsonl"),
        (["--speculation", "--peer", "/bin/echo"], "llama-bench does not draft"),
        (["--speculation", "--out", "/nonexistent/folder/result.json"], "--out"),
        (["--tokens", "9"], "--tokens is for `bench --speculation`"),
        (["--kinds", "json"], "--kinds is for `bench --speculation`"),
        (["-d", "ngram"], "--drafters is for `bench --speculation`"),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(model, capsys, options, complaint):
    assert main(["bench", "-m", model, *options]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_model_that_is_not_there_is_told(capsys):
    assert main(["bench", "--speculation", "-m", "missing.gguf"]) == 1
    assert "missing.gguf" in capsys.readouterr().err
