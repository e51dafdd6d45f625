"""The parts of replies, against counts by hand."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import write_tiny

from foredraft.engine.completion import Burst, Completion, DrafterFigures, Figures, TokenLogprob
from foredraft.engine.drafting import Drafting
from foredraft.engine.engine import Update
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer
from foredraft.server.bridge import merged
from foredraft.server.replies import (
    LegacyLogprobs,
    TokenTexts,
    chat_logprobs,
    joined,
    speculation,
    timings,
    usage,
)
from foredraft.server.sse import Frame, event


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_gguf(read_gguf(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


@pytest.fixture(scope="module")
def byte_ids(tokenizer):
    """Ids of the tokens that are one byte."""
    return {
        data[0]: token
        for token in reversed(range(tokenizer.vocab_size))
        if len(data := tokenizer.token_bytes(token)) == 1
    }


def figures(tokens=0, rounds=0, drafted=0, accepted=0, by_drafter=None, **times):
    given_times = {"ttft_s": None, "decode_s": 0.0, "total_s": 0.0, "draft_s": 0.0, "verify_s": 0.0, **times}
    return Figures(tokens, rounds, drafted, accepted, 0, by_drafter=by_drafter or {}, **given_times)


def completion(ids=(), prompt=3, cached=0, **counts):
    return Completion("", tuple(ids), prompt, "stop", figures(len(ids), **counts), cached_tokens=cached)


def test_usage_counts_each_prompt_once_and_every_token():
    answers = [completion([1, 2]), completion([3]), completion([], 5, 4), completion([4, 5, 6], 5, 4)]
    assert usage(answers, 2, predicted=False) == {
        "prompt_tokens": 8,
        "completion_tokens": 6,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_prediction_tokens_are_the_predictions_alone():
    parts = {"prediction": DrafterFigures(9, 5, 0.1), "suffix": DrafterFigures(7, 7, 0.1)}
    details = usage([completion([1], by_drafter=parts), completion([2])], 2, predicted=True)
    assert details["completion_tokens_details"] == {
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 4,
    }
    nothing = usage([completion([1])], 1, predicted=True)["completion_tokens_details"]
    assert nothing == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


def test_speculation_adds_up_and_what_does_not_exist_is_null():
    first = completion(
        [1] * 6, rounds=2, drafted=8, accepted=4, by_drafter={"suffix": DrafterFigures(8, 4, 0.5)}
    )
    second = completion(
        [1] * 3, rounds=1, drafted=2, accepted=2, by_drafter={"suffix": DrafterFigures(2, 2, 0.25)}
    )
    whole = speculation([first, second], Drafting("suffix", 4))
    assert (whole["drafter"], whole["k"], whole["rule"]) == ("suffix", 4, "match")
    assert (whole["rounds"], whole["drafted"], whole["accepted"]) == (3, 10, 6)
    assert (whole["acceptance"], whole["tokens_per_round"]) == (0.6, 3.0)
    assert whole["by_drafter"] == {"suffix": {"drafted": 10, "accepted": 6, "seconds": 0.75}}
    none = speculation([completion()], Drafting())
    assert (none["acceptance"], none["tokens_per_round"]) == (None, None)


def test_timings_leave_out_what_was_cached_and_waited_for():
    answer = completion([1] * 5, prompt=100, cached=64, ttft_s=0.75, decode_s=2.0, queued_s=0.25, drafted=3)
    given_timings = timings([answer])
    assert (given_timings["prompt_n"], given_timings["cache_n"]) == (36, 64)
    assert (given_timings["prompt_ms"], given_timings["prompt_per_second"]) == (500.0, 72.0)
    assert (given_timings["predicted_n"], given_timings["predicted_ms"]) == (5, 2000.0)
    assert (given_timings["predicted_per_second"], given_timings["draft_n"]) == (2.0, 3)
    nothing = timings([completion()])
    assert nothing["prompt_per_second"] is nothing["predicted_per_second"] is None


def test_a_token_of_a_chat_has_its_text_and_its_bytes(tokenizer, byte_ids):
    one = TokenLogprob(byte_ids[0xE2], -0.5, ((tokenizer.eos_id, -0.25), (byte_ids[65], -math.inf)))
    (entry,) = chat_logprobs(TokenTexts(tokenizer), [one])["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\ufffd", [0xE2], -0.5)
    end, unlikely = entry["top_logprobs"]
    assert bytes(end["bytes"]).decode() == end["token"] == "<|im_end|>"
    assert (unlikely["token"], unlikely["logprob"]) == ("A", -9999.0)


def test_a_part_of_a_character_is_spelt_out_in_a_completion(tokenizer, byte_ids):
    legacy = LegacyLogprobs(TokenTexts(tokenizer), tokenizer, special=False)
    given_logprobs = legacy.feed([TokenLogprob(byte_ids[0xE2], -1.0, ((byte_ids[65], -0.5),))])
    assert given_logprobs["tokens"] == ["bytes:\\xe2"]
    assert given_logprobs["top_logprobs"] == [{"A": -0.5, "bytes:\\xe2": -1.0}]


def test_the_token_itself_is_always_among_the_likeliest(tokenizer, byte_ids):
    legacy = LegacyLogprobs(TokenTexts(tokenizer), tokenizer, special=False)
    assert legacy.feed([TokenLogprob(byte_ids[65], -1.0, ())])["top_logprobs"] == [{"A": -1.0}]
    twice = TokenLogprob(byte_ids[65], -1.0, ((byte_ids[65], -1.0), (byte_ids[66], -2.0)))
    assert legacy.feed([twice])["top_logprobs"] == [{"A": -1.0, "B": -2.0}]


@given(text=st.text(max_size=20), cuts=st.sets(st.integers(0, 60)))
def test_offsets_are_where_a_tokens_character_stands_in_the_text(tokenizer, byte_ids, text, cuts):
    data = text.encode()
    tokens = [TokenLogprob(byte_ids[byte], -1.0, ()) for byte in data]
    expected = [len(data[:place].decode(errors="ignore")) for place in range(len(data))]
    assert LegacyLogprobs(TokenTexts(tokenizer), tokenizer, False).feed(tokens)["text_offset"] == expected
    pieces, legacy = legacy_pieces(tokens, cuts), LegacyLogprobs(TokenTexts(tokenizer), tokenizer, False)
    whole = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for piece in pieces:
        whole = joined(whole, legacy.feed(piece))
    assert whole["text_offset"] == expected


def legacy_pieces(tokens, cuts):
    places = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    return [tokens[start:end] for start, end in itertools.pairwise(places)]


def test_offsets_go_on_behind_an_echo(tokenizer, byte_ids):
    legacy = LegacyLogprobs(TokenTexts(tokenizer), tokenizer, special=False)
    prompt = [tokenizer.eos_id, byte_ids[65], byte_ids[66]]  # the first one is not in the text
    logprobs = [None, TokenLogprob(prompt[1], -1.0, ()), TokenLogprob(prompt[2], -2.0, ())]
    echoed = legacy.echo("AB", prompt, logprobs)
    assert echoed["token_logprobs"] == [None, -1.0, -2.0]
    assert echoed["text_offset"] == [0, 0, 1]
    assert legacy.feed([TokenLogprob(byte_ids[67], -1.0, ())])["text_offset"] == [2]


def test_an_event_is_one_line_of_ascii_whatever_it_says():
    text = 'a\u2028b\u0085c\r\nd"é😀\x00'
    data = Frame({"id": "x"}).chunk({"text": text}, ',"usage":null')
    assert data.endswith(b"\n\n") and data.isascii()
    (line,) = data.decode().splitlines()[:-1]
    assert json.loads(line.removeprefix("data: ")) == {"id": "x", "choices": [{"text": text}], "usage": None}
    assert json.loads(Frame({"id": "x"}).chunk(None)[6:]) == {"id": "x", "choices": []}
    assert json.loads(event({"error": text})[6:]) == {"error": text}


def test_updates_of_a_slow_reader_become_one_of_each_request():
    end = completion([1, 2, 3])
    logprob = TokenLogprob(1, -1.0, ())
    fresh = [
        (0, Update(Burst("a", (1,), (logprob,)))),
        (1, Update(Burst("x", (9,)))),
        (0, Update(Burst("b", (2, 3), (logprob, logprob)), end)),
    ]
    (first, one), (second, other) = merged(fresh)
    assert (first, one.burst, one.completion) == (0, Burst("ab", (1, 2, 3), (logprob,) * 3), end)
    assert (second, other.burst, other.completion) == (1, Burst("x", (9,)), None)
