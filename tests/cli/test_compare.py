import json
import re

import pytest
from tiny import write_tiny

from foredraft.cli import main
from foredraft.cli.compare import as_text
from foredraft.engine.completion import Completion, Figures
from foredraft.engine.drafting import Drafting

PROMPT = "the fox and the dog and the fox and the dog and the"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("compare") / "tiny.gguf", "qwen2", seed=5))


def compare(model, *options):
    return main(["run", "-m", model, "-n", "30", "--ignore-eos", "--compare", *options, PROMPT])


def test_both_texts_come_and_then_the_figures(model, capsys):
    assert compare(model, "-d", "ngram+suffix", "-k", "4") == 0
    captured = capsys.readouterr()
    assert captured.err == "drafting: ngram + suffix\n"
    _, off, _, on, _, figures = parts(captured.out)
    assert off == on != ""
    assert figures.splitlines()[-1] == "identical: yes"
    assert re.search(r"^speed: \d+\.\d\d × the tokens per second, \d+\.\d\d × in all$", figures, re.M)
    assert re.search(r"^tokens +30 +30$", figures, re.M)
    assert re.search(r"^drafts accepted +– +\d+%$", figures, re.M)
    assert re.search(r"^suffix drafted \d+ tokens? in \d+\.\d{3} s, \d+ accepted$", figures, re.M)


def test_json_has_both_answers_and_the_verdict(model, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    asked = ["-d", "suffix", "-k", "4", "--temp", "0.8", "--json", "--trace", str(trace)]
    assert compare(model, *asked) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert set(answer) == {"off", "on", "identical", "tok_s_ratio", "total_s_ratio"}
    off, on = answer["off"], answer["on"]
    assert answer["identical"] is True
    assert off["ids"] == on["ids"]
    assert off["seed"] == on["seed"]
    assert (off["drafter"], on["drafter"]) == ("off", "suffix")
    assert (off["drafted"], off["rounds"]) == (0, 30)
    assert on["drafted"] > 0
    assert answer["tok_s_ratio"] == pytest.approx(on["tok_s"] / off["tok_s"])
    assert answer["total_s_ratio"] == pytest.approx(off["total_s"] / on["total_s"])
    assert len(trace.read_text().splitlines()) == on["rounds"]  # of the drafted answer alone


def test_one_token_has_no_ratio_of_rates(model, capsys):
    assert main(["run", "-m", model, "-n", "1", "--compare", "-d", "ngram", PROMPT]) == 0
    assert "speed" not in capsys.readouterr().out
    assert main(["run", "-m", model, "-n", "1", "--compare", "-d", "ngram", "--json", PROMPT]) == 0
    assert json.loads(capsys.readouterr().out)["tok_s_ratio"] is None


def test_classical_rules_may_give_another_text(model, tmp_path, capsys):
    """And that is no failure."""
    other = write_tiny(tmp_path / "other.gguf", "qwen2", seed=6)
    drafted = ["-d", f"model:{other}", "-k", "4", "--rule", "ratio", "--temp", "1", "--seed", "1"]
    assert compare(model, *drafted) == 0
    out = capsys.readouterr().out
    assert re.search(r"^identical: no, from token \d+ on \(the rule ratio keeps the law", out, re.M)


def test_difference_that_must_not_be_is_shown():
    def answer(ids):
        figures = Figures(len(ids), len(ids), 0, 0, 0, 0.1, 1.0, 1.1, 0.0, 1.0)
        return Completion("", ids, 3, "length", figures)

    text = as_text(answer((1, 2, 3, 4)), answer((1, 2, 5, 4)), Drafting())
    assert text.endswith("identical: no, from token 3 on")
    text = as_text(answer((1, 2, 3)), answer((1, 2)), Drafting())
    assert text.endswith("identical: no, from token 3 on")


def parts(out):
    """Headings and what stands below each."""
    return re.split(r"(^── .+ ─+\n)", out, flags=re.M)[1:]
