import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from foredraft.core.sampling import MAX_SEED, Sampling
from foredraft.errors import UsageError


def test_the_default_is_greedy_and_has_no_filter():
    sampling = Sampling()
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 0, 1.0, 0.0)
    assert not sampling.penalises


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("temperature", -0.1, "0 (the likeliest token) or"),
        ("temperature", 1e-9, "0 (the likeliest token) or"),
        ("temperature", 2e6, "1e+06"),
        ("temperature", math.nan, "1e+06"),
        ("temperature", math.inf, "1e+06"),
        ("temperature", "0.8", "1e+06"),
        ("temperature", True, "1e+06"),
        ("temperature", None, "1e+06"),
        ("temperature", 10**400, "1e+06"),
        ("top_p", 0.0, "above 0, up to 1"),
        ("top_p", 1.0001, "above 0, up to 1"),
        ("top_p", math.nan, "above 0, up to 1"),
        ("min_p", -1e-9, "0 to 1"),
        ("min_p", 1.5, "0 to 1"),
        ("top_k", -1, "0 or more"),
        ("top_k", 1.5, "0 or more"),
        ("top_k", False, "0 or more"),
        ("repetition_penalty", 0.0, "1e-06 to 1e+06"),
        ("repetition_penalty", math.inf, "1e-06 to 1e+06"),
        ("presence_penalty", -math.inf, "-1e+06 to 1e+06"),
        ("frequency_penalty", math.nan, "-1e+06 to 1e+06"),
        ("seed", -1, f"0 to {MAX_SEED}"),
        ("seed", MAX_SEED + 1, f"0 to {MAX_SEED}"),
        ("seed", 1.0, f"0 to {MAX_SEED}"),
        ("max_tokens", 0, "1 or more"),
        ("ignore_eos", 1, "true or false"),
        ("stop", ("a", ""), "at least one character"),
        ("stop", (b"a",), "at least one character"),
        ("stop", 7, "a sequence of strings"),
        ("stop_token_ids", (-1,), "0 or more"),
        ("stop_token_ids", ("2",), "0 or more"),
        ("stop_token_ids", 5, "a sequence of token ids"),
        ("logit_bias", [(1, 2.0)], "a mapping"),
        ("logit_bias", {1: math.inf}, "-inf to forbid"),
        ("logit_bias", {1: math.nan}, "-inf to forbid"),
        ("logit_bias", {-1: 1.0}, "0 or more"),
        ("logit_bias", {"1": 1.0}, "0 or more"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_value_and_range(field, value, allowed):
    settings: dict[str, Any] = {field: value}
    with pytest.raises(UsageError) as refused:
        Sampling(**settings)
    message = str(refused.value)
    shown = next(iter(value.items())) if isinstance(value, dict) else value
    assert field in message and allowed in message
    assert any(repr(part) in message for part in (shown, *(shown if isinstance(shown, tuple) else ())))


def test_edges_of_the_ranges_are_allowed():
    Sampling(temperature=1e-6, top_p=1e-300, min_p=1.0, top_k=2**31 - 1, repetition_penalty=1e-6, seed=0)
    Sampling(
        temperature=1e6, top_p=1.0, min_p=0.0, presence_penalty=-1e6, frequency_penalty=1e6, seed=MAX_SEED
    )
    assert Sampling(logit_bias={5: -math.inf}).logit_bias == {5: -math.inf}


def test_numbers_of_numpy_become_plain_ones():
    sampling = Sampling(
        temperature=np.float32(0.5), top_k=np.int64(3), logit_bias={np.int32(4): np.float64(1)}
    )
    assert type(sampling.temperature) is float and type(sampling.top_k) is int
    assert [(type(key), type(value)) for key, value in sampling.logit_bias.items()] == [(int, float)]


def test_one_stop_string_is_not_taken_apart():
    assert Sampling(stop="END").stop == ("END",)  # type: ignore[arg-type]  # what a caller may well write
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_later_changes_of_the_callers_bias_do_not_reach_it():
    bias = {1: 2.0}
    sampling = Sampling(logit_bias=bias)
    bias[1] = 3.0
    assert sampling.logit_bias == {1: 2.0}


def test_equal_settings_are_equal_and_serve_as_keys():
    assert Sampling(logit_bias={1: 2.0}) == Sampling(logit_bias={1: 2})
    assert len({Sampling(seed=1), Sampling(seed=1), Sampling(seed=1, logit_bias={1: 2.0})}) == 2


def test_resolve_draws_a_seed_once_and_keeps_a_given_one():
    sampling = Sampling(temperature=0.7)
    first, second = sampling.resolve(), sampling.resolve()
    assert sampling.seed is None and first.seed is not None and first.resolve() is first
    assert first.seed != second.seed
    assert dataclasses.replace(first, seed=None) == sampling
    assert Sampling(seed=5).resolve().seed == 5


@pytest.mark.parametrize("field", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_each_penalty_is_noticed(field):
    settings: dict[str, Any] = {field: 1.25}
    assert Sampling(**settings).penalises


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None, 2**31])
def test_a_least_length_that_is_none_is_refused(value):
    with pytest.raises(UsageError, match=r"min_tokens is .*0 or more"):
        Sampling(min_tokens=value)


def test_a_least_length_may_exceed_the_limit():
    assert Sampling(min_tokens=2**31 - 1, max_tokens=1).min_tokens == 2**31 - 1
    assert Sampling().min_tokens == 0
    assert type(Sampling(min_tokens=np.int64(3)).min_tokens) is int  # type: ignore[arg-type]


def test_the_limit_may_be_as_long_as_any_context():
    assert Sampling(max_tokens=2**31 - 1).max_tokens == 2**31 - 1
    with pytest.raises(UsageError, match="max_tokens"):
        Sampling(max_tokens=2**31)
