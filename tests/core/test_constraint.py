"""Constraints against their definitions, and the law of drawn drafts under one, counted through."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from constraints_for_tests import Successors
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.constraint import Both, LeastLength, pruned
from foredraft.core.nouns import Draft
from foredraft.core.rules import Block, Ratio
from foredraft.measure.prove_toy import Toy, bursts, distance, drafts, own_law

VOCAB = 5
tokens = st.integers(0, VOCAB - 1)
texts = st.lists(tokens, max_size=6)
endings = st.sets(tokens, max_size=3)
follows = st.dictionaries(tokens, st.sets(tokens, min_size=1), max_size=VOCAB)
firsts = st.sets(tokens, min_size=1) | st.none()


def check_by_definition(constraint, may, path):
    """`may(path, token)` says what the constraint should."""
    allowed = next((n for n, token in enumerate(path) if not may(path[:n], token)), len(path))
    assert constraint.allowed(path) == allowed
    row = np.arange(VOCAB, dtype=np.float32)
    constraint.forbid(row, path[:allowed])
    forbidden = [token for token in range(VOCAB) if not may(path[:allowed], token)]
    assert np.flatnonzero(row == -np.inf).tolist() == forbidden
    assert all(row[token] == token for token in range(VOCAB) if token not in forbidden)


@settings(deadline=None)
@given(st.integers(0, 9), endings, st.lists(texts, max_size=4), texts)
def test_no_end_comes_before_the_least_length(least, ends, parts, path):
    constraint, written = LeastLength(least, ends), 0
    for part in [*parts, []]:

        def may(path, token, start=written):
            return token not in ends or start + len(path) >= least

        check_by_definition(constraint, may, path)
        constraint.advance(part)
        written += len(part)


@settings(deadline=None)
@given(st.integers(0, 5), endings, follows, firsts, texts, texts)
def test_both_allow_what_each_allows(least, ends, follow, first, text, path):
    one, other = LeastLength(least, ends), Successors(follow, first)
    text = text[: min(one.allowed(text), other.allowed(text))]
    both = Both(one, other)
    both.advance(text)
    assert other.text == tuple(text)

    def may(path, token):
        return (token not in ends or len(text) + len(path) >= least) and other.may(path, token)

    allowed = next((n for n, token in enumerate(path) if not may(path[:n], token)), len(path))
    check_by_definition(both, may, path[:allowed])
    assert both.allowed(path) == allowed


def test_what_follows_in_any_case_is_what_one_of_them_knows():
    one, other = Successors({1: {2}, 2: {3}, 3: {0, 1}}, None), LeastLength(2, [0])
    assert LeastLength(9, range(VOCAB)).forced() == ()
    for both in (Both(one, other), Both(other, one)):
        one.text = (1,)
        assert tuple(both.forced()) == (2, 3)
        both.advance([2, 3])
        assert tuple(both.forced()) == ()


@st.composite
def trees(draw, most=9):
    size = draw(st.integers(0, most))
    parents = tuple(draw(st.integers(-1, index - 1)) for index in range(size))
    return Draft(
        tuple(draw(tokens) for _ in range(size)),
        parents,
        tuple(index / 16 for index in range(size)),
        tuple(f"drafter {index}" for index in range(size)),
    )


@settings(deadline=None)
@given(trees(), follows, firsts)
def test_of_a_tree_the_paths_stay_that_are_allowed(draft, follow, first):
    constraint = Successors(follow, first)
    kept = pruned(draft, constraint)
    branches = [draft.branch(index) for index in range(len(draft))]
    places = [index for index, path in enumerate(branches) if constraint.allowed(path) == len(path)]
    assert [kept.branch(index) for index in range(len(kept))] == [branches[place] for place in places]
    assert kept.chances == tuple(draft.chances[place] for place in places)
    assert kept.drafters == tuple(draft.drafters[place] for place in places)


@settings(deadline=None)
@given(texts, follows, firsts)
def test_of_a_drawn_draft_the_first_token_that_is_not_allowed_stays(path, follow, first):
    constraint = Successors(follow, first)
    laws = tuple(np.full(VOCAB, index) for index in range(len(path)))
    drawn = replace(Draft.chain(path), laws=laws)
    kept = pruned(drawn, constraint)
    assert kept.tokens == tuple(path[: constraint.allowed(path) + 1])
    assert [law[0] for law in kept.laws] == list(range(len(kept)))


# The law under a constraint

FOLLOW, FIRST = {0: {1, 2}, 1: {0, 1, 2}, 2: {0, 2}}, {0, 1}


def after(text):
    constraint = Successors(FOLLOW, FIRST)
    constraint.text = text  # also one that is not allowed: it has no chance, but is counted through
    return constraint


def forbidding(toy):
    """The target as it is with the constraint."""

    def target(text):
        law = toy.target(text).copy()
        law[[token for token in range(len(law)) if not after(text).may((), token)]] = 0.0
        return law / law.sum()

    return Toy(target, toy.drafter)


def constrained_law(odds, toy, k, length, cut):
    """As `prove_toy.text_law`, with drafts as a round has them under the constraint. What the target says
    after a token that is not allowed may be anything.
    """
    said = forbidding(toy)
    found = defaultdict(float, {(): 1.0})
    for written in range(length):
        for text in [text for text in found if len(text) == written]:
            chance = found.pop(text)
            for draft, share in drafts(toy, text, k):
                part = cut(draft, after(text))
                paths = [part.tokens[:depth] for depth in range(len(part) + 1)]
                laws = [
                    said.target(text + path)
                    if after(text).allowed(path) == len(path)
                    else np.full(len(toy.target(())), 1 / 3)
                    for path in paths
                ]
                for burst, part_of_it in bursts(odds, part, laws):
                    found[(text + burst)[:length]] += chance * share * part_of_it
    return dict(found)


@pytest.mark.parametrize("odds", [Ratio(), Block()])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_drawn_drafts_under_a_constraint_keep_the_law(odds, k):
    for seed in range(4):
        toy = Toy.random(seed, 3)
        found = constrained_law(odds, toy, k, 3, pruned)
        assert distance(found, own_law(forbidding(toy), 3)) < 1e-12
        assert all(not chance or after(()).allowed(text) == 3 for text, chance in found.items())


def before_the_forbidden(draft, constraint):
    return draft.part(range(constraint.allowed(draft.tokens)))


@pytest.mark.parametrize("odds", [Ratio(), Block()])
def test_a_drawn_draft_cut_before_the_forbidden_token_would_be_seen(odds):
    toys = [Toy.random(seed, 3) for seed in range(4)]
    laws = [constrained_law(odds, toy, 2, 2, before_the_forbidden) for toy in toys]
    found = [distance(law, own_law(forbidding(toy), 2)) for law, toy in zip(laws, toys, strict=True)]
    assert max(found) > 1e-3
