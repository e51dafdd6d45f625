"""Drafting from a prediction: following it, and finding the place again."""

from math import prod

import pytest

from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.drafters.prediction import CHANCES, MATCHES, SURE, Prediction, chance

IDS = [*range(10, 30)]
PROMPT = [1, 12, 13]  # no part of the output, though the prediction has such tokens


def after(output, ids=IDS, most=3, depth=9, floor=0.0):
    """The draft after an output that came token by token."""
    drafter = Prediction(ids)
    draft = drafter.propose(Ask(PROMPT, most, depth, floor=floor))
    for end in range(1, len(output) + 1):
        draft = drafter.propose(Ask(PROMPT + output[:end], most, depth, floor=floor))
    return draft


@pytest.mark.parametrize(
    ("output", "tokens"),
    [
        ([], (10, 11, 12)),
        ([10, 11], (12, 13, 14)),
        ([10, 11, 12, 13, 99], (15, 16, 17)),  # one token in place of another
        ([10, 11, 12, 13, 99, 98, 97, 14], (15, 16, 17)),  # tokens put in
        ([10, 11, 12, 13, 17], (18, 19, 20)),  # tokens left out
        ([10, 11, 12, 13, 99, 16, 17], (18, 19, 20)),
        ([*range(10, 25), 12, 13], (14, 15, 16)),  # back to an earlier place
        ([99, 98, 10], (11, 12, 13)),  # a beginning put before it
        ([*range(10, 28)], (28, 29)),
        ([*range(10, 30)], ()),
        ([*range(10, 30), 5, 6], ()),
    ],
)
def test_goes_on_where_the_output_is(output, tokens):
    assert after(output).tokens == tokens


def test_takes_the_nearest_place_ahead_and_then_one_behind():
    ids = [1, 5, 2, 3, 5, 6, 4, 5, 7]
    assert after([1, 5, 2, 3, 5], ids).tokens == (6, 4, 5)
    assert after([1, 5, 2, 3, 90, 5], ids).tokens[0] == 6  # not the first 5, nor the last
    assert after([1, 5, 2, 3, 5, 6, 4, 90, 2], ids).tokens[0] == 3
    assert after([1, 5, 2, 3, 90, 4, 5], ids).tokens == (7,)  # two tokens tell more than one


def test_a_wrong_place_is_left_again():
    # After 99 the 14 further on is taken for the place, until 15 shows that it was the nearer one.
    ids = [10, 11, 12, 13, 14, 15, 16, 17, 14, 20, 21]
    assert after([10, 11, 12, 13, 17, 14, 15], ids).tokens == (16, 17, 14)


def test_comes_to_the_same_in_bursts():
    output = [10, 11, 12, 99, 14, 15, 20, 21]
    drafter = Prediction(IDS)
    drafter.propose(Ask(PROMPT, 3, 3))
    drafter.propose(Ask(PROMPT + output[:5], 3, 3))
    assert drafter.propose(Ask(PROMPT + output, 3, 3)) == after(output)


def test_chances_tell_how_long_it_has_been_right():
    assert after([10, 11]).chances == tuple(chance(SURE + 2 + index) for index in range(3))
    assert after([10, 11, 99]).chances == tuple(chance(index) for index in range(3))
    assert after([10, 11, 99, 13, 14]).chances == tuple(chance(2 + index) for index in range(3))
    assert after([10, 11, 17]).chances[0] == chance(1)
    assert sorted(CHANCES) == list(CHANCES)
    assert len(CHANCES) == len(MATCHES)
    assert [chance(match) for match in (0, 7, 1000)] == [CHANCES[0], CHANCES[5], CHANCES[-1]]


def test_stops_where_the_path_is_not_worth_it():
    whole = after([10, 11, 17], most=6)
    assert whole.drafters == ("prediction",) * 6
    for length in range(7):
        assert after([10, 11, 17], most=6, floor=prod(whole.chances[:length])).tokens == whole.tokens[:length]
    assert after([10], most=4).tokens == after([10], most=9, depth=4).tokens == (11, 12, 13, 14)
    assert after([10], most=0) == after([10], depth=0) == after([], ids=[]) == Draft.empty


def test_begins_anew_with_another_text():
    drafter = Prediction(IDS)
    drafter.propose(Ask(PROMPT, 3, 3))
    drafter.propose(Ask([*PROMPT, 10, 11], 3, 3))
    assert drafter.propose(Ask([4, 4], 3, 3)).tokens == (10, 11, 12)
    assert drafter.propose(Ask([4, 4, 10], 3, 3)).tokens == (11, 12, 13)
    drafter.close()
