"""Requests as `foredraft bench --serve` sends them, one by one or so many at once."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from foredraft.measure.serve_http import Http

Body = Mapping[str, object]
Json = dict[str, object]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DONE = b"[DONE]"


@dataclass(frozen=True)
class Ask:
    """One request. `label` names its prompt, and all else that its text depends on."""

    label: str
    path: str
    body: Body


@dataclass(frozen=True)
class Reply:
    """What came back. Moments are those at which something was read, with the tokens in it; times are seconds
    of one clock.
    """

    label: str
    sent: float
    ended: float
    moments: tuple[tuple[float, int], ...]
    ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    tokens: int  # as the server's usage has it
    rounds: int
    drafted: int
    accepted: int

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def ttft_s(self) -> float:
        return self.moments[0][0] - self.sent

    @property
    def tpot_s(self) -> float | None:
        """Per token after those that came first, together."""
        (first, at_first), (last, _) = self.moments[0], self.moments[-1]
        later = self.tokens - at_first
        return (last - first) / later if later else None


@dataclass
class Exchange:
    """A request under way."""

    ask: Ask
    sent: float = 0.0
    moments: list[tuple[float, int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    _usage: Json = field(default_factory=dict)
    _speculation: Json = field(default_factory=dict)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """From one arrival to the next."""
        return list(pairwise(at for at, _ in self.moments))

    async def run(self, http: Http) -> Reply:
        self.sent = time.perf_counter()
        async for now, events in http.stream(self.ask.path, self.ask.body):
            before = len(self.ids)
            for event in events:
                if event != DONE:
                    self._take(http, json.loads(event))
            if len(self.ids) > before:
                self.moments.append((now, len(self.ids) - before))
        ended = time.perf_counter()
        return self._reply(http, ended)

    def _take(self, http: Http, event: Json) -> None:
        if "error" in event:
            raise http.trouble(f"{self.ask.label} failed while it was answered: {event['error']}")
        for choice in _objects(event.get("choices")):
            ids = choice.get("token_ids")
            self.ids += ids if isinstance(ids, list) else ()
        self._usage = _object(event.get("usage")) or self._usage
        self._speculation = _object(event.get("speculation")) or self._speculation

    def _reply(self, http: Http, ended: float) -> Reply:
        tokens = _number(self._usage, "completion_tokens")
        if not self.ids or tokens != len(self.ids):
            raise http.trouble(
                f"{self.ask.label}: {len(self.ids)} token ids came, but its usage says {tokens} completion "
                "tokens; without a count that is sure there is nothing to measure"
            )
        return Reply(
            label=self.ask.label,
            sent=self.sent,
            ended=ended,
            moments=tuple(self.moments),
            ids=tuple(self.ids),
            prompt_tokens=_number(self._usage, "prompt_tokens"),
            cached_tokens=_number(_object(self._usage.get("prompt_tokens_details")), "cached_tokens"),
            tokens=tokens,
            rounds=_number(self._speculation, "rounds"),
            drafted=_number(self._speculation, "drafted"),
            accepted=_number(self._speculation, "accepted"),
        )


async def one(http: Http, ask: Ask) -> Reply:
    return await Exchange(ask).run(http)


async def together(http: Http, asks: Iterable[Ask]) -> list[Reply]:
    """All at once."""
    tasks = [asyncio.create_task(one(http, ask)) for ask in asks]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancelled(tasks)


@dataclass
class Stream:
    """Requests one after the other: where an answer ends, the next is sent."""

    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def moments(self) -> list[tuple[float, int]]:
        return [moment for exchange in self.exchanges for moment in exchange.moments]

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Within answers; between two of them there is a prompt."""
        return [gap for exchange in self.exchanges for gap in exchange.gaps]

    async def run(self, http: Http, asks: Iterator[Ask]) -> None:
        for ask in asks:
            self.exchanges.append(Exchange(ask))
            await self.exchanges[-1].run(http)


@asynccontextmanager
async def streaming(http: Http, asks: Iterator[Ask], count: int) -> AsyncIterator[list[Stream]]:
    """So many streams, which share what is asked, while the `with` block runs: it ends early, with the error,
    when a request fails.
    """
    streams = [Stream() for _ in range(count)]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stream.run(http, asks)) for stream in streams]
            yield streams
            for task in tasks:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def until(reached: Callable[[], bool], poll_s: float = 0.01) -> None:
    while not reached():
        await asyncio.sleep(poll_s)


class ClosedLoop:
    """Workers, each of which asks again as soon as it has its answer: there are always as many requests as
    workers. Those that are measured come after one of `lead` for each worker, which spreads the workers out,
    and are followed by `fillers`, which keep the load up until the last measured one has ended.
    """

    def __init__(
        self, http: Http, lead: Sequence[Ask], measured: Sequence[Ask], fillers: Iterator[Ask]
    ) -> None:
        self._http = http
        self._lead = lead
        self._left = iter(enumerate(measured))
        self._replies: list[Reply | None] = [None] * len(measured)
        self._fillers = fillers
        self._all_there = asyncio.Event()

    async def run(self, workers: int) -> list[Reply]:
        """The replies of the measured requests, in order."""
        leads = [*self._lead, *[None] * (workers - len(self._lead))]
        tasks = [asyncio.create_task(self._work(lead)) for lead in leads]
        waiting = asyncio.create_task(self._all_there.wait())
        try:
            done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancelled([waiting, *tasks])
        return [reply for reply in self._replies if reply is not None]

    async def _work(self, lead: Ask | None) -> None:
        if lead is not None:
            await one(self._http, lead)
        for index, ask in self._left:
            self._replies[index] = await one(self._http, ask)
            if None not in self._replies:
                self._all_there.set()
        while not self._all_there.is_set():
            await one(self._http, next(self._fillers))


async def _cancelled(tasks: Iterable[asyncio.Task[Reply]] | Iterable[asyncio.Task[object]]) -> None:
    every = list(tasks)
    for task in every:
        task.cancel()
    await asyncio.gather(*every, return_exceptions=True)


def _objects(value: object) -> list[Json]:
    return [_object(one) for one in value] if isinstance(value, list) else []


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _number(values: Json, name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else 0
