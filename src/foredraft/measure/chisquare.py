"""Pearson's test: do counts follow the law they should? Its tail is exact (incomplete gamma function).

The statistic Σ (seen - expected)² / expected over n cells is nearly chi-square with n - 1 degrees of freedom,
provided that no cell expects too few. Cells that do are joined.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 10.0  # expected in a cell, so that the tail holds also where it is thin
ROUNDING = 1e-15
TERMS = 100_000


@dataclass(frozen=True)
class ChiSquare:
    """`p_value`: how often counts that do follow the law give a statistic as large as this one."""

    statistic: float
    cells: int
    p_value: float


def chi_square(seen: Sequence[float], expected: Sequence[float]) -> ChiSquare:
    """Both per cell, in draws. What is seen where nothing can be is a p-value of 0."""
    if any(count and not hoped for count, hoped in zip(seen, expected, strict=True)):
        return ChiSquare(math.inf, len(seen), 0.0)
    cells = joined(seen, expected)
    statistic = math.fsum((count - hoped) ** 2 / hoped for count, hoped in cells)
    freedom = len(cells) - 1
    return ChiSquare(statistic, len(cells), upper_tail(statistic, freedom) if freedom > 0 else 1.0)


def joined(seen: Sequence[float], expected: Sequence[float]) -> list[tuple[float, float]]:
    """(seen, expected) of each cell, those that expect fewest joined until every one expects enough. Which
    cells are joined depends on what is expected alone.
    """
    order = sorted(range(len(expected)), key=lambda cell: expected[cell])
    cells: list[tuple[float, float]] = []
    count = hoped = 0.0
    for cell in order:
        count, hoped = count + seen[cell], hoped + expected[cell]
        if hoped >= FEWEST:
            cells.append((count, hoped))
            count = hoped = 0.0
    if not cells:
        return [(count, hoped)] if hoped else []
    last_count, last_hoped = cells[-1]
    return [*cells[:-1], (last_count + count, last_hoped + hoped)]


def upper_tail(statistic: float, freedom: int) -> float:
    """The chance that chi-square of so many degrees of freedom is larger."""
    return upper_gamma(freedom / 2, statistic / 2)


def quantile(tail: float, freedom: int) -> float:
    """The value that chi-square exceeds with the chance `tail`, above 0 and below 1; by bisection."""
    low, high = 0.0, float(freedom)
    while upper_tail(high, freedom) > tail:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        low, high = (middle, high) if upper_tail(middle, freedom) > tail else (low, middle)


def upper_gamma(a: float, x: float) -> float:
    """The regularised incomplete gamma function Q(a, x) = Γ(a, x) / Γ(a), a > 0, x >= 0.

    Below a + 1 by the power series of 1 - Q, above by Legendre's continued fraction of Q: each converges
    fast where it is used, and neither loses the digits of a small result.
    """
    if x <= 0.0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    return 1.0 - scale * _series(a, x) if x < a + 1.0 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """Σ x^n / (a (a + 1) ... (a + n))."""
    term = total = 1.0 / a
    for n in range(1, TERMS):
        term *= x / (a + n)
        total += term
        if term < total * ROUNDING:
            return total
    raise ArithmeticError(f"the series of the gamma function does not converge at a = {a}, x = {x}")


def _fraction(a: float, x: float) -> float:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...)), from the front (Lentz's method)."""
    b = x + 1.0 - a
    c, d = math.inf, 1.0 / b
    result = d
    for n in range(1, TERMS):
        factor = n * (a - n)
        b += 2.0
        d = 1.0 / (b + factor * d)
        c = b + factor / c
        result *= c * d
        if abs(c * d - 1.0) < ROUNDING:
            return result
    raise ArithmeticError(f"the fraction of the gamma function does not converge at a = {a}, x = {x}")
