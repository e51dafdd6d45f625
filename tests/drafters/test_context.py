"""The context model: by hand, by its laws, and its native form against it."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import _native
from foredraft.drafters import context
from foredraft.drafters.context import CHILDREN, KINDS, ContextModel, Followers, Memory

FORMS = [(ContextModel, Memory), (_native.ContextModel, _native.ContextMemory)]
both_forms = pytest.mark.parametrize(("model", "memory"), FORMS, ids=["twin", "native"])

# Few different tokens, so that long contexts repeat and short ones have many followers.
texts = st.integers(1, 12).flatmap(lambda kinds: st.lists(st.integers(0, kinds), max_size=80))


@st.composite
def repetitive(draw):
    """A text that copies from itself."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        text += text[start : start + draw(st.integers(0, 40))] + draw(st.lists(st.integers(0, 3), max_size=2))
    return text


def paths(tree):
    """The probability and the depth of every node's path."""
    found = []
    for parent, chance in zip(tree[1], tree[2], strict=True):
        above, depth = found[parent] if parent >= 0 else (1.0, 0)
        found.append((above * chance, depth + 1))
    return found


@both_forms
def test_chances_by_hand(model, memory):
    contexts = model()
    contexts.add([7, 8, 7])
    # 7 was followed by 8 once: odds 2 of another token. 7 8 was followed by 7 once: odds 0.85, and 8 alone
    # says no more. After 7 8 7 only the last 7 was followed by anything, and speaks once more.
    tokens, parents, chances = contexts.tree([], 3, 3, 0.0)
    assert (tokens, parents) == ([8, 7, 8], [-1, 0, 1])
    assert chances == pytest.approx([1 / 3, 1 / 1.85, 1 / 3], rel=1e-15)
    # Two followers, each once: odds 1.2 for each of two kinds, halved by nothing seen again.
    contexts.add([9, 7])
    tokens, parents, chances = contexts.tree([], 2, 1, 0.0)
    assert (tokens, parents) == ([9, 8], [-1, -1])  # the latest first
    assert chances == pytest.approx([0.5 / 3.4, 0.5 / 3.4], rel=1e-15)


@both_forms
def test_memory_speaks_after_the_text_with_contexts_as_long(model, memory):
    remembered = memory()
    remembered.add([1, 2, 3])
    contexts = remembered.open()
    contexts.add([2, 4, 1, 2])
    tokens, _, chances = contexts.tree([], 8, 1, 0.0)
    # Memory has 1 2 -> 3 (odds 3.2 of another token), the text 2 -> 4 (odds 2).
    assert dict(zip(tokens, chances, strict=True)) == pytest.approx({3: 1 / 4.2, 4: 3.2 / 4.2 / 3}, rel=1e-15)
    assert tokens == [4, 3]
    assert model().tree([], 8, 1, 0.0) == ([], [], [])


@both_forms
def test_long_repeat_is_all_but_sure(model, memory):
    contexts = model()
    contexts.add([*range(100, 140), 5, *range(100, 130)])
    tokens, parents, chances = contexts.tree([], 10, 10, 0.5)
    assert (tokens, parents) == (list(range(130, 140)), list(range(-1, 9)))
    assert min(chances) > 0.98
    contexts.add([130, 131])
    assert contexts.tree([132, 133], 2, 9, 0.5)[0] == [134, 135]


@settings(deadline=None, max_examples=60)
@given(
    text=repetitive(), tail=st.lists(st.integers(0, 3), max_size=25), most=st.integers(0, 20),
    depth=st.integers(0, 8), floor=st.sampled_from([0.0, 0.001, 0.05, 0.4]),
)  # fmt: skip
def test_laws_of_trees(text, tail, most, depth, floor):
    contexts = _native.ContextModel()
    contexts.add(text)
    tree = contexts.tree(tail, most, depth, floor)
    tokens, parents, chances = tree
    assert len(tokens) <= most
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        assert -1 <= parent < index
        assert tokens.index(token) == index or (parent, token) not in zip(
            parents[:index], tokens, strict=False
        )
    for parent in set(parents):
        family = [chance for chance, its in zip(chances, parents, strict=True) if its == parent]
        assert all(0.0 < chance < 1.0 for chance in family)
        assert sum(family) < 1.0 + 1e-12
        assert len(family) <= CHILDREN
    found = paths(tree)
    assert all(path >= floor and 1 <= its <= depth for path, its in found)
    assert all(before >= after for (before, _), (after, _) in pairwise(found))
    assert contexts.tree(tail, most + 1, depth, floor)[0][: len(tokens)] == tokens


@settings(deadline=None, max_examples=150)
@given(
    earlier=st.lists(repetitive(), max_size=3),
    limit=st.sampled_from([1, 3, 20, 1000]),
    pieces=st.lists(repetitive(), min_size=1, max_size=4),
    tail=texts,
    most=st.integers(0, 30),
    depth=st.integers(0, 12),
    floor=st.sampled_from([0.0, 0.0, 0.001, 0.05, 0.4]),
    lasting=st.booleans(),
)
def test_native_form_equals_twin_to_the_bit(earlier, limit, pieces, tail, most, depth, floor, lasting):
    memories = Memory(limit), _native.ContextMemory(limit)
    models = [memory.open() if lasting else form() for memory, (form, _) in zip(memories, FORMS, strict=True)]
    for memory in memories:
        for text in earlier:
            memory.add(text)
    for piece in pieces:
        for model in models:
            model.add(piece)
        trees = [tuple(model.tree(tail[: len(piece)], most, depth, floor)) for model in models]
        assert trees[0] == trees[1]


@settings(deadline=None, max_examples=40)
@given(text=repetitive(), cut=st.integers(0, 80))
def test_text_may_be_added_in_pieces(text, cut):
    for form, _ in FORMS:
        whole, pieces = form(), form()
        whole.add(text)
        pieces.add(text[:cut])
        pieces.add(text[cut:])
        assert whole.tree([], 20, 8, 0.0) == pieces.tree([], 20, 8, 0.0)


@pytest.mark.slow
def test_native_form_equals_twin_on_a_long_text():
    text = [(i * i // 7 + i % 5) % 97 for i in range(4000)]
    twin, native = ContextModel(), _native.ContextModel()
    for start in range(0, len(text), 50):
        for model in (twin, native):
            model.add(text[start : start + 50])
        assert twin.tree([], 16, 16, 0.0) == tuple(native.tree([], 16, 16, 0.0))


def test_followers_keep_the_frequent_and_the_late():
    followers = Followers()
    for token in [*range(KINDS), 0, 0, 1, 50, 51]:
        followers.count(token)
    assert followers.total == KINDS + 5
    # 2 and 3 were the oldest of those seen once.
    assert followers.counts == [(0, 3), (1, 2), (51, 1), (50, 1), (7, 1), (6, 1), (5, 1), (4, 1)]


@both_forms
def test_memory_drops_what_is_old_and_not_seen_again(model, memory):
    remembered = memory(4)
    for pair in ([1, 2], [3, 4], [5, 6], [7, 8]):
        remembered.add(pair)
    remembered.add([1, 2])  # no new context
    remembered.add([9, 10])  # the fifth: the four are old now
    remembered.add([1, 2])  # young again
    for pair in ([11, 12], [13, 14], [15, 16]):
        remembered.add(pair)  # the first two fill the young generation, the last one begins another
    contexts = remembered.open()
    known = [token for token in range(1, 17, 2) if contexts.tree([token], 1, 1, 0.0)[0]]
    assert known == [1, 9, 11, 13, 15]
    # Seen three times: odds 5 of another token, fallen to a third.
    assert contexts.tree([1], 1, 1, 0.0)[2] == pytest.approx([1 / (1 + 5 / 3)], rel=1e-15)


@both_forms
def test_memory_may_be_shared_by_threads(model, memory):
    remembered = memory(50)
    failures = []

    def work(seed):
        try:
            contexts = remembered.open()
            for step in range(30):
                text = [(seed * step + i * i) % 23 for i in range(20)]
                remembered.add(text)
                contexts.add(text)
                assert set(contexts.tree([], 8, 4, 0.0)[0]) <= set(range(23))
        except Exception as error:  # noqa: BLE001 - a thread's failure would be lost otherwise
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@both_forms
def test_refuses_what_is_no_token(model, memory):
    for call in (model().add, memory().add, lambda tokens: model().tree(tokens, 1, 1, 0.0)):
        with pytest.raises(ValueError, match="token -3 is negative"):
            call([1, -3])
    with pytest.raises(ValueError, match="needs one at least"):
        memory(0)


def test_lengths_go_from_long_to_short():
    assert list(context.OWN) == sorted(context.OWN, reverse=True)
    assert set(context.REMEMBERED) <= set(context.OWN)
