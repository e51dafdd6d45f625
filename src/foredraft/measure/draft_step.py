"""What a step of a draft model takes: one row through all layers and the part of the head that is used."""

import time
from dataclasses import dataclass
from statistics import median

from foredraft.core.nouns import Int32s, Rows, int32s
from foredraft.engine.kv import KVPool
from foredraft.measure.ceiling import fill
from foredraft.models.target import NativeTarget

CONTEXT = 128  # positions before the step
STEPS = 15


@dataclass(frozen=True)
class DraftStep:
    """The median of some steps, one row each. `read_bytes`: of weights."""

    name: str
    read_bytes: int
    seconds: float

    @property
    def gb_s(self) -> float:
        return self.read_bytes / self.seconds / 1e9


def draft_step(name: str, native: NativeTarget, pool: KVPool, panels: Int32s) -> DraftStep:
    """`panels`: of the head, as a drafter computes them (`models/draft.py`)."""
    with pool.open() as cache:
        fill(native, cache, CONTEXT)
        row, wanted, times = Rows.chain([0]), int32s([0]), []
        for _ in range(STEPS):
            started = time.perf_counter()
            native.forward(row, [cache], wanted, panels=panels)
            times.append(time.perf_counter() - started)
            native.keep(cache, [])
    return DraftStep(name, native.read_bytes(len(panels)), median(times))
