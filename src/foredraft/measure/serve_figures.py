"""From the runs of `foredraft bench --serve` to figures, and what each must reach. Pure arithmetic.

The goals are those of qwen2.5-coder-1.5b on two cores, with prompts of all kinds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from foredraft.measure.figures import Figure, Goal
from foredraft.measure.prompts import KINDS
from foredraft.measure.serve_order import AUTO, OFF, SIDES, Sizes
from foredraft.measure.serve_runs import Load, Served
from foredraft.measure.stats import number, ratios, summarise

NOT_SLOWER = Goal(0.98, at_least=True)
ALONE = Goal(2.0, at_least=True)
MANY, MANY_OFF = 16, Goal(4.0, at_least=True)
NONE_DIFFERENT = Goal(0.0)
GAP = Goal(3.0)
PROMPT_SPEED = Goal(0.5, at_least=True)
HOST = Goal(0.05)
WARM = Goal(0.15)


@dataclass(frozen=True)
class Row:
    """All runs with so many requests at once on one side, in numbers."""

    at_once: int
    side: str
    tok_s: float  # the median of runs
    ttft_ms: tuple[float, float]  # median and 99th percentile of requests
    tpot_ms: tuple[float, float] | None  # None where no answer had a second chunk
    acceptance: float | None  # of measured requests, as all that follows but for the rows and reasons
    tokens_per_round: float | None
    rows_per_pass: float
    draft_share: float  # of time in passes
    host_share: float
    no_draft: Mapping[str, float]  # share of rounds without a draft, by reason
    preempted: int
    served_tok_s: float  # counted by the server over whole runs, for comparison
    client_cores: float


def rows_of(served: Served) -> list[Row]:
    return [
        row_of(runs)
        for at_once in served.order.requests
        for side in SIDES
        if (runs := of_loads(served, at_once, side))
    ]


def of_loads(served: Served, at_once: int, side: str) -> list[Load]:
    return [load for load in served.loads if load.at_once == at_once and load.side == side]


def row_of(runs: Sequence[Load]) -> Row:
    replies = [reply for run in runs for reply in run.replies]
    drafted, rounds = sum(reply.drafted for reply in replies), sum(reply.rounds for reply in replies)
    tpot_s = [reply.tpot_s for reply in replies if reply.tpot_s is not None]
    passes = [run.passes for run in runs]
    pass_s, wall_s = sum(one.pass_s for one in passes), sum(run.wall_s for run in runs)
    all_rounds = sum(one.rounds for one in passes)
    reasons = dict.fromkeys(reason for one in passes for reason in one.reasons)
    return Row(
        at_once=runs[0].at_once,
        side=runs[0].side,
        tok_s=median(run.tok_s for run in runs),
        ttft_ms=_middle_and_p99([reply.ttft_s for reply in replies]),
        tpot_ms=_middle_and_p99(tpot_s) if tpot_s else None,
        acceptance=sum(reply.accepted for reply in replies) / drafted if drafted else None,
        tokens_per_round=sum(reply.tokens for reply in replies) / rounds if rounds else None,
        rows_per_pass=sum(one.rows for one in passes) / sum(one.passes for one in passes),
        draft_share=sum(one.draft_s for one in passes) / pass_s,
        host_share=sum(one.host_s for one in passes) / pass_s,
        no_draft={
            reason: sum(one.reasons.get(reason, 0) for one in passes) / all_rounds for reason in reasons
        },
        preempted=round(sum(one.preempted for one in passes)),
        served_tok_s=sum(one.tokens for one in passes) / wall_s,
        client_cores=sum(run.client_s for run in runs) / wall_s,
    )


def figures_of(served: Served) -> list[Figure]:
    """Goals of throughput hold for prompts of all kinds, those of long prompts for their full length."""
    makers: Mapping[str, Callable[[Served], Iterator[Figure]]] = {
        "throughput": _throughput,
        "exact": _exact,
        "stall": _stall,
        "host": _host,
        "prefix": _prefix,
    }
    return [figure for part, make in makers.items() if part in served.order.parts for figure in make(served)]


def _throughput(served: Served) -> Iterator[Figure]:
    judged = set(served.order.kinds) >= set(KINDS)
    speeds = {
        (at_once, side): [load.tok_s for load in of_loads(served, at_once, side)]
        for at_once in served.order.requests
        for side in SIDES
    }
    for at_once in served.order.requests:
        ours, theirs = speeds[at_once, AUTO], speeds[at_once, OFF]
        goal = ALONE if at_once == 1 else NOT_SLOWER
        title = f"auto ÷ off, output tokens/s, {at_once} at once"
        yield _quotient("throughput", title, ours, theirs, goal if judged else None, "tokens/s")
    if {1, MANY} <= set(served.order.requests):
        title = f"{MANY} at once ÷ 1, output tokens/s, off"
        many, one = speeds[MANY, OFF], speeds[1, OFF]
        yield _quotient("throughput", title, many, one, MANY_OFF if judged else None, "tokens/s")
    yield _differences("throughput", "these requests' texts that differ", served, "at all numbers at once")


def _exact(served: Served) -> Iterator[Figure]:
    how = f"alone and among {served.sizes.crowd - 1} others, off and auto, greedy and drawn"
    yield _differences("exact", "requests whose text differs", served, how)


def _stall(served: Served) -> Iterator[Figure]:
    judged = served.sizes == Sizes()
    for side in SIDES:
        runs = [run for run in served.stalls if run.side == side]
        during = [p99(run.during_s) for run in runs]
        before = [median(run.before_s) for run in runs]
        title = (
            f"p99 gap of {served.sizes.streams} streams while a prompt is read ÷ median gap before, {side}"
        )
        yield _times("stall", title, during, before, GAP if judged else None)
        alone, busy = [run.alone_s for run in runs], [run.busy_s for run in runs]
        title = f"speed of a prompt of {served.sizes.long} tokens beside them ÷ alone, {side}"
        yield _times("stall", title, alone, busy, PROMPT_SPEED if judged else None)


def _host(served: Served) -> Iterator[Figure]:
    crowd = served.sizes.crowd
    for side in SIDES:
        runs = [run for run in served.steadies if run.side == side and run.at_once == crowd]
        times = [1e3 * run.passes.pass_s / run.passes.passes for run in runs]
        note = (
            f"a pass takes {number(median(times))} ms; drafting besides "
            f"{median(run.draft_share for run in runs):.1%} of it"
        )
        shares = summarise([run.host_share for run in runs])
        yield Figure("host", f"host time ÷ pass, {crowd} streams, {side}", shares, "", HOST, note)
    many, one = (
        [run.tok_s for run in served.steadies if run.side == OFF and run.at_once == at_once]
        for at_once in (crowd, 1)
    )
    yield _quotient(
        "host", f"{crowd} streams ÷ 1 without prompts, tokens/s, off", many, one, None, "tokens/s"
    )


def _prefix(served: Served) -> Iterator[Figure]:
    runs = served.prefixes
    warm, cold = [run.warm_s for run in runs], [run.cold_s for run in runs]
    goal = WARM if served.sizes == Sizes() else None
    title = f"time to first token, prefix of {served.sizes.prefix} tokens known ÷ cold"
    figure = _times("prefix", title, warm, cold, goal)
    cached = median(run.cached_tokens for run in runs)
    total = median(run.prompt_tokens for run in runs)
    note = f"{figure.note}; {cached:.0f} of {total:.0f} tokens reused"
    yield Figure(figure.name, figure.title, figure.summary, "", goal, note)
    yield _differences("prefix", "texts that a known prefix changes", served, "")


def p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99))


def _differences(part: str, title: str, served: Served, how: str) -> Figure:
    texts = served.texts[part]
    note = f"of {texts.compared} compared{', ' if how else ''}{how}"
    return Figure(part, title, summarise([len(texts.different)]), "", NONE_DIFFERENT, note)


def _times(
    name: str, title: str, above: Sequence[float], below: Sequence[float], goal: Goal | None
) -> Figure:
    """Of seconds."""
    ours, theirs = ([1e3 * seconds for seconds in times] for times in (above, below))
    return _quotient(name, title, ours, theirs, goal, "ms")


def _quotient(
    name: str, title: str, above: Sequence[float], below: Sequence[float], goal: Goal | None, unit: str
) -> Figure:
    """One ratio a repeat."""
    note = f"{number(median(above))} ÷ {number(median(below))} {unit}"
    return Figure(name, title, summarise(ratios(above, below)), "", goal, note)


def _middle_and_p99(seconds: Sequence[float]) -> tuple[float, float]:
    return 1e3 * median(seconds), 1e3 * p99(seconds)
