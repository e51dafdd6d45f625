"""What is asked of drafters, and what a draft model's guess is believed to be worth."""

import math

import pytest

from foredraft.core.drafter import AHEAD, BEHIND, Ask, Drafter, Guess, LaggingDrafter, at_face_value, free
from foredraft.drafters.ngram import NGram
from foredraft.drafters.prediction import Prediction
from foredraft.drafters.suffix import Suffix


def test_a_guess_is_likelier_the_further_it_is_ahead():
    chances = [Guess((1,), lead).chances()[0] for lead in (0.0, 0.5, 2.0, 5.0, 50.0)]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(1 / (1 + math.exp(BEHIND)))
    assert Guess((1,), BEHIND / AHEAD).chances()[0] == pytest.approx(0.5)


@pytest.mark.parametrize("lead", [0.0, 1.5, 1e9, math.inf])
def test_the_chances_of_a_guess_are_chances(lead):
    for tokens in ((1,), (1, 2), (1, 2, 3)):
        chances = Guess(tokens, lead).chances()
        assert len(chances) == len(tokens)
        assert all(0.0 <= chance <= 1.0 for chance in chances)
        assert sum(chances) <= 1.0
        if lead < 10.0:
            assert list(chances) == sorted(chances, reverse=True)


def test_what_is_not_said_of_an_ask_limits_nothing():
    ask = Ask([1, 2], most=3, depth=2)
    assert (ask.floor, ask.rate, ask.drawn) == (0.0, 0.0, False)
    assert ask.price is free
    assert free(7) == 0.0
    assert ask.belief is at_face_value
    assert at_face_value("anyone", 0.3) == 0.3


def test_only_a_drafter_that_computes_can_lag():
    for drafter in (NGram(), Suffix(), Prediction([1])):
        named: Drafter = drafter
        assert named.name in ("ngram", "suffix", "prediction")
        assert not isinstance(drafter, LaggingDrafter)
