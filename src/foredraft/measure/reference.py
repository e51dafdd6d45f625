"""What a plain policy without a model would reach at given prices: the yardstick for our drafters.

The policy: how often which token followed the last 6, 5, … 1 tokens is counted over prompt and output; the
orders are blended, the longest first, each leaving to the next its escape probability (method C of
Moffat 1990). From this a tree grows by its likeliest path, 6 nodes at most, as long as the path's
probability exceeds what its row costs at the rate reached so far. Drafting itself is free here. Nothing is
random, and no model is run: the recorded output says which guesses are right.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from foredraft.core.nouns import COMMITTED
from foredraft.measure.prices import Prices

ORDERS = 6
NODES = 6
SUCCESSORS = 6  # of a context that count
BRANCHES = 4  # of a node that are considered
LEAST_WEIGHT = 0.02  # lower orders with less are left out
LEAST_ESCAPE = 0.7  # of a context of one token
LEAST_PRICE = 0.03  # of a row, however cheap it is
FIRST_RATE = 1.6  # tokens per price of a pass of one row
MEMORY = 0.9  # of the rate, from round to round


@dataclass(frozen=True)
class Replayed:
    """`speed`: against not drafting."""

    speed: float
    tokens_per_round: float


def replay(prompt: Sequence[int], output: Sequence[int], prices: Prices) -> Replayed:
    """Of an output of one token or more."""
    contexts = Contexts()
    contexts.read(prompt)
    position, rounds, spent, rate = 0, 0, 0.0, FIRST_RATE
    while position < len(output):

        def price(nodes: int, rate: float = rate) -> float:
            return max(LEAST_PRICE, rate * (prices.relative(nodes + 1) - prices.relative(nodes)))

        tree = contexts.tree(NODES, price)
        burst = min(1 + accepted(tree, output[position:]), len(output) - position)
        cost = prices.relative(1 + len(tree))
        contexts.read(output[position : position + burst])
        position, rounds, spent = position + burst, rounds + 1, spent + cost
        rate = MEMORY * rate + (1 - MEMORY) * burst / cost
    return Replayed(len(output) / spent, len(output) / rounds)


def accepted(tree: Sequence[tuple[int, int]], output: Sequence[int]) -> int:
    """How many nodes of the tree, (parent, token) each, the output follows from the root down."""
    places = {node: index for index, node in enumerate(tree)}
    here, depth = COMMITTED, 0
    while depth < len(output) and (here, output[depth]) in places:
        here = places[here, output[depth]]
        depth += 1
    return depth


@dataclass
class Contexts:
    """What followed which tokens."""

    text: list[int] = field(default_factory=list)
    seen: dict[tuple[int, ...], Counter[int]] = field(default_factory=dict)

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for order in range(1, min(ORDERS, len(self.text)) + 1):
                self.seen.setdefault(tuple(self.text[-order:]), Counter())[token] += 1
            self.text.append(token)

    def chances(self, last: Sequence[int]) -> dict[int, float]:
        """Of each token that may follow the last ones."""
        blended: dict[int, float] = {}
        weight = 1.0
        for order in range(min(ORDERS, len(last)), 0, -1):
            counts = self.seen.get(tuple(last[-order:]))
            if counts is None or weight < LEAST_WEIGHT:
                continue
            total = counts.total()
            escape = max(len(counts) / (total + len(counts)), LEAST_ESCAPE if order == 1 else 0.0)
            for token, times in counts.most_common(SUCCESSORS):
                blended[token] = blended.get(token, 0.0) + weight * (1 - escape) * times / total
            weight *= escape
        return blended

    def tree(self, most: int, price: Callable[[int], float]) -> list[tuple[int, int]]:
        """(parent, token) of each node; `price` is the least probability of a path to the node of this
        number, from 1.
        """
        nodes: list[tuple[int, int]] = []
        waiting: list[tuple[float, int, int, int, list[int]]] = []
        self._branch(waiting, COMMITTED, self.text[-ORDERS:], 1.0)
        while waiting and len(nodes) < most:
            negative, _, parent, token, last = heappop(waiting)
            if -negative < price(len(nodes) + 1):
                break
            nodes.append((parent, token))
            self._branch(waiting, len(nodes) - 1, [*last, token][-ORDERS:], -negative)
        return nodes

    def _branch(
        self,
        waiting: list[tuple[float, int, int, int, list[int]]],
        parent: int,
        last: list[int],
        probability: float,
    ) -> None:
        """Of equally likely paths the one that waits longest goes first."""
        order = parent * BRANCHES  # grows with every call
        likeliest = sorted(self.chances(last).items(), key=lambda item: -item[1])[:BRANCHES]
        for rank, (token, chance) in enumerate(likeliest):
            heappush(waiting, (-probability * chance, order + rank, parent, token, last))
