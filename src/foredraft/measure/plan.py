"""What drafting would be worth by theory, from measured acceptance and prices, beside what it is worth.

One prompt is answered without drafting and with drafts of several fixed lengths, by turns. From the rounds
come the acceptance at each depth, what a drafted token takes, and what a pass takes by its rows.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING

from foredraft.core.nouns import COMMITTED
from foredraft.core.sampling import Sampling
from foredraft.core.theory import (
    VerifyCost,
    best_k,
    break_even,
    flat,
    rate_of,
    speed,
    survival,
    survival_of,
    tokens_per_round,
)
from foredraft.core.trace import RoundEvent
from foredraft.engine.drafting import OFF, Drafting
from foredraft.errors import MeasurementError

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM

Say = Callable[[str], None]

LENGTHS = (1, 2, 3, 4, 6, 8)
REPEAT = 3


@dataclass(frozen=True)
class Line:
    """One length of a draft. `speed` is what one acceptance rate everywhere gives; the others are of a
    measurement: by the acceptance at each depth, and as it was.
    """

    k: int
    tokens_per_round: float
    speed: float
    by_survival: float | None = None
    measured: float | None = None


@dataclass(frozen=True)
class Plan:
    """`draft_cost` and `verify_cost` are in units of a pass of one row."""

    alpha: float
    draft_cost: float
    verify_cost: VerifyCost | None  # None: passes cost the same whatever their rows
    best_k: int
    break_even: float | None
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Rounds:
    """The rounds of one answer without the first, which has the prompt in it."""

    events: tuple[RoundEvent, ...]
    tok_s: float

    @property
    def draft_s(self) -> float:
        """Of a round, on average."""
        return sum(event.draft_s for event in self.events) / len(self.events)

    @property
    def survived(self) -> list[float]:
        accepted = [event.accepted for event in self.events]
        return survival_of(accepted, max(accepted))


def plan(alpha: float, draft_cost: float, verify: VerifyCost | None, max_k: int) -> Plan:
    """By theory alone, for drafts of 1 to `max_k` tokens."""
    cost = verify or flat
    chain = survival(alpha, max_k)
    lines = [
        Line(k, tokens_per_round(chain[:k]), speed(chain[:k], draft_cost, cost)) for k in range(1, max_k + 1)
    ]
    best = best_k(chain, draft_cost, cost)
    return Plan(alpha, draft_cost, verify, best, break_even(draft_cost, max_k, cost), tuple(lines))


def measured_plan(llm: "LLM", drafter: str, prompt: str, tokens: int, say: Say) -> Plan:
    """From the model itself. Raises MeasurementError where the drafter proposed nothing."""
    samples: dict[int, list[Rounds]] = defaultdict(list)
    for number in range(REPEAT):
        for k in (0, *LENGTHS):
            say(f"answer {number + 1} of {REPEAT}, drafts of {k}")
            samples[k].append(answer(llm, drafter, k, prompt, tokens))
    return assess(samples, drafter)


def answer(llm: "LLM", drafter: str, k: int, prompt: str, tokens: int) -> Rounds:
    events: list[RoundEvent] = []
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    drafting = Drafting(drafter, k) if k else OFF
    with llm.stream(prompt, sampling, drafting=drafting, trace=events.append) as stream:
        for _ in stream:
            pass
    rate = stream.completion.figures.tok_s
    if len(events) < 2 or rate is None:
        raise MeasurementError(f"an answer of {tokens} tokens is too short to measure; give a larger -n")
    return Rounds(tuple(events[1:]), rate)


def assess(samples: Mapping[int, Sequence[Rounds]], drafter: str) -> Plan:
    """`samples` by length, 0 among them: the answers that were measured by turns."""
    rounds = [one for k in samples for one in samples[k] if k]
    drafted = [event for one in rounds for event in one.events if event.drafted]
    if not drafted:
        raise MeasurementError(
            f"the drafter {drafter} proposed nothing, so there is nothing to plan from; give another "
            "drafter, a longer answer (-n) or another prompt"
        )
    verify, plain_s = pass_costs([*samples[0], *rounds])
    alpha = rate_of([depth_of(event) for event in drafted], [event.accepted for event in drafted])
    cost = sum(event.draft_s for event in drafted) / sum(len(event.drafted) for event in drafted) / plain_s
    plain = median(one.tok_s for one in samples[0])
    lines = []
    for k in sorted(set(samples) - {0}):
        one = samples[k][0]  # the others have the same rounds
        taken = median(run.draft_s for run in samples[k]) / plain_s + mean(
            verify(1 + len(event.drafted)) for event in one.events
        )
        tokens = tokens_per_round(one.survived)
        measured = median(run.tok_s for run in samples[k]) / plain
        lines.append(Line(k, tokens, speed(survival(alpha, k), cost, verify), tokens / taken, measured))
    most = max(samples)
    best = best_k(survival(alpha, most), cost, verify)
    return Plan(alpha, cost, verify, best, break_even(cost, most, verify), tuple(lines))


def pass_costs(rounds: Sequence[Rounds]) -> tuple[VerifyCost, float]:
    """What passes cost by their rows, and the seconds of the unit, a pass of one row."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for one in rounds:
        for event in one.events:
            seconds[1 + len(event.drafted)].append(event.verify_s)
    unit = median(seconds[1])
    return VerifyCost(tuple((rows, median(seconds[rows]) / unit) for rows in sorted(seconds))), unit


def depth_of(event: RoundEvent) -> int:
    """The longest path of the draft."""
    depths: list[int] = []
    for parent in event.parents:
        depths.append(1 if parent == COMMITTED else 1 + depths[parent])
    return max(depths)
