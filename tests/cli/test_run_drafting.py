"""`foredraft run` with drafters: the same text, figures that agree, and mistakes that are told."""

import json

import pytest
from real import real_model
from tiny import write_tiny

from foredraft.cli import main
from foredraft.models.registry import REGISTRY

PROMPT = "the fox and the dog and the fox and the dog and the"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafting")
    write_tiny(folder / "tiny.gguf", "qwen2", seed=5)
    write_tiny(folder / "other.gguf", "qwen2", seed=6)
    write_tiny(folder / "gemma.gguf", "gemma3", vocab=320)
    (folder / "guess.txt").write_text("what is drafted here is checked there")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return str(folder / "tiny.gguf")


def compared(capsys, model, *options):
    """With --compare, since --json alone measures the memory each time."""
    asked = ["-n", "40", "--ignore-eos", "--compare", "--json"]
    assert main(["run", "-m", model, *asked, *options, PROMPT]) == 0
    return json.loads(capsys.readouterr().out)


def errors_of(capsys, model, *options):
    assert main(["run", "-m", model, "-n", "3", *options, PROMPT]) == 0
    return capsys.readouterr().err


@pytest.mark.parametrize("k", ["auto", "4"])
@pytest.mark.parametrize(
    "drafter",
    [
        "ngram",
        "suffix",
        "auto",
        "prediction:{}/guess.txt",
        "model:{}/other.gguf",
        "ngram+suffix+model:{}/other.gguf",
    ],
)
def test_figures_agree_with_each_other_and_with_the_trace(capsys, folder, model, tmp_path, drafter, k):
    trace = tmp_path / "trace.jsonl"
    drafter = drafter.format(folder)
    both = compared(capsys, model, "-d", drafter, "-k", k, "--trace", str(trace))
    assert both["identical"]
    answer = both["on"]
    assert (answer["drafter"], answer["rule"]) == (drafter, "match")
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(rounds) == answer["rounds"]
    assert answer["tokens_per_round"] == pytest.approx(answer["tokens"] / answer["rounds"])
    assert sum(len(entry["drafted"]) for entry in rounds) == answer["drafted"]
    assert sum(entry["accepted"] for entry in rounds) == answer["accepted"]
    assert answer["accepted"] + answer["rounds"] >= answer["tokens"]
    if k == "4":
        assert answer["drafted"] > 0
    if answer["drafted"]:
        assert answer["acceptance"] == pytest.approx(answer["accepted"] / answer["drafted"])
        assert answer["acceptance"] <= answer["alpha"] <= 1.0
    own = answer["by_drafter"].values()
    for name in ("drafted", "accepted"):
        assert sum(figures[name] for figures in own) == answer[name]
    assert sum(figures["seconds"] for figures in own) <= answer["draft_s"]
    for figures in own:
        assert set(figures) == {"drafted", "accepted", "seconds", "accepted_per_draft_s"}
        assert figures["accepted_per_draft_s"] * figures["seconds"] == pytest.approx(figures["accepted"])
    assert answer["draft_s"] + answer["verify_s"] <= answer["total_s"]
    for entry in rounds:
        assert (
            len(entry["drafted"]) == len(entry["parents"]) == len(entry["chances"]) == len(entry["drafters"])
        )
        assert set(entry["drafters"]) <= set(answer["by_drafter"])
        assert all(0.0 <= chance <= 1.0 for chance in entry["chances"])
        assert len(entry["picks"]) == 1 + len(entry["drafted"])
        assert bool(entry["reason"]) == (not entry["drafted"])


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_rules_with_a_temperature(capsys, folder, model, rule):
    asked = ["-d", f"model:{folder}/other.gguf", "-k", "3", "--rule", rule, "--temp", "0.7", "--seed", "6"]
    both = compared(capsys, model, *asked)
    assert both["on"]["rule"] == rule
    assert both["on"]["drafted"] > 0
    assert both["on"]["tokens"] == 40
    assert both["identical"] or rule != "match"


def test_who_drafts_is_said(capsys, folder, model):
    guess = f"prediction:{folder}/guess.txt"
    for drafter, names in (
        ("auto", "suffix"),
        ("ngram+suffix", "ngram + suffix"),
        (f"auto+{guess}", "prediction + suffix"),
    ):
        first, figures = errors_of(capsys, model, "-d", drafter).splitlines()
        assert first == f"drafting: {names}"
        assert figures.startswith("[3 tokens")
    for nobody in (["-d", "off"], ["-k", "0"]):
        assert "draft" not in errors_of(capsys, model, *nobody)


def test_auto_without_the_registrys_drafter_says_what_would_help(
    capsys, folder, model, tmp_path, monkeypatch
):
    name = next(name for name, entry in REGISTRY.items() if entry.drafter)
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{name}.gguf").symlink_to(model)
    pull = f"foredraft pull {REGISTRY[name].drafter}"
    assert f"drafting: suffix (faster with a draft model: {pull})" in errors_of(capsys, name)
    assert pull not in errors_of(capsys, name, "-d", "suffix")
    (tmp_path / "models" / f"{REGISTRY[name].drafter}.gguf").symlink_to(folder / "other.gguf")
    errors = errors_of(capsys, name)
    assert f"drafting: suffix + model:{REGISTRY[name].drafter}\n" in errors
    assert pull not in errors


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["-d", "nonsense"], 2, "no drafter 'nonsense'. There are: off, auto"),
        (["-d", ""], 2, "no drafter ''"),
        (["-d", "off+ngram"], 2, "off stands alone"),
        (["-d", "ngram+ngram"], 2, "no drafter twice"),
        (["-d", "prediction"], 2, "prediction:FILE"),
        (["-d", "prediction:/nonexistent"], 2, "/nonexistent cannot be read: No such file"),
        (["-d", "model:"], 2, "names no model"),
        (["-d", "model:nonsense"], 1, "known models: qwen2.5-coder-1.5b"),
        (["-d", "model:missing.gguf"], 1, "no file at 'missing.gguf'"),
        (["-k", "-1"], 2, "k is -1"),
        (["-k", "99"], 2, "k is 99"),
        (["-k", "x"], 2, "-k 'x'"),
        (["--compare", "-d", "off"], 2, "turns drafting off"),
        (["--compare", "-k", "0"], 2, "turns drafting off"),
    ],
)
def test_mistakes_are_told(capsys, model, options, code, complaint):
    assert main(["run", "-m", model, *options, "x"]) == code
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.startswith("foredraft: error: ")
    assert captured.out == ""


def test_prediction_that_is_not_utf8_is_told(capsys, model, tmp_path):
    (tmp_path / "guess").write_bytes(b"caf\xe9")
    assert main(["run", "-m", model, "-d", f"prediction:{tmp_path}/guess", "x"]) == 2
    assert "not UTF-8 at offset 3" in capsys.readouterr().err


def test_drafter_of_another_vocabulary_is_refused_with_what_differs(capsys, folder, model):
    assert main(["run", "-m", model, "-d", f"model:{folder}/gemma.gguf", "x"]) == 2
    errors = capsys.readouterr().err
    assert "cannot draft for" in errors
    assert "token 0 is '!' and '<unk>'" in errors


def test_drafter_that_has_not_been_pulled_says_how_to(capsys, model, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    assert main(["run", "-m", model, "-d", "model:smollm2-135m", "x"]) == 1
    assert "fetch it with: foredraft pull smollm2-135m" in capsys.readouterr().err


def test_real_model_drafts_for_itself(capsys):
    model = str(real_model("smollm2-135m"))
    asked = ["run", "-m", model, "--raw", "-n", "21", "--ignore-eos", "--compare", "--json"]
    drafted = ["-d", f"model:{model}", "--draft-quant", "file", "-k", "4"]
    assert main([*asked, *drafted, "Once upon a time"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["identical"]
    assert answer["on"]["acceptance"] > 0.9
    assert answer["on"]["tokens_per_round"] > 3
