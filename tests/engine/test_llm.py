"""`LLM` on the float64 twin of tiny models: the seams. On the native engine and a real model:
`test_native_llm.py`.
"""

import gc

import numpy as np
import pytest
from engine_for_tests import hashed_llm
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import ContextError, NumericsError, Sampling, TokenError, UsageError
from foredraft.core.pick import Place, pick
from foredraft.engine import stream as stream_module
from foredraft.engine.drafting import OFF, Drafting
from foredraft.models.twin import twin_forward

PROMPT = "the quick brown fox"
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("llm") / "tiny.gguf", "qwen2", seed=5)


@pytest.fixture(scope="module")
def llm(path):
    return twin_llm(path)


@pytest.fixture(autouse=True)
def nothing_leaks(request):
    yield
    if "llm" in request.fixturenames:
        gc.collect()
        request.getfixturevalue("llm").pool.check([])


def greedy(llm, prompt, count):
    target, ids = llm.target, list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(twin_forward(target.spec, target.weights, ids)[-1])))
    return tuple(ids[len(prompt) :])


def test_greedy_ids_are_the_twins(llm):
    prompt = llm.tokenize(PROMPT)
    completion = llm.generate(prompt, Sampling(max_tokens=12, ignore_eos=True))
    assert completion.ids == greedy(llm, prompt, 12)
    assert completion.prompt_tokens == len(prompt)
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stream_is_generate(llm, temperature):
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=20)
    whole = llm.generate(PROMPT, sampling)
    with llm.stream(PROMPT, sampling) as stream:
        bursts = list(stream)
    assert "".join(burst.text for burst in bursts) == whole.text
    assert sum((burst.ids for burst in bursts), ()) == whole.ids
    assert stream.completion.text == whole.text
    assert stream.completion.finish_reason == whole.finish_reason


def test_seed_reproduces_and_is_reported(llm):
    sampling = Sampling(temperature=1.5, max_tokens=16, ignore_eos=True)
    first = llm.generate(PROMPT, sampling)
    again = llm.generate(PROMPT, Sampling(temperature=1.5, max_tokens=16, ignore_eos=True, seed=first.seed))
    other = llm.generate(PROMPT, sampling)
    assert first.ids == again.ids
    assert other.seed != first.seed
    assert other.ids != first.ids


def test_text_is_put_as_a_users_message_unless_raw(llm):
    template = [{"role": "user", "content": PROMPT}]
    sampling = Sampling(max_tokens=5)
    asked, raw = llm.generate(PROMPT, sampling), llm.generate(PROMPT, sampling, raw=True)
    assert asked.ids == llm.generate(template, sampling).ids
    assert raw.ids == llm.generate(llm.tokenize(PROMPT, special=True, bos=True), sampling).ids
    assert asked.prompt_tokens > raw.prompt_tokens
    assert llm.generate(MESSAGES, sampling).prompt_tokens > asked.prompt_tokens


def test_model_without_a_template_continues_text(tmp_path):
    llm = twin_llm(write_tiny(tmp_path / "base.gguf", "gemma3"))
    sampling = Sampling(max_tokens=3)
    assert llm.generate(PROMPT, sampling).ids == llm.generate(PROMPT, sampling, raw=True).ids


def test_list_of_prompts_gives_each_its_own_answer(llm):
    sampling = Sampling(max_tokens=6, temperature=0.7, seed=1)
    prompts = ["one", "two", "a third one"]
    assert [c.text for c in llm.generate(prompts, sampling)] == [
        llm.generate(p, sampling).text for p in prompts
    ]
    ids = [llm.tokenize(prompt) for prompt in prompts]
    assert [c.ids for c in llm.generate(ids, sampling)] == [
        llm.generate(np.array(i), sampling).ids for i in ids
    ]
    assert len(llm.generate([MESSAGES, MESSAGES[1:]], sampling)) == 2


def test_chunks_of_a_prompt_do_not_matter(llm, monkeypatch):
    prompt, sampling = llm.tokenize(PROMPT * 3), Sampling(max_tokens=4)
    whole = llm.generate(prompt, sampling).ids
    for chunk in (1, 7):
        monkeypatch.setattr(stream_module, "CHUNK", chunk)
        assert llm.generate(prompt, sampling).ids == whole


def test_end_token_ends_without_text(llm):
    prompt = llm.tokenize(PROMPT)
    ids = greedy(llm, prompt, 6)
    end = next(token for index, token in enumerate(ids) if index and token not in ids[:index])
    completion = llm.generate(prompt, Sampling(stop_token_ids=(end,), ignore_eos=True))
    assert completion.ids == ids[: ids.index(end) + 1]
    assert completion.text == llm.detokenize(completion.ids[:-1])
    assert completion.finish_reason == "stop"


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_stop_string_ends_the_text_before_it(llm, data):
    prompt = llm.tokenize(PROMPT)
    free = llm.generate(prompt, Sampling(max_tokens=20, ignore_eos=True))
    start = data.draw(st.integers(0, len(free.text) - 1))
    stop = free.text[start : start + data.draw(st.integers(1, 6))]
    completion = llm.generate(prompt, Sampling(max_tokens=20, ignore_eos=True, stop=(stop,)))
    assert completion.text == free.text[: free.text.index(stop)]
    assert completion.ids == free.ids[: len(completion.ids)]
    assert completion.finish_reason == "stop"


def test_answer_ends_where_the_context_does(path):
    llm = twin_llm(path, ctx=20)
    prompt = llm.tokenize(PROMPT)
    completion = llm.generate(prompt, Sampling(ignore_eos=True))
    assert len(prompt) + len(completion.ids) == 20
    assert completion.finish_reason == "length"


def test_logprobs_are_the_models_own(llm):
    prompt = llm.tokenize(PROMPT)
    completion = llm.generate(prompt, Sampling(max_tokens=3, temperature=2.0, top_k=5, seed=1), logprobs=4)
    logits = twin_forward(llm.target.spec, llm.target.weights, prompt)[-1]
    expected = logits - np.log(np.exp(logits).sum())
    first = completion.logprobs[0]
    assert [entry.id for entry in completion.logprobs] == list(completion.ids)
    assert first.logprob == pytest.approx(expected[first.id], abs=1e-5)
    assert [token for token, _ in first.top] == np.argsort(-expected)[:4].tolist()
    assert llm.generate(prompt, Sampling(max_tokens=1)).logprobs is None


def test_trace_tells_every_round(llm):
    events = []
    with llm.stream(PROMPT, Sampling(max_tokens=5, ignore_eos=True), trace=events.append) as stream:
        list(stream)
    completion = stream.completion
    assert [event.round for event in events] == list(range(5))
    assert sum((event.tokens for event in events), ()) == completion.ids
    assert [event.picks for event in events] == [(token,) for token in completion.ids]
    assert events[0].position == completion.prompt_tokens
    assert all(event.accepted == 0 and event.drafted == () for event in events)


def test_figures_add_up(llm):
    figures = llm.generate(PROMPT, Sampling(max_tokens=5, ignore_eos=True)).figures
    assert (figures.tokens, figures.rounds, figures.drafted, figures.accepted) == (5, 5, 0, 0)
    assert figures.tokens_per_round == 1.0
    assert figures.acceptance is None
    assert figures.alpha is None
    assert figures.ttft_s + figures.decode_s == pytest.approx(figures.total_s)
    assert figures.tok_s == pytest.approx(4 / figures.decode_s)


def test_closing_early_keeps_what_there_is_and_frees_the_cache(llm):
    stream = llm.stream(PROMPT, Sampling(max_tokens=9, ignore_eos=True))
    first = next(stream)
    stream.close()
    assert list(stream) == []
    assert stream.completion.ids == first.ids
    assert stream.completion.finish_reason == "interrupted"
    llm.pool.check([])


def test_forgotten_stream_frees_its_cache(llm):
    stream = llm.stream(PROMPT, Sampling(max_tokens=9))
    next(stream)
    del stream
    gc.collect()
    llm.pool.check([])


def test_streams_taken_by_turns_do_not_disturb_each_other(llm):
    sampling = Sampling(max_tokens=10, temperature=1.0, seed=6, ignore_eos=True)
    streams = [llm.stream(prompt, sampling, raw=True) for prompt in ("one", "another", "a third")]
    for _ in zip(*streams, strict=True):
        pass
    for stream, prompt in zip(streams, ("one", "another", "a third"), strict=True):
        assert stream.completion.ids == llm.generate(prompt, sampling, raw=True).ids


def test_more_streams_than_the_cache_holds_is_told(path):
    llm = twin_llm(path, ctx=20)
    streams = [llm.stream(PROMPT, Sampling(max_tokens=2), raw=True) for _ in range(3)]
    next(streams[0])
    next(streams[1])
    with pytest.raises(ContextError, match="KV cache is full"):
        next(streams[2])
    streams[0].close()
    next(streams[2])


@pytest.mark.parametrize(
    ("prompt", "kind", "complaint"),
    [
        ("", UsageError, "empty"),
        ([], UsageError, "empty"),
        ([1, 300], TokenError, "token 300"),
        ([-1], TokenError, "token -1"),
        ([1, 2.5], UsageError, "not a token id"),
        ([1, True], UsageError, "not a token id"),
        (np.zeros((2, 2), np.int64), UsageError, "not a token id"),
        (("one", "two"), UsageError, "not a token id"),
        (b"bytes", UsageError, "a prompt is"),
        (7, UsageError, "a prompt is"),
        ([{"role": "user", "content": "x"}, "x"], UsageError, "mixes"),
        ("\udcff", UsageError, "surrogate"),
        (list(range(250)) * 2, ContextError, "500 tokens.*256"),
    ],
)
def test_impossible_prompts_are_refused(llm, prompt, kind, complaint):
    with pytest.raises(kind, match=complaint):
        llm.generate(prompt)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"sampling": Sampling(logit_bias={300: 1.0})}, TokenError),
        ({"sampling": Sampling(stop_token_ids=(300,))}, TokenError),
        ({"logprobs": -1}, UsageError),
        ({"logprobs": 301}, UsageError),
        ({"temperature": 1.0}, TypeError),
    ],
)
def test_impossible_options_are_refused(llm, options, kind):
    with pytest.raises(kind):
        llm.generate(PROMPT, **options)


def test_raw_messages_are_refused(llm):
    with pytest.raises(UsageError, match="raw"):
        llm.generate(MESSAGES, raw=True)


def test_nul_is_a_character_like_others(llm):
    assert llm.generate("a\0b", Sampling(max_tokens=2), raw=True).prompt_tokens == 3


# Several at once, least lengths, memory for more than one


def shown(completion):
    return (
        completion.ids,
        completion.text,
        completion.finish_reason,
        completion.stopped_by,
        completion.logprobs,
        completion.prompt_tokens,
        completion.seed,
    )


SEVERAL = [
    list(range(start, start + length)) for start, length in ((5, 3), (40, 60), (7, 1), (100, 40), (9, 8))
]


@pytest.mark.parametrize("kv_tokens", [128, 2048])
@pytest.mark.parametrize("drafting", [OFF, Drafting(), Drafting("suffix", 5)])
def test_a_list_of_prompts_is_answered_as_one_by_one(path, kv_tokens, drafting):
    llm = hashed_llm(path, 128, kv_tokens)
    for sampling in (
        Sampling(max_tokens=20, seed=0),
        Sampling(
            temperature=1.0, seed=3, max_tokens=30, ignore_eos=True, frequency_penalty=0.5, min_tokens=4
        ),
    ):
        together = llm.generate(SEVERAL, sampling, logprobs=1, drafting=drafting)
        alone = [llm.generate(prompt, sampling, logprobs=1, drafting=OFF) for prompt in SEVERAL]
        assert [shown(one) for one in together] == [shown(one) for one in alone]
    llm.pool.check([])


def test_a_list_shares_passes_and_prefixes(path):
    llm = hashed_llm(path, kv_tokens=2048)
    prompt = list(range(100))
    llm.target.passes.clear()
    found = llm.generate([[*prompt, last] for last in range(6)], Sampling(max_tokens=8, ignore_eos=True))
    assert [one.cached_tokens for one in found] == [0, *[64] * 5]
    assert len(llm.target.passes) < 2 * 8
    assert sum(llm.target.passes) == 101 + 5 * 37 + 6 * 7


def test_each_of_a_list_has_a_seed_of_its_own_unless_one_is_given(llm):
    sampling = Sampling(temperature=1.5, max_tokens=12, ignore_eos=True)
    found = llm.generate([PROMPT] * 3, sampling)
    assert len({one.seed for one in found}) == len({one.ids for one in found}) == 3


def test_what_is_wrong_with_one_of_a_list_is_told_before_anything_is_computed(llm):
    llm.target.passes.clear()
    with pytest.raises(ContextError, match="500 tokens"):
        llm.generate([[1, 2], [3] * 500])
    with pytest.raises(TokenError, match="token 300"):
        llm.generate([[1, 2], [300]])
    assert llm.target.passes == []


def test_a_failure_in_a_list_leaves_nothing_behind(llm):
    nothing = Sampling(logit_bias=dict.fromkeys(range(300), -float("inf")))
    with pytest.raises(NumericsError):
        llm.generate([[1, 2, 3], list(range(100))], nothing)
    llm.pool.check([])
    assert llm.pool.num_free == llm.pool.num_blocks


def test_conversations_give_way_to_a_list_and_go_on(path):
    llm = hashed_llm(path, ctx=128)
    sampling = Sampling(max_tokens=10, ignore_eos=True)
    with llm.chat() as chat, hashed_llm(path, ctx=128).chat() as other:
        for text in ("hello", "go on"):
            assert chat.send(text, sampling).ids == other.send(text, sampling).ids
            found = llm.generate([list(range(110)), list(range(50, 150))], sampling)
            assert [len(one.ids) for one in found] == [10, 10]
    llm.pool.check([])


def test_streams_beside_a_list_keep_their_memory(path):
    """Which may be too much: then it is told."""
    llm = hashed_llm(path, ctx=128)
    sampling = Sampling(max_tokens=10, ignore_eos=True)
    expected = llm.generate(list(range(100)), sampling).ids
    with llm.stream(list(range(100)), sampling) as stream:
        next(stream)
        assert len(llm.generate([[1, 2], [3]], sampling)) == 2
        with pytest.raises(ContextError, match="KV cache is full"):
            llm.generate([list(range(7, 110)), [3]], sampling)
        list(stream)
        assert stream.completion.ids == expected
    llm.pool.check([])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafting", [OFF, Drafting("suffix", 6)])
def test_nothing_ends_an_answer_before_its_least_length(llm, temperature, drafting):
    """By the definition: end tokens forbidden in so many places, token by token."""
    prompt = llm.tokenize(PROMPT * 2)
    free = llm.generate(prompt, Sampling(temperature=temperature, seed=2, max_tokens=12, ignore_eos=True))
    ends = (free.ids[1], free.ids[5], free.ids[9])
    for least in (0, 1, 3, 7, 12, 50):
        sampling = Sampling(
            temperature=temperature,
            seed=2,
            max_tokens=12,
            min_tokens=least,
            stop_token_ids=ends,
            ignore_eos=True,
        )
        ids = []
        while len(ids) < 12 and not (ids and ids[-1] in ends):
            row = llm.target.logits((*prompt, *ids)).copy()
            if len(ids) < least:
                row[list(ends)] = -np.inf
            ids.append(pick(row, Place(sampling, len(prompt) + len(ids))))
        completion = llm.generate(prompt, sampling, drafting=drafting)
        assert completion.ids == tuple(ids)
        assert completion.finish_reason == ("stop" if ids[-1] in ends else "length")


def test_before_its_least_length_no_stop_string_ends_an_answer(llm):
    prompt = llm.tokenize(PROMPT)
    free = llm.generate(prompt, Sampling(temperature=1.0, seed=1, max_tokens=20, ignore_eos=True))
    stop = llm.detokenize(free.ids[2:3])
    sampling = Sampling(temperature=1.0, seed=1, max_tokens=20, ignore_eos=True, stop=(stop,), min_tokens=15)
    completion = llm.generate(prompt, sampling)
    assert len(completion.ids) >= 15
    assert completion.ids == free.ids[: len(completion.ids)]
    assert (
        len(llm.generate(prompt, Sampling(temperature=1.0, seed=1, ignore_eos=True, stop=(stop,))).ids) <= 3
    )


@pytest.mark.parametrize("kv_tokens", [255, 1, 0, -5])
def test_memory_for_less_than_one_request_is_refused(path, kv_tokens):
    with pytest.raises(UsageError, match=f"kv_tokens is {kv_tokens}, but one request may have 256"):
        hashed_llm(path, kv_tokens=kv_tokens)


def test_memory_for_more_than_one_request_is_there(path):
    few, many = hashed_llm(path), hashed_llm(path, kv_tokens=1000)
    assert few.pool.num_blocks == (256 + 64) // 64
    assert many.pool.num_blocks == -(-(1000 + 64) // 64)


@pytest.mark.parametrize(
    ("ids", "kind"), [([], UsageError), ([300], TokenError), ([1, 2**31], TokenError), ([-1, 1], TokenError)]
)
def test_a_request_for_what_is_no_prompt_is_refused(llm, ids, kind):
    with pytest.raises(kind):
        llm.request(ids, Sampling(), 0.0)
