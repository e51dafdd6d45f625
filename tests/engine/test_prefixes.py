import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.prefixes import PrefixIndex

SPAN = 2
TEXTS = st.lists(st.integers(0, 1), max_size=8)


def filled(*texts, salt=""):
    """An index of texts that share no block, numbered from 0."""
    index = PrefixIndex(SPAN)
    paths = []
    for text in texts:
        path, start = [], len(index)
        blocks = range(start, start + len(text) // SPAN)
        assert index.extend(path, text, salt, blocks) == list(blocks)
        paths.append(path)
    return index, *paths


def found(index, text, salt="", most=100):
    return [prefix.block for prefix in index.find(text, salt, most)]


@given(known=st.lists(st.tuples(st.sampled_from(["", "a"]), TEXTS), max_size=6), text=TEXTS)
def test_finds_what_a_dict_of_whole_texts_finds(known, text):
    index, twin = PrefixIndex(SPAN), {}
    fresh = iter(range(1000))
    for salt, words in known:
        blocks = [next(fresh) for _ in range(len(words) // SPAN)]
        new = index.extend([], words, salt, blocks)
        ends = range(SPAN, len(words) + 1, SPAN)
        firsts = [
            twin.setdefault((salt, *words[:end]), block) for end, block in zip(ends, blocks, strict=True)
        ]
        assert new == [block for block, first in zip(blocks, firsts, strict=True) if block == first]
        index.check()
    for salt in ("", "a", "b"):
        expected = []
        for end in range(SPAN, len(text) + 1, SPAN):
            if (salt, *text[:end]) not in twin:
                break
            expected.append(twin[salt, *text[:end]])
        assert found(index, text, salt) == expected
    assert len(index) == len(twin)


def test_finds_no_more_than_asked_for():
    index, _ = filled([1, 2, 3, 4, 5, 6])
    assert found(index, [1, 2, 3, 4, 5, 6], most=2) == [0, 1]
    assert found(index, [1, 2, 3], most=2) == [0]


def test_tokens_are_told_apart_by_all_their_bytes():
    index, *_ = filled([1, 2], [256, 2], [65536, 2], [1 << 24, 2])
    assert [found(index, [first, 2]) for first in (1, 256, 65536, 1 << 24)] == [[0], [1], [2], [3]]
    assert found(index, [2, 1]) == []


def test_known_text_keeps_its_block():
    index, first = filled([1, 2, 3, 4])
    path = []
    assert index.extend(path, [1, 2, 3, 4, 5, 6], "", [7, 8, 9]) == [9]
    assert path[:2] == first
    assert found(index, [1, 2, 3, 4, 5, 6]) == [0, 1, 9]
    assert 7 not in index and 9 in index


def test_oldest_rests_shortest():
    index, *_ = filled([1, 2], [3, 4], [5, 6])
    for block in (2, 0, 1):
        index.rest(block)
    index.touch(index.find([5, 6], "", 1)[0])
    assert [index.evict(), index.evict(), index.evict()] == [[0], [1], [2]]
    assert index.num_resting == len(index) == 0


def test_woken_block_stays():
    index, *_ = filled([1, 2], [3, 4])
    index.rest(0)
    index.rest(1)
    index.wake(0)
    assert index.num_resting == 1
    assert index.evict() == [1]
    assert found(index, [1, 2]) == [0]


def test_held_block_is_forgotten_with_the_one_it_is_found_by():
    index, path = filled([1, 2, 3, 4, 5, 6])
    index.rest(0)
    assert index.evict() == [0, 1, 2]
    assert not any(index.knows(prefix) for prefix in path)
    assert len(index) == 0
    index.check()


def test_forgotten_prefix_is_not_taken_for_the_one_that_has_its_block_now():
    index, (old,) = filled([1, 2])
    index.rest(0)
    index.evict()
    index.extend([], [3, 4], "", [0])
    index.extend([], [5, 6], "", [1])
    index.rest(0)
    index.rest(1)
    index.touch(old)
    assert not index.knows(old)
    assert index.evict() == [0]


def test_token_that_is_none_changes_nothing():
    index, path = filled([1, 2])
    with pytest.raises(OverflowError):
        index.extend(path, [1, 2, 3, 4, 5, 1 << 40], "", [0, 1, 2])
    assert len(index) == len(path) == 1
    index.check()


def test_check_finds_a_text_that_goes_before_its_continuation():
    index, _ = filled([1, 2, 3, 4])
    index.rest(0)
    index.rest(1)
    with pytest.raises(AssertionError, match="goes after"):
        index.check()
