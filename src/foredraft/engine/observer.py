"""Who watches an engine at work: metrics, logs. Called on the engine's thread, so it has to be quick; no text
depends on what it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from foredraft.core.trace import RoundEvent
from foredraft.engine.completion import Completion

Outcome = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, eq=False)
class PassEvent:
    """One pass for all requests that had rows in it. Times are seconds; the predicted ones are 0 where no
    price was known.
    """

    rows: int
    prompt_rows: int  # of these, a prompt's rows that no token was picked after
    decoding: int  # requests that got tokens
    running: int
    waiting: int
    kv_used: int  # blocks held by requests
    kv_blocks: int
    draft_s: float
    pass_s: float  # forward and picks
    host_s: float  # all else of the round
    plain_s: float  # that the same tokens are expected to take without drafting
    spent_s: float  # that the round is expected to take, with its drafting: comparable with `plain_s`
    rounds: Sequence[tuple[int, RoundEvent]]  # by ticket


@dataclass(frozen=True, eq=False)
class EndEvent:
    """A request has ended; `completion` is as far as it came."""

    ticket: int
    completion: Completion
    outcome: Outcome
    error: Exception | None
    queued_s: float
    preempted: int  # how often it had to give its memory to others


class Observer(Protocol):
    def passed(self, event: PassEvent) -> None:
        """A pass is over."""

    def ended(self, event: EndEvent) -> None:
        """A request is over."""


class Nobody:
    """Watches nothing."""

    def passed(self, event: PassEvent) -> None: ...

    def ended(self, event: EndEvent) -> None: ...
