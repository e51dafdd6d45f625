"""How much to draft: what raises the tokens per second in the long run, and not a row more.

If r is the rate that decoding reaches, a round that brings n tokens in t seconds is worth n - r t: what it
adds to what that time brings otherwise. The best rate is reached by taking in every round the draft of the
greatest worth (Dinkelbach's method for a quotient: r follows what is reached). So a row is drafted while the
probability that it is accepted exceeds r times the seconds it adds to the pass, and a drafter is asked while
what it adds exceeds r times its own time. docs/controller.md has the formulas.
"""

from collections.abc import Callable, Sequence
from functools import partial

from foredraft.core.nouns import COMMITTED, Draft
from foredraft.core.tree import best_part, survivals
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.cost import PassCost
from foredraft.engine.pace import Pace

LEAST = 0.03  # a path less likely is not worth the time to think of it, were its row free
LOOK_AHEAD = 8  # rows among which the cheapest is sought


class Controller:
    """Of one request. `cost` and `above` outlive it: what is learned serves the next one. Requests that are
    decoded together have one `pace`, and `pending` then counts the rows of them all.
    """

    def __init__(self, cost: PassCost, above: Acceptance) -> None:
        self.cost = cost
        self.belief = Acceptance(above)
        self.pace = Pace(cost)

    @property
    def rate(self) -> float:
        """Tokens per second that drafting must beat."""
        return self.pace.rate

    def price(self, pending: int, rows: int) -> float:
        """Of so many drafted rows beside the pending ones, in tokens."""
        return self.rate * (self.cost.seconds(pending + rows) - self.cost.seconds(pending))

    def prices(self, pending: int) -> Callable[[int], float]:
        """`price` as a function of the rows alone, for the rate as it is now."""
        rate = self.rate
        return partial(_price, self.cost, pending, rate, rate * self.cost.seconds(pending))

    def floor(self, pending: int) -> float:
        """The price of a row where rows are cheapest, or `LEAST`."""
        if not self.cost.is_known:
            return 1.0
        return max(LEAST, min(self.price(pending, rows) / rows for rows in (1, 2, 4, LOOK_AHEAD)))

    def worth(self, draft: Draft, pending: int) -> float:
        """Tokens that a draft is expected to add, less the price of its rows."""
        return sum(survivals(draft)) - self.price(pending, len(draft)) if len(draft) else 0.0

    def choose(self, draft: Draft, pending: int, most: int, depth: int) -> Draft:
        if not len(draft) or not self.cost.is_known:
            return Draft.empty
        return best_part(draft, most, depth, self.prices(pending))

    def seconds(self, rows: int) -> float:
        return self.cost.seconds(rows)

    def learn(self, proposed: Draft, tokens: Sequence[int]) -> None:
        """Every token whose path turned out to be the text has shown what its chance is worth."""
        here = COMMITTED
        for token in tokens:
            after = COMMITTED
            for index, parent in enumerate(proposed.parents):
                if parent == here:
                    right = proposed.tokens[index] == token
                    self.belief.note(proposed.drafters[index], proposed.chances[index], right)
                    after = index if right else after
            if after == COMMITTED:
                return
            here = after

    def note_pass(self, rows: int, seconds: float) -> None:
        self.cost.note(rows, seconds)

    def note_round(self, tokens: int, rows: int, draft_s: float) -> None:
        self.pace.note(tokens, rows, draft_s)


def _price(cost: PassCost, pending: int, rate: float, alone: float, rows: int) -> float:
    return rate * cost.seconds(pending + rows) - alone
