import itertools
import random

import numpy as np
import pytest

from foredraft.core.rules import Ratio
from foredraft.core.theory import (
    VerifyCost,
    acceptance,
    best_k,
    break_even,
    operations,
    rate_of,
    speed,
    survival,
    survival_of,
    tokens_per_round,
)
from foredraft.measure.prove_toy import Toy, mean_length, round_law

# Tokens per round by α (rows) and k (columns), as commonly printed.
DEPTHS = (1, 2, 3, 4, 5, 7, 15)
TABLE = {
    0.5: (1.50, 1.75, 1.875, 1.94, 1.97, 1.99, 2.00),
    0.6: (1.60, 1.96, 2.18, 2.31, 2.38, 2.46, 2.50),
    0.7: (1.70, 2.19, 2.53, 2.77, 2.94, 3.14, 3.32),
    0.8: (1.80, 2.44, 2.95, 3.36, 3.69, 4.16, 4.86),
    0.9: (1.90, 2.71, 3.44, 4.10, 4.69, 5.70, 8.15),
}


@pytest.mark.parametrize("alpha", TABLE)
def test_tokens_per_round_are_those_of_the_table(alpha):
    for k, expected in zip(DEPTHS, TABLE[alpha], strict=True):
        assert tokens_per_round(survival(alpha, k)) == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("k", [0, 1, 4, 16])
def test_the_sum_is_the_closed_form(alpha, k):
    assert tokens_per_round(survival(alpha, k)) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


def test_all_accepted_is_one_more_than_drafted():
    assert tokens_per_round(survival(1.0, 5)) == 6


@pytest.mark.parametrize("k", [1, 2, 4])
def test_tokens_per_round_count_every_course_of_a_round(k):
    alpha = 0.6
    expected = 0.0
    for passed in itertools.product((True, False), repeat=k):
        chance = np.prod([alpha if passes else 1 - alpha for passes in passed])
        expected += chance * (1 + next((i for i, passes in enumerate(passed) if not passes), k))
    assert tokens_per_round(survival(alpha, k)) == pytest.approx(expected)


def test_acceptance_is_the_chance_that_ratio_keeps_a_token():
    for seed in range(5):
        toy = Toy.random(seed, 4)
        law = round_law(Ratio(), toy, (), 1)
        assert acceptance(toy.target(()), toy.drafter(())) == pytest.approx(mean_length(law) - 1)


def simulated(alpha, k, cost, verify, rounds=20_000):
    rng = random.Random(1)
    tokens = 0
    for _ in range(rounds):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        tokens += accepted + 1
    return tokens / (rounds * (k * cost + verify(1 + k)))


@pytest.mark.parametrize(("alpha", "k", "cost"), [(0.8, 4, 0.1), (0.5, 2, 0.3), (0.3, 6, 0.05)])
def test_speed_is_what_a_simulation_gives(alpha, k, cost):
    verify = VerifyCost(((1, 1.0), (4, 1.2), (8, 2.0)))
    expected = simulated(alpha, k, cost, verify)
    assert speed(survival(alpha, k), cost, verify) == pytest.approx(expected, rel=0.02)


def test_best_k_is_where_one_token_more_stops_paying():
    """In the paper's own case: while α^(k+1) (k c + 1) > c (1 - α^(k+1)) / (1 - α)."""
    for alpha in (0.3, 0.5, 0.8, 0.95):
        for cost in (0.02, 0.1, 0.4):
            k = 0
            while alpha ** (k + 1) * (k * cost + 1) > cost * (1 - alpha ** (k + 1)) / (1 - alpha):
                k += 1
            assert best_k(survival(alpha, 100), cost) == k


def test_best_k_is_0_where_drafting_loses():
    assert best_k(survival(0.3, 8), 0.35) == 0
    assert best_k(survival(0.9, 8), 0.0, VerifyCost(((1, 1.0), (2, 3.0)))) == 0
    assert best_k([], 0.1) == 0


def test_one_drafted_token_pays_as_promised():
    """Corollary 3.9: where α > c, some k gains at least (1 + α) / (1 + c)."""
    for alpha, cost in ((0.5, 0.4), (0.9, 0.1), (0.11, 0.1)):
        chain = survival(alpha, 20)
        assert speed(chain[: best_k(chain, cost)], cost) >= (1 + alpha) / (1 + cost) - 1e-12


@pytest.mark.parametrize("cost", [0.01, 0.35, 0.9])
def test_break_even_is_the_draft_cost_where_rows_are_free(cost):
    assert break_even(cost, 10) == pytest.approx(cost, abs=1e-12)


def test_break_even_divides_gain_from_loss():
    verify = VerifyCost(((1, 1.0), (6, 1.5), (8, 4.0)))
    rate = break_even(0.2, 12, verify)
    assert rate is not None
    assert best_k(survival(rate - 1e-6, 12), 0.2, verify) == 0
    assert best_k(survival(rate + 1e-6, 12), 0.2, verify) > 0


def test_what_never_pays_has_no_break_even():
    assert break_even(1.0, 8) is None
    assert break_even(0.0, 8, VerifyCost(((1, 1.0), (2, 2.0)))) is None


def test_operations_are_the_papers():
    alpha, k, cost = 0.7, 3, 0.05
    assert operations(survival(alpha, k), cost) == pytest.approx(
        (1 - alpha) * (k * cost + k + 1) / (1 - alpha ** (k + 1))
    )


def test_costs_between_points_lie_on_lines():
    verify = VerifyCost(((1, 1.0), (5, 1.4), (9, 3.4)))
    assert [verify(rows) for rows in (1, 3, 5, 7, 9, 11)] == pytest.approx([1.0, 1.2, 1.4, 2.4, 3.4, 4.4])
    assert VerifyCost(((1, 1.0),))(40) == 1.0


@pytest.mark.parametrize("points", [(), ((2, 1.0), (1, 1.0)), ((1, 1.0), (1, 2.0))])
def test_points_must_rise(points):
    with pytest.raises(ValueError, match="rows must rise"):
        VerifyCost(points)


def test_measured_rates():
    assert rate_of([3, 3, 0, 2], [3, 1, 0, 0]) == pytest.approx(4 / 6)  # tested: 3, 2, none, 1
    assert rate_of([0, 0], [0, 0]) == 0.0
    assert survival_of([3, 1, 0, 2], 3) == [0.75, 0.5, 0.25]


def test_measured_rate_finds_the_true_one():
    rng = random.Random(3)
    accepted = []
    for _ in range(20_000):
        hits = 0
        while hits < 4 and rng.random() < 0.7:
            hits += 1
        accepted.append(hits)
    assert rate_of([4] * len(accepted), accepted) == pytest.approx(0.7, abs=0.01)
    assert survival_of(accepted, 4) == pytest.approx(survival(0.7, 4), abs=0.02)
