"""Which cached blocks hold which text, so that a request that begins with the same text need not compute it.

A trie: a block is found by its salt and its tokens under the block before it, so a find compares every token
of the text. Nobody is counted here. The pool says which blocks rest, that is, are kept only for reuse, and
gets those back when it needs them, least recently used first. Whoever lets go of a text marks all of it as
used, the end first, so what continues a text goes before the text itself.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

Key = tuple[str, bytes]  # the salt and the tokens of one block


@dataclass(slots=True, eq=False)
class Prefix:
    """A text of whole blocks, by its last block."""

    block: int
    key: Key
    parent: "Prefix | None"
    children: dict[Key, "Prefix"] = field(default_factory=dict)

    @property
    def salt(self) -> str:
        return self.key[0]


class PrefixIndex:
    """Prefixes of texts in blocks of `span` tokens, at most one for each block."""

    def __init__(self, span: int) -> None:
        self._span = span
        self._root = Prefix(-1, ("", b""), None)
        self._prefixes: dict[int, Prefix] = {}
        self._resting: OrderedDict[int, None] = OrderedDict()  # the next to go first

    def __len__(self) -> int:
        return len(self._prefixes)

    def __contains__(self, block: int) -> bool:
        return block in self._prefixes

    @property
    def num_resting(self) -> int:
        return len(self._resting)

    def knows(self, prefix: Prefix) -> bool:
        return self._prefixes.get(prefix.block) is prefix

    def find(self, text: Sequence[int], salt: str, most: int) -> list[Prefix]:
        """The longest run of known blocks that the text begins with, up to so many of them."""
        path: list[Prefix] = []
        at = self._root
        for place in range(min(most, len(text) // self._span)):
            child = at.children.get(self._key(text, salt, place))
            if child is None:
                break
            path.append(child)
            at = child
        return path

    def extend(self, path: list[Prefix], text: Sequence[int], salt: str, blocks: Sequence[int]) -> list[int]:
        """Lengthen a path of known prefixes to all of these blocks, which hold the text. Where the text is
        known already it stays with the block it has. Returns the blocks that are new here.
        """
        at = path[-1] if path else self._root
        new = []
        keys = [self._key(text, salt, place) for place in range(len(path), len(blocks))]
        for block, key in zip(blocks[len(path) :], keys, strict=True):
            child = at.children.get(key)
            if child is None:
                child = at.children[key] = self._prefixes[block] = Prefix(block, key, at)
                new.append(block)
            path.append(child)
            at = child
        return new

    def rest(self, block: int) -> None:
        """Nobody but the index holds this block any more."""
        self._resting[block] = None

    def wake(self, block: int) -> None:
        """Somebody holds this block (again)."""
        self._resting.pop(block, None)

    def touch(self, prefix: Prefix) -> None:
        """Somebody used this text just now, in this block or in a copy."""
        if prefix.block in self._resting and self.knows(prefix):
            self._resting.move_to_end(prefix.block)

    def evict(self) -> list[int]:
        """Forget the resting block that was used longest ago, with what continues its text: nothing of that
        rests, but it may be held by a sequence with a copy of this block. Returns all blocks forgotten.
        """
        oldest = self._prefixes[next(iter(self._resting))]
        assert oldest.parent is not None
        del oldest.parent.children[oldest.key]
        stack, forgotten = [oldest], []
        while stack:
            prefix = stack.pop()
            stack += prefix.children.values()
            prefix.children, prefix.parent = {}, None
            del self._prefixes[prefix.block]
            self._resting.pop(prefix.block, None)
            forgotten.append(prefix.block)
        return forgotten

    def check(self) -> None:
        """Raise AssertionError unless all is linked, and ends of texts go before their beginnings."""
        order = {block: turn for turn, block in enumerate(self._resting)}
        stack: list[tuple[Prefix, int]] = [(self._root, len(order))]
        found = 0
        while stack:
            parent, turn = stack.pop()
            for key, child in parent.children.items():
                assert self.knows(child) and child.parent is parent and child.key == key, (
                    f"{child.block} is astray"
                )
                assert order.get(child.block, -1) < turn, f"{child.block} goes after what it continues"
                stack.append((child, order.get(child.block, turn)))
                found += 1
        assert found == len(self._prefixes), f"{len(self._prefixes)} are known, {found} can be found"
        assert order.keys() <= self._prefixes.keys(), "an unknown block rests"

    def _key(self, text: Sequence[int], salt: str, place: int) -> Key:
        return salt, array("i", text[place * self._span : (place + 1) * self._span]).tobytes()
