"""What several drafters propose in one round, merged into one tree, and the part of it that is worth its
rows.
"""

from collections.abc import Callable, Collection

from foredraft.core.drafter import Belief
from foredraft.core.nouns import COMMITTED, Draft


class Tree:
    """Grows by whole drafts. Tokens that follow the same path and are the same are one node.

    Drafters are added in the order they are asked: who knows more comes later. Where two name successors of
    one path the later one's chances stand, and what only the earlier one named has what the later one leaves.
    """

    def __init__(self, belief: Belief, ends: Collection[int] = ()) -> None:
        self._belief = belief
        self._ends = ends  # nothing is drafted after a token that ends the answer
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._chances: list[float] = []
        self._drafters: list[str] = []
        self._known: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, draft: Draft) -> None:
        """Take over the tokens of a draft, each with what its chance is believed to be worth."""
        before = len(self)
        place: dict[int, int] = {COMMITTED: COMMITTED}
        claimed: dict[int, float] = {}
        for index, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            here = place.get(parent)
            if here is None or (here != COMMITTED and self._tokens[here] in self._ends):
                continue
            chance = self._belief(draft.drafters[index], draft.chances[index])
            claimed[here] = claimed.get(here, 0.0) + chance
            place[index] = self._insert(here, token, chance, draft.drafters[index])
        if before:
            self._make_way(before, claimed, set(place.values()))

    def draft(self) -> Draft:
        """All of it."""
        return Draft(tuple(self._tokens), tuple(self._parents), tuple(self._chances), tuple(self._drafters))

    def _insert(self, parent: int, token: int, chance: float, drafter: str) -> int:
        node = self._known.get((parent, token))
        if node is not None:
            self._chances[node], self._drafters[node] = chance, drafter
            return node
        node = self._known[parent, token] = len(self)
        self._tokens.append(token)
        self._parents.append(parent)
        self._chances.append(chance)
        self._drafters.append(drafter)
        return node

    def _make_way(self, before: int, claimed: dict[int, float], named: set[int]) -> None:
        """Successors that the newest draft could have named and did not are less likely now."""
        for node in range(before):
            share = claimed.get(self._parents[node])
            if share is not None and node not in named:
                self._chances[node] *= max(0.0, 1.0 - share)


def survivals(draft: Draft) -> list[float]:
    """For each token how likely the whole path to it is right: the product of the chances along it."""
    result: list[float] = []
    for parent, chance in zip(draft.parents, draft.chances, strict=True):
        result.append(chance if parent == COMMITTED else result[parent] * chance)
    return result


def best_part(draft: Draft, most: int, depth: int, price: Callable[[int], float] | None = None) -> Draft:
    """The likeliest `most` tokens or fewer, none deeper than `depth`; with a price (in tokens, of so many
    drafted rows) as many as leave the most after their price, maybe none.

    The likeliest path stands first, so that its keys and values lie where they belong when it is accepted.
    """
    likely = survivals(draft)
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 if parent == COMMITTED else depths[parent] + 1)
    ranked = [
        node for node in sorted(range(len(draft)), key=lambda node: -likely[node]) if depths[node] <= depth
    ]
    count = min(most, len(ranked))
    if price is not None:
        count = _worthwhile([likely[node] for node in ranked[:count]], price)
    return _in_order(draft, ranked[:count])


def _worthwhile(likely: list[float], price: Callable[[int], float]) -> int:
    best, count, gain = 0.0, 0, 0.0
    for rows, survival in enumerate(likely, 1):
        gain += survival
        if gain - price(rows) > best:
            best, count = gain - price(rows), rows
    return count


def _in_order(draft: Draft, nodes: list[int]) -> Draft:
    """These nodes (best first, parents before children) as a draft, every path's best continuation first."""
    children: dict[int, list[int]] = {}
    for node in nodes:
        children.setdefault(draft.parents[node], []).append(node)
    order: list[int] = []
    waiting = children.get(COMMITTED, [])[::-1]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += children.get(node, [])[::-1]
    place = {node: index for index, node in enumerate(order)} | {COMMITTED: COMMITTED}
    return Draft(
        tuple(draft.tokens[node] for node in order),
        tuple(place[draft.parents[node]] for node in order),
        tuple(draft.chances[node] for node in order),
        tuple(draft.drafters[node] for node in order),
    )
