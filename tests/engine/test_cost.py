"""What a pass costs is learned from passes whose price is known here."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engine.cost import PassCost
from foredraft.measure.prices import Prices

SIZES = (1, 1, 1, 2, 3, 4, 6, 8, 12, 16)
# Rows of one tile take the same time, as on a machine that computes eight rows together.
STAIRCASE = Prices({1: 10.0, 4: 10.2, 8: 10.6, 9: 17.0, 16: 18.0, 17: 27.0, 24: 28.0})


def smooth(rows, read=0.05, row=0.012):
    return (read**4 + (rows * row) ** 4) ** 0.25


def learned(seconds, passes, cost=None, sizes=SIZES, noise=0.0):
    cost = cost or PassCost()
    dice = random.Random(3)
    for _ in range(passes):
        rows = dice.choice(sizes)
        cost.note(rows, seconds(rows) * math.exp(dice.gauss(0.0, noise)))
    return cost


def test_nothing_is_known_before_a_pass_of_few_rows():
    cost = PassCost()
    assert not cost.is_known
    assert cost.seconds(1) == 0.0
    cost.note(400, 2.0)  # the last chunk of a prompt says nothing of reading
    assert not cost.is_known
    cost.note(1, 0.05)
    assert cost.is_known


def test_the_first_pass_of_one_row_is_believed():
    cost = PassCost()
    cost.note(1, 0.04)
    assert cost.seconds(1) == pytest.approx(0.04, rel=0.02)
    assert cost.seconds(1) < cost.seconds(4) < cost.seconds(16)


def test_a_smooth_table_is_learned():
    cost = learned(smooth, 300)
    for rows in range(1, 17):
        assert cost.seconds(rows) == pytest.approx(smooth(rows), rel=0.03)
    assert cost.seconds(32) == pytest.approx(smooth(32), rel=0.1)  # never seen


def test_noise_is_averaged_out():
    cost = learned(smooth, 600, noise=0.05)
    for rows in SIZES:
        assert cost.seconds(rows) == pytest.approx(smooth(rows), rel=0.08)


def test_prices_of_sizes_not_tried_follow_a_machine_that_slows_down():
    """Half the bandwidth: what reading takes is learned from small passes, for all small sizes."""
    cost = learned(smooth, 300)
    learned(lambda rows: smooth(rows, read=0.1), 60, cost, sizes=(1, 2))
    for rows in range(1, 7):
        assert cost.seconds(rows) == pytest.approx(smooth(rows, read=0.1), rel=0.06)
    learned(smooth, 60, cost, sizes=(1, 2))
    for rows in range(1, 7):
        assert cost.seconds(rows) == pytest.approx(smooth(rows), rel=0.06)


def test_steps_are_learned_where_they_are_seen():
    cost = learned(STAIRCASE.seconds, 600, sizes=(1, 4, 8, 9, 12, 16))
    for rows in (1, 4, 8, 9, 12, 16):
        assert cost.seconds(rows) == pytest.approx(STAIRCASE.seconds(rows), rel=0.08)


def test_one_disturbed_pass_changes_little():
    cost = learned(smooth, 100)
    before = cost.seconds(1)
    cost.note(1, 50 * before)
    assert cost.seconds(1) < 1.2 * before
    learned(smooth, 40, cost)
    assert cost.seconds(1) == pytest.approx(before, rel=0.03)


def test_a_smaller_model_is_expected_to_cost_its_share():
    large = learned(smooth, 200)
    small = PassCost(large, 0.3)
    assert not small.is_known
    for rows in (1, 8):
        assert small.seconds(rows) == pytest.approx(0.3 * large.seconds(rows))
    learned(lambda rows: 0.4 * smooth(rows), 200, small)
    assert small.is_known
    for rows in (1, 8, 16):
        assert small.seconds(rows) == pytest.approx(0.4 * smooth(rows), rel=0.03)
    assert large.seconds(1) == pytest.approx(smooth(1), rel=0.03)


def test_a_model_like_one_that_is_not_known_learns_by_itself():
    small = PassCost(PassCost(), 0.3)
    assert small.seconds(1) == 0.0
    assert learned(smooth, 100, small).seconds(1) == pytest.approx(smooth(1), rel=0.03)


SOME_ROWS = (-1, 0, 1, 2, 7, 64, 65, 5000)
ODD = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300, 1e-7, 1.0, 1e5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SOME_ROWS), st.sampled_from(ODD)), max_size=20))
def test_odd_times_leave_a_price_that_can_be_used(passes):
    cost = PassCost()
    for rows, seconds in passes:
        cost.note(rows, seconds)
        for size in (1, 2, 64, 65, 1000):
            price = cost.seconds(size)
            assert 0.0 <= price < math.inf
            assert price > 0.0 or not cost.is_known
    for _ in range(200):
        cost.note(1, 0.05)
    assert cost.is_known
    assert cost.seconds(1) == pytest.approx(0.05, rel=0.05)
