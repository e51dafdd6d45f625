import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from foredraft.core import noise
from foredraft.core.history import History
from foredraft.core.pick import (
    Place,
    draw,
    lane_sum,
    likeliest,
    log_probabilities,
    pick,
    probabilities,
    processed,
    survivors,
    weights,
)
from foredraft.core.sampling import Sampling
from foredraft.errors import NumericsError, TokenError, UsageError


def row(*logits):
    return np.array(logits, np.float32)


def place(history=None, path=(), position=0, **settings):
    return Place(Sampling(**{"seed": 1, **settings}), position, history or History(), path)


def kept(logits, **settings):
    return survivors(logits, Sampling(**{"temperature": 1.0, **settings}))[0].tolist()


def test_greedy_takes_the_greatest_and_of_equal_ones_the_lowest_id():
    assert pick(row(1, 3, 3, 2), place()) == 1
    assert pick(row(-0.0, 0.0), place()) == 0
    assert probabilities(row(1, 3, 3, 2), place()).tolist() == [0, 1, 0, 0]


def test_greedy_is_deaf_to_filters_and_seed():
    for seed in range(5):
        assert pick(row(0, 5, 1), place(top_k=1, top_p=0.1, min_p=0.9, seed=seed)) == 1


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once_per_token():
    history = History([0, 1, 1])
    history.add([2, 2])
    assert processed(row(2, -2, 4, 6), place(history, repetition_penalty=2.0)).tolist() == [1, -4, 2, 6]


def test_presence_and_frequency_count_the_output_alone():
    history = History([0])
    history.add([1, 1, 2])
    assert processed(row(5, 5, 5, 5), place(history, presence_penalty=0.5)).tolist() == [5, 4.5, 4.5, 5]
    assert processed(row(5, 5, 5, 5), place(history, frequency_penalty=0.5)).tolist() == [5, 4, 4.5, 5]


def test_a_drafted_path_is_penalised_like_what_is_committed():
    committed = History([0])
    committed.add([1, 3, 3])
    drafted = History([0])
    drafted.add([1])
    settings: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.125,
    }
    logits = row(1, -2, 3, 4)
    assert np.array_equal(
        processed(logits, place(drafted, (3, 3), **settings)), processed(logits, place(committed, **settings))
    )


def test_penalties_come_before_bias_and_are_rounded_once():
    history = History()
    history.add([0])
    value = np.float64(np.float32(0.1)) / 1.7 - 0.3 - 0.2 + 0.7
    settings: dict[str, Any] = {"repetition_penalty": 1.7, "frequency_penalty": 0.3, "presence_penalty": 0.2}
    result = processed(row(0.1, 1), place(history, logit_bias={0: 0.7}, **settings))
    assert result.tolist() == [float(np.float32(value)), 1.0]


def test_bias_moves_and_forbids():
    assert pick(row(0, 5, 1), place(logit_bias={2: 10.0})) == 2
    assert pick(row(0, 5, 1), place(logit_bias={1: -math.inf})) == 2
    assert probabilities(row(0, 5, 1), place(temperature=1.0, logit_bias={1: -math.inf}))[1] == 0.0


def test_input_is_left_alone():
    logits = row(0, 5, 1)
    history = History([0, 1])
    pick(logits, place(history, temperature=1.0, repetition_penalty=2.0, logit_bias={0: 3.0}))
    assert logits.tolist() == [0, 5, 1]


def test_top_k_keeps_k_also_among_equals():
    assert kept(row(1, 2, 2, 2, 0), top_k=2) == [1, 2]
    assert kept(row(1, 2, 2, 2, 0), top_k=99) == [0, 1, 2, 3, 4]
    assert kept(row(1, -np.inf, 0), top_k=3) == [0, 2]


def test_top_p_keeps_the_smallest_beginning_that_reaches_p():
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3])).astype(np.float32)
    assert kept(logits, top_p=0.39) == [1]
    assert kept(logits, top_p=0.69) == [1, 3]
    assert kept(logits, top_p=0.71) == [1, 2, 3]
    assert kept(logits, top_p=0.99) == [0, 1, 2, 3]


def test_top_p_at_an_exact_border_takes_no_token_more():
    assert kept(row(0, 0, 0, 0), top_p=0.5) == [0, 1]
    assert kept(row(0, 0, 0, 0), top_p=np.nextafter(0.5, 1)) == [
        0,
        1,
    ]  # a 2^-53rd more is less than a weight's unit
    assert kept(row(0, 0, 0, 0), top_p=0.5001) == [0, 1, 2]


def test_top_p_is_of_what_top_k_left():
    logits = np.log(np.array([0.5, 0.25, 0.25])).astype(np.float32)
    assert kept(logits, top_k=2, top_p=0.6) == [0]  # 0.5 / 0.75 reaches it
    assert kept(logits, top_p=0.6) == [0, 1]


def test_min_p_is_relative_to_the_likeliest():
    logits = np.log(np.array([0.6, 0.3, 0.1])).astype(np.float32)
    assert kept(logits, min_p=0.49) == [0, 1]
    assert kept(logits, min_p=0.51) == [0]
    assert kept(row(2, 2, 1), min_p=1.0) == [0, 1]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-300}, {"min_p": 1.0}])
def test_one_token_survives_always(settings):
    assert kept(row(-5, 3, 1), **settings) == [1]


def test_weights_are_whole_and_fade_to_nothing():
    w = weights(np.array([0.0, -math.log(2), -29.0, -29.9, -1000.0, -np.inf]))
    assert w.tolist() == [2**42, 2**41, round(math.exp(-29) * 2**42), 0, 0, 0]


def test_probabilities_are_the_softmax_of_what_is_left():
    logits = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    law = probabilities(logits, place(temperature=0.7, top_k=50))
    survivors_ids = np.argsort(-logits)[:50]
    expected = np.exp(logits[survivors_ids].astype(np.float64) / 0.7)
    assert np.allclose(law[survivors_ids], expected / expected.sum(), rtol=1e-12, atol=0)
    assert np.count_nonzero(law) == 50 and abs(law.sum() - 1) < 1e-14


def test_the_pick_is_the_greatest_lag_plus_noise():
    logits = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    for position in range(20):
        scores = logits.astype(np.float64) / 0.9 + noise.gumbel(6, position, np.arange(1000))
        assert pick(logits, place(temperature=0.9, seed=6, position=position)) == int(np.argmax(scores))


def test_picks_follow_their_law():
    logits = row(0.3, 1.9, -0.7, 2.2, 0.0, 1.1, -np.inf)
    settings: dict[str, Any] = {"temperature": 0.8, "top_k": 5, "top_p": 0.95, "min_p": 0.02}
    law = probabilities(logits, place(**settings))
    draws = 20_000
    counts = np.bincount(
        [pick(logits, place(seed=11, position=i, **settings)) for i in range(draws)], minlength=7
    )
    assert (counts[law == 0] == 0).all()
    expected = law[law > 0] * draws
    statistic = ((counts[law > 0] - expected) ** 2 / expected).sum()
    assert len(expected) == 4
    assert (
        statistic < 30.66
    )  # chi-square, 3 degrees of freedom: a false alarm for one seed in 10^6, and the seed is fixed


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_refused(bad):
    for settings in ({}, {"temperature": 1.0}):
        with pytest.raises(NumericsError, match="logit of token 2 is"):
            pick(row(0, 1, bad), place(**settings))
    with pytest.raises(NumericsError, match="logit of token 2 is"):
        log_probabilities(row(0, 1, bad))


def test_an_infinite_logit_is_refused_also_where_a_bias_forbids_it():
    with pytest.raises(NumericsError):
        pick(row(0, math.inf), place(logit_bias={1: -math.inf}))


def test_a_row_that_forbids_everything_is_refused():
    with pytest.raises(NumericsError, match="every token is forbidden"):
        pick(row(-np.inf, -np.inf), place())
    with pytest.raises(NumericsError, match="every token is forbidden"):
        pick(row(1), place(temperature=1.0, logit_bias={0: -math.inf}))


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(UsageError, match="token 3"):
        pick(row(0, 1, 2), place(logit_bias={3: 1.0}))
    with pytest.raises(TokenError, match="token 3"):
        pick(row(0, 1, 2), place(History([3]), presence_penalty=1.0))
    with pytest.raises(TokenError, match="token -1"):
        pick(row(0, 1, 2), place(path=(-1,), presence_penalty=1.0))


def test_a_place_needs_a_seed_to_be_repeatable():
    with pytest.raises(UsageError, match="resolve"):
        Place(Sampling(temperature=1.0), 0)
    Place(Sampling(), 0)


@pytest.mark.parametrize("position", [-1, 2**32])
def test_positions_beyond_the_counter_are_refused(position):
    with pytest.raises(UsageError, match=str(position)):
        Place(Sampling(), position)


@pytest.mark.parametrize("logits", [np.zeros((1, 3), np.float32), np.zeros(0, np.float32), np.zeros(3)])
def test_only_one_row_of_float32_is_taken(logits):
    with pytest.raises(UsageError, match="float32"):
        pick(logits, place())


def test_log_probabilities_are_the_models_own():
    logits = np.random.default_rng(0).normal(0, 5, 3000).astype(np.float32)
    truth = logits.astype(np.longdouble)
    truth = truth - np.log(np.exp(truth).sum())
    result = log_probabilities(logits)
    assert np.max(np.abs(result - truth)) < 1e-13
    best = likeliest(result, 3)
    assert [token for token, _ in best] == np.argsort(-logits)[:3].tolist()
    assert [value for _, value in best] == [result[token] for token, _ in best]


def test_the_likeliest_of_equals_is_the_lowest_id():
    assert [token for token, _ in likeliest(log_probabilities(row(1, 2, 2)), 9)] == [1, 2, 0]


def test_lane_sum_has_the_stated_order():
    values = np.random.default_rng(0).normal(0, 1, 100) * 10.0 ** np.arange(100)
    lanes = [0.0] * 16
    for index, value in enumerate(values):
        lanes[index % 16] += value
    while len(lanes) > 1:
        lanes = [a + b for a, b in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :], strict=True)]
    assert lane_sum(values) == lanes[0]


def sorted_survivors(logits, sampling):
    """`survivors` with one plain sort of everything."""
    lag = (logits.astype(np.float64) - np.float64(logits.max())) * (1.0 / sampling.temperature)
    ranked = np.argsort(-logits, kind="stable")
    ranked = ranked[logits[ranked] > -np.inf]
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1.0:
        weight = weights(lag[ranked])
        needed = max(1, int(sampling.top_p * float(weight.sum())))
        ranked = ranked[np.cumsum(weight) - weight < needed]
    if sampling.min_p:
        ranked = ranked[lag[ranked] >= noise.log(sampling.min_p)]
    return sorted(ranked.tolist())


@run_settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_sorting_less_keeps_the_same_tokens(data):
    size = data.draw(st.sampled_from([1, 2, 63, 64, 65, 500, 4097, 9000]))
    logits = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 3, size).astype(np.float32)
    shape = data.draw(st.sampled_from(["noise", "ties", "even", "masked"]))
    if shape == "ties":
        logits = np.round(logits)
    if shape == "even":
        logits[:] = 0.5
    if shape == "masked":
        logits[1::2] = -np.inf
    sampling = Sampling(
        temperature=data.draw(st.sampled_from([1e-6, 0.3, 1.0, 9.0])),
        top_k=data.draw(st.sampled_from([0, 1, 2, 63, 64, 65, 400, 10**6])),
        top_p=data.draw(st.sampled_from([1.0, 1 - 2**-53, 0.9999, 0.95, 0.5, 1e-9])),
        min_p=data.draw(st.sampled_from([0.0, 1e-30, 0.01, 1.0])),
    )
    ids, lag = survivors(logits, sampling)
    assert ids.tolist() == sorted_survivors(logits, sampling)
    assert lag.tolist() == [
        (float(logits[i]) - float(logits.max())) * (1.0 / sampling.temperature) for i in ids
    ]


@pytest.mark.parametrize(
    "settings_", [{}, {"temperature": 0.9}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9}]
)
def test_a_drawn_token_is_the_pick_and_comes_with_its_law(settings_):
    logits = np.random.default_rng(2).normal(0, 3, 300).astype(np.float32)
    for position in range(20):
        one = draw(logits, place(position=position, **settings_))
        assert one.token == pick(logits, place(position=position, **settings_))
        assert one.law.tolist() == probabilities(logits, place(**settings_)).tolist()


def test_a_stream_has_noise_of_its_own():
    sampling = Sampling(temperature=1.0, seed=1)
    tokens = {
        stream: [pick(row(*[0.0] * 50), Place(sampling, position, stream=stream)) for position in range(20)]
        for stream in (0, 1, 2**32 - 1)
    }
    assert len({tuple(picks) for picks in tokens.values()}) == 3
    scores = noise.gumbel(1, 7, np.arange(50), 2**32 - 1)
    assert tokens[2**32 - 1][7] == int(np.argmax(scores))
