import pytest
from tiny import write_tiny

from foredraft.engine.drafting import Drafting
from foredraft.measure.prices import Prices
from foredraft.measure.regret import AUTO, FIXED, Regret, Replayer, name_of
from foredraft.measure.replay import Recording
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer

PRICES = Prices({1: 1.0, 2: 1.05, 4: 1.2, 8: 2.0, 16: 4.0})
REPEATING = Recording((1, 2, 3, 4) * 4, (1, 2, 3, 4) * 10 + (1,))
DISTINCT = Recording(tuple(range(40)), tuple(range(40, 80)))
FEW = (Drafting("off"), Drafting("ngram", k=4), Drafting("suffix", k=4))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_gguf(
        read_gguf(write_tiny(tmp_path_factory.mktemp("regret") / "tiny.gguf", "qwen2"))
    )


def test_without_drafting_every_token_takes_a_pass_of_one_row(tokenizer):
    figures = Replayer(PRICES, tokenizer).figures(REPEATING, Drafting("off"))
    assert figures.decode_s == pytest.approx(40.0)
    assert (figures.tokens, figures.rounds, figures.drafted) == (41, 41, 0)


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_a_fixed_choice_takes_what_its_passes_cost(tokenizer, drafter):
    """One token with the prompt, then five a round, as everything is accepted; five rows cost 1.4."""
    figures = Replayer(PRICES, tokenizer).figures(REPEATING, Drafting(drafter, k=4))
    assert (figures.rounds, figures.drafted, figures.accepted) == (9, 32, 32)
    assert figures.decode_s == pytest.approx(8 * 1.4)


def test_the_best_fixed_choice_is_found(tokenizer):
    replayer = Replayer(PRICES, tokenizer)
    assert replayer.regret("distinct", DISTINCT, FEW).best_s == pytest.approx(39.0)
    found = replayer.regret("repeating", REPEATING, FEW)
    assert found.best == "ngram -k 4"
    assert found.best_s == pytest.approx(8 * 1.4)


def test_the_same_replay_takes_the_same_time(tokenizer):
    first, second = (Replayer(PRICES, tokenizer).regret("a", REPEATING, FEW) for _ in range(2))
    assert first == second


def test_regret_is_the_share_of_time_that_auto_takes_more():
    assert Regret("a", auto_s=10.3, best_s=10.0, best="off").share == pytest.approx(0.03)
    assert Regret("a", auto_s=9.0, best_s=10.0, best="off").share == pytest.approx(-0.1)


def test_the_choices_are_off_and_sixteen_lengths_of_both_drafters():
    names = [name_of(choice) for choice in FIXED]
    assert len(names) == len(set(names)) == 33
    assert names[0] == "off"
    assert {"ngram -k 1", "ngram -k 16", "suffix -k 16"} <= set(names)
    assert AUTO.k is None
