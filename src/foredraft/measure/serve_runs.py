"""`foredraft bench --serve`: one server, asked by a client in this process for the same things with and
without drafting, by turns.

Throughput is that of a closed loop: so many workers, each asking again as soon as it is answered. Workers
that are never idle give `workers x tokens / summed time of the requests` tokens per second. So both sides are
compared on the same requests, and always with as many at once: nothing has to be said about where a run
begins and ends. Answers end where the model ends them: what it writes beyond is easy to draft.

The server has memory for all requests at once, and does not remember earlier answers (`--no-remember`), else
drafts would be found there.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice

from foredraft.measure.serve_counts import Passes
from foredraft.measure.serve_http import Http
from foredraft.measure.serve_load import ClosedLoop, Reply, one, together
from foredraft.measure.serve_order import OFF, SIDES, Pace, ServeOrder, Sizes
from foredraft.measure.serve_parts import Prefix, Stall, Steady, exact, prefix, stall, steady
from foredraft.measure.serve_process import ServerProcess
from foredraft.measure.serve_session import Session, Texts
from foredraft.measure.speculation import Progress

Say = Callable[[str], None]
Step = Callable[[], Awaitable[None]]
WARM_UP = 16  # tokens


@dataclass(frozen=True)
class Load:
    """One run with so many requests at once. `passes` and `wall_s` are of all of it, with the requests before
    and after those that are measured.
    """

    side: str
    repeat: int
    at_once: int
    replies: Sequence[Reply]
    passes: Passes
    wall_s: float
    client_s: float  # of CPU time, in this process

    @property
    def tok_s(self) -> float:
        tokens = sum(reply.tokens for reply in self.replies)
        return self.at_once * tokens / sum(reply.seconds for reply in self.replies)


@dataclass
class Served:
    """All that was measured."""

    order: ServeOrder
    sizes: Sizes
    ctx: int
    texts: dict[str, Texts]  # by part
    loads: list[Load] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    steadies: list[Steady] = field(default_factory=list)
    prefixes: list[Prefix] = field(default_factory=list)

    @property
    def different(self) -> list[str]:
        return [text for texts in self.texts.values() for text in texts.different]

    @property
    def compared(self) -> int:
        return sum(texts.compared for texts in self.texts.values())


def serve(order: ServeOrder, say: Say) -> Served:
    """Measure. `say` is told what is being done."""
    say("starting the server")
    arguments = ["serve", "-m", order.model, "--port", "0", "--no-remember"]
    arguments += ["--threads", str(order.threads), "--kv-tokens", str(order.kv_tokens)]
    with ServerProcess(arguments) as server:
        host, port = server.address
        return asyncio.run(_measure(Http(host, port, server.trouble), order, say))


async def _measure(http: Http, order: ServeOrder, say: Say) -> Served:
    session = await Session.open(http, order)
    served = Served(order, session.sizes, session.ctx, {part: Texts() for part in order.parts})
    pace = await _warm_up(session, say)
    say(f"{', '.join(order.parts)}: about {pace.minutes(order, session.sizes):.0f} minutes")
    steps = list(_steps(session, served))
    progress = Progress(len(steps), say)
    for told, step in steps:
        progress.begin(told)
        await step()
    return served


async def _warm_up(session: Session, say: Say) -> Pace:
    """Draft models are loaded, prices learned. What the idle server needs is told by the last request."""
    order, asks = session.order, session.asks
    most = max(order.requests)
    for side in SIDES:
        say(f"warming up: {side}")
        short = asks.endless(order.short(), side, max_tokens=WARM_UP)
        await together(session.http, islice(short, most))
    longest = max(order.mix(0), key=lambda prompt: len(prompt.text))
    reply = await one(session.http, asks.chat(longest, OFF, max_tokens=WARM_UP, ignore_eos=True))
    await session.idle()
    return Pace(
        token_s=reply.tpot_s or 0.0,
        prompt_token_s=reply.ttft_s / reply.prompt_tokens,
        prompt_tokens=len(session.vocabulary) / len(order.prompts),
    )


def _steps(session: Session, served: Served) -> Iterator[tuple[str, Step]]:
    """What is to be done, in order, each with what is told of it."""
    order, texts = session.order, served.texts
    if "exact" in order.parts:
        yield "the same requests alone and among others", partial(exact, session, texts["exact"])
    for repeat in range(order.repeat):
        told = f"repeat {repeat + 1} of {order.repeat}: "
        for index, at_once in enumerate(order.requests if "throughput" in order.parts else ()):
            for side in order.turns(repeat, index):
                yield (
                    f"{told}{at_once} at once, {side}",
                    partial(_load, session, served, repeat, at_once, side),
                )
        for side in order.turns(repeat, 0):
            if "stall" in order.parts:
                yield f"{told}a long prompt, {side}", partial(_stall, session, served, repeat, side)
            if "host" in order.parts:
                yield f"{told}host time, {side}", partial(_steady, session, served, repeat, side)
        if "prefix" in order.parts:
            yield f"{told}a known prefix", partial(_prefix, session, served, repeat)


async def _load(session: Session, served: Served, repeat: int, at_once: int, side: str) -> None:
    served.loads.append(await load(session, repeat, at_once, side))
    for reply in served.loads[-1].replies:
        served.texts["throughput"].check(reply, f"{at_once} at once, {side}, repeat {repeat + 1}")


async def _stall(session: Session, served: Served, repeat: int, side: str) -> None:
    served.stalls.append(await stall(session, repeat, side))


async def _steady(session: Session, served: Served, repeat: int, side: str) -> None:
    served.steadies.append(await steady(session, repeat, side, session.sizes.crowd))
    if side == OFF:
        served.steadies.append(await steady(session, repeat, side, 1))


async def _prefix(session: Session, served: Served, repeat: int) -> None:
    served.prefixes.append(await prefix(session, repeat, served.texts["prefix"]))


async def load(session: Session, repeat: int, at_once: int, side: str) -> Load:
    """The workers' first answers are so long that they end one after the other."""
    order, asks = session.order, session.asks
    prompts = order.measured(at_once, repeat)
    lengths = [max(1, order.max_tokens * worker // at_once) for worker in range(1, at_once + 1)]
    lead = [
        asks.chat(prompt, side, max_tokens=length, ignore_eos=True)
        for prompt, length in zip(cycle(order.short()), lengths, strict=False)
    ]
    loop = ClosedLoop(
        session.http,
        lead if at_once > 1 else (),
        [asks.chat(prompt, side) for prompt in prompts],
        asks.endless(prompts, side),
    )
    before, cpu, started = await session.counts(), time.process_time(), time.perf_counter()
    replies = await loop.run(at_once)
    ended, client_s = time.perf_counter(), time.process_time() - cpu
    after = await session.counts()
    await session.idle()
    return Load(side, repeat, at_once, replies, Passes.of(after.since(before)), ended - started, client_s)
