"""Suffix drafting: a tree of what followed the longest contexts, in prompt and output so far and in what
earlier requests wrote.

Source: Oliaro et al. 2024, "SuffixDecoding"; here with chances that are true to what they say, so that one
tree may hold paths from long and short contexts and from both texts.
"""

from collections.abc import Sequence

from foredraft._native import ContextMemory, ContextModel
from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.drafters.context import Shared
from foredraft.drafters.unread import Unread

Memory = ContextMemory  # the native form of `context.Memory`


class Suffix:
    """Proposes a tree. Deterministic in what it was asked and what the memory holds."""

    name = "suffix"

    def __init__(self, memory: Shared | None = None, start: int | None = None) -> None:
        """`memory` is shared with other requests: they see what this one wrote once it is closed. `start`:
        tokens of the text that are others' words; by default those of the first ask.
        """
        self._memory = memory
        self._given_start = start
        self._unread = Unread()
        self._restart()

    def _restart(self) -> None:
        self._contexts = self._memory.open() if self._memory else ContextModel()
        self._output: list[int] = []
        self._start = self._given_start

    def propose(self, ask: Ask) -> Draft:
        """The likeliest continuations of the text."""
        return self.extend(ask.text, (), ask.most, ask.depth, ask.floor)

    def extend(self, text: Sequence[int], path: Sequence[int], most: int, depth: int, floor: float) -> Draft:
        """The likeliest continuations of the text with a drafted path after it, as `propose` would give them
        if the path were accepted: a root's parent stands for the path's end.
        """
        self._read(text)
        tokens, parents, chances = self._contexts.tree(path, most, depth, floor)
        return Draft(tuple(tokens), tuple(parents), tuple(chances), (self.name,) * len(tokens))

    def close(self) -> None:
        """Remember the output, where there is a memory, and forget the text."""
        if self._memory is not None and self._output:
            self._memory.add(self._output)
        self._unread = Unread()
        self._restart()

    def _read(self, text: Sequence[int]) -> None:
        continues, new = self._unread.take(text)
        if not continues:
            self._restart()
        self._contexts.add(new)
        if self._start is None:
            self._start = len(text)
        self._output += new[max(0, self._start - (len(text) - len(new))) :]
