from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import _native
from foredraft.core import noise
from foredraft.core.history import History
from foredraft.core.pick import MAX_VOCAB, Place, pick, probabilities, weights
from foredraft.core.sampling import MAX_SEED, Sampling
from foredraft.errors import NumericsError, TokenError, UsageError
from foredraft.models.native_pick import NativePicker

SHAPES = ("noise", "peaked", "ties", "even", "masked", "huge", "tiny", "zeros", "steps")
SIZES = (1, 2, 3, 7, 8, 9, 63, 64, 65, 300, 1023, 1024, 1025, 4097, 20_011)


def make_row(shape, size, seed):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, size)
    if shape == "peaked":
        logits[generator.integers(0, size, 5)] += 15
    if shape == "ties":
        logits = np.round(logits)
    if shape == "even":
        logits[:] = 1.25
    if shape == "masked":
        logits[generator.random(size) < 0.9] = -np.inf
        logits[generator.integers(size)] = 0.5
    if shape == "huge":
        logits *= 1e37
    if shape == "tiny":
        logits *= 1e-42  # subnormal float32
    if shape == "zeros":
        logits = np.where(generator.random(size) < 0.5, 0.0, -0.0)
    if shape == "steps":
        logits = -np.arange(size, dtype=np.float64) / 50
    return logits.astype(np.float32)


temperatures = st.one_of(
    st.just(0.0), st.sampled_from([1e-6, 0.01, 0.7, 0.8, 1.0, 2.0, 50.0, 1e6]), st.floats(0.1, 3.0)
)


@st.composite
def samplings(draw):
    return Sampling(
        temperature=draw(temperatures),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 40, 1000, 19_999, 10**6])),
        top_p=draw(
            st.one_of(st.sampled_from([1.0, 0.95, 0.9, 0.5, 0.999, 1 - 2**-53, 1e-12]), st.floats(0.01, 1.0))
        ),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0, 1e-3, 1e-30, 5e-324])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.1, 0.5, 3.7])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.3, -1.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.1, -0.7])),
        logit_bias=draw(
            st.dictionaries(st.integers(0, 6), st.sampled_from([-np.inf, -3.3, 0.1, 7.0, 1e6]), max_size=4)
        ),
        seed=draw(st.integers(0, MAX_SEED)),
    )


@st.composite
def cases(draw):
    sampling = draw(samplings())
    size = draw(st.sampled_from([s for s in SIZES if s > max(sampling.logit_bias, default=0)]))
    logits = make_row(draw(st.sampled_from(SHAPES)), size, draw(st.integers(0, 2**32)))
    tokens = st.integers(0, size - 1)
    history = History(draw(st.lists(tokens, max_size=8)))
    history.add(draw(st.lists(tokens, max_size=8)))
    position = draw(st.one_of(st.integers(0, 5000), st.just(2**32 - 1)))
    return logits, Place(sampling, position, history, tuple(draw(st.lists(tokens, max_size=6))))


def twin_or_refusal(logits, place):
    try:
        return pick(logits, place)
    except NumericsError as error:
        return str(error)


def native_or_refusal(picker, logits, place):
    try:
        return picker.pick(logits[np.newaxis], [place])[0]
    except NumericsError as error:
        return str(error)


LAW_TOKENS = 7
LAW_LIMIT = (
    38.26  # chi-square, 6 degrees of freedom: a false alarm for one seed in 10^6, and the seed is fixed
)
WIDE, BASELINE = NativePicker(), NativePicker(baseline=True)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_native_picks_equal_the_twins(case):
    expected = twin_or_refusal(*case)
    assert native_or_refusal(WIDE, *case) == expected
    assert native_or_refusal(BASELINE, *case) == expected


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"top_p": 0.95},
        {"top_p": 0.7},
        {"top_k": 40},
        {"min_p": 0.05},
        {"top_k": 300, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 3.0, "top_p": 0.99},
    ],
)
def test_native_picks_equal_the_twins_position_after_position(shape, wanted):
    logits = make_row(shape, 5003, 0)
    places = [
        Place(Sampling(**{"temperature": 0.8, "seed": 3, **wanted}), position) for position in range(40)
    ]
    expected = [pick(logits, place) for place in places]
    assert WIDE.pick(np.tile(logits, (40, 1)), places) == expected
    assert BASELINE.pick(np.tile(logits, (40, 1)), places) == expected


@pytest.mark.parametrize("vocab", [151_936, 262_144])
def test_native_picks_equal_the_twins_at_a_models_vocabulary(vocab):
    generator = np.random.default_rng(vocab)
    logits = generator.normal(0, 3, (6, vocab)).astype(np.float32)
    logits[::2, generator.integers(0, vocab, 50)] += np.linspace(4, 16, 50, dtype=np.float32)
    wanted: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 1.0},
        {"temperature": 2.0, "top_p": 0.97},
        {"temperature": 1.5, "top_k": 2000, "min_p": 1e-4},
        {"repetition_penalty": 1.2},
    ]
    places = [Place(Sampling(seed=5, **given_), 9, History(range(0, vocab, 100)), (4,)) for given_ in wanted]
    expected = [pick(row, place) for row, place in zip(logits, places, strict=True)]
    assert WIDE.pick(logits, places) == expected
    assert BASELINE.pick(logits, places) == expected
    assert NativePicker(threads=2).pick(logits, places) == expected


SLACKS = (-1e-4, -1e-6, -1e-9, -1e-12, 0.0, 1e-12, 1e-9, 1e-6, 1e-4)


# Floors that are even lie where a short power series errs most: 0.34 to both sides of a power of two.
@pytest.mark.parametrize(
    ("depth", "spread"), [(12.0, 0.3), (10.75, 0.0), (11.43, 0.0), (19.7, 0.2), (25.0, 0.3)]
)
@pytest.mark.parametrize("slack", SLACKS)
def test_the_border_of_top_p_is_exact_where_most_of_the_sum_is_only_bounded(depth, spread, slack):
    logits = np.random.default_rng(0).normal(-depth, spread, 20_011).astype(np.float32)
    logits[[500, 7000]] = 0.0, -0.5
    weight = weights(logits.astype(np.float64))
    sampling = Sampling(temperature=1.0, top_p=float(weight[500] / weight.sum()) + slack, seed=8)
    places = [Place(sampling, position) for position in range(30)]
    expected = [pick(logits, place) for place in places]
    assert set(expected) == (
        {500, 7000} if slack > 0 else {500}
    )  # the second token is kept beyond the border
    assert WIDE.pick(np.tile(logits, (30, 1)), places) == expected
    assert BASELINE.pick(np.tile(logits, (30, 1)), places) == expected


@pytest.mark.parametrize("offset", [0.0, 1000.0, -1000.0])
@pytest.mark.parametrize("slack", SLACKS)
def test_the_border_of_min_p_is_exact(offset, slack):
    logits = np.full(300, offset - 7.0, np.float32)
    logits[[100, 200]] = offset + 0.0, offset - 2.0
    sampling = Sampling(temperature=1.0, min_p=float(np.exp(-2.0)) + slack, seed=8)
    places = [Place(sampling, position) for position in range(60)]
    expected = [pick(logits, place) for place in places]
    assert set(expected) == {100, 200} if slack < 0 else {100} <= set(expected)
    assert WIDE.pick(np.tile(logits, (60, 1)), places) == expected
    assert BASELINE.pick(np.tile(logits, (60, 1)), places) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, MAX_SEED), st.integers(0, 2**32 - 1), st.lists(st.integers(0, MAX_VOCAB - 1), max_size=20)
)
def test_native_noise_equals_the_twins(seed, position, tokens):
    expected = noise.gumbel(seed, position, np.array(tokens, np.int64)).tolist()
    assert _native.pick_noise(seed, position, np.array(tokens, np.int32)) == expected


@pytest.mark.parametrize("baseline", [False, True])
def test_native_weights_equal_the_twins(baseline):
    lags = np.random.default_rng(0).uniform(-31, 0, 20_001)
    lags[:4] = 0.0, -1e5, -708.0, -5e-324
    assert _native.pick_weights(lags.tolist(), baseline) == weights(lags).tolist()


def test_a_row_is_picked_alike_alone_and_among_others():
    logits = np.random.default_rng(0).normal(0, 2, (20, 999)).astype(np.float32)
    places = [Place(Sampling(temperature=1.0, top_p=0.9, seed=i), i) for i in range(20)]
    together = NativePicker(threads=3).pick(logits, places)
    assert together == [WIDE.pick(logits[i : i + 1], places[i : i + 1])[0] for i in range(20)]
    assert together[::-1] == WIDE.pick(logits[::-1].copy(), places[::-1])


def test_callers_in_several_threads_take_turns():
    logits = np.random.default_rng(0).normal(0, 2, (4, 5000)).astype(np.float32)
    places = [Place(Sampling(temperature=1.0, top_p=0.9, seed=i), i) for i in range(4)]
    picker = NativePicker(threads=2)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: picker.pick(logits, places), range(50)))
    assert results == [WIDE.pick(logits, places)] * 50


def test_native_picks_follow_their_law():
    logits = np.random.default_rng(4).normal(0, 1.2, 12).astype(np.float32)
    sampling = Sampling(temperature=0.9, top_p=0.9, seed=2**63 + 5)
    law = probabilities(logits, Place(sampling, 0))
    draws = 60_000
    counts = np.zeros(12)
    for begin in range(0, draws, 10_000):
        places = [Place(sampling, position) for position in range(begin, begin + 10_000)]
        counts += np.bincount(WIDE.pick(np.tile(logits, (10_000, 1)), places), minlength=12)
    assert (counts[law == 0] == 0).all()
    expected = law[law > 0] * draws
    statistic = ((counts[law > 0] - expected) ** 2 / expected).sum()
    assert len(expected) == LAW_TOKENS
    assert statistic < LAW_LIMIT


def test_no_rows_give_no_tokens():
    assert WIDE.pick(np.zeros((0, 5), np.float32), []) == []


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_refused(bad, temperature):
    logits = np.zeros((3, 100), np.float32)
    logits[1, 70] = bad
    with pytest.raises(NumericsError, match="logit of token 70"):
        WIDE.pick(logits, [Place(Sampling(temperature=temperature, seed=0), 0)] * 3)


def test_tokens_outside_the_vocabulary_are_refused():
    logits = np.zeros((1, 10), np.float32)
    with pytest.raises(UsageError, match="token 10"):
        WIDE.pick(logits, [Place(Sampling(logit_bias={10: 1.0}), 0)])
    for token in (10, -1):
        with pytest.raises(TokenError, match=f"token {token}"):
            WIDE.pick(logits, [Place(Sampling(presence_penalty=1.0), 0, History([token]))])
        with pytest.raises(TokenError, match=f"token {token}"):
            WIDE.pick(logits, [Place(Sampling(presence_penalty=1.0), 0, History(), (token,))])


def test_a_pick_leaves_the_logits_alone():
    logits = np.random.default_rng(0).normal(0, 2, (1, 50)).astype(np.float32)
    before = logits.copy()
    WIDE.pick(logits, [Place(Sampling(repetition_penalty=2.0, logit_bias={1: 4.0}), 0, History([1, 2]))])
    assert np.array_equal(logits, before)


def test_rows_and_places_must_match():
    with pytest.raises(ValueError, match="one entry per row"):
        WIDE.pick(np.zeros((2, 5), np.float32), [Place(Sampling(), 0)])
