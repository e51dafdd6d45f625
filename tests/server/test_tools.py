import json
import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foredraft.server.field_error import FieldError
from foredraft.server.tools.request import read_tools
from foredraft.server.tools.stream import ToolParser

NAMES = ("get_weather", "f")
PARSER = ToolParser(frozenset(NAMES))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name="f", **more):
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def pieces_of(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def collect(pieces, parser=PARSER):
    """Content and (name, arguments) of each call, as a client puts them together."""
    stream = parser.new()
    deltas = [*map(stream.feed, pieces), stream.finish()]
    calls = []
    for delta in (call for piece in deltas for call in piece.calls):
        if delta.index == len(calls):
            assert re.fullmatch(r"call_\w{24}", delta.id)
            calls.append((delta.name, delta.arguments))
        else:
            assert (delta.index, delta.id, delta.name) == (len(calls) - 1, None, None)
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert stream.called == bool(calls)
    return "".join(delta.content for delta in deltas), calls


# Calls of which it is known what they are

values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=9) | st.sampled_from(
        ["}</tool_call>", '"}]\\', "```\n", "<tool_call>\n{", "日本\u2028😀", "\\u007d{["]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
arguments = st.builds(
    json.dumps,
    st.dictionaries(st.text(max_size=5), values, max_size=3),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
prose = (
    st.text("ab <>{}\\,;:/_|\n日", min_size=1, max_size=12)
    .map(str.strip)
    .filter(
        lambda text: text not in ("", ",", ";")  # between calls these two separate them
    )
)
FORMS = {
    "tags": ("<tool_call>\n{}\n</tool_call>", '{"name": "%s", "arguments": %s}'),
    "one tag": ("<tool_call>{}", '{"name":"%s","arguments":%s}'),
    "other tags": ("<tools>\n{}\n</tools>", '{"name": "%s", "arguments": %s}'),
    "list in tags": ("<tool_call>[\n{}\n]</tool_call>", '{"name": "%s", "arguments": %s}'),
    "fence": ("```json\n{}\n```", '{\n  "name": "%s",\n  "arguments": %s\n}'),
    "list in fence": ("```\n[{}]\n```", '{"name": "%s", "arguments": %s}'),
    "bare": ("{}", '{"name": "%s", "parameters": %s}'),
    "typed": ("{}", '{"type": "function", "function": "%s", "parameters": %s}'),
    "more after it": ("<tool_call>{}</tool_call>", '{"name": "%s", "arguments": %s, "id": "x", "n": [{}]}'),
}
calls_in_a_form = st.tuples(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3),
    st.sampled_from(["\n", ", ", "; ", ""]),
)


def written(form, calls, separator):
    outside, inside = FORMS[form]
    if form in ("list in tags", "list in fence"):
        separator = ", "
    return outside.replace("{}", separator.join(inside % call for call in calls))


@settings(max_examples=60, deadline=None)
@given(st.lists(prose | calls_in_a_form, min_size=1, max_size=5), st.lists(st.integers(0, 10**4)))
def test_calls_come_out_as_written_however_the_text_is_cut(parts, cuts):
    parts.append("end")  # what is left of a tag at the very end would not come out
    text = "\n".join(part if isinstance(part, str) else written(*part) for part in parts)
    content, calls = collect(pieces_of(text, cuts))
    assert calls == [call for part in parts if not isinstance(part, str) for call in part[1]]
    assert content.split() == [word for part in parts if isinstance(part, str) for word in part.split()]


@settings(max_examples=40, deadline=None)
@given(prose, prose, arguments)
def test_space_beside_a_call_separates_texts_but_neither_begins_nor_ends_them(before, after, args):
    call = written("tags", [("f", args)], "")
    assert collect([f"{before}\n\n{call}\n"]) == (before, [("f", args)])
    assert collect([f"{before}\n{call}\n{after}"]) == (f"{before}\n\n{after}", [("f", args)])
    assert collect([f"\n{call}\n"]) == ("", [("f", args)])


# Text that looks like calls

LIKE_CALLS = (
    *("<tool_call>", "</tool_call>", "<tools>", "```json\n", "```", "\n", " ", "{", "}", "[", "]", ",", "x"),
    *('{"name": "', '"name"', '"f"', '": ', '"arguments": ', "{}", '"', "\\", '{"name": "f", "arguments": {'),
    *("<|python_tag|>", "null", "unknown", "é", ";"),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(LIKE_CALLS)).map("".join), st.lists(st.integers(0, 10**4)))
def test_no_text_comes_out_differently_when_cut(text, cuts):
    whole = collect([text])
    assert collect(pieces_of(text, cuts)) == whole
    assert collect(text) == whole


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(LIKE_CALLS)).map("".join), st.lists(st.integers(0, 10**4)))
@example('{"name": "f", "arguments": {}}', [])
@example("a <tool_call>\n", [4])
def test_without_a_tool_of_that_name_all_text_is_content_to_the_letter(text, cuts):
    assert collect(pieces_of(text, cuts), ToolParser(frozenset(("g",)))) == (text, [])


NO_CALLS = [
    '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": f, "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "f" "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "f"}\n</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
    "<tool_call>\nf(city='Paris')\n</tool_call>",
    "<tool_call>[]</tool_call>",
    "<tool_call",
    '<tool_call>{"name": "f", "argu',
    '{"name": "f", "description": "tells", "parameters": {}}',
    'So {"name": "f", "arguments": {}} is how.',
    "```python\nprint({})\n```",
    "``` and ``",
    '{"answer": {"name": "f", "arguments": {}}}',
]


@pytest.mark.parametrize("text", NO_CALLS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_no_call_is_content_to_the_letter(text, size):
    assert collect([text[at : at + size] for at in range(0, len(text), size)]) == (text, [])


ODD_CALLS = [
    ('<tool_call>{"name": "f", "arguments": {"a": "cut o', "", '{"a": "cut o'),
    ('<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>', "", '{"a": tru}'),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> and', " and", '{"a": 1}'),
    ('<tool_call>{"name": "f", "arguments": {}}\nSo I called it.', "\nSo I called it.", "{}"),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_ca', "", "{}"),
    ('<tool_call>{"arguments": {"a": "b"}, "name": "f"}</tool_call>', "", '{"a": "b"}'),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", '{"a": 1}'),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", "{}"),
    ('<tool_call>{"name": "f", "arguments": {}, oops}</tool_call>', ", oops}</tool_call>", "{}"),
    ('[{"name": "f", "arguments": {}}, {"name": "g"}]', ', {"name": "g"}]', "{}"),
    ('<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>', "<tool_call>", "{}"),
    ('Look:\n  {"name": "f", "arguments": {}}', "Look:", "{}"),
    ('<|python_tag|>{"name": "f", "parameters": {}}', "", "{}"),
]


@pytest.mark.parametrize(("text", "content", "args"), ODD_CALLS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_that_are_not_quite_right(text, content, args, size):
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    assert collect(cut) == (content, [("f", args)])


# What is given out when


def test_text_and_arguments_go_out_as_they_come():
    stream = PARSER.new()
    assert stream.feed("Let me see, 1 < 2").content == "Let me see, 1 < 2"
    assert stream.feed('\n<tool_call>\n{"name": "f", "arg') == PARSER.new().feed("")
    assert not stream.called
    assert [(call.name, call.arguments) for call in stream.feed('uments": {').calls] == [("f", "{")]
    assert stream.called
    assert [(call.name, call.arguments) for call in stream.feed('"a": "lo').calls] == [(None, '"a": "lo')]
    assert [call.arguments for call in stream.feed('ng"}').calls] == ['ng"}']
    assert stream.feed("}\n</tool_call>") == stream.finish() == PARSER.new().feed("")


def test_json_that_is_no_call_is_not_held_back():
    assert PARSER.new().feed('{"result": [1, ').content == '{"result": [1,'


def test_every_call_has_an_id_of_its_own():
    text = '{"name": "f", "arguments": {}}' * 3
    ids = {call.id for parser in (PARSER, PARSER) for call in parser.new().feed(text).calls}
    assert len(ids) == 6


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_where_one_call_is_allowed_the_answer_ends_with_it(size):
    parser = ToolParser(frozenset(NAMES), many=False)
    text = 'a\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "f", "argum'
    assert collect([text[at : at + size] for at in range(0, len(text), size)], parser) == (
        "a",
        [("f", '{"a": 1}')],
    )


def test_a_stream_says_when_the_one_call_is_whole():
    text = '<tool_call>{"name": "f", "arguments": {"a": {}}}</tool_call>'
    streams = [ToolParser(frozenset(NAMES), many).new() for many in (False, True)]
    completes = [[(stream.feed(char), stream.complete)[1] for char in text] for stream in streams]
    assert completes[0].index(True) == text.index("}}}") + 1
    assert not any(completes[1])


# The fields of a request


def test_tools_are_checked_and_shown_with_all_that_templates_ask_for():
    request = read_tools([tool("f", description="d", strict=True), tool("g")], None, True)
    assert request.tools == (
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "g", "description": "", "parameters": SCHEMA}},
    )
    bare = read_tools([{"type": "function", "function": {"name": "f", "parameters": None}}], None, True)
    assert bare.schemas == (("f", {"type": "object", "properties": {}}),)


CHOICES = [
    (None, {"f", "g"}, False, True),
    ("auto", {"f", "g"}, False, True),
    ("required", {"f", "g"}, True, True),
    ({"type": "function", "function": {"name": "g"}}, {"g"}, True, False),
    ({"mode": "auto", "tools": ["f"]}, {"f"}, False, True),
    ({"mode": "required", "tools": ["g", "f"]}, {"f", "g"}, True, True),
]


@pytest.mark.parametrize(("choice", "names", "forced", "many"), CHOICES)
def test_the_choice_says_what_may_and_what_must_be_called(choice, names, forced, many):
    if isinstance(choice, dict) and "mode" in choice:
        tools = [{"type": "function", "function": {"name": name}} for name in choice["tools"]]
        choice = {"type": "allowed_tools", "allowed_tools": {**choice, "tools": tools}}
    request = read_tools([tool("f"), tool("g")], choice, True)
    assert (request.names, request.forced, request.many) == (names, forced, many)
    assert len(request.tools) == 2
    assert read_tools([tool("f"), tool("g")], choice, False).many is False


def test_without_tools_or_with_the_choice_of_none_there_is_nothing_to_show():
    assert read_tools([tool()], "none", True) is None
    assert read_tools(None, None, True) is None
    assert read_tools([], "auto", True) is None


WRONG = [
    ([{**tool(), "type": "custom"}], None, "tools[0].type"),
    ([tool(), {"type": "function"}], None, "tools[1].function"),
    ([tool("a b")], None, "tools[0].function.name"),
    ([tool("x" * 65)], None, "tools[0].function.name"),
    ([tool(), tool()], None, "tools[1].function.name"),
    ([tool(description=1)], None, "tools[0].function.description"),
    ([tool(strict="yes")], None, "tools[0].function.strict"),
    ([tool(parameters={"type": "array"})], None, "tools[0].function.parameters"),
    ([tool(parameters=[1])], None, "tools[0].function.parameters"),
    ([tool(parameters={"properties": []})], None, "tools[0].function.parameters.properties"),
    ([tool(colour="red")], None, "tools[0].function.colour"),
    ([{**tool(), "colour": "red"}], None, "tools[0].colour"),
    ({"f": tool()}, None, "tools"),
    ([7], None, "tools[0]"),
    (None, "required", "tool_choice"),
    (None, {"type": "function", "function": {"name": "f"}}, "tool_choice"),
    ([tool()], {"type": "function", "function": {"name": "h"}}, "tool_choice"),
    ([tool()], {"type": "function"}, "tool_choice.function"),
    ([tool()], "always", "tool_choice"),
    ([tool()], ["f"], "tool_choice"),
    ([tool()], {"type": "custom", "custom": {"name": "f"}}, "tool_choice"),
    ([tool()], {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}, "tool_choice.allowed_tools.mode"),
    (
        [tool()],
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        "tool_choice.allowed_tools.tools",
    ),
]


@pytest.mark.parametrize(("tools", "choice", "param"), WRONG)
def test_what_is_wrong_is_named(tools, choice, param):
    with pytest.raises(FieldError) as caught:
        read_tools(tools, choice, True)
    assert caught.value.param == param
    assert param in str(caught.value)
