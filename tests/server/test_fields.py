"""Bodies of requests, before any model sees them."""

import json

import pytest

from foredraft.engine.drafting import OFF, Drafting
from foredraft.server.chat_body import ChatBody, TemplateBody
from foredraft.server.completion_body import CompletionBody
from foredraft.server.errors import ApiError
from foredraft.server.fields import IGNORED
from foredraft.server.parsing import parse

LEAST = {
    ChatBody: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    CompletionBody: {"model": "m", "prompt": "x"},
}
BOTH = sorted(LEAST, key=str)
NONE = frozenset()


def read(kind, **fields):
    body = parse(kind, json.dumps({**LEAST[kind], **fields}).encode())
    body.check()
    return body


def refusal(kind, **fields):
    with pytest.raises(ApiError) as caught:
        read(kind, **fields)
    assert caught.value.status == 400
    assert caught.value.param in str(caught.value)
    return caught.value


@pytest.mark.parametrize("kind", BOTH)
def test_null_is_as_good_as_left_out(kind):
    optional = kind.model_fields.keys() - LEAST[kind].keys()
    assert len(optional) > 30
    nulls = dict.fromkeys([*optional, *IGNORED, *kind.IDLE])
    assert read(kind, **nulls) == read(kind)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "1"),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.0),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", []),
        ("frequency_penalty", "x"),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": "1"}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", [[1, 2]]),
        ("seed", 2**64),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 17),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "1"),
        ("min_tokens", -1),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("response_format", "json"),
        ("guided_choice", "a"),
        ("prediction", "text"),
        ("prediction", {"type": "content", "content": 5}),
        ("speculation", "on"),
        ("speculation", {"k": 64}),
        ("speculation", {"k": 1, "deep": True}),
        ("return_token_ids", 1),
        ("cache_salt", 5),
    ],
)
def test_a_wrong_value_is_refused_by_name(kind, name, value):
    assert refusal(kind, **{name: value}).param == name


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ChatBody, "messages", []),
        (ChatBody, "messages", "x"),
        (ChatBody, "messages", [5]),
        (ChatBody, "logprobs", 1),
        (ChatBody, "top_logprobs", 1),
        (ChatBody, "max_tokens", 0),
        (ChatBody, "tools", {}),
        (CompletionBody, "prompt", ""),
        (CompletionBody, "prompt", []),
        (CompletionBody, "prompt", [[]]),
        (CompletionBody, "prompt", ["x", ""]),
        (CompletionBody, "prompt", [1, "x"]),
        (CompletionBody, "prompt", [True]),
        (CompletionBody, "prompt", None),
        (CompletionBody, "logprobs", True),
        (CompletionBody, "logprobs", 21),
        (CompletionBody, "max_tokens", 0),
        (CompletionBody, "suffix", "x"),
    ],
)
def test_a_wrong_value_of_one_kind_is_refused_by_name(kind, name, value):
    assert refusal(kind, **{name: value}).param == name


def test_fields_that_must_agree():
    assert refusal(CompletionBody, n=3, best_of=2).param == "best_of"
    assert refusal(CompletionBody, best_of=2, stream=True).param == "best_of"
    assert read(CompletionBody, n=2, best_of=2, stream=True).streams
    assert read(ChatBody, logprobs=True).likeliest == 0
    assert read(ChatBody, logprobs=True, top_logprobs=3).likeliest == 3
    assert read(ChatBody, logprobs=False).likeliest is None
    assert read(CompletionBody, logprobs=False).likeliest is None
    assert read(CompletionBody, max_tokens=0, echo=True).most == 0


@pytest.mark.parametrize("kind", BOTH)
def test_what_cannot_alter_the_text_is_accepted_and_gone(kind):
    values = {name: {"any": ["thing", number]} for number, name in enumerate(IGNORED)}
    assert read(kind, **values) == read(kind)


@pytest.mark.parametrize("kind", BOTH)
def test_what_asks_for_nothing_is_accepted_and_all_else_of_it_is_not(kind):
    for name, values in kind.IDLE.items():
        for value in values:
            assert read(kind, **{name: value}) == read(kind)
        for value in ("other", 2, {"x": 1}, ["audio"], 0):
            assert refusal(kind, **{name: value}).param == name


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", ["foo", "temprature", "", "with space", "guided_jsn"])
def test_an_unknown_field_is_refused_by_name(kind, name):
    error = refusal(kind, **{name: None})
    assert (error.param, error.code) == (name, "unknown_parameter")


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody, TemplateBody])
def test_a_missing_field_is_named(kind):
    with pytest.raises(ApiError, match="is missing") as caught:
        parse(kind, b"{}")
    assert caught.value.code == "missing_parameter"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b"\xff",
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\\ud800"}',
        b'{"model": NaN}',
        b'{"model": Infinity}',
        b'{"model": -Infinity}',
        b'{"model": "m", "prompt": "x", "temperature": 1e999}',
        b'{"model": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "m", "prompt": "x", "response_format": ' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
        b'{"model": "m",}',
    ],
)
def test_what_is_no_sound_object_is_refused(data):
    with pytest.raises(ApiError) as caught:
        parse(CompletionBody, data)
    assert caught.value.status == 400
    json.dumps(caught.value.body, allow_nan=False).encode("ascii")


def test_defaults_are_those_of_openai():
    sampling = read(ChatBody).sampling(5, 0)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.seed, sampling.stop, sampling.ignore_eos, sampling.max_tokens) == (None, (), False, 5)
    assert read(CompletionBody).most == 16
    assert read(ChatBody).most(100) == 100


def test_all_sampling_fields_arrive():
    sampling = read(
        ChatBody,
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"5": -100, "6": 1.5},
        seed=9,
        stop=["a", "b"],
        stop_token_ids=[3],
        min_tokens=2,
        ignore_eos=True,
    ).sampling(50, 0)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 7, 0.1)
    assert sampling.repetition_penalty == 1.1
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1.0, 2.0)
    assert sampling.logit_bias == {5: -100.0, 6: 1.5}
    assert (sampling.seed, sampling.stop, sampling.stop_token_ids) == (9, ("a", "b"), (3,))
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.max_tokens) == (2, True, 50)


@pytest.mark.parametrize(
    ("seed", "choice", "expected"),
    [(5, 0, 5), (5, 2, 7), (2**64 - 1, 1, 0), (-2, 0, 2**64 - 2), (-2, 3, 1), (-1, 0, None), (-1, 4, None)],
)
def test_a_choice_has_its_own_seed(seed, choice, expected):
    assert read(ChatBody, seed=seed).sampling(1, choice).seed == expected


def test_off_by_another_name():
    assert read(ChatBody, top_k=-1).sampling(1, 0).top_k == 0
    assert read(ChatBody, stop="a").sampling(1, 0).stop == ("a",)
    assert read(ChatBody, stop=[]).sampling(1, 0).stop == ()


def test_the_smaller_limit_holds():
    assert read(ChatBody, max_tokens=9).most(100) == 9
    assert read(ChatBody, max_completion_tokens=8).most(100) == 8
    assert read(ChatBody, max_tokens=9, max_completion_tokens=8).most(100) == 8


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("x", ["x"]), (["x", "y"], ["x", "y"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_one_prompt_or_several(prompt, prompts):
    assert read(CompletionBody, prompt=prompt).prompts == prompts


AUTO = Drafting()
TEXT = {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}


@pytest.mark.parametrize(
    ("fields", "default", "expected"),
    [
        ({}, AUTO, None),
        ({"speculation": "off"}, AUTO, Drafting("off")),
        ({"speculation": "auto"}, AUTO, AUTO),
        ({"speculation": {}}, AUTO, AUTO),
        ({"speculation": "auto"}, OFF, Drafting("suffix+model:big")),
        ({"speculation": {"drafter": "auto+ngram"}}, OFF, Drafting("suffix+model:big+ngram")),
        (
            {"speculation": "auto", "prediction": TEXT},
            OFF,
            Drafting("prediction+suffix+model:big", prediction="ab"),
        ),
        ({"speculation": {"drafter": "ngram", "k": 4}}, AUTO, Drafting("ngram", 4)),
        ({"speculation": {"rule": "block"}}, AUTO, Drafting("auto", rule="block")),
        ({"prediction": TEXT}, AUTO, Drafting("auto", prediction="ab")),
        ({"prediction": TEXT}, OFF, Drafting("prediction", prediction="ab")),
        ({"prediction": TEXT}, Drafting("ngram", 3), Drafting("prediction+ngram", 3, prediction="ab")),
        (
            {"prediction": TEXT, "speculation": {"drafter": "prediction"}},
            AUTO,
            Drafting("prediction", prediction="ab"),
        ),
        ({"speculation": {"drafter": "model:big"}}, AUTO, Drafting("model:big")),
        ({"speculation": "off", "prediction": TEXT}, AUTO, OFF),
    ],
)
def test_how_to_draft(fields, default, expected):
    assert read(ChatBody, **fields).drafting(default, frozenset({"model:big"})) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"speculation": {"drafter": "nobody"}},
        {"speculation": {"drafter": "prediction"}},
        {"speculation": {"drafter": "off", "k": 3}},
        {"speculation": {"drafter": "model:/etc/passwd"}},
        {"speculation": {"drafter": "model:"}},
        {"speculation": {"drafter": "suffix"}, "prediction": TEXT},
    ],
)
def test_drafting_that_cannot_be(fields):
    with pytest.raises(ApiError) as caught:
        read(ChatBody, **fields).drafting(AUTO, NONE)
    assert (caught.value.status, caught.value.param) == (400, "speculation")
