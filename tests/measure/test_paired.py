from math import exp, sqrt

import pytest

from foredraft.measure.paired import Paired, geometric_mean, paired, t_975


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # From a table of Student's distribution.
    [(1, 12.706), (4, 2.776), (10, 2.228), (11, 2.201), (20, 2.086), (30, 2.042), (120, 1.980)],
)
def test_quantiles_of_students_t(freedom, quantile):
    assert t_975(freedom) == pytest.approx(quantile, abs=0.0006)


def test_interval_of_two_pairs_by_hand():
    # Logarithms 0 and 2: mean 1, standard deviation sqrt(2), over sqrt(2) pairs: 1.
    result = paired([1.0, exp(2.0)])
    assert result.median == pytest.approx((1 + exp(2)) / 2)
    assert result.low == pytest.approx(exp(1 - 12.7062))
    assert result.high == pytest.approx(exp(1 + 12.7062))
    assert result.n == 2


def test_interval_of_five_pairs_by_hand():
    # Logarithms -2 to 2: mean 0, standard deviation sqrt(10 / 4).
    result = paired([exp(x) for x in (1.0, -2.0, 0.0, 2.0, -1.0)])
    reach = 2.7764 * sqrt(10 / 4) / sqrt(5)
    assert result.median == 1.0
    assert (result.low, result.high) == (pytest.approx(exp(-reach)), pytest.approx(exp(reach)))


def test_equal_pairs_leave_no_doubt():
    result = paired([1.5, 1.5, 1.5])
    assert (result.low, result.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_one_pair_has_no_interval():
    assert paired([0.5]) == Paired(0.5, None, None, 1)
    assert not paired([0.5]).wholly_below(0.99)


def test_an_interval_lies_below_a_limit_or_reaches_it():
    assert Paired(0.9, 0.8, 0.98, 5).wholly_below(0.99)
    assert not Paired(0.9, 0.8, 0.99, 5).wholly_below(0.99)


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([2.0, 4.0, 8.0]) == pytest.approx(4.0)
