"""Counters of speculation, fed with the rounds of a pass. A draft is a request's round with at least one
drafted token; accepted are the tokens of it that were delivered.
"""

from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import Counter

from foredraft.core.nouns import COMMITTED
from foredraft.core.trace import RoundEvent
from foredraft.engine.observer import EndEvent
from foredraft.engine.speculator import MEASURING, NO_GUESS, NO_ROOM, NOT_WORTH, OFF, TOO_DEAR
from foredraft.server.meters import Children, Maker

UNSAID = "other"  # of a round without a draft that gave no reason
REASONS = (OFF, MEASURING, NO_ROOM, NO_GUESS, NOT_WORTH, TOO_DEAR, UNSAID)
POSITIONS = 16  # of drafts, that are there from the start


@dataclass
class Tally:
    """What rounds come to, in plain numbers: it is added to on the engine's thread."""

    rounds: int = 0
    tokens: int = 0
    prompt_tokens: int = 0  # of requests whose first round it was
    drafted: Counts[int] = field(default_factory=Counts)  # drafts, by their depth
    accepted: Counts[int] = field(default_factory=Counts)  # drafts, by the tokens accepted
    drafted_by: Counts[str] = field(default_factory=Counts)  # tokens
    accepted_by: Counts[str] = field(default_factory=Counts)
    reasons: Counts[str] = field(default_factory=Counts)  # rounds without a draft

    def add(self, events: Iterable[RoundEvent]) -> None:
        """A pass is over."""
        drafted_by: list[str] = []
        accepted_by: list[str] = []
        for event in events:
            self.rounds += 1
            self.tokens += len(event.tokens)
            self.prompt_tokens += 0 if event.round else event.position
            if not event.drafted:
                self.reasons[event.reason or UNSAID] += 1
                continue
            chain = is_chain(event.parents)
            path = range(event.accepted) if chain else accepted_path(event)
            self.drafted[len(event.parents) if chain else depth(event.parents)] += 1
            self.accepted[event.accepted] += 1
            drafted_by += event.drafters
            accepted_by += [event.drafters[index] for index in path]
        self.drafted_by.update(drafted_by)
        self.accepted_by.update(accepted_by)


def is_chain(parents: tuple[int, ...]) -> bool:
    return parents == tuple(range(COMMITTED, len(parents) - 1))


def depth(parents: Sequence[int]) -> int:
    """Tokens of a draft's longest path."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == COMMITTED else depths[parent] + 1)
    return max(depths)


def accepted_path(event: RoundEvent) -> list[int]:
    """The accepted tokens by index. A parent comes before its children, which are all different."""
    path: list[int] = []
    here = COMMITTED
    for index, (token, parent) in enumerate(zip(event.drafted, event.parents, strict=True)):
        if len(path) == event.accepted:
            break
        if parent == here and token == event.tokens[len(path)]:
            path.append(index)
            here = index
    return path


class Positions:
    """A counter's children by position in a draft."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._children = [counter.labels(str(position)) for position in range(POSITIONS)]

    def add(self, lengths: Counts[int]) -> None:
        """So many times it was so long: each time counts at every position it had."""
        longest, times = max(lengths), 0
        while len(self._children) < longest:
            self._children.append(self._counter.labels(str(len(self._children))))
        for position in reversed(range(longest)):
            times += lengths[position + 1]
            self._children[position].inc(times)


class RoundMeters:
    def __init__(self, make: Maker, drafters: Sequence[str]) -> None:
        self._tokens = make.counter("generation_tokens_total", "Tokens delivered, counted every round.")
        self._rounds = make.counter(
            "spec_decode_num_rounds_total", "Rounds: a request's share of a pass that gave it tokens."
        )
        self._drafts = make.counter("spec_decode_num_drafts_total", "Rounds with at least one drafted token.")
        self._drafted = make.counter("spec_decode_num_draft_tokens_total", "Drafted tokens.")
        self._accepted = make.counter("spec_decode_num_accepted_tokens_total", "Drafted tokens delivered.")
        self._drafted_at = Positions(
            make.counter(
                "spec_decode_num_draft_tokens_per_pos_total",
                "Drafts that had a token, or several, at this depth; the first token's is 0.",
                "position",
            )
        )
        self._accepted_at = Positions(
            make.counter(
                "spec_decode_num_accepted_tokens_per_pos_total",
                "Drafted tokens delivered, by their depth in the draft; the first token's is 0.",
                "position",
            )
        )
        self._reasons = Children(
            make.counter(
                "spec_decode_num_rounds_without_draft_total",
                "Rounds without a drafted token (k = 0).",
                "reason",
            ),
            REASONS,
        )
        self._drafted_by = Children(
            make.counter("spec_decode_drafter_draft_tokens_total", "Drafted tokens.", "drafter"), drafters
        )
        self._accepted_by = Children(
            make.counter("spec_decode_drafter_accepted_tokens_total", "Drafted tokens delivered.", "drafter"),
            drafters,
        )
        self._seconds_of = Children(
            make.counter(
                "spec_decode_drafter_seconds_total",
                "Time a drafter took, counted when a request ends.",
                "drafter",
            ),
            drafters,
        )

    def add(self, tally: Tally) -> None:
        self._tokens.inc(tally.tokens)
        self._rounds.inc(tally.rounds)
        for reason, rounds in tally.reasons.items():
            self._reasons[reason].inc(rounds)
        if not tally.drafted:
            return
        self._drafts.inc(tally.drafted.total())
        self._drafted.inc(tally.drafted_by.total())
        self._accepted.inc(sum(length * drafts for length, drafts in tally.accepted.items()))
        self._drafted_at.add(tally.drafted)
        self._accepted_at.add(tally.accepted)
        for drafter, tokens in tally.drafted_by.items():
            self._drafted_by[drafter].inc(tokens)
        for drafter, tokens in tally.accepted_by.items():
            self._accepted_by[drafter].inc(tokens)

    def add_ended(self, event: EndEvent) -> None:
        for drafter, figures in event.completion.figures.by_drafter.items():
            self._seconds_of[drafter].inc(figures.seconds)
