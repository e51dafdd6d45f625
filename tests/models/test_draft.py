"""The cut head and the approximate pick, against `core/pick.py` on the same logits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_tiny

from foredraft.core.history import History
from foredraft.core.nouns import Rows, int32s
from foredraft.core.pick import Place, draw, pick
from foredraft.core.sampling import Sampling
from foredraft.engine.kv import KVPool
from foredraft.models.draft import FREQUENT, PANEL, NativeDraftTarget, panels_of
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import LoadOptions, NativeTarget

LARGE = 32_410  # a vocabulary that the head is cut from; not a whole number of panels
RARE = (32_050, 32_409)
KNOWN = [*range(FREQUENT), *range(32_048, 32_064), *range(32_400, LARGE)]  # with the panels of these
TEXT = list(range(40, 60))


def load(path):
    file = read_gguf(path)
    return NativeTarget.load(file, describe(file), LoadOptions(2, threads=2))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return load(write_tiny(tmp_path_factory.mktemp("draft") / "small.gguf", "qwen2", seed=3))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("draft") / "large.gguf"
    return load(write_tiny(path, "qwen2", seed=3, vocab=LARGE, dim=32, layers=1))


def logits_of(target):
    """[len(TEXT), known tokens] after every token of the text."""
    return target.forward(Rows.chain(TEXT), [KVPool(2).open()], int32s(range(len(TEXT)))).logits


def only(logits, ids):
    """The rows with every other token forbidden."""
    rows = np.full_like(logits, -np.inf)
    rows[:, ids] = logits[:, ids]
    return rows


def places(sampling, stream=0):
    history = History(TEXT[:1])
    return [Place(sampling, 1 + row, history, tuple(TEXT[1 : row + 1]), stream) for row in range(len(TEXT))]


def test_head_has_the_frequent_tokens_and_those_that_are_wanted():
    frequent = FREQUENT // PANEL
    panels = panels_of(LARGE, [5, *RARE, RARE[0] + 1, LARGE, 99_999])
    assert panels.tolist() == [*range(frequent), RARE[0] // PANEL, RARE[1] // PANEL]
    assert panels_of(300, [299, 300]).tolist() == list(range(19))


def test_cut_head_gives_the_whole_heads_logits(large):
    drafting = NativeDraftTarget(large, LARGE, RARE)
    assert np.array_equal(logits_of(drafting), logits_of(large)[:, KNOWN])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
        Sampling(logit_bias={RARE[0]: 60.0, 7: -np.inf}),
        Sampling(logit_bias={32_200: 60.0}),  # of no use: not in the head
        Sampling(temperature=1.0, top_k=40, seed=5),
        Sampling(temperature=0.7, top_k=64, seed=6, repetition_penalty=1.3),
    ],
)
def test_guess_is_the_pick_among_the_known_tokens(large, sampling):
    drafting = NativeDraftTarget(large, LARGE, RARE)
    expected = [
        pick(row, place) for row, place in zip(only(logits_of(large), KNOWN), places(sampling), strict=True)
    ]
    assert drafting.pick(logits_of(drafting), places(sampling)) == expected
    assert [said.tokens[0] for said in drafting.said] == expected


@settings(max_examples=25, deadline=None)
@given(
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 70),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.5),
    penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 2**32),
)
def test_sampled_guess_is_the_pick_where_the_short_list_has_all(
    small, temperature, top_k, top_p, min_p, penalty, seed
):
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty, seed=seed
    )
    drafting = NativeDraftTarget(small, 64, ())
    logits = np.random.default_rng(seed).normal(0.0, 3.0, (len(TEXT), 64)).astype(np.float32).round()
    expected = [pick(row, place) for row, place in zip(logits, places(sampling), strict=True)]
    assert drafting.pick(logits, places(sampling)) == expected


def test_rare_tokens_are_guessed_by_their_own_ids(large):
    """And draw the noise of these."""
    drafting = NativeDraftTarget(large, LARGE, RARE)
    logits = np.random.default_rng(1).normal(0.0, 1.0, (len(TEXT), LARGE)).astype(np.float32)
    logits[:, FREQUENT:] += 6.0
    asked = places(Sampling(temperature=1.0, top_k=20, seed=2))
    expected = [pick(row, place) for row, place in zip(only(logits, KNOWN), asked, strict=True)]
    assert drafting.pick(logits[:, KNOWN], asked) == expected
    assert max(expected) >= FREQUENT


def test_nothing_outside_the_targets_vocabulary_is_guessed(small):
    drafting = NativeDraftTarget(small, 70, range(300))
    logits = logits_of(drafting)
    assert logits.shape == (len(TEXT), 70)
    for sampling in (Sampling(), Sampling(temperature=2.0, seed=1), Sampling(logit_bias={3: 1.0})):
        drafting.pick(logits, places(sampling))
        assert all(token < 70 for said in drafting.said for token in said.tokens)


def test_target_with_more_tokens_gives_them_no_chance(small):
    drafting = NativeDraftTarget(small, 320, ())
    sampling = Sampling(temperature=1.0, seed=4)
    drafting.pick(logits_of(drafting), places(sampling, stream=9))
    for said in drafting.said:
        assert said.law.shape == (320,)
        assert said.law[:300].sum() == pytest.approx(1.0)
        assert not said.law[300:].any()


def test_runners_up_come_in_order_and_the_lead_is_the_distance(small):
    drafting = NativeDraftTarget(small, 300, ())
    logits = logits_of(drafting)
    drafting.pick(logits, places(Sampling()))
    for row, said in zip(logits, drafting.said, strict=True):
        ranked = np.argsort(-row, kind="stable")
        assert said.tokens == tuple(ranked[:3])
        assert said.lead == pytest.approx(row[ranked[0]] - row[ranked[1]])
        assert 1.0 > said.chances()[0] > said.chances()[1] > said.chances()[2] > 0.0


def test_place_with_a_stream_of_its_own_is_drawn_from_a_law(large):
    drafting = NativeDraftTarget(large, LARGE, RARE)
    asked = places(Sampling(temperature=0.9, top_p=0.9, seed=3), stream=13)
    tokens = drafting.pick(logits_of(drafting), asked)
    for token, said, row, place in zip(
        tokens, drafting.said, only(logits_of(large), KNOWN), asked, strict=True
    ):
        expected = draw(row, place)
        assert token == said.token == expected.token
        assert np.array_equal(said.law, expected.law)
