"""How long the native calls of a model take in all, so that what is left of a round is Python's share.

`ClockedTarget` is the same model behind the same methods; its passes, copies and picks run under a
`NativeClock`. What binding costs counts as native here: a few microseconds a call.
"""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from foredraft._native import Model, Picker
from foredraft.models.native_pick import NativePicker
from foredraft.models.target import NativeTarget

P = ParamSpec("P")
R = TypeVar("R")


class NativeClock:
    """Seconds inside the calls it was put around."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[P, R]) -> Callable[P, R]:
        def clocked(*args: P.args, **kwargs: P.kwargs) -> R:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return clocked


class Clocked:
    """A native object whose methods are clocked."""

    def __init__(self, native: object, clock: NativeClock) -> None:
        self._native = native
        self._clock = clock

    def __getattr__(self, name: str) -> object:
        value: object = getattr(self._native, name)
        if callable(value):
            value = self._clock.around(value)
            setattr(self, name, value)  # the next look-up finds it at once
        return value


class ClockedPicker(NativePicker):
    def __init__(self, threads: int, clock: NativeClock) -> None:
        super().__init__(threads)
        self._picker = cast(Picker, Clocked(self._picker, clock))


class ClockedTarget(NativeTarget):
    """Shares the model with `target`."""

    def __init__(self, target: NativeTarget, clock: NativeClock) -> None:
        super().__init__(target.spec, cast(Model, Clocked(target.model, clock)))
        self._picker = ClockedPicker(target.model.threads, clock)
