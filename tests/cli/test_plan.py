import json

import pytest
from tiny import write_tiny

from foredraft.cli import main
from foredraft.core.trace import RoundEvent
from foredraft.measure.plan import Rounds, assess


def described(capsys, *options):
    assert main(["plan", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_tables_of_the_paper(capsys):
    """α = .8 and c = .05: (1 - .8^(k+1)) / .2 / (1 + .05 k)."""
    answer = described(capsys, "--alpha", "0.8", "--draft-cost", "0.05", "--max-k", "7")
    for line in answer["by_k"]:
        tokens = (1 - 0.8 ** (line["k"] + 1)) / 0.2
        assert line["tokens_per_round"] == pytest.approx(tokens)
        assert line["speed"] == pytest.approx(tokens / (1 + 0.05 * line["k"]))
        assert line["measured_speed"] is None
    best = max(answer["by_k"], key=lambda line: line["speed"])
    assert answer["best_k"] == best["k"]
    assert answer["break_even_alpha"] == pytest.approx(0.05)
    assert answer["verify_cost"] is None


def test_passes_may_cost_more_with_more_rows(capsys):
    options = ("--alpha", "0.9", "--draft-cost", "0", "--verify-cost", "3=2,5=6", "--max-k", "4")
    answer = described(capsys, *options)
    assert [line["speed"] for line in answer["by_k"]] == pytest.approx(
        [1.9 / 1.5, 2.71 / 2, 3.439 / 4, 4.0951 / 6]
    )
    assert answer["best_k"] == 2
    assert answer["verify_cost"] == {"1": 1.0, "3": 2.0, "5": 6.0}


def test_a_table_says_the_best_and_when_it_pays(capsys):
    assert main(["plan", "--alpha", "0.8", "--draft-cost", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "drafting pays from an acceptance of 0.1"
    assert lines[-2].startswith("best: drafts of ")
    assert len(lines) == 2 + 12 + 2


def test_what_never_pays_is_said(capsys):
    assert main(["plan", "--alpha", "0.9", "--draft-cost", "1.5"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "best: not to draft",
        "no acceptance makes drafting pay at these prices",
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "either -m MODEL"),
        (["--alpha", "0.5"], "either -m MODEL"),
        (["--alpha", "1.5", "--draft-cost", "0.1"], "--alpha is 1.5"),
        (["--alpha", "nan", "--draft-cost", "0.1"], "--alpha is nan"),
        (["--alpha", "0.5", "--draft-cost", "-1"], "--draft-cost is -1"),
        (["--alpha", "0.5", "--draft-cost", "0", "--max-k", "0"], "--max-k is 0"),
        (["--alpha", "0.5", "--draft-cost", "0", "--verify-cost", "4"], "--verify-cost '4'"),
        (["--alpha", "0.5", "--draft-cost", "0", "--verify-cost", "0=1"], "--verify-cost '0=1'"),
        (["--alpha", "0.5", "--draft-cost", "0", "--verify-cost", "1=2"], "the unit"),
        (["--alpha", "0.5", "--draft-cost", "0", "-n", "4"], "--max-tokens needs a model"),
        (["--alpha", "0.5", "--draft-cost", "0", "Hello"], "prompt needs a model"),
        (["-m", "x.gguf", "--alpha", "0.5"], "--alpha is for arithmetic"),
    ],
)
def test_wrong_use_is_told(capsys, options, complaint):
    assert main(["plan", *options]) == 2
    assert complaint in capsys.readouterr().err


def event(drafted, accepted, draft_s, verify_s):
    return RoundEvent(
        round=1,
        position=0,
        drafted=(7,) * drafted,
        parents=tuple(range(-1, drafted - 1)),
        drafters=("x",) * drafted,
        chances=(0.5,) * drafted,
        picks=(),
        accepted=accepted,
        tokens=(),
        draft_s=draft_s,
        verify_s=verify_s,
        predicted_s=0.0,
        predicted_tokens=0.0,
        reason="",
    )


def test_a_plan_of_measured_rounds():
    plain = Rounds((event(0, 0, 0.0, 0.1),) * 4, 10.0)
    rounds = [
        event(2, 2, 0.02, 0.12),
        event(2, 0, 0.02, 0.12),
        event(2, 1, 0.02, 0.12),
        event(0, 0, 0.0, 0.1),
    ]
    plan = assess({0: [plain], 2: [Rounds(tuple(rounds), 15.0)]}, "x")
    assert plan.alpha == pytest.approx(3 / 5)  # tested: 2, 1, 2
    assert plan.draft_cost == pytest.approx(0.1)
    assert plan.verify_cost.points == ((1, 1.0), (3, pytest.approx(1.2)))
    (line,) = plan.lines
    assert line.tokens_per_round == pytest.approx(7 / 4)
    assert line.speed == pytest.approx((1 + 0.6 + 0.36) / (0.2 + 1.2))
    assert line.by_survival == pytest.approx((7 / 4) / (0.15 + (3 * 1.2 + 1) / 4))
    assert line.measured == pytest.approx(1.5)


def test_measured_on_a_model(tmp_path, capsys):
    path = str(write_tiny(tmp_path / "tiny.gguf", "llama", seed=5))
    answer = described(capsys, "-m", path, "-d", "ngram", "-n", "100", "the fox the fox the fox")
    assert answer["model"] == path
    assert 0 <= answer["alpha"] <= 1
    assert [line["k"] for line in answer["by_k"]] == [1, 2, 3, 4, 6, 8]
    assert all(line["measured_speed"] > 0 and line["speed_by_survival"] > 0 for line in answer["by_k"])
