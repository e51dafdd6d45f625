"""Every endpoint and every field, asked for by OpenAI's own client over a socket.

Expected texts, ids and logprobs are those of the same model in this process, one request at a time, without
drafting; or those of a script that the model follows.
"""

import asyncio
import itertools
import json
import math
from typing import Literal

import httpx
import openai
import pytest
from asking import CHAT, TEXT, ask, create, expected
from pydantic import BaseModel
from scripted import END, scripted_llm
from serving import NAME, Paced, serving
from tiny import write_tiny

from foredraft import LLM, Sampling
from foredraft.engine.drafting import OFF
from foredraft.engine.grammar import GrammarSpec
from foredraft.server.structured import Grammars

KEY = "a secret"
PROMPT = "the quick brown fox"
MOST = 12
CONTEXT = 1536
FAST = {"drafter": "suffix", "k": 8}  # right about what an answer before has said
ROUTES = [CHAT, TEXT]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("clients") / "tiny.gguf", "qwen2", seed=6, context=CONTEXT)


@pytest.fixture(scope="module")
def model(path):
    with LLM(path, ctx=CONTEXT, threads=1, drafting=OFF) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(path):
    with LLM(path, ctx=CONTEXT, kv_tokens=8192, threads=1) as llm, serving(llm, api_keys=(KEY,)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def root(server):
    """For the routes that are not OpenAI's."""
    return server.client(base_url=server.url)


@pytest.fixture(scope="module")
def script(path):
    """A server whose model's answers are known."""
    with scripted_llm(path) as llm, serving(llm) as server:
        yield server


@pytest.fixture(scope="module")
def teller(script):
    return script.client()


def alone(model, route, fields, logprobs=1):
    """The answer without a server."""
    sampling = Sampling(**{"max_tokens": MOST, **fields})
    return model.generate(PROMPT, sampling, raw=route == TEXT, logprobs=logprobs)


# Sampling. The last field of each is the one that matters; what they depend on is the answer without them.

FIELDS = {
    "temperature": lambda plain: {"seed": 7, "temperature": 0.8},
    "seed": lambda plain: {"temperature": 1.0, "seed": 2**64 - 1},
    "top_p": lambda plain: {"temperature": 1.5, "seed": 7, "top_p": 0.4},
    "top_k": lambda plain: {"temperature": 1.5, "seed": 7, "top_k": 3},
    "min_p": lambda plain: {"temperature": 1.5, "seed": 7, "min_p": 0.3},
    "repetition_penalty": lambda plain: {"repetition_penalty": 1.8},
    "presence_penalty": lambda plain: {"presence_penalty": 2.0},
    "frequency_penalty": lambda plain: {"frequency_penalty": 2.0},
    "a negative penalty": lambda plain: {"frequency_penalty": -2.0},
    "logit_bias against": lambda plain: {"logit_bias": {plain.ids[0]: -100, plain.ids[3]: -100}},
    "logit_bias for": lambda plain: {"logit_bias": {70: 9}},
    "stop": lambda plain: {"stop": plain.text[5]},
    "stop of several": lambda plain: {"stop": ["never this", plain.text[4:8], plain.text[6:8]]},
    "stop_token_ids": lambda plain: {"stop_token_ids": [plain.ids[6], 5]},
    "min_tokens": lambda plain: {"stop_token_ids": [plain.ids[2]], "min_tokens": 9},
    "min_tokens and stop": lambda plain: {"stop": plain.text[3], "min_tokens": 10},
    "ignore_eos": lambda plain: {"logit_bias": {END: 9}, "ignore_eos": True},
    "max_tokens": lambda plain: {"max_tokens": 5},
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_means_what_it_means_without_server_and_drafts(client, model, route, name):
    fields = FIELDS[name](alone(model, route, {}))
    answer = expected(alone(model, route, fields))
    others = dict(list(fields.items())[:-1])
    assert answer != expected(alone(model, route, others)), "the field makes no difference here"
    fields = {"max_tokens": MOST, **fields}
    for speculation, stream in [("off", False), ("auto", True), (FAST, False), (FAST, True)]:
        reply = ask(client, route, PROMPT, stream=stream, logprobs=1, speculation=speculation, **fields)
        assert reply.answer == answer, (speculation, stream)
        assert reply.usage.completion_tokens == len(answer.ids)
        if stream and speculation == FAST:
            assert len(answer.ids) < 6 or reply.drafted["tokens_per_round"] > 1.5, "no draft was of use"


@pytest.mark.parametrize("route", ROUTES)
def test_a_seed_below_0_counts_from_the_largest_downwards(client, model, route):
    answer = expected(alone(model, route, {"temperature": 1.0, "seed": 2**64 - 5}))
    reply = ask(client, route, PROMPT, temperature=1, seed=-5, logprobs=0, max_tokens=MOST)
    assert reply.answer == answer


@pytest.mark.parametrize("limits", [(7, 3), (3, 7), (None, 3), (3, None)])
def test_of_two_limits_the_smaller_one_holds(client, limits):
    names = ("max_tokens", "max_completion_tokens")
    given = {name: limit for name, limit in zip(names, limits, strict=True) if limit is not None}
    reply = ask(client, CHAT, PROMPT, speculation=FAST, **given)
    assert (len(reply.answer.ids), reply.answer.finish_reason) == (3, "length")


def test_without_a_limit_a_completion_has_16_tokens_and_a_chat_what_fits(client):
    assert len(ask(client, TEXT, PROMPT).answer.ids) == 16
    reply = ask(client, CHAT, "the dog " * (CONTEXT // 2 - 30), ignore_eos=True, speculation=FAST)
    room = CONTEXT - reply.usage.prompt_tokens
    assert 0 < len(reply.answer.ids) == reply.usage.completion_tokens == room < 99
    assert reply.answer.finish_reason == "length"


# Streams


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("speculation", ["off", "auto", FAST])
def test_a_stream_is_the_reply_in_pieces(client, route, speculation):
    fields = {"temperature": 1, "seed": 3, "max_tokens": 30, "logprobs": 2, "speculation": speculation}
    whole, stream = (ask(client, route, PROMPT, stream=stream, **fields) for stream in (False, True))
    assert stream.answers == whole.answers
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(stream.usage, count) == getattr(whole.usage, count)
    assert stream.usage.completion_tokens == len(stream.answer.ids) == 30
    assert stream.drafted.keys() == whole.drafted.keys()


@pytest.mark.parametrize("route", ROUTES)
def test_usage_so_far_counts_the_tokens_of_a_chunk_not_chunks(client, route):
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"temperature": 0, "max_tokens": 24, "stream": True, "stream_options": options}
    for _ in range(2):
        stream = create(client, route, PROMPT, **fields, return_token_ids=True, speculation=FAST)
        *chunks, last = list(stream)
    sizes = [len(chunk.choices[0].token_ids) for chunk in chunks]
    assert max(sizes) > 2
    assert [chunk.usage.completion_tokens for chunk in chunks] == list(itertools.accumulate(sizes))
    assert all(chunk.usage.total_tokens - sum(sizes[: i + 1]) == last.usage.prompt_tokens
               for i, chunk in enumerate(chunks))  # fmt: skip
    assert last.choices == [] and last.usage.completion_tokens == 24


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_obfuscation": True}])
def test_a_stream_has_no_usage_unless_it_is_asked_for(client, options):
    given = {} if options is None else {"stream_options": options}
    chunks = list(create(client, CHAT, PROMPT, stream=True, max_tokens=3, **given))
    assert all("usage" not in chunk.model_fields_set and chunk.choices for chunk in chunks)


def test_the_clients_own_accumulation_gets_the_text(script, teller):
    ids = write(script, CHAT, "a story", STORY)
    with teller.chat.completions.stream(
        model=NAME, messages=[{"role": "user", "content": "a story"}], temperature=0, logprobs=True,
        extra_body={"prediction": predicted(STORY)},
    ) as stream:  # fmt: skip
        events = list(stream)
    (choice,) = stream.get_final_completion().choices
    assert (choice.message.content, choice.finish_reason) == (STORY, "stop")
    assert "".join(event.delta for event in events if event.type == "content.delta") == STORY
    assert len(choice.logprobs.content) == len(ids)
    assert b"".join(bytes(entry.bytes) for entry in choice.logprobs.content).decode() == STORY + "<|im_end|>"


@pytest.mark.parametrize("streams", [False, True])
def test_that_an_answer_was_too_long_to_be_read_the_client_knows(client, streams):
    given = {"model": NAME, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    given |= {"response_format": Weather}
    with pytest.raises(openai.LengthFinishReasonError):
        if not streams:
            client.chat.completions.parse(**given)
        with client.chat.completions.stream(**given) as stream:
            stream.get_final_completion()


def test_the_raw_stream_is_what_sse_clients_expect(client):
    given = {"model": NAME, "prompt": PROMPT, "max_tokens": 3, "stream": True}
    with client.completions.with_streaming_response.create(**given) as response:
        lines = list(response.iter_lines())
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"]
    assert all(line.startswith("data: {") for line in lines[:-2:2]) and not any(lines[1::2])
    assert lines[-2:] == ["data: [DONE]", ""]


# More than one answer


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_n_answers_have_seeds_one_after_the_other(client, model, route, stream):
    answers = [expected(alone(model, route, {"temperature": 1.0, "seed": 20 + i})) for i in range(3)]
    fields = {"temperature": 1, "seed": 20, "n": 3, "max_tokens": MOST, "logprobs": 1}
    for speculation in (FAST, "off"):
        reply = ask(client, route, PROMPT, stream=stream, speculation=speculation, **fields)
        assert reply.answers == answers
        assert reply.usage.completion_tokens == 3 * MOST
        assert len(reply.speculation) == (3 if stream else 1)
        assert sum(given["rounds"] for given in reply.speculation) <= 3 * MOST


@pytest.mark.parametrize("speculation", ["off", FAST])
def test_of_best_of_answers_the_likeliest_n_are_given(client, model, speculation):
    answers = [expected(alone(model, TEXT, {"temperature": 1.0, "seed": 20 + i})) for i in range(5)]
    ranked = sorted(answers, key=lambda answer: -math.fsum(answer.logprobs) / len(answer.ids))
    fields = {"temperature": 1, "seed": 20, "n": 2, "best_of": 5, "max_tokens": MOST, "logprobs": 1}
    reply = ask(client, TEXT, PROMPT, speculation=speculation, **fields)
    assert reply.answers == ranked[:2]
    assert reply.usage.completion_tokens == 5 * MOST


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_may_be_several_and_ids(client, model, stream):
    texts = [PROMPT, "the lazy dog"]
    answers = [expected(model.generate(text, Sampling(max_tokens=6), raw=True, logprobs=0)) for text in texts]
    ids = [model.tokenize(text) for text in texts]
    for prompt in (texts, ids):
        reply = ask(client, TEXT, prompt, stream=stream, max_tokens=6, logprobs=0)
        assert reply.answers == answers
        assert reply.usage.prompt_tokens == sum(map(len, ids))
    assert ask(client, TEXT, ids[1], stream=stream, max_tokens=6, logprobs=0).answers == answers[1:]


# Logprobs, ids, echo


@pytest.mark.parametrize("speculation", ["off", FAST])
def test_logprobs_come_with_tokens_bytes_and_the_likeliest(client, model, speculation):
    answer = alone(model, CHAT, {}, logprobs=4)
    text = model.tokenizer.token_bytes
    reply = create(
        client, CHAT, PROMPT, temperature=0, max_tokens=MOST, logprobs=True, top_logprobs=4,
        speculation=speculation,
    )  # fmt: skip
    entries = reply.choices[0].logprobs.content
    for entry, one in zip(entries, answer.logprobs, strict=True):
        assert (bytes(entry.bytes), entry.logprob) == (text(one.id), one.logprob)
        assert entry.token == text(one.id).decode(errors="replace")
        top = [(bytes(other.bytes), other.logprob) for other in entry.top_logprobs]
        assert top == [(text(token), logprob) for token, logprob in one.top]


@pytest.mark.parametrize("speculation", ["off", FAST])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_completions_have_offsets_into_the_text(client, model, speculation, stream):
    bias = {token: -100 for token in range(300) if not model.detokenize([token]).isascii()}
    answer = model.generate(PROMPT, Sampling(max_tokens=20, logit_bias=bias), raw=True, logprobs=3)
    fields = {"temperature": 0, "max_tokens": 20, "logprobs": 3, "logit_bias": bias, "stream": stream}
    reply = create(client, TEXT, PROMPT, **fields, speculation=speculation)
    parts = [chunk.choices[0].logprobs for chunk in reply] if stream else [reply.choices[0].logprobs]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    tokens, logprobs, top, offsets = ([x for part in parts for x in getattr(part, name)] for name in names)
    assert "".join(tokens) == answer.text
    assert offsets == [0, *itertools.accumulate(map(len, tokens))][:-1]
    assert logprobs == [one.logprob for one in answer.logprobs]
    for given, one in zip(top, answer.logprobs, strict=True):
        assert given[model.detokenize([one.id])] == one.logprob
        assert set(given.values()) == {one.logprob, *(logprob for _, logprob in one.top)}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_prompt_and_answer_come_if_they_are_asked_for(client, model, route, stream):
    ids = model.prompter.encode(PROMPT, raw=route == TEXT)
    reply = create(client, route, PROMPT, max_tokens=2, stream=stream, return_token_ids=True)
    first, *others = reply if stream else [reply]
    given = first if route == CHAT else first.choices[0]
    assert given.prompt_token_ids == ids
    assert not any(
        hasattr(other, "prompt_token_ids") or hasattr(other.choices[0], "prompt_token_ids")
        for other in others
    )
    plain = create(client, route, PROMPT, max_tokens=2, stream=stream)
    first = next(iter(plain)) if stream else plain
    assert not hasattr(first, "prompt_token_ids") and not hasattr(first.choices[0], "token_ids")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("speculation", ["off", FAST])
def test_an_echo_puts_the_prompt_before_the_answer(client, model, stream, speculation):
    answer = expected(alone(model, TEXT, {}, logprobs=None))
    fields = {"stream": stream, "max_tokens": MOST, "echo": True, "speculation": speculation}
    reply = ask(client, TEXT, PROMPT, **fields)
    assert reply.answer.text == PROMPT + answer.text
    assert reply.answer.ids == answer.ids
    assert reply.usage.completion_tokens == MOST


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [0, 4])
def test_an_echo_with_logprobs_says_how_likely_the_prompt_is(client, model, stream, most):
    ids = model.tokenize(PROMPT)
    reply = ask(client, TEXT, PROMPT, stream=stream, max_tokens=most, echo=True, logprobs=0, speculation=FAST)
    answer = model.generate(PROMPT, Sampling(max_tokens=4), raw=True, logprobs=0)
    first, *given = reply.answer.logprobs
    assert first is None
    for place in range(1, len(ids)):
        (one,) = model.generate(ids[:place], Sampling(max_tokens=1), logprobs=300).logprobs
        assert given[place - 1] == dict(one.top)[ids[place]]
    assert given[len(ids) - 1 :] == [one.logprob for one in answer.logprobs[:most]]
    assert reply.usage.completion_tokens == most == len(reply.answer.ids)
    assert reply.answer.text == PROMPT + (answer.text if most else "")
    assert reply.answer.finish_reason == "length"


def test_control_tokens_are_in_the_text_if_they_are_asked_for(script, teller):
    write(script, TEXT, "control", "a<|im_start|>b")
    for stream, skip in itertools.product([False, True], [False, True, None]):
        reply = ask(teller, TEXT, "control", stream=stream, skip_special_tokens=skip)
        assert reply.answer.text == ("a<|im_start|>b" if skip is False else "ab")


def test_an_answer_may_go_on_with_the_last_message(script, teller):
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The f"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    text = script.http().post("/apply-template", json={"messages": messages, **options}).json()["prompt"]
    assert text.endswith("The f")
    script.llm.target.write(script.llm.tokenize(text, special=True), [*script.llm.tokenize("ox."), END])
    for stream in (False, True):
        assert ask(teller, CHAT, messages, stream=stream, **options).answer.text == "ox."


# Speculation and predictions

STORY = "the fox and the dog, the wind and the trees: what is drafted here is checked there."


def write(server, route, prompt, text):
    """Let the model answer so. Returns the answer's ids."""
    llm = server.llm
    ids = [*llm.tokenize(text, special=True), END]
    llm.target.write(llm.prompter.encode(prompt, raw=route == TEXT), ids)
    return ids


def predicted(text):
    return {"type": "content", "content": text}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prediction_that_is_right_is_accepted(script, teller, route, stream):
    ids = write(script, route, "a story", STORY)
    parts = [{"type": "text", "text": STORY[:30]}, {"type": "text", "text": STORY[30:]}]
    for content in (STORY, parts):
        reply = ask(
            teller, route, "a story", stream=stream, max_tokens=100, prediction=predicted(content),
            speculation={"drafter": "prediction", "k": 8},
        )  # fmt: skip
        assert (reply.answer.text, reply.answer.ids, reply.answer.stop_reason) == (STORY, ids, END)
        details, given = reply.usage.completion_tokens_details, reply.drafted
        assert details.accepted_prediction_tokens == given["accepted"] == len(ids) - given["rounds"]
        assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == given["drafted"]
        assert given["tokens_per_round"] > 5
        assert reply.usage.completion_tokens == len(ids)


@pytest.mark.parametrize(
    "speculation", [None, "auto", {"drafter": "prediction", "k": 5}, {"drafter": "auto+ngram"}]
)
@pytest.mark.parametrize(
    "prediction", ["", "☃ nothing of the kind", STORY.replace("dog", "cat"), STORY[40:] * 9]
)
def test_a_prediction_changes_nothing_but_the_speed(script, teller, speculation, prediction):
    ids = write(script, CHAT, "a story", STORY)
    fields = {} if speculation is None else {"speculation": speculation}
    reply = ask(teller, CHAT, "a story", max_tokens=100, prediction=predicted(prediction), **fields)
    assert (reply.answer.text, reply.answer.ids) == (STORY, ids)
    part = reply.drafted["by_drafter"].get("prediction", {"drafted": 0, "accepted": 0})
    details = reply.usage.completion_tokens_details
    assert details.accepted_prediction_tokens == part["accepted"]
    assert details.rejected_prediction_tokens == part["drafted"] - part["accepted"]
    if isinstance(speculation, dict) and speculation.get("k") and prediction.startswith("☃"):
        assert details.rejected_prediction_tokens > 0


def test_what_other_drafters_do_is_not_counted_as_a_prediction(client):
    reply = ask(client, TEXT, PROMPT, speculation=FAST)
    assert reply.usage.completion_tokens_details is None
    assert reply.drafted["drafted"] > 0


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
@pytest.mark.parametrize("drafter", [None, "auto", "ngram+suffix"])
def test_a_draft_has_no_more_tokens_than_was_asked_for(client, model, k, rule, drafter):
    answer = expected(alone(model, TEXT, {}))
    for _ in range(2):
        wish = {"drafter": drafter, "k": k, "rule": rule}
        if drafter is None:
            del wish["drafter"]
        reply = ask(client, TEXT, PROMPT, stream=True, max_tokens=MOST, logprobs=1, speculation=wish)
        assert reply.answer == answer
        assert reply.drafted["drafted"] <= k * reply.drafted["rounds"]
        assert reply.drafted["tokens_per_round"] <= k + 1
    assert (reply.drafted["k"], reply.drafted["rule"]) == (k, rule)
    assert (reply.drafted["accepted"] > 0) == (k > 0)


# Grammars


class Weather(BaseModel):
    city: Literal["Bern", "Zürich"]
    days: Literal[1, 2, 3]
    warm: bool
    notes: tuple[Literal["snow ☃", "sun"], Literal["snow ☃", "sun"]]


SCHEMA = Weather.model_json_schema()
LARK = 'start: "<" /[a-c]{3}/ ("," /[x-z]/)? ">"'
GBNF = 'root ::= "<" [a-c] [a-c] "," [x-z] ">"'
STRICT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
GRAMMARS = {
    "response_format": ("json", SCHEMA, STRICT),
    "json_schema": ("json", SCHEMA, SCHEMA),
    "guided_json": ("json", SCHEMA, json.dumps(SCHEMA)),
    "guided_regex": ("regex", "(ab|c){6}[0-9]", "(ab|c){6}[0-9]"),
    "regex": ("regex", "[é-ö]{5}", "[é-ö]{5}"),
    "guided_choice": ("choice", ["yes", "no, 日本"], ["yes", "no, 日本"]),
    "guided_grammar": ("grammar", LARK, LARK),
    "grammar": ("grammar", GBNF, GBNF),
    "ebnf": ("grammar", GBNF, GBNF),
    "structured_outputs": ("regex", "x{2,9}y", {"regex": "x{2,9}y"}),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("field", GRAMMARS)
def test_a_grammar_holds_with_every_way_of_drafting(client, model, route, field):
    kind, source, value = GRAMMARS[field]
    spec = GrammarSpec(kind, source if isinstance(source, str) else json.dumps(source), field)
    request = model.request(
        model.prompter.encode(PROMPT, raw=route == TEXT), Sampling(max_tokens=99), 0.0, 0,
        constraint=Grammars(model).compile(spec)(),
    )  # fmt: skip
    with model.start(request) as stream:
        list(stream)
    answer = expected(stream.completion)
    assert answer.finish_reason == "stop"
    if kind == "json":
        assert Weather.model_validate_json(answer.text)
    for wish, streams in [("off", True), ("auto", False), (FAST, False), (FAST, True)]:
        fields = {"speculation": wish, "max_tokens": 99, "logprobs": 0, field: value}
        assert ask(client, route, PROMPT, stream=streams, **fields).answer == answer


@pytest.mark.parametrize("wish", ["off", "auto", {"drafter": "prediction", "k": 6}])
def test_json_object_is_any_object(script, teller, wish):
    text = '{"a": [1, 2.5e3, null], "ü": {"☃": "\\n"}}'
    write(script, CHAT, "an object", text + " and more")
    fields = {} if wish in ("off", "auto") else {"prediction": predicted(text + " and more")}
    for stream in (False, True):
        reply = ask(
            teller, CHAT, "an object", stream=stream, response_format={"type": "json_object"},
            max_tokens=99, speculation=wish, **fields,
        )  # fmt: skip
        assert (reply.answer.text, reply.answer.stop_reason) == (text, END)
        assert json.loads(text) == {"a": [1, 2500.0, None], "ü": {"☃": "\n"}}


@pytest.mark.parametrize("speculation", ["off", "auto", FAST])
def test_the_clients_parser_gets_its_model(client, speculation):
    given = {"model": NAME, "messages": [{"role": "user", "content": "weather?"}], "seed": 1}
    given |= {"response_format": Weather, "extra_body": {"speculation": speculation}}
    reply = client.chat.completions.parse(**given)
    assert isinstance(reply.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(**given) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == reply.choices[0].message.parsed
    assert isinstance(final.choices[0].message.parsed, Weather)


# Tools

CALLED = {"city": "Zürich ☃", "days": 3}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "What it will be.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Bern", "Zürich ☃"]}, "days": {"enum": [1, 2, 3]}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {},
     "additionalProperties": False}}},
]  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>'
ASKED = [{"role": "user", "content": "Will it snow?"}]


def with_tools(script, text, tools=TOOLS, **fields):
    """An answer of that text to a request with tools; drafted for by a prediction of it."""
    prompt = script.http().post("/tokenize", json={"messages": ASKED, "tools": tools}).json()["tokens"]
    script.llm.target.write(prompt, [*script.llm.tokenize(text), END])
    body = {"prediction": predicted(text), "speculation": {"drafter": "prediction", "k": 16}}
    return {"model": NAME, "messages": ASKED, "tools": tools, "extra_body": body, "temperature": 0, **fields}


FORCED = [
    ("required", None),
    ({"type": "function", "function": {"name": "get_weather"}}, "get_weather"),
    ({"type": "function", "function": {"name": "stop"}}, "stop"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "stop"}}]}}, "stop"),
]  # fmt: skip


@pytest.mark.parametrize(("choice", "name"), FORCED)
def test_a_tool_that_must_be_called_is_called_with_sound_arguments(client, choice, name):
    given = {"model": NAME, "messages": ASKED, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
    given |= {"max_tokens": 200, "parallel_tool_calls": False}
    calls = []
    for wish in ["off", "auto", FAST]:
        body = {"speculation": wish}
        reply = client.chat.completions.create(**given, extra_body=body)
        with client.chat.completions.stream(**given, extra_body=body) as stream:
            final = stream.get_final_completion()
        for choice in (reply.choices[0], final.choices[0]):
            assert choice.finish_reason == "tool_calls" and not choice.message.content
            calls.append(choice.message.tool_calls)
    said = {tuple((call.function.name, call.function.arguments) for call in some) for some in calls}
    ((called, arguments),) = said.pop()
    assert not said, "it depends on how it was drafted for"
    assert name in (None, called)
    if called == "get_weather":
        read = json.loads(arguments)
        assert read.keys() == {"city", "days"} and read["city"] in ("Bern", "Zürich ☃")
    else:
        assert (called, json.loads(arguments)) == ("stop", {})


ANSWERS = {
    "a call": ("", [CALLED]),
    "text and a call": ("I will look. ☃\n", [CALLED]),
    "two calls": ("", [CALLED, {"city": "Bern", "days": 1}]),
    "no call": ("It <tool will {snow}.", []),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_tool_that_may_be_called_is_read_from_bursts_of_any_size(script, teller, answer):
    content, arguments = ANSWERS[answer]
    written = [json.dumps(one, ensure_ascii=False) for one in arguments]
    given = with_tools(script, content + "\n".join(CALL % one for one in written))
    whole = teller.chat.completions.create(**given)
    assert whole.speculation["tokens_per_round"] > 6
    choice = whole.choices[0]
    finish = "tool_calls" if arguments else "stop"
    assert ((choice.message.content or "").strip(), choice.finish_reason) == (content.strip(), finish)
    calls = choice.message.tool_calls or []
    assert [call.function.arguments for call in calls] == written
    assert all(call.type == "function" and call.function.name == "get_weather" for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    with teller.chat.completions.stream(**given) as stream:
        events = list(stream)
    final = stream.get_final_completion().choices[0]
    assert (final.message.content or "", final.finish_reason) == (choice.message.content or "", finish)
    assert [call.function.arguments for call in final.message.tool_calls or []] == written
    done = [event.arguments for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done == written
    assert [call.function.parsed_arguments for call in final.message.tool_calls or []] == arguments


@pytest.mark.parametrize("stream", [False, True])
def test_if_one_call_is_allowed_there_is_no_other(script, teller, stream):
    text = "\n".join(CALL % json.dumps(one) for one in [{"city": "Bern", "days": 2}, CALLED])
    given = with_tools(script, text, parallel_tool_calls=False, stream=stream)
    reply = teller.chat.completions.create(**given)
    if stream:
        parts = [call for chunk in reply for call in chunk.choices[0].delta.tool_calls or []]
        assert {call.index for call in parts} == {0}
        assert json.loads("".join(call.function.arguments for call in parts)) == {"city": "Bern", "days": 2}
        assert [call.function.name for call in parts if call.function.name] == ["get_weather"]
    else:
        (call,) = reply.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Bern", "days": 2}


def test_tools_that_must_not_be_called_are_not(script, teller):
    given = with_tools(script, "no", tool_choice="none")
    write(script, CHAT, ASKED[0]["content"], CALL % "{}")
    choice = teller.chat.completions.create(**given).choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    assert choice.message.content == CALL % "{}"


def streamed(client, **given):
    with client.chat.completions.stream(**given) as stream:
        return stream.get_final_completion()


@pytest.mark.parametrize("helper", ["create", "parse", "stream"])
@pytest.mark.parametrize("dumped", [False, True])
def test_calls_go_back_as_the_client_has_them_with_what_the_tools_said(script, teller, helper, dumped):
    def get(**fields):
        if helper == "stream":
            return streamed(teller, **fields)
        return getattr(teller.chat.completions, helper)(**fields)

    given = with_tools(script, CALL % json.dumps(CALLED), tools=TOOLS[:1])
    message = get(**given).choices[0].message
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It will, a lot."}
    function = {"name": "get_weather", "arguments": CALLED}
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    prompt = script.llm.template.render([*ASKED, called, {**answer}], tools=TOOLS[:1])
    script.llm.target.write(script.llm.tokenize(prompt, special=True), [*script.llm.tokenize("Stay."), END])
    messages = [*ASKED, message.model_dump() if dumped else message, answer]
    reply = get(**{**given, "messages": messages}).choices[0].message
    assert (reply.content, reply.tool_calls) == ("Stay.", None)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # the client's own
def test_a_parsed_answer_goes_back_to_the_model(client):
    given = {"model": NAME, "response_format": Weather, "seed": 1}
    message = client.chat.completions.parse(**given, messages=ASKED).choices[0].message
    for sent in (message, message.model_dump()):
        reply = client.chat.completions.parse(**given, messages=[*ASKED, sent, *ASKED])
        assert isinstance(reply.choices[0].message.parsed, Weather)


# What does nothing, what is refused

NEITHER = {
    "user": "somebody", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
    "prompt_cache_key": "x", "prompt_cache_retention": "24h", "safety_identifier": "y",
    "parallel_tool_calls": True, "priority": 3, "request_id": "z", "cache_prompt": True,
    "verbosity": "medium", "reasoning_effort": "none", "modalities": ["text"], "audio": None,
    "length_penalty": 1.0, "use_beam_search": False, "include_stop_str_in_output": False,
    "spaces_between_special_tokens": True, "cache_salt": "salt", "top_logprobs": None,
    "chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True,
}  # fmt: skip
ONLY_CHATS = {"parallel_tool_calls", "chat_template_kwargs", "add_generation_prompt", "top_logprobs"}


@pytest.mark.parametrize("route", ROUTES)
def test_fields_that_cannot_alter_the_text_do_not(client, model, route):
    fields = {name: value for name, value in NEITHER.items() if route == CHAT or name not in ONLY_CHATS}
    answer = expected(alone(model, route, {}, logprobs=None))
    assert ask(client, route, PROMPT, max_tokens=MOST, **fields).answer == answer


REFUSED = {
    "unknown": ({"bogus": 1}, "bogus", "unknown_parameter"),
    "null does not help": ({"bogus": None}, "bogus", "unknown_parameter"),
    "unsupported": ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
    "wrong type": ({"temperature": "hot"}, "temperature", "invalid_value"),
    "a number as text": ({"max_tokens": "3"}, "max_tokens", "invalid_value"),
    "true is not 1": ({"n": True}, "n", "invalid_value"),
    "out of range": ({"top_p": 1.5}, "top_p", "invalid_value"),
    "negative": ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    "too many": ({"n": 129}, "n", "invalid_value"),
    "more than the server takes": ({"n": 100}, "n", None),
    "no such token": ({"logit_bias": {"300": 1}}, "logit_bias", None),
    "no token": ({"logit_bias": {"fox": 1}}, "logit_bias", "invalid_value"),
    "no such stop token": ({"stop_token_ids": [300]}, "stop_token_ids", None),
    "an empty stop": ({"stop": [""]}, "stop", "invalid_value"),
    "options of no stream": ({"stream_options": {"include_usage": True}}, "stream_options", None),
    "an unknown option": ({"stream": True, "stream_options": {"x": 1}}, "stream_options", "invalid_value"),
    "no such drafter": ({"speculation": {"drafter": "psychic"}}, "speculation", None),
    "a model's file": ({"speculation": {"drafter": "model:/etc/passwd"}}, "speculation", None),
    "no such speculation": ({"speculation": "on"}, "speculation", "invalid_value"),
    "no such rule": ({"speculation": {"rule": "hope"}}, "speculation", "invalid_value"),
    "no such prediction": ({"prediction": {"type": "image"}}, "prediction", "invalid_value"),
    "no such format": ({"response_format": {"type": "xml"}}, "response_format.type", None),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
    "no grammar": ({"grammar": "root ::= ("}, "grammar", None),
    "two grammars": ({"guided_regex": "a", "guided_choice": ["a"]}, None, None),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_is_wrong_is_named(client, route, name):
    fields, param, code = REFUSED[name]
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, route, PROMPT, **fields)
    error = caught.value
    assert error.status_code == 400 and error.type == "invalid_request_error"
    assert error.code == code
    assert error.param == param if param else error.param in fields
    assert set(error.body) == {"message", "type", "param", "code"}
    assert error.body["message"] in str(error) and error.request_id


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (
            CHAT,
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        (CHAT, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (CHAT, {"tools": TOOLS, "response_format": {"type": "json_object"}}, "tool_choice"),
        (CHAT, {"functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"echo": True}, "echo"),
        (CHAT, {"suffix": "x"}, "suffix"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (TEXT, {"max_tokens": 0}, "max_tokens"),
        (TEXT, {"max_completion_tokens": 5}, "max_completion_tokens"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"top_logprobs": 1}, "top_logprobs"),
        (TEXT, {"n": 3, "best_of": 2}, "best_of"),
        (TEXT, {"best_of": 2, "stream": True}, "best_of"),
        (TEXT, {"suffix": "x"}, "suffix"),
        (TEXT, {"tools": TOOLS}, "tools"),
    ],
)
def test_a_field_that_does_not_go_with_the_others_is_named(client, route, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, route, PROMPT, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "spell": 1}, "messages[0].spell"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
         "messages[0].content[0]"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
    ],
)  # fmt: skip
def test_a_message_that_is_wrong_is_named(client, message, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, CHAT, [message])
    assert caught.value.param == param


@pytest.mark.parametrize(("route", "param"), [(CHAT, "messages"), (TEXT, "prompt")])
def test_a_prompt_that_is_too_long_has_the_code_that_agents_look_for(client, route, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, route, "the fox " * CONTEXT)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)
    assert str(CONTEXT) in caught.value.body["message"]


def test_another_model_and_another_key_are_refused(client, server):
    for call in (client.models.retrieve, lambda model: client.completions.create(model=model, prompt="x")):
        with pytest.raises(openai.NotFoundError) as missing:
            call("gpt-4")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    for key in ("guess", KEY + "x"):
        stranger = server.client(api_key=key)
        for call in (stranger.models.list, lambda who=stranger: ask(who, TEXT, PROMPT)):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"
            assert KEY not in str(caught.value)


def test_a_body_that_is_too_large_is_refused(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=NAME, prompt="x" * (4 << 20))
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


OTHER_ROUTES = {
    "embeddings": lambda client: client.embeddings.create(model=NAME, input="x"),
    "responses": lambda client: client.responses.create(model=NAME, input="x"),
    "images": lambda client: client.images.generate(prompt="x"),
    "speech": lambda client: client.audio.speech.create(model=NAME, input="x", voice="alloy"),
    "moderations": lambda client: client.moderations.create(input="x"),
    "files": lambda client: client.files.list(),
    "batches": lambda client: client.batches.list(),
    "stored completions": lambda client: client.chat.completions.retrieve("chatcmpl-1"),
}


@pytest.mark.parametrize("name", OTHER_ROUTES)
def test_other_routes_of_openai_say_what_there_is(client, name):
    with pytest.raises(openai.NotFoundError) as caught:
        OTHER_ROUTES[name](client)
    assert caught.value.code == "unknown_url"
    assert "POST /v1/chat/completions" in caught.value.body["message"]


# The other endpoints


def test_models(client):
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == (NAME, "model", "foredraft")
    assert client.models.retrieve(NAME) == model


def test_tokens_and_templates(root, model):
    def post(path, **body):
        return root.post(path, cast_to=httpx.Response, body=body).json()

    def messages(*texts):
        return [{"role": "user", "content": text} for text in texts]

    ids = model.tokenize("Grüezi ☃")
    assert post("/tokenize", prompt="Grüezi ☃")["tokens"] == ids
    assert post("/detokenize", tokens=ids)["prompt"] == "Grüezi ☃"
    rendered = post("/apply-template", messages=messages("a", "b"))["prompt"]
    assert rendered == model.template.render(messages("a", "b"))
    assert post("/tokenize", messages=messages("a", "b"))["tokens"] == model.prompter.encode(
        messages("a", "b")
    )


def test_health_and_metrics(client, root):
    def get(path):
        return root.get(path, cast_to=httpx.Response)

    def counted():
        ask(client, TEXT, PROMPT, max_tokens=1, speculation="off")  # by then, all before is counted
        given = {}
        for line in get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("foredraft:spec_decode_num"):
                given[name.partition("{")[0].removeprefix("foredraft:spec_decode_num_")] = float(value)
        return given

    assert get("/health").json() == {"status": "ok"} and get("/ready").json() == {"status": "ready"}
    before = counted()
    drafted = ask(client, TEXT, PROMPT, max_tokens=20, speculation=FAST).drafted
    after = counted()
    for name, figure in (("draft_tokens_total", "drafted"), ("accepted_tokens_total", "accepted")):
        assert after[name] - before[name] == drafted[figure] > 0


# Many at once, and not in time


def test_many_at_once_get_what_each_would_get_alone(server, model):
    prompts = [PROMPT[:end] for end in range(5, 14)]
    wishes = itertools.cycle(["off", "auto", FAST])

    async def ask_one(client, prompt, wish):
        given = {
            "model": NAME,
            "prompt": prompt,
            "temperature": 1,
            "seed": 5,
            "max_tokens": 20,
            "stream": True,
        }
        stream = await client.completions.create(**given, extra_body={"speculation": wish})
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*[
                ask_one(client, prompt, wish) for prompt, wish in zip(prompts, wishes, strict=False)
            ])  # fmt: skip

    sampling = Sampling(temperature=1.0, seed=5, max_tokens=20)
    expected = [model.generate(prompt, sampling, raw=True).text for prompt in prompts]
    assert asyncio.run(ask_all()) == expected


def test_an_asynchronous_client_parses_and_streams_too(script):
    write(script, CHAT, "a story", STORY)
    given = {"model": NAME, "messages": [{"role": "user", "content": "a story"}], "temperature": 0}

    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{script.url}/v1", api_key="none", max_retries=0) as client:
            async with client.chat.completions.stream(**given) as stream:
                final = await stream.get_final_completion()
            return final, await client.chat.completions.create(**given)

    for reply in asyncio.run(ask()):
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (STORY, "stop")


@pytest.fixture
def slow(path):
    """A server that takes a second for 200 tokens, of one request at a time."""
    llm = LLM(path, ctx=256, threads=1)
    llm.target = Paced(llm.target, 0.005)
    with llm, serving(llm, max_running=1, max_waiting=0, request_timeout=0.6) as server:
        yield server


@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_does_not_wait_costs_nothing_more(slow, route):
    impatient = slow.client(timeout=0.1)
    with pytest.raises(openai.APITimeoutError):
        create(impatient, route, PROMPT, max_tokens=200, ignore_eos=True)
    slow.await_idle()
    assert ask(slow.client(), route, PROMPT, max_tokens=2, ignore_eos=True).usage.completion_tokens == 2


def test_an_answer_that_takes_too_long_ends_with_an_error(slow):
    given = {"max_tokens": 200, "ignore_eos": True}
    with pytest.raises(openai.InternalServerError) as caught:
        create(slow.client(), CHAT, PROMPT, **given)
    assert (caught.value.status_code, caught.value.code) == (504, "timeout")
    slow.await_idle()
    received = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in create(slow.client(), CHAT, PROMPT, stream=True, **given):
            received.append(chunk)
    assert received and caught.value.code == "timeout"


def test_a_client_comes_again_when_there_is_room(slow):
    first = create(slow.client(), TEXT, PROMPT, stream=True, max_tokens=200, ignore_eos=True)
    next(first)
    refused = []

    def make_room(response):
        if response.status_code == 429:
            refused.append(int(response.headers["retry-after"]))
            first.close()
            slow.await_idle()

    patient = slow.client(
        max_retries=2, http_client=openai.DefaultHttpxClient(event_hooks={"response": [make_room]})
    )
    assert create(patient, TEXT, PROMPT, max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
    assert len(refused) == 1 and refused[0] >= 1


def test_a_queue_that_is_full_is_a_rate_limit(slow):
    clients = [slow.client(), slow.client()]
    with create(clients[0], TEXT, PROMPT, stream=True, max_tokens=200, ignore_eos=True) as stream:
        next(stream)
        with pytest.raises(openai.RateLimitError) as caught:
            create(clients[1], TEXT, PROMPT)
    assert caught.value.code == "queue_full" and int(caught.value.response.headers["retry-after"]) >= 1
