"""Rounds on the float64 twin of a tiny model: what a draft may change is how many rounds it takes, nothing
else.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_tiny
from twin_target import TwinTarget

from foredraft.core.history import History
from foredraft.core.nouns import Draft, Verdict
from foredraft.core.round import Turn, places_of, play, prefill, rows_of, wanted_rows
from foredraft.core.rules import follow
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
