"""What many measurements of one thing come to: the median, and the quartiles as its spread. Both shrug at the
few samples that something else on the machine has spoilt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """The median of n samples; half of them lie between low and high."""

    median: float
    low: float
    high: float
    n: int


def summarise(samples: Sequence[float]) -> Summary:
    low, median, high = (float(value) for value in np.percentile(samples, (25, 50, 75)))
    return Summary(median, low, high, len(samples))


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One ratio a round: what was measured side by side saw the same machine."""
    return [a / b for a, b in zip(above, below, strict=True)]


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")
