"""What is drafted is what raises the rate: against every choice there is, on small drafts."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.nouns import Draft
from foredraft.core.tree import survivals
from foredraft.engine.acceptance import PRIOR, Acceptance
from foredraft.engine.controller import LEAST, LOOK_AHEAD, Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.pace import FIRST_ROUNDS, KEEP
from foredraft.measure.prices import Prices

PRICES = Prices({1: 0.050, 2: 0.051, 4: 0.052, 6: 0.054, 8: 0.066, 16: 0.110})


def controller(prices=PRICES):
    cost = PassCost()
    for _ in range(200):
        for rows in (1, 2, 4, 6, 8, 16) if prices else ():
            cost.note(rows, prices.seconds(rows))
    return Controller(cost, Acceptance())


def chain(chances):
    return Draft.chain(range(len(chances)), chances, "a")


def test_without_a_price_nothing_is_drafted():
    knows_nothing = controller(None)
    assert knows_nothing.choose(chain([1.0] * 4), 1, 9, 9) == Draft.empty
    assert knows_nothing.floor(1) == 1.0
    knows_nothing.note_round(1, 1, 0.0)  # and counts for nothing
    assert knows_nothing.seconds(1) == 0.0


def test_the_rate_to_beat_is_that_without_drafting_at_first():
    fresh = controller()
    assert fresh.rate == pytest.approx(1 / fresh.seconds(1))
    for _ in range(50):
        fresh.note_round(1, 6, 0.01)  # drafts that bring nothing: slower than without
    assert fresh.rate == pytest.approx(1 / fresh.seconds(1))


def test_the_rate_follows_what_is_reached():
    fresh = controller()
    fresh.note_round(4, 6, 0.01)
    tokens = KEEP * FIRST_ROUNDS + 4
    seconds = KEEP * FIRST_ROUNDS * fresh.seconds(1) + fresh.seconds(6) + 0.01
    assert fresh.rate == pytest.approx(tokens / seconds)
    for _ in range(200):
        fresh.note_round(4, 6, 0.01)
    assert fresh.rate == pytest.approx(4 / (fresh.seconds(6) + 0.01), rel=0.01)


def test_a_disturbed_pass_says_nothing_of_drafting():
    fresh = controller()
    fresh.note_round(4, 6, 0.0)
    before = fresh.rate
    fresh.note_pass(16, 0.5)
    assert fresh.rate == pytest.approx(before, rel=0.02)


def test_rows_cost_the_tokens_that_their_time_brings_otherwise():
    one = controller()
    for pending, rows in ((1, 1), (1, 7), (3, 5)):
        expected = one.rate * (one.seconds(pending + rows) - one.seconds(pending))
        assert one.price(pending, rows) == pytest.approx(expected)
        assert one.prices(pending)(rows) == pytest.approx(expected)
    assert one.price(1, 15) == pytest.approx((0.110 - 0.050) / 0.050, rel=0.05)


def test_no_row_is_cheaper_than_the_floor():
    one = controller()
    for pending in (1, 2, 4):
        prices = [one.price(pending, rows) / rows for rows in (1, 2, 4, LOOK_AHEAD)]
        assert one.floor(pending) == pytest.approx(max(LEAST, min(prices)))
        assert one.choose(chain([0.9 * min(prices)]), pending, 9, 9) == Draft.empty


def test_a_draft_is_worth_its_tokens_less_its_rows():
    one = controller()
    draft = chain([0.9, 0.5])
    assert one.worth(draft, 1) == pytest.approx(0.9 + 0.45 - one.price(1, 2))
    assert one.worth(Draft.empty, 1) == 0.0


@st.composite
def drafts(draw):
    size = draw(st.integers(0, 8))
    parents = tuple(draw(st.integers(-1, index - 1)) for index in range(size))
    chances = tuple(draw(st.floats(0.0, 1.0)) for _ in range(size))
    return Draft(tuple(range(size)), parents, chances, ("a",) * size)


RATED = {tokens: controller() for tokens in (1, 3, 6)}
for tokens, rated in RATED.items():
    for _ in range(100):
        rated.note_round(tokens, 6, 0.005)


@settings(max_examples=120, deadline=None)
@given(drafts(), st.integers(1, 3), st.sampled_from(list(RATED.values())), st.integers(1, 9))
def test_no_other_choice_is_worth_more(draft, pending, one, most):
    likely = survivals(draft)
    values = []
    for size in range(min(most, len(draft)) + 1):
        for nodes in combinations(range(len(draft)), size):
            if all(draft.parents[node] in (-1, *nodes) for node in nodes):
                seconds = one.seconds(pending + size) - one.seconds(pending)
                values.append(sum(likely[node] for node in nodes) - one.rate * seconds)
    chosen = one.choose(draft, pending, most, 9)
    assert one.worth(chosen, pending) == pytest.approx(max(values), abs=1e-12)


def test_less_is_drafted_the_better_it_goes():
    """What a round brings otherwise is what a row has to beat."""
    draft = chain([0.9] * 12)
    sizes = [len(RATED[tokens].choose(draft, 1, 48, 48)) for tokens in (1, 3, 6)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def learned(proposed, tokens):
    """How often each chance was noted, and how often it was right."""
    one = controller()
    one.learn(proposed, tokens)
    found = {}
    for index, chance in enumerate(proposed.chances):
        believed = one.belief("a", chance)
        seen = {right: believed_after(chance, right) for right in (0, 1)}
        found[index] = next((right for right in seen if believed == pytest.approx(seen[right])), None)
    return found


def believed_after(chance, right):
    """One trial: the request's count beside the process's, which has counted the same."""
    process = (right + PRIOR * chance) / (1 + PRIOR)
    return (right + PRIOR * process) / (1 + PRIOR)


def test_every_token_on_the_way_has_shown_what_its_chance_is_worth():
    draft = Draft((5, 6, 7, 8, 9), (-1, -1, 1, 1, 2), (0.15, 0.25, 0.35, 0.45, 0.55), ("a",) * 5)
    assert learned(draft, [6, 8]) == {0: 0, 1: 1, 2: 0, 3: 1, 4: None}
    assert learned(draft, [6, 7, 9]) == {0: 0, 1: 1, 2: 1, 3: 0, 4: 1}
    assert learned(draft, [6, 7]) == {0: 0, 1: 1, 2: 1, 3: 0, 4: None}
    assert learned(draft, [1, 6]) == {0: 0, 1: 0, 2: None, 3: None, 4: None}
    assert learned(draft, []) == dict.fromkeys(range(5))
