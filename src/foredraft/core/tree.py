"""What several drafters propose in one round, merged into one tree, and the part of it that is worth its
rows.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Wish:
    """What one sequence would have checked, and what of it can be of use."""

    draft: Draft
    most: int  # tokens
    depth: int  # tokens of a path


def best_part(draft: Draft, most: int, depth: int, price: Callable[[int], float] | None = None) -> Draft:
    """The likeliest `most` tokens or fewer, none deeper than `depth`; with a price (in tokens, of so many
    drafted rows) as many as leave the most after their price, maybe none.

    The likeliest path stands first, so that its keys and values lie where they belong when it is accepted.
    """
    return best_parts([Wish(draft, most, depth)], price)[0]


def best_parts(
    wishes: Sequence[Wish], price: Callable[[int], float] | None = None, room: int | None = None
) -> list[Draft]:
    """The same, with a price in `room` rows at most, for sequences that share a pass: their tokens compete
    for its rows by how likely they are to be of use (Cheng et al. 2026, DSpark, algorithm 1, with prices in
    place of a table of speeds).
    """
    ranked = [_ranked(wish) for wish in wishes]
    if price is not None:
        likely = sorted((survival for nodes in ranked for survival, _ in nodes), reverse=True)
        count = _worthwhile(likely[:room], price)
        least = likely[count - 1] if count else math.inf
        spare = sum(survival == least for survival in likely[count:])
        ranked = _cut(ranked, least, spare)
    return [
        _in_order(wish.draft, [node for _, node in nodes]) for wish, nodes in zip(wishes, ranked, strict=True)
    ]


def _ranked(wish: Wish) -> list[tuple[float, int]]:
    """Survival and index of the tokens that may be checked, best first, parents before children."""
    depths: list[int] = []
    for parent in wish.draft.parents:
        depths.append(1 if parent == COMMITTED else depths[parent] + 1)
    nodes = sorted(
        (
            (survival, node)
            for node, survival in enumerate(survivals(wish.draft))
            if depths[node] <= wish.depth
        ),
        key=lambda pair: -pair[0],
    )
    return nodes[: wish.most]


def _cut(ranked: list[list[tuple[float, int]]], least: float, spare: int) -> list[list[tuple[float, int]]]:
    """Those of at least this survival; of those that have just this, the last `spare` are left out."""
    kept = [[pair for pair in nodes if pair[0] >= least] for nodes in ranked]
    for nodes in reversed(kept):
        while spare and nodes and nodes[-1][0] == least:
            nodes.pop()
            spare -= 1
    return kept


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
    return draft.part(order)
