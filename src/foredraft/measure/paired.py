"""What pairs of runs say: each pair was measured side by side, so its ratio has seen one machine, and the
ratios of all pairs tell how sure the median is.

Ratios multiply, so their logarithms are what is averaged. The interval is Student's: it takes the logarithms
of the pairs' ratios for draws of one normal law. With few pairs it is wide, as it must be: with two its ends
lie 9 standard deviations from the middle. A single pair has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median, stdev

METHOD = "95 % interval: Student's t on the logarithms of the pairs' ratios"
# The 0.975 quantiles of Student's t by degrees of freedom, from 1.
T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
Z_975 = 1.959964


@dataclass(frozen=True)
class Paired:
    """The median of n ratios. The interval is around their geometric mean; None where there is one pair."""

    median: float
    low: float | None
    high: float | None
    n: int

    def wholly_below(self, limit: float) -> bool:
        return self.high is not None and self.high < limit


def paired(ratios: Sequence[float]) -> Paired:
    """Of one ratio a pair; all above 0."""
    middle, n = median(ratios), len(ratios)
    if n < 2:
        return Paired(middle, None, None, n)
    logs = [log(ratio) for ratio in ratios]
    reach = t_975(n - 1) * stdev(logs) / sqrt(n)
    return Paired(middle, exp(fmean(logs) - reach), exp(fmean(logs) + reach), n)


def t_975(freedom: int) -> float:
    """The 0.975 quantile of Student's t: from the table, beyond it by the first terms of its series around
    the normal quantile (Abramowitz and Stegun 26.7.5), which is off by less than 0.0001 there.
    """
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z, v = Z_975, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def geometric_mean(values: Sequence[float]) -> float:
    return exp(fmean(log(value) for value in values))
