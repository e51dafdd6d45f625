"""What drafting is worth: tokens per round, speed and the best length of a draft, from how often drafted
tokens are accepted and what they cost (Leviathan et al. 2023, theorems 3.8 and 3.11 and corollary 3.9).

Times are in units of one plain pass, the target's over one row. A round of k drafted tokens takes
k * draft_cost + verify(1 + k), and adds its accepted tokens and one more. The acceptance rate α is the chance
that a drafted token is accepted once those before it are. That it is the same everywhere is an assumption;
what was measured at each depth (`survival`) needs none.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foredraft.core.nouns import Doubles

Verify = Callable[[int], float]  # what a pass of so many rows costs; 1 for one row

STEPS = 60  # of bisection: enough for every bit of a number between 0 and 1


def flat(_rows: int) -> float:
    """A pass costs the same whatever its rows: memory is the limit, arithmetic is free."""
    return 1.0


@dataclass(frozen=True)
class VerifyCost:
    """What passes cost by their number of rows: straight lines between what is known, the last going on."""

    points: tuple[tuple[int, float], ...]  # rising rows, each with its cost

    def __post_init__(self) -> None:
        if not self.points or any(b[0] <= a[0] for a, b in pairwise(self.points)):
            raise ValueError(f"rows must rise: {self.points}")

    def __call__(self, rows: int) -> float:
        if len(self.points) == 1 or rows <= self.points[0][0]:
            return self.points[0][1]
        known = [(a, b) for a, b in pairwise(self.points) if rows <= b[0]]
        (left, low), (right, high) = known[0] if known else self.points[-2:]
        return low + (high - low) * (rows - left) / (right - left)


def acceptance(law: Doubles, proposed: Doubles) -> float:
    """α of `ratio` where the target has this law and a token is drafted from the other, both [V]: Σ min(p, q)
    (corollary 3.6). No rule accepts a single drafted token more often.
    """
    return float(np.minimum(law, proposed).sum())


def survival(alpha: float, k: int) -> list[float]:
    """The chances that the first 1 to k drafted tokens are all accepted, at one rate everywhere."""
    return [alpha**depth for depth in range(1, k + 1)]


def tokens_per_round(survived: Sequence[float]) -> float:
    """Expected tokens of a round, the bonus token included, from the chances that the first 1 to k drafted
    tokens are accepted. At one rate everywhere this is (1 - α^(k+1)) / (1 - α).
    """
    return 1.0 + math.fsum(survived)


def speed(survived: Sequence[float], draft_cost: float, verify: Verify = flat) -> float:
    """How many times as fast as plain decoding drafts of k = len(survived) tokens are (theorem 3.8, there
    with `flat`).
    """
    k = len(survived)
    return tokens_per_round(survived) / (k * draft_cost + verify(1 + k))


def operations(survived: Sequence[float], draft_operations: float) -> float:
    """How many times as much arithmetic a token takes as in plain decoding (theorem 3.11), where a drafted
    token takes `draft_operations` times what a row of the target takes.
    """
    k = len(survived)
    return (k * draft_operations + k + 1) / tokens_per_round(survived)


def best_k(survived: Sequence[float], draft_cost: float, verify: Verify = flat) -> int:
    """The fastest length of a draft, 0 to len(survived); of equal ones the shortest."""
    speeds = [1.0, *(speed(survived[:k], draft_cost, verify) for k in range(1, len(survived) + 1))]
    return int(np.argmax(speeds))


def break_even(draft_cost: float, max_k: int, verify: Verify = flat) -> float | None:
    """The α above which some draft of 1 to `max_k` tokens is faster than none; None if not even 1 is enough.

    With `flat` it is `draft_cost` (corollary 3.9): there a single drafted token pays first.
    """
    rates = [_enough(k, k * draft_cost + verify(1 + k)) for k in range(1, max_k + 1)]
    return min((rate for rate in rates if rate is not None), default=None)


def _enough(k: int, cost: float) -> float | None:
    """The α at which a round of k drafted tokens adds as many tokens as it costs plain passes."""
    if cost >= k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if tokens_per_round(survival(middle, k)) > cost else (middle, high)
    return high


def rate_of(drafted: Sequence[int], accepted: Sequence[int]) -> float:
    """α as measured: of the drafted tokens that were put to the test, the share that passed. After the first
    that fails none is tested. One entry a round; 0 where nothing was drafted.
    """
    tested = sum(min(hits + 1, size) for size, hits in zip(drafted, accepted, strict=True))
    return sum(accepted) / tested if tested else 0.0


def survival_of(accepted: Sequence[int], k: int) -> list[float]:
    """Survival as measured: the shares of rounds, all with k drafted tokens, that accepted 1 to k or more."""
    return [sum(hits >= depth for hits in accepted) / len(accepted) for depth in range(1, k + 1)]
