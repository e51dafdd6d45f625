"""What a request's text must obey, token by token: a grammar, or a least length.

A constraint speaks of what the target may pick, so it holds with drafting and without: tokens that may not
follow are forbidden before the pick. Its state is the text so far; a drafted path is looked at beside it and
leaves no trace, so that nothing has to be undone when a draft is rejected.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from foredraft.core.nouns import COMMITTED, Draft, Floats


class Constraint(Protocol):
    """Of one request."""

    def forbid(self, row: Floats, path: Sequence[int]) -> None:
        """Set to minus infinity, in place, what cannot follow the text and this drafted path, which is
        allowed.
        """

    def allowed(self, path: Sequence[int]) -> int:
        """How many of the path's tokens are allowed, from the first one on."""

    def advance(self, tokens: Sequence[int]) -> None:
        """The text went on with these tokens."""

    def forced(self) -> Sequence[int]:
        """Tokens that follow the text in any case, as far as that is known without trying them all."""


class LeastLength:
    """No token of `ends` before so many tokens."""

    def __init__(self, tokens: int, ends: Iterable[int]) -> None:
        self._left = tokens
        self._ends = frozenset(ends)
        self._banned = np.array(sorted(self._ends), np.intp)

    def forbid(self, row: Floats, path: Sequence[int]) -> None:
        if len(path) < self._left:
            row[self._banned] = -np.inf

    def allowed(self, path: Sequence[int]) -> int:
        early = path[: max(self._left, 0)]
        return next((index for index, token in enumerate(early) if token in self._ends), len(path))

    def advance(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)

    def forced(self) -> Sequence[int]:
        return ()


class Both:
    """Two constraints at once."""

    def __init__(self, first: Constraint, second: Constraint) -> None:
        self._parts = (first, second)

    def forbid(self, row: Floats, path: Sequence[int]) -> None:
        for part in self._parts:
            part.forbid(row, path)

    def allowed(self, path: Sequence[int]) -> int:
        return min(part.allowed(path) for part in self._parts)

    def advance(self, tokens: Sequence[int]) -> None:
        for part in self._parts:
            part.advance(tokens)

    def forced(self) -> Sequence[int]:
        return next((tokens for part in self._parts if (tokens := part.forced())), ())


def pruned(draft: Draft, constraint: Constraint) -> Draft:
    """The draft without the tokens that may not be where they are, and without what follows them. Of a drawn
    one the first such token stays: it is refused, but by the rule, which else would not know of it.
    """
    if draft.laws:
        return draft.part(range(min(len(draft), constraint.allowed(draft.tokens) + 1)))
    kept = {COMMITTED}
    for index, parent in enumerate(draft.parents):
        branch = draft.branch(index) if parent in kept else ()
        if branch and constraint.allowed(branch) == len(branch):
            kept.add(index)
    kept.remove(COMMITTED)
    return draft if len(kept) == len(draft) else draft.part(sorted(kept))
