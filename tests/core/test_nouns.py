import numpy as np
import pytest

from foredraft.core.nouns import Draft, Rows, Verdict, int32s


def test_chain_follows_itself():
    rows = Rows.chain([7, 8, 9], owner=2)
    assert rows.tokens.tolist() == [7, 8, 9]
    assert rows.parents.tolist() == [-1, 0, 1]
    assert rows.owners.tolist() == [2, 2, 2]
    assert {a.dtype for a in (rows.tokens, rows.parents, rows.owners)} == {np.dtype(np.int32)}


def test_join_shifts_parents_but_not_roots():
    fork = Rows(int32s([4, 5, 6]), int32s([-1, 0, 0]), int32s([1, 1, 1]))
    rows = Rows.join([Rows.chain([1, 2]), Rows.chain([3]), fork])
    assert rows.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert rows.parents.tolist() == [-1, 0, -1, -1, 3, 3]
    assert rows.owners.tolist() == [0, 0, 0, 1, 1, 1]


def test_join_of_nothing_is_empty():
    assert len(Rows.join([])) == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "owners", "complaint"),
    [
        ([1, 2], [-1], [0, 0], "not one of each"),
        ([1, 2], [-1, 1], [0, 0], "after its parent"),
        ([1, 2], [-1, 5], [0, 0], "after its parent"),
        ([1], [-2], [0], "after its parent"),
        ([1, 2], [-1, 0], [0, 1], "different sequences"),
        ([-1], [-1], [0], "negative"),
        ([1], [-1], [-1], "negative"),
        ([2**31], [-1], [0], "32 bits"),
    ],
)
def test_impossible_rows_are_refused(tokens, parents, owners, complaint):
    with pytest.raises(ValueError, match=complaint):
        Rows(np.array(tokens), np.array(parents), np.array(owners))


def test_two_dimensional_tokens_are_refused():
    with pytest.raises(ValueError, match="one dimension"):
        int32s(np.zeros((2, 2), np.int64))


def test_draft_chain_and_branch():
    draft = Draft.chain([5, 6, 7])
    assert draft.parents == (-1, 0, 1)
    assert draft.branch(2) == (5, 6, 7)
    tree = Draft((5, 6, 7, 8), (-1, -1, 0, 2))
    assert tree.branch(1) == (6,)
    assert tree.branch(3) == (5, 7, 8)


def test_empty_draft_is_the_default():
    assert Draft() == Draft.empty == Draft.chain([])
    assert len(Draft.empty) == 0


@pytest.mark.parametrize(("tokens", "parents"), [((1,), ()), ((1,), (0,)), ((1, 2), (-1, 1)), ((1,), (-2,))])
def test_impossible_drafts_are_refused(tokens, parents):
    with pytest.raises(ValueError, match="drafted token"):
        Draft(tokens, parents)


def test_burst_is_the_path_and_one_token_more():
    tree = Draft((5, 6, 7), (-1, -1, 1))
    assert Verdict((), 9).burst(tree) == (9,)
    assert Verdict((1, 2), 9).burst(tree) == (6, 7, 9)


def test_a_part_of_a_draft_keeps_what_is_known_of_its_tokens():
    laws = tuple(np.full(3, index) for index in range(3))
    drawn = Draft((5, 6, 7), (-1, 0, 1), (0.5, 0.4, 0.3), ("a", "b", "c"), laws)
    part = drawn.part([0, 1])
    assert part == Draft((5, 6), (-1, 0), (0.5, 0.4), ("a", "b"))
    assert [law[0] for law in part.laws] == [0, 1]
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 0), (0.1, 0.2, 0.3, 0.4), ("a", "b", "c", "d"))
    part = tree.part([1, 2, 0])
    assert part == Draft((6, 7, 5), (-1, 0, -1), (0.2, 0.3, 0.1), ("b", "c", "a"))
    assert tree.part([]) == Draft.empty
    assert tree.part(range(4)) == tree
    assert Draft((5, 6), (-1, 0)).part([0]) == Draft((5,), (-1,))


def test_a_part_without_a_tokens_parent_is_refused():
    with pytest.raises((ValueError, KeyError)):
        Draft((5, 6, 7), (-1, 0, 1)).part([0, 2])
