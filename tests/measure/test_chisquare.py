import math

import numpy as np
import pytest

from foredraft.measure.chisquare import chi_square, joined, quantile, upper_gamma, upper_tail

# As printed in tables of the distribution (Abramowitz and Stegun, table 26.8).
TABLE = [
    (0.05, 1, 3.84146),
    (0.01, 1, 6.63490),
    (0.001, 1, 10.828),
    (0.05, 2, 5.99147),
    (0.001, 5, 20.515),
    (0.95, 10, 3.94030),
    (0.05, 10, 18.3070),
    (0.005, 30, 53.6720),
    (0.99, 100, 70.0648),
    (0.001, 100, 149.449),
]


@pytest.mark.parametrize(("tail", "freedom", "value"), TABLE)
def test_quantiles_are_those_of_the_tables(tail, freedom, value):
    assert quantile(tail, freedom) == pytest.approx(value, rel=5e-5 if value > 10 else 5e-6)
    assert upper_tail(quantile(tail, freedom), freedom) == pytest.approx(tail, rel=1e-9)


@pytest.mark.parametrize("x", [0.01, 0.5, 1.9, 2.1, 5.0, 30.0, 200.0, 700.0])
def test_two_degrees_of_freedom_are_an_exponential(x):
    assert upper_tail(x, 2) == pytest.approx(math.exp(-x / 2), rel=1e-12)


@pytest.mark.parametrize("x", [0.01, 0.5, 1.9, 2.1, 5.0, 30.0, 200.0])
def test_one_degree_of_freedom_is_a_squared_normal(x):
    assert upper_tail(x, 1) == pytest.approx(math.erfc(math.sqrt(x / 2)), rel=1e-12)


@pytest.mark.parametrize("a", [1, 2, 5, 40, 300])
@pytest.mark.parametrize("share", [0.1, 0.9, 1.0, 1.1, 3.0])
def test_whole_a_is_a_poisson_sum(a, share):
    x = a * share
    terms = [math.exp(n * math.log(x) - x - math.lgamma(n + 1)) for n in range(a)]
    assert upper_gamma(a, x) == pytest.approx(math.fsum(terms), rel=1e-10, abs=1e-300)


def test_nothing_is_below_zero():
    assert upper_gamma(3.0, 0.0) == 1.0


def test_statistic_of_a_die():
    test = chi_square([22, 24, 38, 30, 46, 44], [34] * 6)
    assert test.statistic == pytest.approx((144 + 100 + 16 + 16 + 144 + 100) / 34)
    assert test.cells == 6
    assert test.p_value == pytest.approx(upper_tail(test.statistic, 5))


def test_cells_that_expect_little_are_joined():
    assert joined([1, 2, 3, 50], [4, 4, 4, 88]) == [(6, 12), (50, 88)]
    assert joined([1, 2, 97], [3, 4, 93]) == [(100, 100)]
    assert joined([50, 2], [98, 2]) == [(52, 100)]
    assert chi_square([3], [3]).p_value == 1.0


def test_the_impossible_counts_as_certain():
    assert chi_square([1, 99], [0, 100]).p_value == 0.0
    assert chi_square([0, 100], [0, 100]).p_value == 1.0


def test_false_alarms_are_as_rare_as_stated():
    """300 tests at 5 %: the chance of 30 alarms or more is below 3 in 10,000, and the seed is fixed."""
    rng = np.random.default_rng(0)
    law = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    alarms = sum(
        chi_square(rng.multinomial(500, law).tolist(), (500 * law).tolist()).p_value < 0.05
        for _ in range(300)
    )
    assert 3 < alarms < 30
