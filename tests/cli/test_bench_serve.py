import json

import pytest
from tiny import write_tiny

from foredraft.cli import main
from foredraft.measure.serve_order import PARTS

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


def test_a_server_is_measured_and_everything_is_kept(model, prompts, capsys, tmp_path):
    out = tmp_path / "result.json"
    command = [
        "bench",
        "--serve",
        "-m",
        model,
        "--prompts",
        prompts,
        "--requests",
        "1,3",
        "--max-tokens",
        "6",
    ]
    command += ["--repeat", "2", "--threads", "1", "--json", "--out", str(out)]
    assert main(command) == 0
    captured = capsys.readouterr()
    *table, last = captured.out.splitlines()
    answer, kept = json.loads(last), json.loads(out.read_text())
    assert {key: value for key, value in kept.items() if key in answer} == answer
    assert set(kept) - set(answer) == {"samples", "answers"}
    assert answer["settings"]["parts"] == list(PARTS)
    assert answer["settings"]["context"] == 512
    assert answer["identical"] is True
    assert answer["compared"] > 60
    assert {figure["name"] for figure in answer["figures"]} == set(PARTS)
    assert [figure["goal"] for figure in answer["figures"] if figure["name"] == "stall"] == [None] * 4
    loads = kept["samples"]["loads"]
    order = [(load["repeat"], load["at_once"], load["side"]) for load in loads]
    assert order == [
        *((0, 1, "off"), (0, 1, "auto"), (0, 3, "auto"), (0, 3, "off")),
        *((1, 1, "auto"), (1, 1, "off"), (1, 3, "off"), (1, 3, "auto")),
    ]
    for load in loads:
        assert [one["prompt"] for one in load["requests"]] == ["code-dog", "chat-tree"] * (
            1 if load["at_once"] == 1 else 2
        )
        assert load["passes"]["tokens"] >= sum(one["tokens"] for one in load["requests"])
    drafted = {load["side"]: sum(one["drafted"] for one in load["requests"]) for load in loads}
    assert drafted["off"] == 0
    # Alone, the server's own counters are those of the requests.
    alone = [load for load in loads if load["at_once"] == 1]
    for load in alone:
        for name in ("rounds", "tokens", "drafted", "accepted"):
            assert load["passes"][name] == sum(one[name] for one in load["requests"])
    assert all(one["cached_tokens"] == 0 for load in loads for one in load["requests"])
    assert all(one["cached_tokens"] == 320 for one in kept["samples"]["prefixes"])  # 5 blocks of 336 tokens
    assert table[0].startswith(f"{model}: 1 threads")
    assert any(line.startswith("AT ONCE") for line in table)
    assert "repeat 2 of 2: 3 at once, auto" in captured.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--serve", "--requests", "1,two"], "--requests '1,two'"),
        (["--serve", "--requests", "0"], "--requests 0"),
        (["--serve", "--parts", "speed"], "no part 'speed'"),
        (["--serve", "--max-tokens", "1"], "max_tokens is 1"),
        (["--serve", "--kinds", "jsom"], "did you mean json"),
        (["--serve", "--tokens", "9"], "--tokens has no meaning with --serve"),
        (["--serve", "--peer", "/bin/echo"], "--peer has no meaning"),
        (["--serve", "--speculation"], "give one of them"),
        (["--requests", "4"], "--requests is for `bench --serve`"),
        (["--speculation", "--max-tokens", "4"], "--max-tokens is for `bench --serve`"),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(model, capsys, options, complaint):
    assert main(["bench", "-m", model, *options]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_model_that_is_not_there_is_told(capsys):
    assert main(["bench", "--serve", "-m", "missing.gguf"]) == 1
    assert "missing.gguf" in capsys.readouterr().err
