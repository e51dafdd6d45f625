"""What passes of each size cost on this machine in this run: what every gain of drafting depends on, so it is
measured at the beginning, in the middle and at the end of what it is to explain.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from foredraft.engine.kv import BLOCK, KVPool
from foredraft.measure.ceiling import CONTEXT, Bandwidth, fill, pass_s
from foredraft.models.target import NativeTarget

ROWS = (*range(1, 17), 24, 32)
ROUNDS = 5  # at a time


@dataclass(frozen=True)
class Prices:
    """Seconds of a pass by its rows, two sizes at least. Sizes in between lie on the line through their
    neighbours, larger ones on that through the last two.
    """

    table: Mapping[int, float]

    def seconds(self, rows: int) -> float:
        if rows in self.table:
            return self.table[rows]
        sizes = self._sizes
        after = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
        low, high = sizes[after - 1], sizes[after]
        slope = (self.table[high] - self.table[low]) / (high - low)
        return self.table[low] + slope * (rows - low)

    def relative(self, rows: int) -> float:
        """In passes of one row."""
        return self.seconds(rows) / self.seconds(1)

    @cached_property
    def _sizes(self) -> list[int]:
        return sorted(self.table)


class PriceList:
    """Collects sweeps of memory and passes by turns, so that both see the same machine."""

    def __init__(self, sweep: Bandwidth) -> None:
        self.bandwidth_gb_s: list[float] = []
        self.seconds: dict[int, list[float]] = defaultdict(list)
        self._sweep = sweep

    def take(self, target: NativeTarget, pool: KVPool, rounds: int = ROUNDS) -> None:
        """So many samples of each. Needs the pool to itself; what is filled is given back."""
        with pool.open() as cache:
            fill(target, cache, min(CONTEXT, pool.num_free * BLOCK - max(ROWS)))
            for _ in range(rounds):
                self.bandwidth_gb_s.append(self._sweep.best_gb_s(target, 1))
                for rows in ROWS:
                    self.seconds[rows].append(pass_s(target, cache, rows))

    @property
    def best_gb_s(self) -> float:
        """The best of all sweeps."""
        return max(self.bandwidth_gb_s)

    def prices(self) -> Prices:
        """The medians."""
        return Prices({rows: median(times) for rows, times in self.seconds.items()})
