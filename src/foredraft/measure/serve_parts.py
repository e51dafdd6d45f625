"""What `foredraft bench --serve` measures beside throughput: whether texts stay the same, what a long prompt
does to running streams, what the host takes of a pass, what a known prefix saves.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from foredraft.measure.serve_counts import Passes
from foredraft.measure.serve_load import Ask, Stream, one, streaming, together, until
from foredraft.measure.serve_order import AUTO, OFF, SIDES
from foredraft.measure.serve_session import Session, Texts

SALT = "bench-prefix-{}"


@dataclass(frozen=True)
class Stall:
    """Times are seconds; gaps are those between chunks of streams, before a long prompt came and while it was
    being read.
    """

    side: str
    repeat: int
    prompt_tokens: int
    alone_s: float  # to its first token, on the idle server
    busy_s: float
    before_s: tuple[float, ...]
    during_s: tuple[float, ...]


@dataclass(frozen=True)
class Steady:
    """So many streams with nothing else going on."""

    side: str
    repeat: int
    at_once: int
    wall_s: float
    passes: Passes

    @property
    def tok_s(self) -> float:
        return self.passes.tokens / self.wall_s

    @property
    def host_share(self) -> float:
        return self.passes.host_s / self.passes.pass_s

    @property
    def draft_share(self) -> float:
        return self.passes.draft_s / self.passes.pass_s


@dataclass(frozen=True)
class Prefix:
    """The same request with and without its prefix known."""

    repeat: int
    prompt_tokens: int
    cached_tokens: int
    cold_s: float  # to the first token
    warm_s: float


async def stall(session: Session, repeat: int, side: str) -> Stall:
    sizes, http = session.sizes, session.http
    ids = session.ids(sizes.long, repeat)
    alone = await one(http, session.asks.tokens("a long prompt", ids, side, max_tokens=2))
    async with streaming(http, _long_answers(session, side), sizes.streams) as streams:
        await until(lambda: all(stream.moments for stream in streams))
        began = max(stream.moments[0][0] for stream in streams)
        steady = [len(stream.moments) + sizes.chunks for stream in streams]
        await until(lambda: _have(streams, steady))
        busy = await one(http, session.asks.tokens("a long prompt", ids, side, max_tokens=2))
        read = busy.sent + busy.ttft_s
        await until(lambda: all(stream.moments[-1][0] > read for stream in streams))
    await session.idle()
    gaps = [gap for stream in streams for gap in stream.gaps]
    return Stall(
        side=side,
        repeat=repeat,
        prompt_tokens=busy.prompt_tokens,
        alone_s=alone.ttft_s,
        busy_s=busy.ttft_s,
        before_s=tuple(end - start for start, end in gaps if start >= began and end <= busy.sent),
        during_s=tuple(end - start for start, end in gaps if end > busy.sent and start < read),
    )


async def steady(session: Session, repeat: int, side: str, at_once: int) -> Steady:
    async with streaming(session.http, _long_answers(session, side), at_once) as streams:
        await until(lambda: all(stream.moments for stream in streams))
        before, started = await session.counts(), time.perf_counter()
        goals = [len(stream.moments) + session.sizes.chunks for stream in streams]
        await until(lambda: _have(streams, goals))
        after, ended = await session.counts(), time.perf_counter()
    await session.idle()
    return Steady(side, repeat, at_once, ended - started, Passes.of(after.since(before)))


async def prefix(session: Session, repeat: int, texts: Texts) -> Prefix:
    """The tails differ, so that it is the prefix that is known, and nothing after it."""
    sizes, salt = session.sizes, SALT.format(repeat)
    ids = session.ids(sizes.prefix + 2 * sizes.tail, repeat)
    known, first, second = ids[: sizes.prefix], ids[sizes.prefix : -sizes.tail], ids[-sizes.tail :]

    def ask(tail: Sequence[int], **more: object) -> Ask:
        return session.asks.tokens(f"repeat {repeat + 1}", [*known, *tail], AUTO, max_tokens=8, **more)

    await one(session.http, ask(first, cache_salt=salt))
    cold = await one(session.http, ask(second))
    warm = await one(session.http, ask(second, cache_salt=salt))
    texts.check(cold, "computed")
    texts.check(warm, "with its prefix known")
    return Prefix(repeat, warm.prompt_tokens, warm.cached_tokens, cold.ttft_s, warm.ttft_s)


async def exact(session: Session, texts: Texts) -> None:
    """A prompt of each kind, greedily and drawn at temperature 1 with a seed: alone, and among others."""
    order, size = session.order, session.sizes.crowd
    prompts = order.mix(0)
    greedy: dict[str, object] = {"temperature": 0, "max_tokens": session.sizes.exact}
    tested = [(prompt, greedy) for prompt in prompts]
    tested += [
        (prompt, {**greedy, "temperature": 1, "seed": 1 + index}) for index, prompt in enumerate(prompts)
    ]
    others = [(prompt, greedy) for prompt in order.every() if prompt not in prompts]
    crowd = list(islice(cycle([*tested, *others]), size))

    def ask(index: int, side: str) -> Ask:
        prompt, sampling = crowd[index]
        asked = session.asks.chat(prompt, side, **sampling)
        how = f"seed {sampling['seed']}" if "seed" in sampling else "greedy"
        return Ask(f"{asked.label} ({how})", asked.path, asked.body)

    for index in range(min(len(tested), size)):
        for side in SIDES:
            texts.check(await one(session.http, ask(index, side)), f"alone, {side}")
    for name, sides in ((OFF, (OFF,)), (AUTO, (AUTO,)), ("both", SIDES)):
        asks = [ask(index, side) for index, side in zip(range(size), cycle(sides), strict=False)]
        for reply, asked in zip(await together(session.http, asks), asks, strict=True):
            texts.check(reply, f"one of {size} ({name}), {asked.body['speculation']}")


def _long_answers(session: Session, side: str) -> Iterator[Ask]:
    """Of short prompts, each as long as the context lets it be."""
    return session.asks.endless(session.order.short(), side, max_tokens=session.ctx, ignore_eos=True)


def _have(streams: Sequence[Stream], chunks: Sequence[int]) -> bool:
    return all(len(stream.moments) >= least for stream, least in zip(streams, chunks, strict=True))
