"""How fast decoding goes: the rate that a row, or a drafter's time, has to beat.

Kept as the quotient of what rounds gave and what they cost, both against plain rounds, for each order of
magnitude of requests that decode together: what drafting gains alone it does not gain in company.
"""

from foredraft.engine.cost import PassCost

KEEP = 0.8  # of a round's weight, from one round to the next: a text changes within some ten rounds
FIRST_ROUNDS = 3.0  # rounds without drafting that it starts from


class Pace:
    """Of the requests that decode together; `size` says how many they are."""

    def __init__(self, cost: PassCost) -> None:
        self.cost = cost
        self.size = 1
        self._gave: dict[int, float] = {}
        self._took: dict[int, float] = {}

    @property
    def plain(self) -> float:
        """Tokens per second without drafting."""
        return self.size / self.cost.seconds(self.size)

    @property
    def rate(self) -> float:
        """Tokens per second as they are reached lately, and never less than without drafting."""
        kind = self.size.bit_length()
        if kind not in self._gave:
            return self.plain
        return self.plain * max(1.0, self._gave[kind] / self._took[kind])

    def note(self, tokens: int, rows: int, draft_s: float) -> None:
        """A round of a pass of so many rows gave so many tokens. The pass counts by its learned price: one
        that was disturbed says nothing about drafting.
        """
        if not self.cost.is_known:
            return
        kind = self.size.bit_length()
        took = (self.cost.seconds(rows) + draft_s) / self.cost.seconds(self.size)
        self._gave[kind] = KEEP * self._gave.get(kind, FIRST_ROUNDS) + tokens / self.size
        self._took[kind] = KEEP * self._took.get(kind, FIRST_ROUNDS) + took

    def restart(self) -> None:
        """Forget what was reached: another text is being written."""
        self._gave.clear()
        self._took.clear()
