"""What the round and the engine may ask of a model that checks drafts. The native engine (`models/target.py`)
is one; another model on another device fits behind the same four methods. A target does not know that
drafting exists: it sees rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foredraft.core.nouns import Floats, Int32s, Rows
from foredraft.core.pick import Place


@dataclass(frozen=True, eq=False)
class Moves:
    """Physical positions to copy keys and values from and to, in this order. No target follows its source."""

    source: Int32s  # [m]
    target: Int32s  # [m]


class Cache(Protocol):
    """One sequence's place in a target's KV memory (`engine/kv.py` hands them out)."""

    @property
    def length(self) -> int:
        """How many tokens are committed."""

    @property
    def blocks(self) -> Sequence[int]:
        """Physical blocks in logical order; they cover the committed positions and those reserved."""

    def reserve(self, rows: int) -> None:
        """Make room for rows after the committed ones, or raise ContextError and change nothing."""

    def keep(self, path: Sequence[int]) -> Moves:
        """Commit these of the rows just computed, and say what has to be copied for it."""

    def truncate(self, length: int) -> None:
        """Forget the committed positions from `length` on, and all scratch."""


@dataclass(frozen=True, eq=False)
class Taps:
    """Hidden states a pass should also return: the residual stream after each of `layers` (from 0), for each
    of `rows`.
    """

    layers: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


NO_TAPS = Taps()


@dataclass(frozen=True, eq=False)
class Scores:
    """What a pass returns."""

    logits: Floats  # [wanted, vocab]
    hidden: Floats  # [layers, rows, dim]; empty where no taps were given


class Target(Protocol):
    """Passes over rows (hidden states on request: `Taps`). What comes back for a row depends on that row's
    own path and nothing else, to the bit.
    """

    @property
    def vocab(self) -> int:
        """Length of a row of logits."""

    def forward(self, rows: Rows, caches: Sequence[Cache], wanted: Int32s, taps: Taps = NO_TAPS) -> Scores:
        """Compute the rows; `rows.owners` index `caches`. Logits come back for the rows in `wanted`, in that
        order.

        Row number j among its owner's rows is written to logical position length + j: scratch, until `keep`
        commits it or the next pass overwrites it.
        """

    def pick(self, logits: Floats, places: Sequence[Place]) -> list[int]:
        """The target's own token for each place, from logits [places, vocab]: as `core/pick.py` says."""

    def keep(self, cache: Cache, path: Sequence[int]) -> None:
        """Commit the rows of `path`: indexes among this owner's rows of the last pass, strictly rising, each
        one a child of the one before and the first one of what was committed. The rest is forgotten.
        """
