"""Answers of a given shape, by a model with random weights: whatever the shape is, the server sees to it."""

import json

import pytest
from serving import NAME, serving
from tiny import write_tiny

from foredraft import LLM

MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "count": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
FORCED = {"type": "function", "function": {"name": "paint"}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("http") / "tiny.gguf", "qwen2", seed=5, context=2048)
    with LLM(path, ctx=1024, kv_tokens=4096, threads=1) as llm, serving(llm) as server:
        yield server.client()


def ask(client, **options):
    given = {"model": NAME, "messages": MESSAGES, "max_tokens": 200, "seed": 1, **options}
    return client.chat.completions.create(**given)


def is_painting(text):
    value = json.loads(text)
    return (
        value.keys() == {"colour", "count"}
        and value["colour"] in ("red", "green")
        and 0 <= value["count"] < 100
    )


@pytest.mark.parametrize("speculation", ["off", "auto", {"k": 8}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_holds(client, speculation, stream):
    form = {"type": "json_schema", "json_schema": {"name": "painting", "schema": SCHEMA}}
    reply = ask(client, response_format=form, stream=stream, n=2, extra_body={"speculation": speculation})
    texts = {}
    for chunk in reply if stream else [reply]:
        for choice in chunk.choices:
            text = choice.delta.content if stream else choice.message.content
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
    assert all(map(is_painting, texts.values())) and len(texts) == 2


@pytest.mark.parametrize(
    "extra", [{"guided_choice": ["yes", "no"]}, {"regex": "(yes|no)"}, {"grammar": 'root ::= "yes" | "no"'}]
)
def test_other_grammars_hold(client, extra):
    assert ask(client, extra_body=extra).choices[0].message.content in ("yes", "no")
    completion = client.completions.create(model=NAME, prompt="the fox", max_tokens=50, extra_body=extra)
    assert completion.choices[0].text in ("yes", "no")


@pytest.mark.parametrize("choice", ["required", FORCED])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_tool_is_called_if_it_must_be(client, choice, parallel):
    options = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": parallel}
    (whole,) = ask(client, **options).choices
    assert whole.finish_reason == "tool_calls"
    if choice == FORCED or not parallel:
        assert len(whole.message.tool_calls) == 1
    for call in whole.message.tool_calls:
        assert (call.type, call.function.name) == ("function", "paint")
        assert call.id and is_painting(call.function.arguments)
    names, arguments, reasons = {}, {}, []
    for chunk in ask(client, stream=True, **options):
        (part,) = chunk.choices
        reasons.append(part.finish_reason)
        assert not part.delta.content
        for call in part.delta.tool_calls or ():
            names[call.index] = names.get(call.index, "") + (call.function.name or "")
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert reasons[-1] == "tool_calls" and not any(reasons[:-1])
    assert list(names.values()) == ["paint"] * len(whole.message.tool_calls)
    assert list(arguments.values()) == [call.function.arguments for call in whole.message.tool_calls]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"extra_body": {"regex": "("}}, "regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"regex": "a"}}, "regex"),
        ({"response_format": {"type": "json_object"}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
def test_shapes_that_cannot_be(client, options, param):
    with pytest.raises(Exception, match=r".") as caught:
        ask(client, **options)
    assert (caught.value.status_code, caught.value.param) == (400, param)
