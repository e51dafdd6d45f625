"""Who owns which block of the KV memory. Blocks hold 64 positions and are counted: a block is free when
nobody holds it. Full blocks can be published under their text, for later sequences to adopt; then the index
of prefixes is one more holder, which gives way as soon as a block is needed. Nobody writes into a full block
again, so a shared one needs no copy.

Only numbers live here, no keys and no values: those lie in the target's memory, and `keep` says what has to
be moved there.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from foredraft.core.nouns import int32s
from foredraft.core.target import Moves
from foredraft.engine.prefixes import Prefix, PrefixIndex
from foredraft.errors import ContextError

BLOCK = 64  # positions


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK)


class KVPool:
    """A fixed number of blocks, handed out lowest first as long as none has come back. What is kept only for
    reuse goes when nothing else is left.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self._counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._prefixes = PrefixIndex(BLOCK)

    @property
    def num_blocks(self) -> int:
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out, those kept only for reuse among them."""
        return len(self._free) + self._prefixes.num_resting

    @property
    def num_cached(self) -> int:
        """Blocks kept only for reuse."""
        return self._prefixes.num_resting

    def allocate(self, num_blocks: int) -> list[int]:
        """So many blocks, or ContextError and none at all."""
        if num_blocks > self.num_free:
            raise ContextError(
                f"the KV cache is full: {num_blocks} more blocks of {BLOCK} positions are needed, "
                f"{self.num_free} of {self.num_blocks} are free. Close other sequences, or load the model "
                "with a longer context."
            )
        while len(self._free) < num_blocks:
            self._evict()
        taken = [self._free.pop() for _ in range(num_blocks)]
        for block in taken:
            self._counts[block] = 1
        return taken

    def retain(self, block: int) -> None:
        """One more holder of a block that is held already."""
        assert self._counts[block] > 0, f"block {block} is free"
        self._counts[block] += 1
        self._prefixes.wake(block)

    def release(self, block: int) -> None:
        """One holder less; the last one gives the block back."""
        assert self._counts[block] > 0, f"block {block} is free"
        self._counts[block] -= 1
        if self._counts[block] == 0:
            self._free.append(block)
        elif self._counts[block] == 1 and block in self._prefixes:
            self._prefixes.rest(block)

    def match(self, text: Sequence[int], salt: str = "") -> int:
        """How many positions `KVSequence.adopt` would take now."""
        return len(self.find(text, salt)) * BLOCK

    def find(self, text: Sequence[int], salt: str) -> list[Prefix]:
        """The published blocks the text begins with. They never cover all of it: its last token has to be
        computed in any case, for what follows it.
        """
        return self._prefixes.find(text, salt, (len(text) - 1) // BLOCK)

    def publish(self, path: list[Prefix], text: Sequence[int], salt: str, blocks: Sequence[int]) -> None:
        """Lengthen a sequence's path of prefixes to all of these blocks, which hold the text."""
        if path and not self._prefixes.knows(path[-1]):
            path.clear()  # evicted from the middle: another sequence held the block it was found by
        for block in self._prefixes.extend(path, text, salt, blocks):
            self.retain(block)

    def touch(self, prefix: Prefix) -> None:
        """A sequence lets go of this text, which counts as a use of the block it is found by."""
        self._prefixes.touch(prefix)

    def forget_prefixes(self) -> None:
        """Drop all that is kept only for reuse. What sequences hold can still be found."""
        while self.num_cached:
            self._evict()

    def open(self) -> "KVSequence":
        """A new sequence of length 0 that holds nothing yet."""
        return KVSequence(self)

    def check(self, sequences: Sequence["KVSequence"]) -> None:
        """Raise AssertionError unless the given sequences and the index hold exactly what is not free."""
        held = [0] * self.num_blocks
        for sequence in sequences:
            assert len(sequence.blocks) >= blocks_for(sequence.length), "a sequence is longer than its blocks"
            for block in sequence.blocks:
                held[block] += 1
        assert (
            sum(count == 0 and block in self._prefixes for block, count in enumerate(held)) == self.num_cached
        )
        self._prefixes.check()
        held = [count + (block in self._prefixes) for block, count in enumerate(held)]
        assert held == self._counts, f"counted {self._counts}, held {held}"
        free = [block for block, count in enumerate(held) if count == 0]
        assert sorted(self._free) == free, f"free are {free}, listed {self._free}"

    def _evict(self) -> None:
        for block in self._prefixes.evict():
            self.release(block)


class KVSequence:
    """The blocks of one sequence in logical order. Between rounds it holds no more than its committed
    positions need.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._blocks: list[int] = []
        self._length = 0
        self._path: list[Prefix] = []  # what its first blocks were adopted from or published as

    @property
    def length(self) -> int:
        return self._length

    @property
    def blocks(self) -> Sequence[int]:
        return self._blocks

    def adopt(self, text: Sequence[int], salt: str = "") -> int:
        """Take the published blocks that hold the beginning of the text, never all of it, into an empty
        sequence. Returns how many positions need not be computed.
        """
        if self._blocks:
            raise ValueError(
                f"only an empty sequence can adopt a prefix, not one of {self._length} positions"
            )
        self._path = self._pool.find(text, salt)
        for prefix in self._path:
            self._pool.retain(prefix.block)
            self._blocks.append(prefix.block)
        self._length = len(self._blocks) * BLOCK
        return self._length

    def publish(self, text: Sequence[int], salt: str = "") -> None:
        """Let others adopt its full blocks. The text is what its committed positions hold, and may go on."""
        full = self._length // BLOCK
        if full == len(self._path):
            return
        if len(text) < full * BLOCK:
            raise ValueError(f"a text of {len(text)} tokens does not fill {full} blocks of {BLOCK}")
        if self._path and self._path[0].salt != salt:
            raise ValueError(f"published under salt {self._path[0].salt!r} before, not {salt!r}")
        self._pool.publish(self._path, text, salt, self._blocks[:full])

    def reserve(self, rows: int) -> None:
        """Make room for rows after the committed ones, or raise ContextError and change nothing."""
        missing = blocks_for(self._length + rows) - len(self._blocks)
        if missing > 0:
            self._blocks += self._pool.allocate(missing)

    def keep(self, path: Sequence[int]) -> Moves:
        """Commit the rows of a path (rising indexes of the rows reserved), and say what has to be copied:
        nothing for a chain.
        """
        if any(later <= earlier for earlier, later in zip((-1, *path), path, strict=False)):
            raise ValueError(f"a path must rise: {tuple(path)}")
        if path and self._length + path[-1] >= len(self._blocks) * BLOCK:
            raise ValueError(f"row {path[-1]} was never reserved")
        moved = [(row, place) for place, row in enumerate(path) if row != place]
        sources = int32s(self._slot(self._length + row) for row, _ in moved)
        targets = int32s(self._slot(self._length + place) for _, place in moved)
        self._shorten(self._length + len(path))
        return Moves(sources, targets)

    def truncate(self, length: int) -> None:
        """Forget the committed positions from `length` on, and all scratch. Of what was adopted or published
        only all can be forgotten.
        """
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate a sequence of {self._length} positions to {length}")
        if 0 < length < len(self._path) * BLOCK:
            raise ValueError(
                f"cannot truncate a sequence to {length} positions: its first {len(self._path) * BLOCK} are "
                "adopted or published, and others may use them. Truncate it to 0, or close it."
            )
        self._shorten(length)

    def close(self) -> None:
        """Give everything back. A closed sequence is an empty one."""
        self._shorten(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _slot(self, position: int) -> int:
        return self._blocks[position // BLOCK] * BLOCK + position % BLOCK

    def _shorten(self, length: int) -> None:
        """Set the length and release the blocks no committed position needs, newest first."""
        self._length = length
        while len(self._blocks) > blocks_for(length):
            self._pool.release(self._blocks.pop())
            if len(self._path) > len(self._blocks):
                self._pool.touch(self._path.pop())
