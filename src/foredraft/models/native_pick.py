"""Picks of many rows at once in native code, outside Python's lock; equal to the bit to `core/pick.py`, which
explains them.

The slow twin also words the errors: native code says that a row cannot be picked from, and the twin, shown
the same row, says why.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from foredraft import _native
from foredraft.core import pick as twin
from foredraft.core.nouns import Floats, int32s
from foredraft.core.pick import Place
from foredraft.core.sampling import Sampling
from foredraft.errors import UsageError

_NOTHING = (np.zeros(0, np.int32), np.zeros(0, np.int32))


class NativePicker:
    """Reuses its memory from call to call; callers from several threads take turns."""

    def __init__(self, threads: int = 1, baseline: bool = False) -> None:
        """`baseline` keeps to instructions that every machine has; the picks are the same."""
        if threads < 1:
            raise UsageError(f"threads is {threads}, but must be 1 or more")
        self._picker = _native.Picker(threads, baseline)
        self._settings = lru_cache(maxsize=1024)(_native_settings)  # requests come round after round

    def pick(self, logits: Floats, places: Sequence[Place]) -> list[int]:
        """One token per row. logits: [n, V] float32 in C order, row i for `places[i]`."""
        seen = [place.history.arrays() if place.sampling.penalises else _NOTHING for place in places]
        tokens = self._picker.pick(
            logits,
            [self._settings(place.sampling) for place in places],
            [place.position for place in places],
            [tokens for tokens, _ in seen],
            [counts for _, counts in seen],
            [int32s(place.path) for place in places],
        )
        for row, token in enumerate(tokens):
            if token < 0:
                twin.processed(logits[row], places[row])  # raises
                raise AssertionError(f"native code refused row {row} with {token}, which the twin takes")
        return tokens


def _native_settings(sampling: Sampling) -> _native.PickSettings:
    return _native.PickSettings(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        seed=sampling.seed or 0,
        bias=dict(sampling.logit_bias),
    )
