"""The asynchronous side of the engine. The engine's thread wakes the event loop once a pass, for all
requests; what a reader has not taken yet is merged, so that a slow one costs nobody anything, and no more
memory than its answer.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from foredraft.engine.completion import Burst
from foredraft.engine.drafting import Drafting
from foredraft.engine.engine import Engine, EngineOptions, EngineState, Update
from foredraft.engine.llm import LLM
from foredraft.engine.observer import Observer
from foredraft.engine.request import Request
from foredraft.server.errors import ApiError

LONGEST_WAIT = 60  # seconds that a client is told to wait at most
MEMORY = 0.8  # of the mean of how long requests take, from one to the next
DISCONNECT = "http.disconnect"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class GoneError(Exception):
    """Nobody waits for this reply any more."""


class Flow:
    """What the requests behind one reply get, by their places among them. Ends with the first that fails."""

    def __init__(self, bridge: "Bridge", timeout: float | None) -> None:
        self._bridge = bridge
        self._fresh: list[tuple[int, Update]] = []
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            message = f"the answer was not complete after {timeout:g} s, the server's request timeout"
            late = ApiError(504, f"{message}; ask for fewer tokens, or later", code="timeout")
            self._timer = asyncio.get_running_loop().call_later(timeout, self._expire, late)
        self._ending: list[Callable[[], None]] = []
        self.tickets: list[int] = []
        self._open: set[int] = set()  # places

    @property
    def ended(self) -> bool:
        """Whether all requests have ended and everything was taken."""
        return not self._open and not self._fresh

    def add(self, ticket: int) -> int:
        """One more request; its place."""
        self.tickets.append(ticket)
        self._open.add(len(self.tickets) - 1)
        return len(self.tickets) - 1

    def at_end(self, job: Callable[[], None]) -> None:
        """Do this when it is closed."""
        self._ending.append(job)

    def put(self, place: int, update: Update) -> None:
        if update.completion is not None or update.error is not None:
            self._open.discard(place)
        if update.error is not None:
            self.fail(update.error)
        elif self._error is None:
            self._fresh.append((place, update))
            self._changed.set()

    def fail(self, error: Exception) -> None:
        """End it here. The requests stop; whoever reads gets the error."""
        if self._error is None:
            self._error = error
        self._fresh.clear()
        self._changed.set()
        self._stop()

    def watch(self, receive: Receive) -> None:
        """End it when the client goes away."""
        self._watching = asyncio.create_task(self._until_gone(receive))

    async def take(self) -> list[tuple[int, Update]]:
        """What came since the last time, for each request at most one update."""
        while not self._fresh:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        fresh, self._fresh = self._fresh, []
        return merged(fresh)

    async def rest(self) -> list[tuple[int, Update]]:
        """What comes until all requests have ended: one update for each, in order."""
        updates: list[tuple[int, Update]] = []
        while not self.ended:
            updates += await self.take()
        return sorted(merged(updates), key=lambda pair: pair[0])

    def close(self) -> None:
        """Stop what still runs; nobody waits for it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._stop()
        while self._ending:
            self._ending.pop()()

    def _expire(self, late: ApiError) -> None:
        """An answer that is complete may be read for as long as it takes."""
        if self._open:
            self.fail(late)

    def _stop(self) -> None:
        for place in self._open:
            self._bridge.cancel(self.tickets[place])
        self._open.clear()

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != DISCONNECT:
            pass
        self.fail(GoneError())


def merged(fresh: list[tuple[int, Update]]) -> list[tuple[int, Update]]:
    """One update for each place."""
    if len({place for place, _ in fresh}) == len(fresh):
        return fresh
    by_place: dict[int, list[Update]] = {}
    for place, update in fresh:
        by_place.setdefault(place, []).append(update)
    return [(place, _merge(updates)) for place, updates in by_place.items()]


def _merge(updates: Sequence[Update]) -> Update:
    bursts = [update.burst for update in updates]
    burst = Burst(
        text="".join(burst.text for burst in bursts),
        ids=tuple(token for burst in bursts for token in burst.ids),
        logprobs=tuple(one for burst in bursts for one in burst.logprobs),
    )
    return Update(burst, updates[-1].completion)


class Bridge:
    """Only for one event loop. Whatever it is told is told on the loop's thread."""

    def __init__(self, llm: LLM, options: EngineOptions, observer: Observer) -> None:
        self._options = options
        self._engine = Engine(llm, self._deliver, options, observer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flows: dict[int, tuple[Flow, int]] = {}  # by ticket
        self._mean_s = 1.0  # that requests take once they run

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine.start()

    @property
    def state(self) -> EngineState:
        return self._engine.state

    @property
    def capacity(self) -> int:
        """Requests that there can be at once."""
        return self._options.max_running + self._options.max_waiting

    @property
    def retry_after(self) -> int:
        """Seconds until there may be room, as far as one can tell."""
        waves = (self.state.waiting + 1) / self._options.max_running
        return max(1, min(LONGEST_WAIT, math.ceil(waves * self._mean_s)))

    def submit(
        self, requests: Sequence[Request], drafting: Drafting | None, timeout: float | None = None
    ) -> Flow:
        """All of them, or QueueFullError or ClosedError and none."""
        flow = Flow(self, timeout)
        try:
            for request in requests:
                ticket = self._engine.submit(request, drafting)
                self._flows[ticket] = (flow, flow.add(ticket))
        except Exception:
            flow.close()
            raise
        return flow

    def cancel(self, ticket: int) -> None:
        self._flows.pop(ticket, None)
        self._engine.cancel(ticket)

    async def drain(self, timeout: float | None) -> bool:
        """No new requests; whether all others came to their end."""
        return await asyncio.to_thread(self._engine.drain, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)

    def _deliver(self, updates: Sequence[tuple[int, Update]]) -> None:
        """On the engine's thread."""
        assert self._loop is not None, "not started"
        self._loop.call_soon_threadsafe(self._spread, updates)

    def _spread(self, updates: Sequence[tuple[int, Update]]) -> None:
        for ticket, update in updates:
            flow, place = self._flows.get(ticket, (None, 0))
            if flow is None:
                continue
            if update.completion is not None or update.error is not None:
                del self._flows[ticket]
            if update.completion is not None:
                figures = update.completion.figures
                took_s = figures.total_s - figures.queued_s
                self._mean_s = MEMORY * self._mean_s + (1 - MEMORY) * took_s
            flow.put(place, update)
