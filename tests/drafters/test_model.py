"""The model drafter with tiny models: what it proposes is what the draft model itself would write, however
the text came about that it is asked about.
"""

from collections import Counter, defaultdict

import numpy as np
import pytest
from model_drafting import BLOCKS, PROMPT, Drafting, Nothing, Script, asked, written
from tiny import write_tiny

from foredraft.core.nouns import Rows, int32s
from foredraft.core.pick import Place, draw
from foredraft.core.rules import DRAFT, Dice
from foredraft.core.sampling import Sampling
from foredraft.drafters.model import CONTEXT_ROWS, WINDOW
from foredraft.drafters.suffix import Suffix
from foredraft.engine.kv import BLOCK, KVPool
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import LoadOptions, NativeTarget


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("drafter") / "tiny.gguf", "qwen2", seed=5, context=2048)
    file = read_gguf(path)
    return NativeTarget.load(file, describe(file), LoadOptions(BLOCKS, threads=1))


@pytest.fixture
def pool():
    """Of the model; every test leaves it empty."""
    pool = KVPool(BLOCKS)
    yield pool
    assert pool.num_free == BLOCKS


SETTINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.3),
    Sampling(temperature=1.0, top_k=40, seed=7),
    Sampling(temperature=1.0, top_k=40, seed=7, frequency_penalty=0.8),
]


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("context", [Nothing, Suffix])
def test_draft_is_what_the_model_writes(model, pool, sampling, context):
    text = PROMPT * 3
    expected = written(model, pool, text, 12, sampling)
    with Drafting(model, pool, context()) as drafting:
        draft = drafting.propose(asked(text, 12, sampling))
    assert draft.tokens == tuple(expected)
    assert draft.parents == tuple(range(-1, 11))
    assert set(draft.drafters) == {"model:tiny"}
    assert all(0.0 < chance < 1.0 for chance in draft.chances)
    assert draft.laws == ()


@pytest.mark.parametrize("sampling", SETTINGS)
def test_it_catches_up_after_rejections_and_rounds_without_it(model, pool, sampling):
    """Bursts of all kinds: a part of what it drafted or all of it, and other tokens after that."""
    rng = np.random.default_rng(1)
    text = list(PROMPT)
    with Drafting(model, pool, Suffix()) as drafting:
        for _ in range(12):
            draft = drafting.propose(asked(text, 5, sampling))
            assert draft.tokens == tuple(written(model, pool, text, 5, sampling))
            text += draft.tokens[: rng.integers(0, 6)]
            text += rng.integers(0, 256, rng.integers(1, 9)).tolist()
        assert max(drafting.target.rows[1:]) <= 5 + 8 + CONTEXT_ROWS  # nothing is computed twice
        assert len(drafting.cache.blocks) == -(-drafting.cache.length // BLOCK)


def test_nothing_changed_means_nothing_to_compute_but_the_draft(model, pool):
    with Drafting(model, pool) as drafting:
        draft = drafting.propose(asked(PROMPT, 4))
        drafting.target.rows.clear()
        drafting.propose(asked([*PROMPT, *draft.tokens, 9], 1))
        assert drafting.target.rows == [2]  # the last drafted token was never computed


def test_context_model_that_knows_the_text_gives_several_tokens_a_pass(model, pool):
    text = PROMPT * 2
    known = [*text, *written(model, pool, text, 40)]
    with Drafting(model, pool, Script(known)) as drafting:
        for end in (40, 42, 44):  # the price of a pass is known after the first one
            drafting.propose(asked(known[:end], 1))
        drafting.target.rows.clear()
        draft = drafting.propose(asked(known[:46], 14))
        assert draft.tokens == tuple(known[46:60])
        assert len(drafting.target.rows) == 14 / (1 + CONTEXT_ROWS)


def test_context_model_that_is_wrong_changes_nothing(model, pool):
    text = PROMPT * 2
    with Drafting(model, pool, Script([1] * 400)) as drafting:
        for end in range(24, 40):
            draft = drafting.propose(asked(text[:end], 8))
            assert draft.tokens == tuple(written(model, pool, text[:end], 8))
        assert max(drafting.target.rows) > 1


def test_long_text_is_read_from_its_last_window(model, pool):
    text = np.random.default_rng(2).integers(0, 256, WINDOW + 150).tolist()
    for sampling in (Sampling(), Sampling(temperature=1.0, top_k=40, seed=3)):
        with Drafting(model, pool) as drafting:
            draft = drafting.propose(asked(text, 5, sampling))
        assert draft.tokens == tuple(written(model, pool, text, 5, sampling, skipped=150))
        assert sum(drafting.target.rows) == WINDOW + 4


def test_window_slides_where_its_own_context_is_too_small(model, pool):
    """Positions of the noise stay those of the text."""
    sampling = Sampling(temperature=1.0, top_k=40, seed=3)
    text, capacity, starts = list(PROMPT), 2 * BLOCK, set()
    with Drafting(model, pool, Suffix(), capacity=capacity) as drafting:
        while len(text) < 300:
            draft = drafting.propose(asked(text, 8, sampling))
            skipped = len(text) + len(draft) - 1 - drafting.cache.length
            assert draft.tokens == tuple(written(model, pool, text, 8, sampling, skipped=skipped))
            starts.add(skipped)
            text += [*draft.tokens[:5], 7, 8]
        assert drafting.target.furthest <= capacity
    assert len(starts) > 2


def test_draft_is_shorter_where_its_context_has_no_room(model, pool):
    with Drafting(model, pool, capacity=BLOCK) as drafting:
        draft = drafting.propose(asked(PROMPT * 10, 48))
        assert len(draft) == BLOCK // 2 - CONTEXT_ROWS
        assert drafting.target.furthest <= BLOCK


def test_catching_up_has_its_price(model, pool):
    text = list(range(200)) * 4
    with Drafting(model, pool) as drafting:
        assert drafting.drafter.catch_up_s(text) == 0.0  # nothing is known yet
        drafting.propose(asked(text[:20], 3))
        drafting.propose(asked(text[:24], 3))
        assert drafting.drafter.catch_up_s(text[:25]) == 0.0  # the round's own row
        few, many = (drafting.drafter.catch_up_s(text[:end]) for end in (60, 700))
        assert 0.0 < few < many


def test_where_rows_have_a_price_runners_up_stand_beside_the_path(model, pool):
    with Drafting(model, pool) as drafting:
        ask = asked(PROMPT, 12, floor=0.01, rate=1.0, price=lambda rows: 0.01 * rows)
        draft = drafting.propose(ask)
        main = written(model, pool, PROMPT, 3)
        roots = [token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent == -1]
    assert roots[0] == main[0]
    assert len(roots) > 1
    assert len(draft) <= 12
    assert len(set(zip(draft.parents, draft.tokens, strict=True))) == len(draft)
    claimed = Counter()
    for parent, chance in zip(draft.parents, draft.chances, strict=True):
        claimed[parent] += chance
    assert max(claimed.values()) <= 1.0


def test_a_dear_pass_ends_the_path_and_the_context_goes_on_for_nothing(model, pool):
    known = [*PROMPT, *written(model, pool, PROMPT, 20)]
    with Drafting(model, pool, Script(known)) as drafting:
        drafting.propose(asked(PROMPT, 1))
        ask = asked(PROMPT, 10, floor=0.001, rate=1e9)
        draft = drafting.propose(ask)
        first = draft.tokens[: draft.drafters.index("script")]
        path = [draft.branch(index) for index in range(len(draft))]
    assert tuple(known[20:21]) == first[:1]
    assert tuple(known[20:25]) in path


DRAWN = Sampling(temperature=0.8, seed=11)


def helper(model, pool, text):
    """Knows what is likeliest, which is often what is drawn."""
    return Script([*text, *written(model, pool, text, 20)])


@pytest.mark.parametrize("helped", [False, True])
def test_drawn_tokens_are_draws_of_the_laws_that_are_given_with_them(model, pool, helped):
    """Over the target's vocabulary, which is larger by padding here."""
    text = PROMPT * 3
    with Drafting(model, pool, helper(model, pool, text) if helped else None, vocab=320) as drafting:
        draft = drafting.propose(asked(text, 6, DRAWN, drawn=True))
    stream = Dice(DRAWN.seed, len(text)).stream(DRAFT)
    assert len(draft) == len(draft.laws) == 6
    with pool.open() as cache:
        tokens = [*text, *draft.tokens]
        logits = model.forward(Rows.chain(tokens), [cache], int32s(range(len(text) - 1, len(tokens) - 1)))
    for index, row in enumerate(logits.logits):
        padded = np.concatenate([row, np.full(20, -np.inf, np.float32)])
        drawn = draw(padded, Place(DRAWN, len(text) + index, stream=stream))
        assert draft.tokens[index] == drawn.token
        assert np.array_equal(draft.laws[index], drawn.law)
        assert draft.laws[index].sum() == pytest.approx(1.0)


def test_noise_of_drawn_drafts_is_fresh_in_every_round(model, pool):
    """The same position, drafted in two rounds: other draws, for the first ones may have been thrown away."""
    known = [*PROMPT, *written(model, pool, PROMPT, 1)]
    differ = 0
    for seed in range(8):
        sampling = Sampling(temperature=3.0, seed=seed)
        with Drafting(model, pool) as drafting:
            second = drafting.propose(asked(PROMPT, 2, sampling, drawn=True)).tokens[1]
            differ += second != drafting.propose(asked(known, 1, sampling, drawn=True)).tokens[0]
    assert differ > 0


@pytest.mark.parametrize("helped", [False, True])
def test_length_of_a_drawn_chain_never_depends_on_the_token_it_would_drop(model, pool, helped):
    """Whether token i is in the draft follows from those before it: over many seeds, whoever shares a prefix
    either goes on after it or does not.
    """
    went_on = defaultdict(list)
    text = PROMPT * 3
    context = helper(model, pool, text) if helped else None
    passes = tokens = 0
    for seed in range(60):
        sampling = Sampling(temperature=0.4, seed=seed)
        with Drafting(model, pool, context) as drafting:
            drafting.propose(asked(text[:-1], 1, sampling, drawn=True))  # prices of passes
            ask = asked(text, 8, sampling, drawn=True, floor=0.05, rate=100.0, price=lambda rows: 0.3 * rows)
            draft = drafting.propose(ask)
        assert draft.parents == tuple(range(-1, len(draft) - 1))
        passes += len(drafting.target.rows) - 1
        tokens += len(draft)
        assert draft.chances == tuple(float(law.max()) for law in draft.laws)
        for end in range(len(draft) + 1):
            went_on[draft.tokens[:end]].append(end < len(draft))
    assert (tokens > passes) == helped
    assert all(len(set(seen)) == 1 for seen in went_on.values())
    ends = [prefix for prefix, seen in went_on.items() if len(seen) > 1 and not any(seen)]
    assert len({len(prefix) for prefix in ends}) > 1  # which tokens were drawn did decide
