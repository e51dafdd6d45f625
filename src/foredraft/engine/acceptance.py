"""What a drafter's confidence turns out to be worth: how often tokens that it proposed with about this chance
were right where the path to them was.

Counted per drafter and per class of chance, the older the less. A class that was seen little is believed as
far as the level above says: the request believes the process, the process believes the drafter.
"""

import math
from bisect import bisect

EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.98, 0.99)
CLASSES = len(EDGES) + 1
PRIOR = 6.0  # trials that the level above counts as
REQUEST_MEMORY = 40.0  # trials after which an old one counts 1/e
PROCESS_MEMORY = 1000.0


class Acceptance:
    """Counts of one request, above which stand those of the process (`above`), or of the process itself."""

    def __init__(self, above: "Acceptance | None" = None) -> None:
        self._above = above
        self._keep = math.exp(-1.0 / (PROCESS_MEMORY if above is None else REQUEST_MEMORY))
        self._right: dict[str, list[float]] = {}
        self._tried: dict[str, list[float]] = {}

    def __call__(self, drafter: str, chance: float) -> float:
        """The chance as experience has it."""
        prior = chance if self._above is None else self._above(drafter, chance)
        tried = self._tried.get(drafter)
        if tried is None:
            return prior
        kind = bisect(EDGES, chance)
        return (self._right[drafter][kind] + PRIOR * prior) / (tried[kind] + PRIOR)

    def note(self, drafter: str, chance: float, right: bool) -> None:
        """A token was proposed with this chance after a right path; it was right, or it was not."""
        if self._above is not None:
            self._above.note(drafter, chance, right)
        if drafter not in self._tried:
            self._right[drafter], self._tried[drafter] = [0.0] * CLASSES, [0.0] * CLASSES
        kind = bisect(EDGES, chance)
        self._right[drafter][kind] = self._right[drafter][kind] * self._keep + right
        self._tried[drafter][kind] = self._tried[drafter][kind] * self._keep + 1.0
