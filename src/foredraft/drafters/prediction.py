"""Drafting from the caller's guess of the whole output: follow it, and find the place again where the output
differs.
"""

from bisect import bisect_right
from collections.abc import Sequence

from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.drafters.unread import Unread

LONGEST = 4  # tokens of output that are looked for in the prediction
SURE = 4  # a place that so many tokens agree with is beyond doubt

# How often the prediction was right about the next token where so many tokens before, or more, agreed: edits
# of code by qwen2.5-coder-1.5b, predicted to change nothing.
MATCHES = (0, 1, 2, 3, 4, 5, 8, 10, 16, 32)
CHANCES = (0.05, 0.33, 0.52, 0.73, 0.84, 0.88, 0.92, 0.95, 0.98, 0.99)


def chance(match: int) -> float:
    """That the prediction is right about the next token where so many tokens before it agree."""
    return CHANCES[bisect_right(MATCHES, match) - 1]


class Prediction:
    """Proposes a chain. Deterministic."""

    name = "prediction"

    def __init__(self, ids: Sequence[int], start: int | None = None) -> None:
        """`ids`: the guess, as tokens of the target; `start`: tokens of the text before the output (by
        default those of the first ask).
        """
        self._ids = list(ids)
        self._given_start = start
        self._places = _places(self._ids)
        self._unread = Unread()
        self._restart()

    def _restart(self) -> None:
        self._output: list[int] = []
        self._start = self._given_start
        self._place = 0  # of the token expected next
        self._sure = 0  # the last place that was beyond doubt
        self._match = SURE  # tokens before the place that are the last ones of the output

    def propose(self, ask: Ask) -> Draft:
        """What the prediction holds from the present place on."""
        continues, new = self._unread.take(ask.text)
        if not continues:
            self._restart()
        if self._start is None:
            self._start = len(ask.text)
        for token in new[max(0, self._start - (len(ask.text) - len(new))) :]:
            self._follow(token)
        return self._draft(min(ask.most, ask.depth), ask.floor)

    def close(self) -> None:
        """Nothing is held but the prediction."""

    def _follow(self, token: int) -> None:
        self._output.append(token)
        if self._place < len(self._ids) and self._ids[self._place] == token:
            self._place += 1
            self._match += 1
        else:
            self._place, self._match = self._find()
        if self._match >= SURE:
            self._sure = self._place

    def _find(self) -> tuple[int, int]:
        """Where the last tokens of the output end in the prediction, and how many they are: as many as
        possible, and nearest ahead of where the place was last sure, if they are there at all. Without any,
        it is taken that one token was written in place of another.
        """
        for length in range(min(LONGEST, len(self._output)), 0, -1):
            places = self._places.get(tuple(self._output[-length:]))
            if places:
                ahead = bisect_right(places, self._sure)
                return places[ahead if ahead < len(places) else -1], length
        return self._place + 1, 0

    def _draft(self, most: int, floor: float) -> Draft:
        tokens: list[int] = []
        chances: list[float] = []
        path = 1.0
        for token in self._ids[self._place : self._place + max(most, 0)]:
            likely = chance(self._match + len(tokens))
            path *= likely
            if path < floor:
                break
            tokens.append(token)
            chances.append(likely)
        return Draft.chain(tokens, chances, self.name)


def _places(ids: list[int]) -> dict[tuple[int, ...], list[int]]:
    """Where each run of up to LONGEST tokens ends, in ascending order."""
    places: dict[tuple[int, ...], list[int]] = {}
    for end in range(1, len(ids) + 1):
        for length in range(1, min(LONGEST, end) + 1):
            places.setdefault(tuple(ids[end - length : end]), []).append(end)
    return places
