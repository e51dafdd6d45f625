"""Rounds on the float64 twin of a tiny model: what a draft may change is how many rounds it takes, nothing
else.
"""

from dataclasses import replace

import numpy as np
import pytest
from constraints_for_tests import Broken, Successors
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_tiny
from twin_target import TwinTarget

from foredraft.core.constraint import LeastLength, pruned
from foredraft.core.history import History
from foredraft.core.nouns import Draft, Verdict
from foredraft.core.pick import Place, draw, pick, probabilities
from foredraft.core.round import (
    Piece,
    Turn,
    paths_of,
    places_of,
    play,
    prefill,
    rows_of,
    score,
    wanted_rows,
)
from foredraft.core.rules import DRAFT, Dice, follow, judge
from foredraft.core.sampling import Sampling
from foredraft.engine.kv import KVPool
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf

GREEDY = Sampling()
SETTINGS = (
    GREEDY,
    Sampling(temperature=1.5, seed=7, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    file = read_gguf(write_tiny(tmp_path_factory.mktemp("round") / "tiny.gguf", "gemma3", window=8))
    return TwinTarget(file, describe(file))


def plain(target, prompt, sampling, count):
    """The target's own text, one token a round."""
    pool = KVPool(8)
    with pool.open() as cache:
        text, history = list(prompt), History(prompt)
        for _ in range(count):
            (outcome,) = play(target, [Turn(cache, text, history, sampling)])
            text.append(outcome.verdict.token)
            history.add([outcome.verdict.token])
    pool.check([])
    return text[len(prompt) :]


def test_draft_hangs_below_the_last_pending_token(target):
    cache = KVPool(4).open()
    turn = Turn(cache, [4, 5, 6], History(), GREEDY, Draft((7, 8, 9), (-1, -1, 0)))
    rows = rows_of(turn, 3)
    assert rows.tokens.tolist() == [4, 5, 6, 7, 8, 9]
    assert rows.parents.tolist() == [-1, 0, 1, 2, 2, 3]
    assert set(rows.owners.tolist()) == {3}
    assert wanted_rows([turn, turn]).tolist() == [2, 3, 4, 5, 8, 9, 10, 11]
    assert [(place.position, place.path) for place in places_of(turn)] == [
        (3, ()),
        (4, (7,)),
        (4, (8,)),
        (5, (7, 9)),
    ]


def test_follow_descends_only_where_token_and_pick_agree():
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 1))
    assert follow(tree, [9, 0, 0, 0, 0]) == Verdict((), 9)
    assert follow(tree, [5, 1, 0, 0, 0]) == Verdict((0,), 1)
    assert follow(tree, [6, 0, 8, 0, 3]) == Verdict((1, 3), 3)
    assert follow(Draft.empty, [4]) == Verdict((), 4)


def test_of_two_equal_branches_one_is_followed():
    twice = Draft((5, 5, 6), (-1, -1, 1))
    assert follow(twice, [5, 6, 6, 0]) == Verdict((0,), 6)


@pytest.mark.parametrize("sampling", SETTINGS, ids=["greedy", "sampled"])
def test_true_draft_is_accepted_whole(target, sampling):
    prompt = [40, 41, 42]
    truth = plain(target, prompt, sampling, 6)
    pool = KVPool(8)
    with pool.open() as cache:
        draft = Draft.chain(truth[:5])
        (outcome,) = play(target, [Turn(cache, prompt, History(prompt), sampling, draft)])
        assert outcome.verdict.burst(draft) == tuple(truth)
        assert [token for token, _ in outcome.burst(draft)] == truth
        assert target.read(cache) == (*prompt, *truth[:5])


def test_prefill_leaves_a_round_of_at_most_one_chunk(target):
    text = list(range(30, 50))
    with KVPool(8).open() as cache:
        target.passes.clear()
        while prefill(target, cache, text, 7):
            pass
        assert target.passes == [7, 7]
        (chunked,) = play(target, [Turn(cache, text, History(text), GREEDY)])
    assert chunked.verdict.token == plain(target, text, GREEDY, 1)[0]


@st.composite
def drafts(draw):
    """Trees that mix true tokens (0 means: what the target writes there) with wrong ones."""
    size = draw(st.integers(0, 8))
    parents = tuple(draw(st.integers(-1, index - 1)) for index in range(size))
    return parents, tuple(draw(st.integers(0, 3)) for _ in range(size))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), sampling=st.sampled_from(SETTINGS), num_sequences=st.integers(1, 3))
def test_no_draft_changes_the_text(target, data, sampling, num_sequences):
    prompts = [
        data.draw(st.lists(st.integers(0, 250), min_size=1, max_size=70)) for _ in range(num_sequences)
    ]
    truths = [plain(target, prompt, sampling, 27) for prompt in prompts]
    pool = KVPool(12)
    caches = [pool.open() for _ in prompts]
    texts, histories = [list(prompt) for prompt in prompts], [History(prompt) for prompt in prompts]
    for _ in range(3):
        turns = []
        for cache, text, history, prompt, truth in zip(
            caches, texts, histories, prompts, truths, strict=True
        ):
            parents, errors = data.draw(drafts())
            depth = []
            for parent in parents:
                depth.append(0 if parent < 0 else depth[parent] + 1)
            written = len(text) - len(prompt)
            tokens = tuple((truth[written + d] + error) % 250 for d, error in zip(depth, errors, strict=True))
            turns.append(Turn(cache, text, history, sampling, Draft(tokens, parents)))
        outcomes = play(target, turns)
        pool.check(caches)
        for turn, outcome, text, history in zip(turns, outcomes, texts, histories, strict=True):
            burst = outcome.verdict.burst(turn.draft)
            text += burst
            history.add(burst)
            assert target.read(turn.cache) == tuple(text[:-1])
    for text, prompt, truth in zip(texts, prompts, truths, strict=True):
        assert text[len(prompt) :] == truth[: len(text) - len(prompt)]


# Pieces of other texts


@settings(max_examples=25, deadline=None)
@given(data=st.data(), sampling=st.sampled_from(SETTINGS))
def test_pieces_beside_a_round_are_committed_and_change_nothing(target, data, sampling):
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 250), min_size=2, max_size=70), min_size=2, max_size=4)
    )
    own, *others = prompts
    truth = plain(target, own, sampling, 4)
    pool = KVPool(12)
    caches = [pool.open() for _ in prompts]
    held = [0] * len(others)
    text, history = list(own), History(own)
    for _ in range(3):
        pieces = []
        for index, (other, cache) in enumerate(zip(others, caches[1:], strict=True)):
            count = data.draw(st.integers(0, len(other) - held[index]))
            if count:
                pieces.append(Piece(cache, other, count))
                held[index] += count
        (outcome,) = play(target, [Turn(caches[0], text, history, sampling)], pieces)
        pool.check(caches)
        text.append(outcome.verdict.token)
        history.add([outcome.verdict.token])
        assert [target.read(cache) for cache in caches[1:]] == [
            tuple(other[:count]) for other, count in zip(others, held, strict=True)
        ]
    assert text[len(own) :] == truth[:3]
    for other, cache in zip(others, caches[1:], strict=True):
        assert rest(target, cache, other, sampling) == plain(target, other, sampling, 1)


def rest(target, cache, text, sampling):
    """The first token after a text whose beginning the cache holds."""
    if cache.length == len(text):
        cache.truncate(len(text) - 1)
    (outcome,) = play(target, [Turn(cache, text, History(text), sampling)])
    return [outcome.verdict.token]


def test_pieces_alone_are_a_pass_too(target):
    pool, texts = KVPool(4), ([7, 8, 9], [10, 11])
    caches = [pool.open() for _ in texts]
    target.passes.clear()
    assert play(target, (), [Piece(cache, text, 2) for cache, text in zip(caches, texts, strict=True)]) == []
    assert target.passes == [4]
    assert [target.read(cache) for cache in caches] == [(7, 8), (10, 11)]


def test_scoring_tells_what_the_model_says_after_every_token(target):
    text = list(range(40, 60))
    with KVPool(4).open() as cache:
        found = [score(target, cache, text, count) for count in (1, 5, 13)]
        assert target.read(cache) == tuple(text[:19])
        assert [len(rows) for rows in found] == [1, 5, 13]
        expected = [target.logits(tuple(text[: length + 1])) for length in range(19)]
        assert np.array_equal(np.concatenate(found), expected)


# Constraints

EVEN = {token: set(range(token % 7, 250, 3)) for token in range(0, 250, 2)}  # odd tokens bind nothing


@settings(max_examples=25, deadline=None)
@given(data=st.data(), sampling=st.sampled_from(SETTINGS), drafted=drafts())
def test_a_constraint_forbids_before_the_pick_and_nothing_else(target, data, sampling, drafted):
    """Beside a turn without one. What the model says stays what it says."""
    prompt, (parents, errors) = data.draw(st.lists(st.integers(0, 250), min_size=1, max_size=9)), drafted
    constraint = Successors(EVEN, set(range(0, 250, 4)))
    tree = Draft(tuple(data.draw(st.integers(0, 249)) for _ in errors), parents)
    draft = pruned(tree, constraint)
    pool = KVPool(6)
    caches = [pool.open(), pool.open()]
    turns = [
        Turn(caches[0], prompt, History(prompt), sampling, draft, constraint=constraint),
        Turn(caches[1], prompt, History(prompt), sampling, tree),
    ]
    outcome, free = play(target, turns)
    for index, (path, place) in enumerate(zip(paths_of(draft), places_of(turns[0]), strict=True)):
        said = target.logits((*prompt, *path))
        assert np.array_equal(outcome.logits[index], said)
        row = said.copy()
        row[[token for token in range(len(row)) if not constraint.may(path, token)]] = -np.inf
        assert outcome.picks[index] == pick(row, place)
    assert outcome.verdict == follow(draft, outcome.picks)
    paths, places = paths_of(tree), places_of(turns[1])
    rows = [target.logits((*prompt, *path)) for path in paths]
    assert np.array_equal(free.logits, rows)
    assert list(free.picks) == [pick(row, place) for row, place in zip(rows, places, strict=True)]


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_drawn_draft_is_judged_by_what_the_constraint_leaves(target, rule):
    """Tokens drawn without regard for it; of those that cannot follow the first one is in the draft."""
    prompt, refused, accepted = [40, 41, 42], 0, 0
    for seed in range(40):
        sampling = Sampling(temperature=1.2, top_k=40, seed=seed)
        constraint = LeastLength(2, range(0, 250, 2)) if seed % 2 else Successors(EVEN, None)
        draft = pruned(drawn_from(target, prompt, replace(sampling, temperature=2.0), 3), constraint)
        laws = []
        for path in paths_of(draft):
            row = target.logits((*prompt, *path)).copy()
            if constraint.allowed(path) == len(path):
                constraint.forbid(row, path)
            laws.append(probabilities(row, Place(sampling, len(prompt) + len(path), History(prompt), path)))
        with KVPool(4).open() as cache:
            turn = Turn(cache, prompt, History(prompt), sampling, draft, rule, constraint=constraint)
            (outcome,) = play(target, [turn])
        assert outcome.verdict == judge(rule, draft, laws, Dice(seed, len(prompt)))
        burst = outcome.verdict.burst(draft)
        assert constraint.allowed(burst) == len(burst)
        refused += constraint.allowed(draft.tokens) < len(draft)
        accepted += len(outcome.verdict.path)
    assert min(refused, accepted) > 5


def drawn_from(target, text, sampling, k):
    dice, drawn = Dice(sampling.seed, len(text)), []
    for index in range(k):
        path = tuple(one.token for one in drawn)
        place = Place(sampling, len(text) + index, History(text), path, dice.stream(DRAFT))
        drawn.append(draw(target.logits((*text, *path)), place))
    return replace(Draft.chain([one.token for one in drawn]), laws=tuple(one.law for one in drawn))


def test_a_round_that_raises_changes_no_cache(target):
    pool, texts = KVPool(6), ([40, 41], [50, 51, 52], [60, 61])
    caches = [pool.open() for _ in texts]
    play(target, (), [Piece(cache, text, 1) for cache, text in zip(caches, texts, strict=True)])
    before = [target.read(cache) for cache in caches]
    turns = [Turn(cache, text, History(text), GREEDY) for cache, text in zip(caches, texts[:2], strict=False)]
    with pytest.raises(RuntimeError, match="broken in forbid"):
        play(
            target,
            [turns[0], replace(turns[1], constraint=Broken("forbid", 0))],
            [Piece(caches[2], texts[2], 1)],
        )
    assert [target.read(cache) for cache in caches] == before
    assert [outcome.verdict.token for outcome in play(target, turns)] == [
        plain(target, text, GREEDY, 1)[0] for text in texts[:2]
    ]
