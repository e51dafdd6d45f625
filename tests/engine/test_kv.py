from dataclasses import dataclass, field

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


def text_of(*letters, tail=0):
    """One block for each letter; small and capital letters differ in the last token only."""
    blocks = [[ord(letter.lower())] * (BLOCK - 1) + [ord(letter)] for letter in letters]
    return [token for block in blocks for token in block] + [0] * tail


def computed(pool, text, salt="", publish=True):
    """A sequence that computed all of the text itself."""
    sequence = pool.open()
    sequence.reserve(len(text))
    sequence.keep(range(len(text)))
    if publish:
        sequence.publish(text, salt)
    return sequence


def cache(pool, text, salt=""):
    computed(pool, text, salt).close()


def matched(pool, letters, salt=""):
    """In blocks, of a text that goes on."""
    positions = pool.match(text_of(*letters, tail=1), salt)
    assert positions % BLOCK == 0
    return positions // BLOCK


def test_published_blocks_are_adopted_while_held_and_after():
    pool = KVPool(4)
    first = computed(pool, text_of("a", "b", tail=5))
    second, third = pool.open(), pool.open()
    assert second.adopt(text_of("a", "b", "c")) == 2 * BLOCK == second.length
    assert list(second.blocks) == list(first.blocks)[:2]
    first.close()
    second.close()
    assert (pool.num_free, pool.num_cached) == (4, 2)
    assert third.adopt(text_of("a", "x", "c")) == BLOCK
    assert (pool.num_free, pool.num_cached) == (3, 1)
    pool.check([first, second, third])


def test_match_takes_nothing_and_is_no_use():
    pool = KVPool(2)
    cache(pool, text_of("a"))
    cache(pool, text_of("b"))
    assert matched(pool, "a") == 1
    assert pool.num_free == pool.num_cached == 2
    computed(pool, text_of("c"))
    assert (matched(pool, "a"), matched(pool, "b")) == (0, 1)


@pytest.mark.parametrize(("tail", "positions"), [(0, BLOCK), (1, 2 * BLOCK)])
def test_last_token_is_never_adopted(tail, positions):
    pool = KVPool(3)
    cache(pool, text_of("a", "b", "c"))
    text = text_of("a", "b", tail=tail)
    assert pool.match(text) == pool.open().adopt(text) == positions


def test_empty_text_has_no_prefix():
    pool = KVPool(1)
    assert pool.match([]) == pool.open().adopt([]) == 0


def test_one_other_token_is_another_text():
    pool = KVPool(2)
    cache(pool, text_of("a", "b"))
    assert [matched(pool, letters) for letters in ("ab", "aB", "Ab", "b")] == [2, 1, 0, 0]


def test_salts_are_apart():
    pool = KVPool(4)
    cache(pool, text_of("a"), salt="one")
    assert [matched(pool, "a", salt) for salt in ("one", "two", "")] == [1, 0, 0]
    sequence = computed(pool, text_of("a"), salt="two")
    with pytest.raises(ValueError, match="salt 'two' before, not 'one'"):
        sequence.reserve(BLOCK)
        sequence.keep(range(BLOCK))
        sequence.publish(text_of("a", "b"), salt="one")
    sequence.close()
    pool.check([])


def test_only_what_is_computed_is_published():
    pool = KVPool(4)
    sequence = computed(pool, text_of("a", tail=BLOCK - 1), publish=False)
    sequence.publish(text_of("a", "b", "c"))
    assert matched(pool, "abc") == 1
    with pytest.raises(ValueError, match="64 tokens does not fill 2 blocks"):
        sequence.reserve(1)
        sequence.keep([0])
        sequence.publish(text_of("a"))


def test_publishing_looks_at_no_token_when_nothing_is_new():
    sequence = computed(KVPool(2), text_of("a", tail=3))
    sequence.publish([])


def test_second_copy_is_not_published_but_what_follows_is():
    pool = KVPool(5)
    first, second = computed(pool, text_of("a")), computed(pool, text_of("a", "b"))
    assert first.blocks[0] != second.blocks[0]
    third = pool.open()
    third.adopt(text_of("a", "b", tail=1))
    assert list(third.blocks) == [first.blocks[0], second.blocks[1]]
    pool.check([first, second, third])
    second.close()
    assert (pool.num_free, pool.num_cached) == (3, 0)


def test_copy_takes_the_place_of_the_evicted_first():
    pool = KVPool(3)
    first, second = computed(pool, text_of("a")), computed(pool, text_of("a", "b"))
    first.close()
    assert (matched(pool, "ab"), pool.num_free) == (2, 1)
    second.reserve(BLOCK)
    assert (matched(pool, "ab"), pool.num_free) == (0, 0)
    second.keep(range(BLOCK))
    second.publish(text_of("a", "b", "c"))
    assert matched(pool, "abc") == 3
    pool.check([second])


def test_longest_unused_goes_first_and_ends_before_beginnings():
    pool = KVPool(6)
    cache(pool, text_of("a", "b"))
    cache(pool, text_of("x", "y"))
    with pool.open() as sequence:
        sequence.adopt(text_of("a", tail=1))
    seen = []
    for size in range(6):
        with pool.open() as sequence:
            sequence.reserve(size * BLOCK + 1)
        seen.append((matched(pool, "ab"), matched(pool, "xy")))
    assert seen == [(2, 2), (2, 2), (1, 2), (1, 1), (1, 0), (0, 0)]


def test_text_shared_by_a_copy_counts_as_used():
    pool = KVPool(4)
    first, second = computed(pool, text_of("a")), computed(pool, text_of("a"))
    first.close()
    cache(pool, text_of("b"))
    second.close()
    pool.allocate(3)
    assert (matched(pool, "a"), matched(pool, "b")) == (1, 0)


def test_exhaustion_evicts_nothing():
    pool = KVPool(3)
    cache(pool, text_of("a", "b"))
    held = pool.open()
    held.adopt(text_of("a", tail=1))
    with pytest.raises(ContextError, match="3 more blocks of 64 positions are needed, 2 of 3 are free"):
        pool.allocate(3)
    assert matched(pool, "ab") == 2
    pool.check([held])


def test_only_an_empty_sequence_adopts():
    pool = KVPool(2)
    sequence = pool.open()
    sequence.reserve(1)
    with pytest.raises(ValueError, match="only an empty sequence"):
        sequence.adopt(text_of("a"))


def test_shared_blocks_are_not_cut():
    pool = KVPool(3)
    sequence = computed(pool, text_of("a", "b", tail=9))
    sequence.truncate(2 * BLOCK)
    for length in (2 * BLOCK - 1, BLOCK, 1):
        with pytest.raises(ValueError, match="its first 128 are adopted or published"):
            sequence.truncate(length)
    assert sequence.length == 2 * BLOCK
    sequence.truncate(0)
    assert sequence.adopt(text_of("a", tail=9)) == BLOCK
    with pytest.raises(ValueError, match="its first 64 are adopted or published"):
        sequence.truncate(BLOCK - 1)
    pool.check([sequence])


def test_forgetting_prefixes_leaves_what_is_held():
    pool = KVPool(4)
    cache(pool, text_of("a", "b"))
    cache(pool, text_of("c"))
    held = pool.open()
    held.adopt(text_of("a", tail=1))
    pool.forget_prefixes()
    assert (matched(pool, "ab"), matched(pool, "c")) == (1, 0)
    assert (pool.num_free, pool.num_cached) == (3, 0)
    pool.check([held])


@dataclass(eq=False)
class Entry:
    """Of the twin's index: the block of a text, and when the text was let go of."""

    block: int
    used: int = 0


@dataclass(eq=False)
class Holder:
    """A sequence, and what the twin knows of it."""

    sequence: object
    salt: str
    text: list = field(default_factory=list)
    path: list = field(default_factory=list)  # (key, entry)

    @property
    def full(self):
        return len(self.text) // BLOCK


class Twin:
    """The index as a dict of whole texts, in which everything is looked for one by one."""

    def __init__(self):
        self.entries = {}
        self.clock = 0

    def resting(self, holders):
        held = {block for holder in holders for block in holder.sequence.blocks}
        return {key: entry for key, entry in self.entries.items() if entry.block not in held}

    def find(self, text, salt):
        keys = [(salt, *text[:end]) for end in range(BLOCK, len(text), BLOCK)]
        known = [key in self.entries for key in keys]
        return keys[: (*known, False).index(False)]

    def publish(self, holder):
        if holder.full == len(holder.path):
            return
        if holder.path and self.entries.get(holder.path[-1][0]) is not holder.path[-1][1]:
            holder.path.clear()
        for place in range(len(holder.path), holder.full):
            key = (holder.salt, *holder.text[: (place + 1) * BLOCK])
            entry = self.entries.setdefault(key, Entry(holder.sequence.blocks[place]))
            holder.path.append((key, entry))

    def let_go(self, holder):
        for _, entry in reversed(holder.path):
            self.clock += 1
            entry.used = self.clock

    def evict(self, count, holders):
        for _ in range(count):
            resting = self.resting(holders)
            ends = [key for key in resting if not any(more[: len(key)] == key != more for more in resting)]
            gone = min(ends, key=lambda key: resting[key].used)
            self.entries = {key: entry for key, entry in self.entries.items() if key[: len(gone)] != gone}


class Reuse(RuleBasedStateMachine):
    """Sequences compute, publish and adopt texts, and the pool must do all that the twin does."""

    def __init__(self):
        super().__init__()
        self.pool = KVPool(NUM_BLOCKS)
        self.twin = Twin()
        self.holders = []
        self.slots = [None] * (NUM_BLOCKS * BLOCK)

    def taken(self):
        return {block for holder in self.holders for block in holder.sequence.blocks}

    def unused(self):
        return NUM_BLOCKS - len(self.taken()) - len(self.twin.resting(self.holders))

    def slot(self, sequence, position):
        return sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK

    def room(self, sequence, rows):
        """Reserve, or see that this fails as it has to; what goes for it goes from the twin too."""
        need = max(0, blocks_for(sequence.length + rows) - len(sequence.blocks))
        if need > NUM_BLOCKS - len(self.taken()):
            with pytest.raises(ContextError):
                sequence.reserve(rows)
            return False
        self.twin.evict(max(0, need - self.unused()), self.holders)
        sequence.reserve(rows)
        return True

    @rule(
        letters=st.text("aA", min_size=1, max_size=4),
        tail=st.integers(0, 2),
        salt=st.sampled_from(["", "", "", "s"]),
        reuse=st.booleans(),
        publish=st.booleans() | st.just(True),
    )
    def begin(self, letters, tail, salt, reuse, publish):
        text = text_of(*letters, tail=tail)
        holder = Holder(self.pool.open(), salt)
        self.holders.append(holder)
        if reuse:
            keys = self.twin.find(text, salt)
            holder.path = [(key, self.twin.entries[key]) for key in keys]
            holder.text = text[: len(keys) * BLOCK]
            assert self.pool.match(text, salt) == holder.sequence.adopt(text, salt) == len(keys) * BLOCK
            assert list(holder.sequence.blocks) == [entry.block for _, entry in holder.path]
        self.compute(holder, text[len(holder.text) :], publish)

    @precondition(lambda self: self.holders)
    @rule(
        data=st.data(),
        letters=st.text("aA", min_size=3, max_size=3),
        rows=st.sampled_from([1, BLOCK - 2, BLOCK, 2 * BLOCK]),
        wrong=st.none() | st.integers(0, 3),
        publish=st.booleans(),
    )
    def extend(self, data, letters, rows, wrong, publish):
        holder = data.draw(st.sampled_from(self.holders))
        tokens = text_of(*letters)[len(holder.text) % BLOCK :][:rows]
        if wrong is not None:
            tokens.insert(wrong, -1)  # drafted and not accepted
        self.compute(holder, tokens, publish)

    def compute(self, holder, tokens, publish):
        sequence = holder.sequence
        if not self.room(sequence, len(tokens)):
            return
        for row, token in enumerate(tokens):
            self.slots[self.slot(sequence, sequence.length + row)] = token
        path = [row for row, token in enumerate(tokens) if token >= 0]
        moves = sequence.keep(path)
        for source, target in zip(moves.source, moves.target, strict=True):
            self.slots[target] = self.slots[source]
        holder.text += [tokens[row] for row in path]
        if publish:
            self.publish(holder)

    def publish(self, holder):
        holder.sequence.publish(holder.text, holder.salt)
        self.twin.publish(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def publish_late(self, data):
        self.publish(data.draw(st.sampled_from(self.holders)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), rows=st.integers(1, NUM_BLOCKS * BLOCK))
    def reserve_in_vain(self, data, rows):
        sequence = data.draw(st.sampled_from(self.holders)).sequence
        if self.room(sequence, rows):
            for row in range(rows):
                self.slots[self.slot(sequence, sequence.length + row)] = -2
            sequence.keep([])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def close(self, data):
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        holder.sequence.close()
        self.twin.let_go(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), length=st.integers(0, 3 * BLOCK))
    def truncate(self, data, length):
        holder = data.draw(st.sampled_from(self.holders))
        if not 0 < length <= len(holder.text):
            return
        if length < len(holder.path) * BLOCK:
            with pytest.raises(ValueError, match="adopted or published"):
                holder.sequence.truncate(length)
            return
        holder.sequence.truncate(length)
        del holder.text[length:]

    @precondition(lambda self: self.pool.num_cached > 2)
    @rule()
    def forget(self):
        self.pool.forget_prefixes()
        self.twin.evict(len(self.twin.resting(self.holders)), self.holders)

    @invariant()
    def counts_agree(self):
        self.pool.check([holder.sequence for holder in self.holders])
        assert self.pool.num_free == NUM_BLOCKS - len(self.taken())
        assert self.pool.num_cached == len(self.twin.resting(self.holders))

    @invariant()
    def everything_known_is_found_and_nothing_else(self):
        for salt, *text in self.twin.entries:
            assert self.pool.match([*text, 0], salt) == len(text)
        for holder in self.holders:
            text = [*holder.text, 0]
            assert self.pool.match(text, holder.salt) == len(self.twin.find(text, holder.salt)) * BLOCK

    @invariant()
    def every_block_holds_its_text(self):
        for (_, *text), entry in self.twin.entries.items():
            assert self.slots[entry.block * BLOCK :][:BLOCK] == text[-BLOCK:]
        for holder in self.holders:
            sequence = holder.sequence
            assert [self.slots[self.slot(sequence, at)] for at in range(sequence.length)] == holder.text

    def teardown(self):
        for holder in self.holders:
            holder.sequence.close()
        self.pool.check([])
        self.pool.forget_prefixes()
        self.pool.check([])
        assert (self.pool.num_free, self.pool.num_cached) == (NUM_BLOCKS, 0)
        assert sorted(self.pool.allocate(NUM_BLOCKS)) == list(range(NUM_BLOCKS))


TestReuse = Reuse.TestCase
TestReuse.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
