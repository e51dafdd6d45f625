"""Who owns which block of the KV memory. Blocks hold 64 positions and are counted: a block is free when
nobody holds it.

Only numbers live here, no keys and no values: those lie in the target's memory, and `keep` says what has to
be moved there.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from foredraft.core.nouns import int32s
from foredraft.core.target import Moves
from foredraft.errors import ContextError

BLOCK = 64  # positions


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK)


class KVPool:
    """A fixed number of blocks, handed out lowest first as long as none has come back."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self._counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        return len(self._counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """So many blocks, or ContextError and none at all."""
        if num_blocks > len(self._free):
            raise ContextError(
                f"the KV cache is full: {num_blocks} more blocks of {BLOCK} positions are needed, "
                f"{len(self._free)} of {self.num_blocks} are free. Close other sequences, or load the model "
                "with a longer context."
            )
        taken = [self._free.pop() for _ in range(num_blocks)]
        for block in taken:
            self._counts[block] = 1
        return taken

    def retain(self, block: int) -> None:
        """One more holder of a block that is held already."""
        assert self._counts[block] > 0, f"block {block} is free"
        self._counts[block] += 1

    def release(self, block: int) -> None:
        """One holder less; the last one gives the block back."""
        assert self._counts[block] > 0, f"block {block} is free"
        self._counts[block] -= 1
        if self._counts[block] == 0:
            self._free.append(block)

    def open(self) -> "KVSequence":
        """A new sequence of length 0 that holds nothing yet."""
        return KVSequence(self)

    def check(self, sequences: Sequence["KVSequence"]) -> None:
        """Raise AssertionError unless the given sequences hold exactly what is not free."""
        held = [0] * self.num_blocks
        for sequence in sequences:
            assert len(sequence.blocks) >= blocks_for(sequence.length), "a sequence is longer than its blocks"
            for block in sequence.blocks:
                held[block] += 1
        assert held == self._counts, f"counted {self._counts}, held {held}"
        free = [block for block, count in enumerate(held) if count == 0]
        assert sorted(self._free) == free, f"free are {free}, listed {self._free}"


class KVSequence:
    """The blocks of one sequence in logical order. Between rounds it holds no more than its committed
    positions need.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._blocks: list[int] = []
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def blocks(self) -> Sequence[int]:
        return self._blocks

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
        """Forget the committed positions from `length` on, and all scratch."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate a sequence of {self._length} positions to {length}")
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
