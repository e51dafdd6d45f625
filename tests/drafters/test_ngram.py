"""Prompt lookup, by hand and against a search through the whole text."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.drafters.ngram import CHANCES, LENGTHS, MATCHES, NGram, chance


def propose(text, most=5, depth=9, floor=0.0):
    return NGram().propose(Ask(text, most, depth, floor=floor))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 2], (3, 4, 5, 6, 7)),
        ([1, 2, 30, 0, 1, 2, 40, 0, 1, 2], (40, 0, 1, 2, 40)),  # the latest of equally long ones
        ([1, 2, 30, 0, 9, 2, 40, 0, 1, 2], (30, 0, 9, 2, 40)),  # the longest before the latest
        ([5, 1, 2, 1, 2], (1, 2, 1, 2, 1)),  # the end of the text repeats itself
        ([7, 7], (7, 7, 7, 7, 7)),
        ([1, 2, 3], ()),
        ([1], ()),
    ],
)
def test_goes_on_as_the_longest_and_latest_match_did(text, tokens):
    assert propose(text).tokens == tokens


def test_chances_grow_with_the_match():
    draft = propose([*range(20), 99, *range(10)])
    assert draft.tokens == (10, 11, 12, 13, 14)
    assert draft.parents == (-1, 0, 1, 2, 3)
    assert draft.drafters == ("ngram",) * 5
    assert draft.chances == tuple(chance(match) for match in range(10, 15))
    assert sorted(CHANCES) == list(CHANCES)
    assert len(CHANCES) == len(MATCHES)
    assert [chance(match) for match in (1, 5, 1000)] == [CHANCES[0], CHANCES[3], CHANCES[-1]]


def test_stops_where_the_path_is_not_worth_it():
    text = [*range(10), 99, *range(2)]
    whole = propose(text, most=8)
    assert len(whole) == 8
    for length in range(9):
        floor = prod(whole.chances[:length])
        assert propose(text, most=8, floor=floor).tokens == whole.tokens[:length]
    assert propose(text, most=3).tokens == propose(text, depth=3).tokens == whole.tokens[:3]
    assert propose(text, most=0) == propose(text, depth=0) == Draft.empty


@settings(deadline=None, max_examples=80)
@given(
    pieces=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8),
    most=st.integers(0, 6),
)
def test_equals_a_search_through_the_text(pieces, most):
    drafter = NGram()
    text = []
    for piece in pieces:
        text += piece
        draft = drafter.propose(Ask(list(text), most, 6))
        starts = [
            start
            for length in LENGTHS
            for start in range(len(text) - 1, length - 1, -1)
            if text[start - length : start] == text[len(text) - length :]
        ]
        going_on = list(text)
        for index in range(most if starts else 0):
            going_on.append(going_on[starts[0] + index])
        assert list(draft.tokens) == going_on[len(text) :]


def test_begins_anew_with_another_text():
    drafter = NGram()
    drafter.propose(Ask([1, 2, 3, 1], 3, 3))
    assert drafter.propose(Ask([1, 5, 1], 1, 1)).tokens == (5,)
    assert drafter.propose(Ask([2], 1, 1)) == Draft.empty
    drafter.close()
    assert drafter.propose(Ask([4, 2, 4], 1, 1)).tokens == (2,)
