"""The nouns of a round: rows go into a pass, a draft proposes some of them, a verdict says how far the draft
was right.

Indexes are local: a row's parent is a row of the same pass, a drafted token's parent a token of the same
draft. What a row's keys and values live in is the target's affair (`core/target.py`); how rows are made from
a draft and judged is `core/round.py`.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_INT32 = np.dtype(np.int32)

COMMITTED = -1  # the parent of what follows the last committed token directly


def int32s(values: Iterable[int] | npt.NDArray[np.integer]) -> Int32s:
    """The values as a contiguous one-dimensional int32 array; a value that does not fit raises ValueError."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"expected one dimension, got shape {values.shape}")
        if values.dtype == _INT32:
            return np.ascontiguousarray(values)
        values = values.tolist()
    try:
        return np.array(array("i", values), np.int32)
    except OverflowError:
        raise ValueError("a value does not fit into 32 bits") from None


@dataclass(frozen=True, eq=False)
class Rows:
    """What one pass computes: per row its token, the row it follows (or `COMMITTED`), and whose it is.

    `owners` index the list of sequences handed to the pass beside the rows. The position of a row is the
    length of its owner where the parent is `COMMITTED`, else one more than its parent's.
    """

    tokens: Int32s  # [n]
    parents: Int32s  # [n]
    owners: Int32s  # [n]

    def __post_init__(self) -> None:
        for name in ("tokens", "parents", "owners"):
            object.__setattr__(self, name, int32s(getattr(self, name)))
        if not len(self.tokens) == len(self.parents) == len(self.owners):
            counts = f"{len(self.tokens)} tokens, {len(self.parents)} parents, {len(self.owners)} owners"
            raise ValueError(f"{counts}: not one of each a row")
        if len(self) < 2:  # decoding: arrays of one are checked sooner without array arithmetic
            if len(self) and (self.tokens[0] < 0 or self.owners[0] < 0):
                raise ValueError("a row has a negative token or owner")
            if len(self) and self.parents[0] != COMMITTED:
                raise ValueError("a row must come after its parent")
            return
        if (self.tokens | self.owners).min() < 0:
            raise ValueError("a row has a negative token or owner")
        if self.parents.min() < COMMITTED or (self.parents - np.arange(len(self))).max() >= 0:
            raise ValueError("a row must come after its parent")
        if self.owners[0] == self.owners[-1] and len(set(self.owners.tolist())) == 1:
            return
        owners_of_parents = self.owners[self.parents]  # COMMITTED takes the last row's, and does not count
        if ((owners_of_parents != self.owners) & (self.parents != COMMITTED)).any():
            raise ValueError("a row and its parent belong to different sequences")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], owner: int = 0) -> Self:
        """Every token follows the one before it, the first one what is committed."""
        n = len(tokens)
        return cls(int32s(tokens), np.arange(-1, n - 1, dtype=np.int32), np.full(n, owner, np.int32))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The rows of several sequences as those of one pass, in the given order."""
        if len(parts) == 1:
            return parts[0]
        tokens, parents, owners = [[np.zeros(0, np.int32)] for _ in range(3)]
        start = 0
        for part in parts:
            tokens.append(part.tokens)
            parents.append(
                np.where(part.parents == COMMITTED, COMMITTED, part.parents + start).astype(np.int32)
            )
            owners.append(part.owners)
            start += len(part)
        return cls(np.concatenate(tokens), np.concatenate(parents), np.concatenate(owners))


@dataclass(frozen=True)
class Draft:
    """Tokens proposed to follow a sequence: a chain, or a tree given by parents. `Draft.empty` proposes
    nothing.

    What else is known of the tokens is either empty or there for each of them. `laws` are the distributions
    that a chain was drawn from, which the rules `ratio` and `block` need; a draft without them is one that
    was not drawn by chance.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # index of the drafted token before it, or COMMITTED
    chances: tuple[float, ...] = ()  # that it is right where its parent is, as its drafter believes
    drafters: tuple[str, ...] = ()  # who proposed it
    laws: tuple[Doubles, ...] = field(default=(), compare=False)  # [vocab] each

    empty: ClassVar["Draft"]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} drafted tokens, {len(self.parents)} parents")
        for name in ("chances", "drafters", "laws"):
            if len(getattr(self, name)) not in (0, len(self.tokens)):
                raise ValueError(f"{len(self.tokens)} drafted tokens, {len(getattr(self, name))} {name}")
        if any(not COMMITTED <= parent < index for index, parent in enumerate(self.parents)):
            raise ValueError("a drafted token must come after its parent")
        if self.laws and self.parents != tuple(range(-1, len(self.tokens) - 1)):
            raise ValueError("only a chain can have been drawn from distributions")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], chances: Sequence[float] = (), drafter: str = "") -> Self:
        """Every token follows the one before it; one drafter proposed them all."""
        names = (drafter,) * len(tokens) if drafter else ()
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(chances), names)

    def branch(self, index: int) -> tuple[int, ...]:
        """The drafted tokens from the root to the given one, itself included."""
        tokens: list[int] = []
        while index != COMMITTED:
            tokens.append(self.tokens[index])
            index = self.parents[index]
        return tuple(reversed(tokens))

    def part(self, nodes: Sequence[int]) -> "Draft":
        """These of its tokens, by index, parents before children; every one's parent is among them."""
        place = {node: index for index, node in enumerate(nodes)} | {COMMITTED: COMMITTED}
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(place[self.parents[node]] for node in nodes),
            tuple(self.chances[node] for node in nodes) if self.chances else (),
            tuple(self.drafters[node] for node in nodes) if self.drafters else (),
            tuple(self.laws[node] for node in nodes) if self.laws else (),
        )


Draft.empty = Draft()


@dataclass(frozen=True)
class Verdict:
    """How a draft fared: the drafted tokens that are accepted, by index from the root down, and the target's
    own token after them.
    """

    path: tuple[int, ...]
    token: int

    def burst(self, draft: Draft) -> tuple[int, ...]:
        """The tokens this round adds to the text; never empty."""
        return (*(draft.tokens[index] for index in self.path), self.token)
