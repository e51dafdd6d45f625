"""What the server answers, asked over a socket by OpenAI's own client. Expected texts, ids and logprobs come
from the float64 twin of the same model, answered one by one and without a server.
"""

import itertools
import math

import pytest
from serving import NAME, serving
from tiny import write_tiny
from twin_target import twin_llm

import foredraft
from foredraft import LLM, Sampling

PROMPT = "the quick brown fox"
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]
MOST = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("http") / "tiny.gguf", "qwen2", quant="F32", seed=5)


@pytest.fixture(scope="module")
def twin(path):
    return twin_llm(path)


@pytest.fixture(scope="module")
def server(path):
    with LLM(path, ctx=256, kv_tokens=2048, kv="f32", threads=1) as llm, serving(llm) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def http(server):
    return server.http()


def chat(client, **options):
    given = {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": MOST, **options}
    return client.chat.completions.create(**given)


def complete(client, **options):
    given = {"model": NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": MOST, **options}
    return client.completions.create(**given)


def texts(chunks):
    """The text of each choice of a stream of completions."""
    whole = {}
    for chunk in chunks:
        for choice in chunk.choices:
            whole[choice.index] = whole.get(choice.index, "") + choice.text
    return [whole[index] for index in sorted(whole)]


# Chats


def test_a_chat_is_answered_as_the_twin_would(client, twin):
    reply = chat(client)
    expected = twin.generate(MESSAGES, Sampling(max_tokens=MOST))
    (choice,) = reply.choices
    assert choice.message.content == expected.text
    assert (choice.message.role, choice.finish_reason) == ("assistant", expected.finish_reason)
    assert choice.message.tool_calls is None and choice.logprobs is None
    assert (reply.object, reply.model) == ("chat.completion", NAME)
    assert reply.id.startswith("chatcmpl-")
    assert reply.usage.prompt_tokens == expected.prompt_tokens
    assert reply.usage.completion_tokens == len(expected.ids)
    assert reply.usage.total_tokens == expected.prompt_tokens + len(expected.ids)


def test_a_streamed_chat_is_the_same_in_pieces(client, twin):
    expected = twin.generate(MESSAGES, Sampling(max_tokens=MOST))
    chunks = list(chat(client, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == expected.text
    assert choices[0].delta.role == "assistant"
    assert [choice.delta.role for choice in choices[1:]] == [None] * (len(choices) - 1)
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert not any("usage" in chunk.model_fields_set for chunk in chunks)


def test_usage_comes_in_one_more_chunk_if_it_is_asked_for(client):
    whole = chat(client)
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage == whole.usage
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks)


def test_usage_so_far_is_on_every_chunk_if_it_is_asked_for(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = chat(client, stream=True, stream_options=options, extra_body={"return_token_ids": True})
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == list(itertools.accumulate(len(chunk.choices[0].token_ids) for chunk in chunks))
    assert counts[-1] == last.usage.completion_tokens == MOST


def test_ids_of_prompt_and_answer_if_they_are_asked_for(client, twin):
    expected = twin.generate(MESSAGES, Sampling(max_tokens=MOST))
    ids = twin.prompter.encode(MESSAGES)
    extra = {"return_token_ids": True}
    reply = chat(client, extra_body=extra)
    assert reply.prompt_token_ids == ids
    assert reply.choices[0].token_ids == list(expected.ids)
    first, *others = chat(client, stream=True, extra_body=extra)
    assert first.prompt_token_ids == ids
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in others)
    given = [token for chunk in (first, *others) for token in chunk.choices[0].token_ids]
    assert given == list(expected.ids)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_are_those_of_the_twin(client, twin, stream):
    expected = twin.generate(MESSAGES, Sampling(max_tokens=MOST), logprobs=2).logprobs
    reply = chat(client, logprobs=True, top_logprobs=2, stream=stream)
    chunks = reply if stream else [reply]
    entries = [entry for chunk in chunks for entry in chunk.choices[0].logprobs.content]
    assert len(entries) == len(expected)
    for entry, one in zip(entries, expected, strict=True):
        data = twin.tokenizer.token_bytes(one.id)
        assert (bytes(entry.bytes), entry.token) == (data, data.decode(errors="replace"))
        assert entry.logprob == pytest.approx(one.logprob, abs=1e-3)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx([p for _, p in one.top], abs=1e-3)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_several_requests_with_seeds_of_their_own(client, twin, stream):
    reply = chat(client, temperature=1.0, seed=7, n=3, stream=stream)
    expected = [
        twin.generate(MESSAGES, Sampling(temperature=1.0, seed=7 + index, max_tokens=MOST))
        for index in range(3)
    ]
    whole = {}
    for chunk in reply if stream else [reply]:
        for choice in chunk.choices:
            text = choice.delta.content if stream else choice.message.content
            whole[choice.index] = whole.get(choice.index, "") + (text or "")
    assert [whole[index] for index in range(3)] == [answer.text for answer in expected]
    assert len(set(whole.values())) == 3
    if not stream:
        assert reply.usage.prompt_tokens == expected[0].prompt_tokens
        assert reply.usage.completion_tokens == sum(len(answer.ids) for answer in expected)


# Completions


def test_a_completion_is_the_twins(client, twin):
    expected = twin.generate(PROMPT, Sampling(max_tokens=MOST), raw=True)
    reply = complete(client)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (expected.text, "length")
    assert (reply.object, reply.usage.completion_tokens) == ("text_completion", MOST)
    assert texts(complete(client, stream=True)) == [expected.text]
    ids = twin.tokenize(PROMPT)
    assert complete(client, prompt=ids).choices[0].text == twin.generate(ids, Sampling(max_tokens=MOST)).text


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts_come_in_their_order(client, twin, stream):
    prompts = [PROMPT, "over the lazy dog"]
    sampling = {"temperature": 0.8, "seed": 3}
    reply = complete(client, prompt=prompts, n=2, stream=stream, **sampling)
    expected = [
        twin.generate(prompt, Sampling(temperature=0.8, seed=3 + index, max_tokens=MOST), raw=True)
        for prompt in prompts
        for index in range(2)
    ]
    given = texts(reply) if stream else [choice.text for choice in reply.choices]
    assert given == [answer.text for answer in expected]
    if not stream:
        assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
        assert reply.usage.prompt_tokens == expected[0].prompt_tokens + expected[2].prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_puts_the_prompt_first(client, twin, stream):
    expected = twin.generate(PROMPT, Sampling(max_tokens=MOST), raw=True).text
    reply = complete(client, echo=True, stream=stream)
    assert (texts(reply)[0] if stream else reply.choices[0].text) == PROMPT + expected
    ids = twin.tokenize(PROMPT)
    reply = complete(client, echo=True, prompt=ids, stream=stream)
    assert (texts(reply)[0] if stream else reply.choices[0].text).startswith(PROMPT)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [0, 5])
def test_an_echo_with_logprobs_has_those_of_the_prompt(client, twin, stream, most):
    reply = complete(client, echo=True, logprobs=1, max_tokens=most, stream=stream)
    chunks = list(reply) if stream else [reply]
    named = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for chunk in chunks:
        for name, values in named.items():
            values += getattr(chunk.choices[0].logprobs, name)
    ids = twin.tokenize(PROMPT)
    answer = twin.generate(PROMPT, Sampling(max_tokens=max(most, 1)), raw=True, logprobs=1)
    assert named["token_logprobs"][0] is None and named["top_logprobs"][0] is None
    assert len(named["tokens"]) == len(ids) + most
    assert "".join(named["tokens"][: len(ids)]) == PROMPT
    for place in range(1, len(ids)):
        (first,) = twin.generate(ids[:place], Sampling(max_tokens=1), logprobs=twin.target.vocab).logprobs
        assert named["token_logprobs"][place] == pytest.approx(dict(first.top)[ids[place]], abs=1e-3)
    expected = [one.logprob for one in answer.logprobs[:most]]
    assert named["token_logprobs"][len(ids) :] == pytest.approx(expected, abs=1e-3)
    if not stream:
        assert reply.choices[0].text == PROMPT + (answer.text if most else "")
        assert reply.usage.completion_tokens == most


def test_the_best_of_several_is_the_likeliest(client, twin):
    def mean(seed):
        sampling = Sampling(temperature=1.0, seed=seed, max_tokens=MOST)
        answer = twin.generate(PROMPT, sampling, raw=True, logprobs=0)
        return math.fsum(one.logprob for one in answer.logprobs) / len(answer.ids), answer.text

    ranked = sorted((mean(5 + index) for index in range(4)), reverse=True)
    reply = complete(client, temperature=1.0, seed=5, best_of=4, n=2)
    assert [choice.text for choice in reply.choices] == [text for _, text in ranked[:2]]
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].logprobs is None
    assert reply.usage.completion_tokens == 4 * MOST


def test_what_stopped_an_answer_is_said(client, twin):
    whole = twin.generate(PROMPT, Sampling(max_tokens=MOST), raw=True)
    stop = next(char for char in whole.text[3:] if char.isascii() and char.isprintable())
    reply = complete(client, stop=[stop, "never this"]).choices[0]
    assert reply.text == whole.text.partition(stop)[0]
    assert (reply.finish_reason, reply.stop_reason) == ("stop", stop)
    token = whole.ids[5]
    reply = complete(client, extra_body={"stop_token_ids": [token]})
    assert (reply.choices[0].finish_reason, reply.choices[0].stop_reason) == ("stop", token)
    assert reply.usage.completion_tokens == whole.ids.index(token) + 1
    assert complete(client).choices[0].stop_reason is None


# Drafting


def test_drafting_leaves_the_text_alone_and_is_reported(client, twin):
    expected = twin.generate(PROMPT, Sampling(max_tokens=MOST), raw=True)
    wishes = ["off", "auto", {"drafter": "ngram+suffix", "k": 4}]
    for speculation in wishes:
        reply = complete(client, extra_body={"speculation": speculation})
        assert reply.choices[0].text == expected.text
        assert reply.usage.completion_tokens_details is None
    prediction = {"type": "content", "content": expected.text}
    reply = complete(client, extra_body={"speculation": "off"})
    assert (reply.speculation["drafter"], reply.speculation["drafted"]) == ("off", 0)
    assert reply.speculation["rounds"] == MOST and reply.speculation["acceptance"] is None
    wish = {"drafter": "prediction", "k": 4}
    reply = complete(client, extra_body={"prediction": prediction, "speculation": wish})
    assert reply.choices[0].text == expected.text
    details, given = reply.usage.completion_tokens_details, reply.speculation
    assert (given["drafter"], given["k"], given["rule"]) == ("prediction", 4, "match")
    assert details.accepted_prediction_tokens == given["by_drafter"]["prediction"]["accepted"]
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == given["drafted"]
    assert reply.timings["predicted_n"] == MOST and reply.timings["draft_n"] == given["drafted"]


def test_the_last_chunk_of_a_choice_has_its_figures(client):
    chunks = list(chat(client, stream=True, extra_body={"speculation": "off"}))
    assert [hasattr(chunk, "speculation") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].speculation["rounds"] == chunks[-1].timings["predicted_n"] == MOST


# Other routes


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.max_model_len) == (NAME, "model", "foredraft", 256)
    assert client.models.retrieve(NAME) == model


def test_how_the_server_is(http):
    assert (http.get("/health").status_code, http.get("/health").json()) == (200, {"status": "ok"})
    assert (http.get("/ready").status_code, http.get("/ready").json()) == (200, {"status": "ready"})
    assert http.get("/version").json() == {"version": foredraft.__version__}
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "foredraft:num_requests_running" in metrics.text


def test_tokens_of_texts_and_messages_and_back(http, twin):
    ids = twin.tokenize(PROMPT)
    reply = http.post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True}).json()
    assert (reply["tokens"], reply["count"], reply["max_model_len"]) == (ids, len(ids), 256)
    assert "".join(reply["token_strs"]) == PROMPT
    assert http.post("/tokenize", json={"content": PROMPT}).json()["tokens"] == ids
    reply = http.post("/tokenize", json={"messages": MESSAGES, "model": NAME}).json()
    assert reply["tokens"] == twin.prompter.encode(MESSAGES)
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": PROMPT, "content": PROMPT}
    text = http.post("/apply-template", json={"messages": MESSAGES}).json()["prompt"]
    assert text == twin.template.render(MESSAGES)


def test_a_prefix_is_reused_and_counted_but_not_across_salts(client):
    prompt = list(range(20, 170))
    one = complete(client, prompt=prompt, max_tokens=1, extra_body={"cache_salt": "a"})
    two = complete(client, prompt=prompt, max_tokens=1, extra_body={"cache_salt": "a"})
    other = complete(client, prompt=prompt, max_tokens=1, extra_body={"cache_salt": "b"})
    cached = [reply.usage.prompt_tokens_details.cached_tokens for reply in (one, two, other)]
    assert cached == [0, 128, 0]
    assert len({reply.choices[0].text for reply in (one, two, other)}) == 1
