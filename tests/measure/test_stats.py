import pytest

from foredraft.measure.stats import Summary, number, ratios, summarise


def test_half_of_the_samples_lie_between_the_quartiles():
    assert summarise([5.0, 1.0, 4.0, 2.0, 3.0]) == Summary(median=3.0, low=2.0, high=4.0, n=5)


def test_one_sample_is_its_own_median():
    assert summarise([7.0]) == Summary(7.0, 7.0, 7.0, 1)


def test_one_spoilt_sample_moves_nothing():
    assert summarise([1.0] * 6 + [1000.0]) == Summary(1.0, 1.0, 1.0, 7)


def test_ratios_pair_what_was_measured_in_the_same_round():
    assert ratios([2.0, 8.0], [1.0, 4.0]) == [2.0, 2.0]


def test_ratios_refuse_a_round_that_lacks_a_sample():
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "0.0123"), (1.0, "1.00"), (12.34, "12.3"), (99.95, "100"), (1234.5, "1234"), (0.0, "0.00")],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text
