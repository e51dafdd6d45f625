"""What memory allows: a token needs one read of the weights, so bandwidth divided by their bytes is the most
tokens a second that anything without drafting can reach.

Bandwidth is the best of several sweeps over more memory than caches hold, by the threads that passes use. It
drifts on shared machines: what is to be compared with it must be measured in between.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from foredraft._native import Sweep
from foredraft.core.nouns import Rows, int32s
from foredraft.engine.kv import BLOCK, KVPool, KVSequence
from foredraft.errors import OutOfMemoryError
from foredraft.models.memory import available_bytes
from foredraft.models.target import NativeTarget

SWEEP_BYTES = 1 << 30
SWEEPS = 5
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
CONTEXT = 512  # positions before the rows, where the model has room for them
CHUNK = 128


@dataclass(frozen=True)
class Ceiling:
    """`pass_ms`: the median time of one pass, by its number of rows."""

    bandwidth_gb_s: float
    weight_bytes: float
    pass_ms: Mapping[int, float]

    @property
    def tok_s(self) -> float:
        return self.bandwidth_gb_s * 1e9 / self.weight_bytes


class Bandwidth:
    """Memory to be read end to end. Taken for as long as this object lives."""

    def __init__(self, num_bytes: int = SWEEP_BYTES) -> None:
        free = available_bytes()
        if free is not None and free < num_bytes * 5 // 4:
            raise OutOfMemoryError(
                f"measuring the bandwidth takes {num_bytes >> 20} MiB of memory, but {free >> 20} MiB are "
                "free; end other programs"
            )
        self._num_bytes = num_bytes
        self._memory = Sweep(num_bytes)

    def best_gb_s(self, target: NativeTarget, sweeps: int = SWEEPS) -> float:
        """Of so many sweeps the fastest."""
        return self._num_bytes / min(self._memory.seconds(target.model) for _ in range(sweeps)) / 1e9


def measure_ceiling(target: NativeTarget, pool: KVPool, bandwidth: Bandwidth) -> Ceiling:
    """Sweeps and passes by turns, so that both see the same machine."""
    best = 0.0
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    with pool.open() as cache:
        fill(target, cache, min(CONTEXT, pool.num_free * BLOCK - max(ROWS)))
        for _ in range(SWEEPS):
            best = max(best, bandwidth.best_gb_s(target, 1))
            for rows in ROWS:
                seconds[rows].append(pass_s(target, cache, rows))
    pass_ms = {rows: 1e3 * median(times) for rows, times in seconds.items()}
    return Ceiling(best, target.model.weight_bytes, pass_ms)


def fill(target: NativeTarget, cache: KVSequence, positions: int) -> None:
    """Some text before the rows; which tokens it has does not change how long a pass takes."""
    while (missing := positions - cache.length) > 0:
        size = min(CHUNK, missing)
        tokens = [(cache.length + index) % target.vocab for index in range(size)]
        target.forward(Rows.chain(tokens), [cache], int32s([]))
        target.keep(cache, range(size))


def pass_s(target: NativeTarget, cache: KVSequence, rows: int) -> float:
    """One pass as a round makes it: logits for every row, none of which is kept."""
    chain = Rows.chain([index % target.vocab for index in range(rows)])
    wanted = int32s(range(rows))
    started = time.perf_counter()
    target.forward(chain, [cache], wanted)
    ended = time.perf_counter()
    target.keep(cache, [])
    return ended - started
