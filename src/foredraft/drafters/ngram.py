"""Prompt lookup: what followed the last tokens when they occurred before, in the prompt or in the output.

Source: Saxena 2023, "Prompt Lookup Decoding". Two things differ from it: the most recent occurrence wins
rather than the first, since a text repeats what it is at; and a draft ends where it is no longer worth its
rows, judged by how long the match really is.
"""

from bisect import bisect_right

from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.drafters.unread import Unread

# Lengths of match that are looked for, longest first. Longer ones are found among those of eight tokens, if
# they are the latest; what a match is worth is seen by comparing further back.
LENGTHS = (8, 7, 6, 5, 4, 3, 2, 1)
# How often a match of so many tokens, or more, was right about the next one: 371 greedy answers of
# qwen2.5-coder-1.5b, of eight sorts.
MATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHANCES = (0.23, 0.51, 0.6, 0.74, 0.82, 0.86, 0.9, 0.95, 0.97, 0.99)


def chance(match: int) -> float:
    """That the next token is the one which followed a match of so many tokens."""
    return CHANCES[max(bisect_right(MATCHES, match) - 1, 0)]


class NGram:
    """Proposes a chain. Deterministic; a token of text costs a dictionary entry per length."""

    name = "ngram"

    def __init__(self) -> None:
        self._unread = Unread()
        self._restart()

    def propose(self, ask: Ask) -> Draft:
        """A chain after the longest match of those lengths, the most recent one of these.

        Where it reaches the end of the text it goes on with its own beginning: the text repeats itself there.
        """
        self._read(ask)
        text = self._text
        start = self._find()
        if start is None:
            return Draft.empty
        match = self._match(start)
        draft: list[int] = []
        chances: list[float] = []
        path = 1.0
        while len(draft) < min(ask.most, ask.depth):
            at = start + len(draft)
            chances.append(chance(match + len(draft)))
            path *= chances[-1]
            if path < ask.floor:
                break
            draft.append(text[at] if at < len(text) else draft[at - len(text)])
        return Draft.chain(draft, chances[: len(draft)], self.name)

    def close(self) -> None:
        """Forget the text."""
        self._unread = Unread()
        self._restart()

    def _restart(self) -> None:
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where the latest occurrence of these tokens went on

    def _read(self, ask: Ask) -> None:
        continues, new = self._unread.take(ask.text)
        if not continues:
            self._restart()
        for token in new:
            end = len(self._text)
            for length in LENGTHS:
                if length > end:
                    continue
                self._after[tuple(self._text[end - length :])] = end
            self._text.append(token)

    def _find(self) -> int | None:
        matches = (self._after.get(tuple(self._text[-length:])) for length in LENGTHS)
        return next((start for start in matches if start is not None), None)

    def _match(self, start: int) -> int:
        """How many tokens before `start` are the last ones of the text too."""
        text, end = self._text, len(self._text)
        length = 0
        while length < min(MATCHES[-1], start) and text[start - 1 - length] == text[end - 1 - length]:
            length += 1
        return length
