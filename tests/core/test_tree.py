"""Merging drafts, and the part of a draft that is worth its rows, against every part there could be."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.drafter import at_face_value
from foredraft.core.nouns import Draft
from foredraft.core.tree import Tree, Wish, best_part, best_parts, survivals


def tree_of(*drafts, belief=at_face_value, ends=()):
    tree = Tree(belief, ends)
    for draft in drafts:
        tree.add(draft)
    return tree.draft()


def branches(draft):
    """Every path of a draft, with the chance of its last token."""
    return {draft.branch(index): draft.chances[index] for index in range(len(draft))}


def chain(tokens, chances, name="a"):
    return Draft.chain(tokens, chances, name)


def test_one_draft_stays_as_it_is():
    draft = Draft((1, 2, 3), (-1, 0, -1), (0.5, 0.4, 0.3), ("a", "a", "b"))
    assert tree_of(draft) == draft
    assert tree_of() == Draft.empty


def test_same_tokens_on_the_same_path_are_one_node():
    merged = tree_of(chain([1, 2, 3], [0.9] * 3), chain([1, 2, 4], [0.8] * 3, "b"))
    assert set(branches(merged)) == {(1,), (1, 2), (1, 2, 3), (1, 2, 4)}


def test_same_tokens_on_other_paths_are_two():
    merged = tree_of(chain([1, 2], [0.9] * 2), chain([2, 1], [0.1] * 2, "b"))
    assert set(branches(merged)) == {(1,), (1, 2), (2,), (2, 1)}


def test_a_draft_that_names_a_token_twice_has_it_once():
    twice = Draft((5, 5, 6), (-1, -1, 1), (0.4, 0.4, 0.9), ("a",) * 3)
    assert set(branches(tree_of(twice))) == {(5,), (5, 6)}


def test_the_later_drafters_chances_stand():
    merged = tree_of(chain([1, 2], [0.9, 0.8]), chain([1, 3], [0.7, 0.6], "b"))
    assert merged.drafters[0] == "b"
    assert branches(merged)[1,] == 0.7


def test_what_only_the_earlier_one_named_has_what_the_later_one_leaves():
    merged = branches(tree_of(chain([1, 2], [0.9, 0.8]), chain([1, 3], [0.7, 0.6], "b")))
    assert merged[1, 2] == pytest.approx(0.8 * (1 - 0.6))
    assert merged[1, 3] == 0.6
    # Two successors named by the later one, more than all of the chance between them.
    both = Draft((5, 6), (-1, -1), (0.7, 0.5), ("b", "b"))
    assert branches(tree_of(chain([1], [0.9]), both))[1,] == 0.0


def test_where_the_later_one_says_nothing_the_earlier_one_stands():
    merged = branches(tree_of(chain([1, 2, 3], [0.9, 0.8, 0.7]), chain([1], [0.5], "b")))
    assert merged[1, 2] == 0.8
    assert merged[1, 2, 3] == 0.7


def test_nothing_is_drafted_after_an_end():
    draft = Draft((1, 9, 2, 3, 4), (-1, 0, 1, 2, 0), (0.9,) * 5, ("a",) * 5)
    assert set(branches(tree_of(draft, ends={9}))) == {(1,), (1, 9), (1, 4)}


def test_chances_are_what_they_are_believed_to_be():
    def belief(drafter, chance):
        return chance / 2 if drafter == "a" else chance

    merged = branches(tree_of(chain([1], [0.8]), chain([2], [0.6], "b"), belief=belief))
    assert merged == {(1,): pytest.approx(0.4 * 0.4), (2,): 0.6}


def test_a_path_survives_with_the_product_of_its_chances():
    draft = Draft((1, 2, 3, 4), (-1, 0, -1, 1), (0.5, 0.4, 0.3, 0.5), ("a",) * 4)
    assert survivals(draft) == pytest.approx([0.5, 0.2, 0.3, 0.1])
    assert survivals(Draft.empty) == []


@st.composite
def drafts(draw, most=8):
    size = draw(st.integers(0, most))
    parents = tuple(draw(st.integers(-1, index - 1)) for index in range(size))
    chances = tuple(draw(st.sampled_from((0.0, 0.1, 0.3, 0.5, 0.9, 1.0))) for _ in range(size))
    return Draft(tuple(range(size)), parents, chances, ("a",) * size)


@settings(max_examples=60, deadline=None)
@given(st.lists(drafts(6), min_size=1, max_size=3))
def test_a_merged_tree_is_a_tree_of_the_same_paths(parts):
    merged = tree_of(*parts)
    paths = [merged.branch(index) for index in range(len(merged))]
    assert len(set(paths)) == len(paths)
    assert set(paths) == {part.branch(index) for part in parts for index in range(len(part))}
    assert all(0.0 <= chance <= 1.0 for chance in merged.chances)


def closed_parts(draft, most, depth):
    """Every set of its tokens that holds the parents of all it holds, no token deeper than `depth`."""
    for size in range(min(most, len(draft)) + 1):
        for nodes in combinations(range(len(draft)), size):
            held = {-1, *nodes}
            if all(draft.parents[node] in held and len(draft.branch(node)) <= depth for node in nodes):
                yield nodes


def depth_of(draft):
    return max((len(draft.branch(index)) for index in range(len(draft))), default=0)


@settings(max_examples=120, deadline=None)
@given(data=st.data(), draft=drafts(), most=st.integers(0, 9), depth=st.integers(0, 5))
def test_no_part_is_worth_more_than_the_best_whatever_rows_cost(data, draft, most, depth):
    """As a token is never likelier than its parent, the likeliest n of a draft hold their parents, and no n
    others are worth more. So it is the best for prices of any shape: convex, concave, with steps.
    """
    prices = data.draw(st.lists(st.sampled_from((0.0, 0.1, 0.3, 0.8, 2.0)), min_size=9, max_size=9))
    likely = survivals(draft)

    def price(rows):
        return sum(prices[:rows])

    part = best_part(draft, most, depth, price)
    values = [
        sum(likely[node] for node in nodes) - price(len(nodes)) for nodes in closed_parts(draft, most, depth)
    ]
    assert sum(survivals(part)) - price(len(part)) == pytest.approx(max(values))
    assert len(part) <= most
    assert depth_of(part) <= depth


@settings(max_examples=60, deadline=None)
@given(draft=drafts(), most=st.integers(0, 9), depth=st.integers(0, 5))
def test_without_a_price_it_is_the_likeliest_of_full_size(draft, most, depth):
    part = best_part(draft, most, depth)
    likely = survivals(draft)
    parts = list(closed_parts(draft, most, depth))
    assert len(part) == max(map(len, parts))
    assert sum(survivals(part)) == pytest.approx(
        max(sum(likely[node] for node in nodes) for nodes in parts if len(nodes) == len(part))
    )


@settings(max_examples=60, deadline=None)
@given(draft=drafts(), most=st.integers(1, 9))
def test_the_likeliest_path_stands_first(draft, most):
    """From the root down, every time the likeliest child: it lies where accepted tokens belong."""
    part = best_part(draft, most, 9)
    likely = survivals(part)
    here, index = -1, 0
    while children := [node for node in range(len(part)) if part.parents[node] == here]:
        assert children[0] == index
        assert likely[index] == max(likely[node] for node in children)
        here, index = index, index + 1
    assert all(part.chances[node] == draft.chances[part.tokens[node]] for node in range(len(part)))


def test_a_price_below_all_gain_takes_everything_and_one_above_nothing():
    draft = chain([1, 2, 3], [0.9, 0.8, 0.7])
    assert best_part(draft, 9, 9, lambda rows: 0.5 * rows) == draft
    assert best_part(draft, 9, 9, lambda rows: 0.505 * rows).tokens == (1, 2)
    assert best_part(draft, 9, 9, lambda rows: float(rows)) == Draft.empty
    # The first row does not pay by itself; three together do.
    assert best_part(draft, 9, 9, lambda rows: 2.0).tokens == (1, 2, 3)


# Several sequences in one pass


@st.composite
def wishes(draw):
    """Few tokens in all, so that all parts can be tried; their chances are often equal."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    return [
        Wish(
            draw(drafts(size).filter(lambda draft, size=size: len(draft) == size)) if size else Draft.empty,
            draw(st.integers(0, 5)),
            draw(st.integers(0, 4)),
        )
        for size in sizes
    ]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), wished=wishes())
def test_no_parts_of_several_drafts_are_worth_more_together(data, wished):
    """Against all there are, for prices of any shape that rise."""
    prices = data.draw(st.lists(st.sampled_from((0.0, 0.1, 0.3, 0.8, 2.0)), min_size=12, max_size=12))

    def worth(rows, survival):
        return survival - sum(prices[:rows])

    def gain(draft, nodes):
        likely = survivals(draft)
        return sum(likely[node] for node in nodes)

    found = best_parts(wished, lambda rows: sum(prices[:rows]))
    choices = [
        [(len(nodes), gain(wish.draft, nodes)) for nodes in closed_parts(wish.draft, wish.most, wish.depth)]
        for wish in wished
    ]
    best = max(
        worth(sum(rows for rows, _ in chosen), sum(survival for _, survival in chosen))
        for chosen in product(*choices)
    )
    total = worth(sum(map(len, found)), sum(sum(survivals(part)) for part in found))
    assert total == pytest.approx(best)
    for wish, part in zip(wished, found, strict=True):
        whole = branches(wish.draft)
        assert len(part) <= wish.most and depth_of(part) <= wish.depth
        assert all(whole.get(path) == chance for path, chance in branches(part).items())


@settings(max_examples=60, deadline=None)
@given(wished=wishes(), most=st.integers(0, 12))
def test_there_are_never_more_rows_than_may_be_paid(wished, most):
    """A wall behind so many rows. Before it they are free, and whatever can come true is taken."""
    found = best_parts(wished, lambda rows: 0.0 if rows <= most else 1e9)
    useful = [
        sum(
            survival > 0.0 and len(wish.draft.branch(node)) <= wish.depth
            for node, survival in enumerate(survivals(wish.draft))
        )
        for wish in wished
    ]
    assert sum(map(len, found)) == min(
        most, sum(min(wish.most, count) for wish, count in zip(wished, useful, strict=True))
    )


def test_of_equally_likely_tokens_the_first_sequence_has_its_own():
    draft = chain([1, 2], [0.5, 1.0])
    found = best_parts([Wish(draft, 9, 9)] * 3, lambda rows: 0.0 if rows <= 3 else 1e9)
    assert [part.tokens for part in found] == [(1, 2), (1,), ()]


def test_each_sequence_has_rows_by_its_own_predictability():
    sure, unsure = chain([1, 2, 3, 4], [0.95] * 4), chain([5, 6, 7, 8], [0.6] * 4)
    found = best_parts([Wish(sure, 9, 9), Wish(unsure, 9, 9)], lambda rows: 0.5 * rows)
    assert [part.tokens for part in found] == [(1, 2, 3, 4), (5,)]
    assert best_parts([], lambda rows: 0.0) == []
