"""Who guesses ahead. A drafter is asked once a round and answers with a draft, or with `Draft.empty`.

Nothing a drafter does can change the text: its guesses are only compared with what the target picks. So it
may be wrong, slow or broken, and costs time at worst.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from foredraft.core.history import History
from foredraft.core.nouns import Draft
from foredraft.core.sampling import Sampling

# That a target of the same family picks a guess's first token: 1 / (1 + exp(BEHIND - AHEAD * lead)). Fitted
# on 2,700 tokens of qwen2.5-coder, 0.5b beside 1.5b; experience corrects it (`engine/acceptance.py`).
AHEAD, BEHIND = 0.95, 0.75
RUNNERS_UP = (0.35, 0.18)  # of what the first token leaves, what the second and third have

# How often a token that this drafter proposed with this chance turned out right where its parent was.
Belief = Callable[[str, float], float]


def at_face_value(_drafter: str, chance: float) -> float:
    """Believe every drafter."""
    return chance


def free(_rows: int) -> float:
    """Rows cost nothing."""
    return 0.0


@dataclass(frozen=True, eq=False)
class Ask:
    """What is asked of a drafter. `text` is prompt and output so far; from one ask to the next of a request
    it only grows.
    """

    text: Sequence[int]
    most: int  # tokens a draft may have
    depth: int  # tokens a path of it may have
    sampling: Sampling = field(default_factory=Sampling)
    history: History = field(default_factory=History)
    floor: float = 0.0  # a path that is less likely than this is not worth its last token's row
    rate: float = 0.0  # tokens per second that a drafter's time must bring; 0: time does not count
    price: Callable[[int], float] = free  # of so many drafted rows, in tokens
    drawn: bool = False  # a chain is wanted, drawn from distributions that are given with it
    ends: Collection[int] = ()  # tokens that end the answer: nothing after them is of use
    belief: Belief = at_face_value


@dataclass(frozen=True)
class Guess:
    """What a draft model would write at one place: its best tokens, and how far the first is ahead of the
    second, in units of logits.
    """

    tokens: tuple[int, ...]
    lead: float

    def chances(self) -> list[float]:
        """That the target picks the same, for each token."""
        first = 1.0 / (1.0 + math.exp(BEHIND - AHEAD * min(self.lead, 40.0)))
        return [first, *((1.0 - first) * part for part in RUNNERS_UP)][: len(self.tokens)]


class Drafter(Protocol):
    """One drafter at work for one request."""

    @property
    def name(self) -> str:
        """As in `-d`."""

    def propose(self, ask: Ask) -> Draft:
        """Guess how the text goes on. Tokens carry `chances` and this drafter's name, so that it can be
        learned what they are worth.
        """

    def close(self) -> None:
        """Free what was held for the request."""


@runtime_checkable
class LaggingDrafter(Drafter, Protocol):
    """A drafter that computes something for every token of the text, and may have left that for later."""

    def catch_up_s(self, text: Sequence[int]) -> float:
        """Seconds it is expected to need for that, before it can propose; 0 where it need not."""

    def least_s(self) -> float:
        """Seconds that being asked takes at least, once it has caught up."""

    def catch_up(self, text: Sequence[int]) -> None:
        """Do it: what is left to `propose` is no more than in every round."""


class Chooser(Protocol):
    """Decides what part of a draft is worth its rows, and learns from what came of it. The engine has one for
    the target, a drafter that is drafted for itself has another.
    """

    @property
    def belief(self) -> Belief:
        """What drafters' chances are worth here."""

    def floor(self, pending: int) -> float:
        """A path less likely than this is worth no row, in a pass of so many rows otherwise."""

    def choose(self, draft: Draft, pending: int, most: int, depth: int) -> Draft:
        """The part that is worth its rows. `chances` are taken at face value."""

    def seconds(self, rows: int) -> float:
        """What a pass of so many rows is expected to take."""

    def note_pass(self, rows: int, seconds: float) -> None:
        """A pass of so many rows took so long."""

    def learn(self, proposed: Draft, tokens: Sequence[int]) -> None:
        """The text went on with these tokens after a drafter had proposed that, whether or not it was
        checked.
        """

    def note_round(self, tokens: int, rows: int, draft_s: float) -> None:
        """A round of a pass of so many rows gave so many tokens."""
