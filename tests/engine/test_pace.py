"""The rate, by plain arithmetic."""

import pytest

from foredraft.engine.cost import PassCost
from foredraft.engine.pace import FIRST_ROUNDS, KEEP, Pace
from foredraft.measure.prices import Prices

PRICES = Prices({1: 0.050, 2: 0.051, 4: 0.052, 8: 0.066, 16: 0.110, 32: 0.220})


@pytest.fixture(scope="module")
def cost():
    known = PassCost()
    for _ in range(200):
        for rows in (1, 2, 3, 4, 6, 8, 16, 32):
            known.note(rows, PRICES.seconds(rows))
    return known


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_it_starts_from_rounds_without_drafts(cost, size):
    pace = Pace(cost)
    pace.size = size
    assert pace.rate == pace.plain == size / cost.seconds(size)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_rate_is_the_quotient_of_what_was_given_and_what_it_took(cost, size):
    """Both per request and against plain rounds, the older the less."""
    pace = Pace(cost)
    pace.size = size
    gave = took = FIRST_ROUNDS
    for tokens, rows, draft_s in [(size, size, 0.0), (3 * size, 16, 0.004), (2 * size + 1, 8, 0.0)]:
        pace.note(tokens, rows, draft_s)
        gave = KEEP * gave + tokens / size
        took = KEEP * took + (cost.seconds(rows) + draft_s) / cost.seconds(size)
        assert pace.rate == pytest.approx(size / cost.seconds(size) * max(1.0, gave / took))


def test_it_follows_to_what_is_reached(cost):
    pace = Pace(cost)
    pace.size = 4
    for _ in range(200):
        pace.note(12, 16, 0.01)
    assert pace.rate == pytest.approx(12 / (cost.seconds(16) + 0.01), rel=1e-3)


def test_it_is_never_less_than_without_drafts(cost):
    pace = Pace(cost)
    for _ in range(50):
        pace.note(1, 32, 0.1)
    assert pace.rate == pace.plain


def test_what_is_reached_alone_says_nothing_of_company(cost):
    """Each order of magnitude has its own account; within one, what was gained is relative to plain."""
    pace = Pace(cost)
    for _ in range(50):
        pace.note(5, 6, 0.0)
    alone = pace.rate
    assert alone > 3 * pace.plain
    for size in (2, 4, 8, 32):
        pace.size = size
        assert pace.rate == pace.plain
    pace.size = 4
    for _ in range(50):
        pace.note(10, 8, 0.0)
    gain = pace.rate / pace.plain
    assert gain > 1.5
    pace.size = 7
    assert pace.rate / pace.plain == pytest.approx(gain)
    pace.size = 1
    assert pace.rate == alone


def test_another_text_starts_anew(cost):
    pace = Pace(cost)
    pace.note(9, 8, 0.0)
    assert pace.rate > pace.plain
    pace.restart()
    assert pace.rate == pace.plain


def test_nothing_is_learned_while_no_price_is_known(cost):
    pace = Pace(PassCost())
    pace.note(9, 8, 0.0)
    pace.cost = cost
    assert pace.rate == pace.plain
