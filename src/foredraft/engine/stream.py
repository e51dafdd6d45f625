"""One request by itself: its rounds are played when their bursts are asked for."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from foredraft.core.target import Cache, Target
from foredraft.engine.answer import Answer
from foredraft.engine.batch import Batch, Seat
from foredraft.engine.completion import Burst, Completion
from foredraft.engine.request import Request
from foredraft.engine.speculator import Speculator
from foredraft.models.stream import TextStream

CHUNK = 512  # rows of a prompt in one pass: enough to read the weights seldom, few enough to stop soon


@dataclass(frozen=True, eq=False)
class Host:
    """Where a request is computed. The lock is held to use target or cache; `release` is called once. The
    clock times rounds, and with that decides how much is drafted.
    """

    target: Target
    cache: Cache
    lock: threading.RLock
    release: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter


class Stream(Iterator[Burst]):
    """Iterate for the bursts; `completion` says at any time how far it has come. Closing it early, or
    forgetting it, frees its memory.
    """

    def __init__(self, host: Host, request: Request, text: TextStream, speculator: Speculator) -> None:
        self._host = host
        self._answer = Answer(request, text, speculator)
        self._seat = Seat(self._answer, host.cache)
        self._batch = Batch(host.target, speculator.controller.cost, host.clock)
        self._release = weakref.finalize(self, _release, speculator, host.release)

    def __next__(self) -> Burst:
        answer = self._answer
        if answer.ended:
            raise StopIteration
        with self._host.lock:
            while (count := answer.chunk(self._host.cache, CHUNK)) > 0:
                self._batch.compute(self._seat, count)
            (taken,) = self._batch.play([self._seat]).taken
        if isinstance(taken, Exception):
            raise taken
        burst, event = taken
        if answer.request.trace is not None:
            answer.request.trace(event)
        if answer.ended:
            self._release()
        return burst

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the answer here, if it has not ended."""
        with self._host.lock:  # not while another thread computes in what is given back
            self._answer.interrupt()
            self._release()

    @property
    def ids(self) -> Sequence[int]:
        """Prompt and answer so far."""
        return self._answer.ids

    @property
    def ended(self) -> bool:
        return self._answer.ended

    @property
    def completion(self) -> Completion:
        """The answer so far; "interrupted" until it has ended by itself."""
        return self._answer.completion


def _release(speculator: Speculator, release: Callable[[], None]) -> None:
    speculator.close()
    release()
