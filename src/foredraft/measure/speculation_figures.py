"""From the runs of `foredraft bench --speculation` to figures, and what each must reach. Pure arithmetic.

The goals are those of qwen2.5-coder-1.5b on two cores, for answers of 400 tokens, and for machines whose
memory gives 60 GB/s or less: where reading is quicker, arithmetic limits sooner and further rows cost more.
There the yardstick is what the reference policy (`reference.py`) reaches at the prices of the same run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from foredraft.engine.completion import DrafterFigures
from foredraft.measure.figures import SLOW_GB_S, Goal
from foredraft.measure.paired import Paired, geometric_mean, paired
from foredraft.measure.prices import Prices
from foredraft.measure.prompts import KINDS, Prompt
from foredraft.measure.reference import replay
from foredraft.measure.regret import Regret
from foredraft.measure.speculation import OFF, Answer, Speculated

TOKENS = 400  # of the answers that the goals are stated for
SLOWER = 0.99  # whose whole interval lies below is slower than not drafting
ALL = "all kinds"


def _at_least(limits: Mapping[str, float]) -> dict[str, Goal]:
    return {kind: Goal(limit, at_least=True) for kind, limit in limits.items()}


WITHOUT_MODEL = _at_least({"edit": 4.0, ALL: 1.7})
WITH_MODEL = _at_least(
    {"json": 3.0, "code": 2.5, "edit": 4.2, "summary": 2.4, "chat": 1.65, "prose": 1.65, ALL: 2.5}
)
REPLAY_SHARE = Goal(0.9, at_least=True)
NONE_SLOWER = Goal(0.0)
HOST_MS = Goal(0.3)
REGRET = Goal(0.03)
STEP_MB = Goal(240.0)
STEP_SHARE = Goal(0.85, at_least=True)


@dataclass(frozen=True)
class Compared:
    """One prompt with one configuration, against the same without drafting. `simulated` is the speed of the
    reference policy, which drafts without a model.
    """

    prompt: Prompt
    drafter: str
    tokens: int
    off_tok_s: float
    speed: Paired  # tokens per second after the first token
    total: Paired  # time of the whole request
    acceptance: float | None
    tokens_per_round: float
    host_ms: float | None
    identical: bool
    simulated: float
    by_drafter: Mapping[str, DrafterFigures]  # of all runs together

    @property
    def share(self) -> float:
        """Measured against simulated."""
        return self.speed.median / self.simulated

    @property
    def is_slower(self) -> bool:
        return self.speed.wholly_below(SLOWER) or self.total.wholly_below(SLOWER)


@dataclass(frozen=True)
class Line:
    """One figure that may have a goal."""

    drafter: str  # the configuration, or empty
    name: str
    value: float
    unit: str = ""
    goal: Goal | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.goal.met_by(self.value)


def compare(answer: Answer, drafter: str, prices: Prices) -> Compared | None:
    """None where there is nothing to compare: a single token has no speed, and another text another one."""
    on = answer.runs[drafter]
    pairs = [pair for pair in zip(answer.runs[OFF], on, strict=True) if all(run.identical for run in pair)]
    if not answer.is_measurable or not pairs:
        return None
    drafted = sum(run.drafted for run in on)
    host = [run.host_ms for run in on if run.host_ms is not None]
    return Compared(
        prompt=answer.prompt,
        drafter=drafter,
        tokens=len(answer.recording.output),
        off_tok_s=median(off.tok_s for off, _ in pairs),
        speed=paired([run.tok_s / off.tok_s for off, run in pairs]),
        total=paired([off.total_s / run.total_s for off, run in pairs]),
        acceptance=sum(run.accepted for run in on) / drafted if drafted else None,
        tokens_per_round=sum(run.tokens for run in on) / sum(run.rounds for run in on),
        host_ms=median(host) if host else None,
        identical=all(run.identical for run in on),
        simulated=replay(answer.recording.prompt, answer.recording.output, prices).speed,
        by_drafter=_together([run.by_drafter for run in on]),
    )


def comparisons(measured: Speculated) -> list[Compared]:
    """Of every answer with every configuration, a configuration at a time."""
    prices = measured.prices.prices()
    every = [
        compare(answer, drafter, prices) for drafter in measured.order.drafters for answer in measured.answers
    ]
    return [one for one in every if one is not None]


def by_kind(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    kinds: dict[str, list[Compared]] = {}
    for one in compared:
        kinds.setdefault(one.prompt.kind, []).append(one)
    return kinds


def has_model(compared: Sequence[Compared]) -> bool:
    """Whether a model was among those who drafted."""
    return any(name.startswith("model") for one in compared for name in one.by_drafter)


def lines_of(
    measured: Speculated, compared: Sequence[Compared], regrets: Sequence[Regret] = ()
) -> list[Line]:
    """All figures, in the order in which they are shown."""
    judged = measured.order.tokens == TOKENS
    slow = measured.prices.best_gb_s <= SLOW_GB_S
    lines: list[Line] = []
    for drafter in measured.order.drafters:
        own = [one for one in compared if one.drafter == drafter]
        lines += _speeds(drafter, own, judged and slow)
        lines += _shares(drafter, own, judged and not slow)
        lines += _costs(drafter, own)
    return [*lines, *_regret(regrets), *_step(measured)]


def _speeds(drafter: str, compared: Sequence[Compared], judged: bool) -> Iterator[Line]:
    goals = WITH_MODEL if has_model(compared) else WITHOUT_MODEL
    kinds = {
        kind: geometric_mean([one.speed.median for one in own]) for kind, own in by_kind(compared).items()
    }
    for kind, speed in kinds.items():
        yield Line(drafter, kind, speed, "×", goals.get(kind) if judged else None)
    if kinds:
        whole = judged and set(KINDS) <= set(kinds)
        yield Line(drafter, ALL, geometric_mean([*kinds.values()]), "×", goals[ALL] if whole else None)


def _shares(drafter: str, compared: Sequence[Compared], judged: bool) -> Iterator[Line]:
    for kind, own in by_kind(compared).items():
        share = geometric_mean([one.share for one in own])
        note = f"{geometric_mean([one.simulated for one in own]):.2f}× simulated"
        yield Line(drafter, f"{kind} ÷ replay", share, "", REPLAY_SHARE if judged else None, note)


def _costs(drafter: str, compared: Sequence[Compared]) -> Iterator[Line]:
    slower = [one.prompt.label for one in compared if one.is_slower]
    if compared:
        title = f"prompts slower than {SLOWER} of off"
        yield Line(drafter, title, float(len(slower)), "", NONE_SLOWER, ", ".join(slower))
    if host := [one.host_ms for one in compared if one.host_ms is not None]:
        yield Line(drafter, "host time a round", max(host), "ms", HOST_MS, "the prompt with the most")


def _regret(regrets: Sequence[Regret]) -> Iterator[Line]:
    if regrets:
        worst = max(regrets, key=lambda one: one.share)
        mean = sum(one.share for one in regrets) / len(regrets)
        yield Line("auto", "regret in replay, mean", mean, "", REGRET)
        note = f"{worst.prompt}: {worst.best} is best"
        yield Line("auto", "regret in replay, worst", worst.share, "", REGRET, note)


def _step(measured: Speculated) -> Iterator[Line]:
    if step := measured.step:
        yield Line(step.name, "read by a draft step", step.read_bytes / 1e6, "MB", STEP_MB)
        note = f"{1e3 * step.seconds:.1f} ms"
        share = step.gb_s / measured.prices.best_gb_s
        yield Line(step.name, "draft step ÷ bandwidth", share, "", STEP_SHARE, note)


def _together(runs: Sequence[Mapping[str, DrafterFigures]]) -> dict[str, DrafterFigures]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {
        name: DrafterFigures(
            sum(run[name].drafted for run in runs if name in run),
            sum(run[name].accepted for run in runs if name in run),
            sum(run[name].seconds for run in runs if name in run),
        )
        for name in names
    }
