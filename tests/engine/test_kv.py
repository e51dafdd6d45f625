import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foredraft.engine.kv import BLOCK, KVPool, blocks_for
from foredraft.errors import ContextError

NUM_BLOCKS = 6


def test_exhaustion_takes_nothing():
    pool = KVPool(2)
    first, second = pool.open(), pool.open()
    first.reserve(BLOCK)
    with pytest.raises(ContextError, match="1 of 2 are free"):
        second.reserve(BLOCK + 1)
    assert pool.num_free == 1
    pool.check([first, second])


def test_block_is_free_when_the_last_holder_releases_it():
    pool = KVPool(1)
    (block,) = pool.allocate(1)
    pool.retain(block)
    pool.release(block)
    assert pool.num_free == 0
    pool.release(block)
    assert pool.num_free == 1


def test_chain_is_kept_without_a_move():
    pool = KVPool(4)
    sequence = pool.open()
    sequence.reserve(100)
    moves = sequence.keep(range(100))
    assert sequence.length == 100
    assert len(moves.source) == len(moves.target) == 0


def test_branch_is_moved_across_a_block_border():
    pool = KVPool(4)
    pool.allocate(1)  # so that physical and logical blocks differ
    sequence = pool.open()
    sequence.reserve(62)
    sequence.keep(range(62))
    sequence.reserve(6)
    moves = sequence.keep([0, 2, 5])
    assert moves.source.tolist() == [2 * BLOCK + 0, 2 * BLOCK + 3]
    assert moves.target.tolist() == [1 * BLOCK + 63, 2 * BLOCK + 0]
    assert sequence.length == 65


def test_scratch_blocks_go_back_when_nothing_of_them_is_kept():
    pool = KVPool(3)
    sequence = pool.open()
    sequence.reserve(3 * BLOCK)
    sequence.keep([0])
    assert pool.num_free == 2


def test_context_manager_closes():
    pool = KVPool(1)
    with pool.open() as sequence:
        sequence.reserve(1)
        assert pool.num_free == 0
    assert pool.num_free == 1


@pytest.mark.parametrize("path", [[1, 0], [0, 0], [-1], [BLOCK]])
def test_impossible_paths_are_refused(path):
    sequence = KVPool(2).open()
    sequence.reserve(5)
    with pytest.raises(ValueError, match=r"must rise|never reserved"):
        sequence.keep(path)


def test_truncating_beyond_the_end_is_refused():
    with pytest.raises(ValueError, match="cannot truncate"):
        KVPool(1).open().truncate(1)


def test_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        KVPool(0)


class Memory(RuleBasedStateMachine):
    """Sequences write tokens into slots as a target does; what they read back must be what was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(NUM_BLOCKS)
        self.sequences = []
        self.texts = []
        self.slots = [None] * (NUM_BLOCKS * BLOCK)
        self.counter = 0

    def slot(self, sequence, position):
        return sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK

    @rule()
    def open(self):
        self.sequences.append(self.pool.open())
        self.texts.append([])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), rows=st.integers(1, 3 * BLOCK))
    def extend(self, data, rows):
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        sequence = self.sequences[index]
        free, need = self.pool.num_free, blocks_for(sequence.length + rows) - len(sequence.blocks)
        if need > free:
            with pytest.raises(ContextError):
                sequence.reserve(rows)
            assert self.pool.num_free == free
            return
        sequence.reserve(rows)
        tokens = list(range(self.counter, self.counter + rows))
        self.counter += rows
        for row, token in enumerate(tokens):
            self.slots[self.slot(sequence, sequence.length + row)] = token
        path = sorted(data.draw(st.sets(st.integers(0, rows - 1), max_size=12) | st.just(set(range(rows)))))
        moves = sequence.keep(path)
        for source, target in zip(moves.source, moves.target, strict=True):
            self.slots[target] = self.slots[source]
        self.texts[index] += [tokens[row] for row in path]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data):
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        length = data.draw(st.integers(0, len(self.texts[index])))
        self.sequences[index].truncate(length)
        del self.texts[index][length:]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def close(self, data):
        index = data.draw(st.integers(0, len(self.sequences) - 1))
        self.sequences.pop(index).close()
        self.texts.pop(index)

    @invariant()
    def nothing_leaks(self):
        self.pool.check(self.sequences)
        assert sum(blocks_for(s.length) for s in self.sequences) + self.pool.num_free == NUM_BLOCKS

    @invariant()
    def every_sequence_reads_its_own_text(self):
        for sequence, text in zip(self.sequences, self.texts, strict=True):
            assert [self.slots[self.slot(sequence, position)] for position in range(sequence.length)] == text


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
