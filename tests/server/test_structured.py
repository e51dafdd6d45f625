"""What a text must be, from the fields of a request to the texts that can come of it."""

import json
import random
import threading

import pytest
from grammar_oracle import BYTES, ENDS, OTHER, TOKENIZER, Language, left
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tiny import write_tiny
from twin_target import TwinTarget

from foredraft.engine.grammar import GrammarSpec
from foredraft.engine.llm import LLM
from foredraft.models.chat import ChatTemplate
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.server.field_error import FieldError
from foredraft.server.structured import KEPT, Grammars, spec_of, spec_of_tools
from foredraft.server.tools.grammar_source import ToolGrammar

SCHEMA = {"type": "object", "properties": {"ab": {"type": "integer"}}}
WRITTEN = json.dumps(SCHEMA)
ANY = '{"type": "object"}'
OUTPUTS = "structured_outputs"
AT = "response_format.json_schema"


def in_format(**fields):
    return {"type": "json_schema", "json_schema": fields}


FORMAT = in_format(name="x", strict=True, description="y", schema=SCHEMA)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory):
    file = read_gguf(write_tiny(tmp_path_factory.mktemp("structured") / "tiny.gguf", vocab=320))
    template = ChatTemplate.from_gguf(file, TOKENIZER)
    return Grammars(LLM.of(TwinTarget(file, describe(file)), TOKENIZER, template, ctx=64))


def complete(grammar, text):
    """Whether the text, in its usual tokens or letter by letter, is one of the grammar's."""
    tokens = TOKENIZER.encode(text)
    if grammar.allowed(tokens) < len(tokens):
        return False
    return left(grammar, tokens, 320) >= ENDS


# Fields


@pytest.mark.parametrize(
    ("response_format", "extras", "spec"),
    [
        (None, {}, None),
        ({"type": "text"}, {}, None),
        ({"type": "text"}, {"regex": None, "grammar": None}, None),
        ({"type": "json_object"}, {}, ("json", ANY, "response_format")),
        ({"type": "json_object", "schema": SCHEMA}, {}, ("json", WRITTEN, "response_format.schema")),
        (FORMAT, {}, ("json", WRITTEN, f"{AT}.schema")),
        (in_format(schema=SCHEMA), {}, ("json", WRITTEN, f"{AT}.schema")),
        (None, {"guided_json": SCHEMA}, ("json", WRITTEN, "guided_json")),
        ({"type": "text"}, {"guided_json": WRITTEN}, ("json", WRITTEN, "guided_json")),
        (None, {"json_schema": SCHEMA}, ("json", WRITTEN, "json_schema")),
        (None, {"guided_regex": "a+"}, ("regex", "a+", "guided_regex")),
        (None, {"regex": "a+"}, ("regex", "a+", "regex")),
        (None, {"guided_choice": ["a", "é"]}, ("choice", '["a", "é"]', "guided_choice")),
        (None, {"guided_grammar": 'start: "a"'}, ("grammar", 'start: "a"', "guided_grammar")),
        (None, {"grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"', "grammar")),
        (None, {"ebnf": 'root ::= "a"'}, ("grammar", 'root ::= "a"', "ebnf")),
        (None, {"structured_outputs": {"json": SCHEMA}}, ("json", WRITTEN, f"{OUTPUTS}.json")),
        (None, {"structured_outputs": {"regex": "a"}}, ("regex", "a", f"{OUTPUTS}.regex")),
        (None, {"structured_outputs": {"choice": ["a"]}}, ("choice", '["a"]', f"{OUTPUTS}.choice")),
        (None, {"structured_outputs": {"grammar": "g"}}, ("grammar", "g", f"{OUTPUTS}.grammar")),
        (None, {"structured_outputs": {"json_object": True}}, ("json", ANY, f"{OUTPUTS}.json_object")),
    ],
)  # fmt: skip
def test_each_field_says_what_the_text_must_be(response_format, extras, spec):
    assert spec_of(response_format, extras) == (spec and GrammarSpec(*spec))


@pytest.mark.parametrize(
    ("response_format", "extras", "param", "message"),
    [
        ({}, {}, "response_format.type", "text, json_object, json_schema are known"),
        ({"type": "xml"}, {}, "response_format.type", "'xml'"),
        ({"type": ["x"]}, {}, "response_format.type", "['x']"),
        ({"type": "text", "regex": "a"}, {}, "response_format.regex", "not supported"),
        ({"type": "text", "schema": {}}, {}, "response_format", "has a schema, but"),
        ({"type": "json_object", "json_schema": {}}, {}, "response_format", "has a schema, but"),
        ({"type": "json_schema"}, {}, AT, "an object is expected"),
        ({"type": "json_schema", "schema": {}}, {}, AT, "belongs into"),
        (in_format(name="x"), {}, f"{AT}.schema", "missing"),
        (in_format(nam=1), {}, f"{AT}.nam", "not supported"),
        (in_format(name=1), {}, f"{AT}.name", "is 1"),
        (in_format(strict="x"), {}, f"{AT}.strict", "'x'"),
        (in_format(schema=[1]), {}, f"{AT}.schema", "is [1]"),
        (None, {"guided_json": [SCHEMA]}, "guided_json", "a JSON schema is expected"),
        (None, {"guided_json": {"minimum": float("inf")}}, "guided_json", "not finite"),
        (None, {"guided_regex": 3}, "guided_regex", "a regular expression is expected"),
        (None, {"guided_choice": []}, "guided_choice", "at least one text"),
        (None, {"guided_choice": ["a", 2]}, "guided_choice", "at least one text"),
        (None, {"grammar": {}}, "grammar", "in GBNF or Lark"),
        (None, {"structured_outputs": {}}, "structured_outputs", "names no grammar; give one of json, regex"),
        (None, {"structured_outputs": {"json_object": False}}, "structured_outputs", "names no grammar"),
        (None, {"structured_outputs": {"json_object": 1}}, f"{OUTPUTS}.json_object", "true or"),
        (None, {"structured_outputs": {"tag": "x"}}, f"{OUTPUTS}.tag", "not supported"),
        (None, {"structured_outputs": {"json": {}, "regex": "a"}}, f"{OUTPUTS}.regex", ".json and "),
        (FORMAT, {"guided_json": {}}, "guided_json", f"{AT}.schema and guided_json are both given"),
        (None, {"regex": "a", "ebnf": "b"}, "ebnf", "regex and ebnf are both given"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_as_it_should_be_is_named(response_format, extras, param, message):
    with pytest.raises(FieldError) as caught:
        spec_of(response_format, extras)
    assert caught.value.param == param
    assert message in str(caught.value)


def test_a_field_that_is_nested_without_end_is_refused():
    schema: dict[str, object] = {}
    for _ in range(200_000):
        schema = {"items": schema}
    with pytest.raises(FieldError, match="guided_json is nested too deep"):
        spec_of(None, {"guided_json": schema})
    with pytest.raises(FieldError, match="nested too deep"):
        spec_of_tools(ToolGrammar("", "", (("f", schema),), False, ""))


def test_a_grammar_that_cannot_be_had_blames_the_field_it_came_from(grammars):
    spec = spec_of({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, {})
    with pytest.raises(FieldError, match="Unimplemented keys") as caught:
        grammars.compile(spec)
    assert caught.value.param == "response_format.json_schema.schema"


# Texts

SCHEMAS = [
    {"type": "object"},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 3},
            "true": {
                "type": "array",
                "items": {"type": "integer", "minimum": -3, "maximum": 12},
                "maxItems": 3,
            },
            "ab": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/word"}]},
        },
        "required": ["name", "true"],
        "additionalProperties": False,
        "$defs": {"word": {"enum": ["ab", "é", 12, True, {"a": [1]}]}},
    },
    {
        "type": "array",
        "items": {"$ref": "#/$defs/tree"},
        "maxItems": 2,
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}},
    },
    {"type": "string", "format": "date"},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 3},
]
VALUES = [
    {"name": "abc", "true": [1, 12, -3], "ab": None},
    {"name": "é", "true": [], "ab": {"a": [1]}},
    {"name": 'a"\\', "true": [0]},
    {"name": "", "true": []},
    {"name": "abcd", "true": []},
    {"name": "a", "true": [13]},
    {"name": "a", "true": [1, 2, 3, 4]},
    {"name": "a", "true": [1], "ab": "abc"},
    {"name": "a", "true": [1], "bc": 1},
    {"name": "a"},
    {},
    {"a": {"b": [1.5e3, True, None, "\u20ac\n"]}},
    [[[]], []],
    [[], [], []],
    [[[], []]],
    "2024-02-30",
    "2024-12-31",
    "yesterday",
    2.5,
    2.25,
    3,
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_takes_the_values_of_a_schema_written_on_one_line(grammars, schema):
    here = grammars.compile(GrammarSpec("json", json.dumps(schema)))()
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    taken = 0
    for value in VALUES:
        if value == "2024-02-30":
            continue  # llguidance counts 31 days in every month
        line = json.dumps(value, ensure_ascii=False)
        assert complete(here, line) == validator.is_valid(value), value
        taken += validator.is_valid(value)
        for indent in (1, "\t"):
            text = json.dumps(value, ensure_ascii=False, indent=indent)
            assert text == line or not complete(here, text)
    assert taken


@pytest.mark.parametrize("schema", SCHEMAS[1:])
def test_every_text_that_ends_is_a_value_of_the_schema(grammars, schema):
    validator = Draft202012Validator(schema)
    for seed in range(8):
        choose, here, data = (
            random.Random(seed),
            grammars.compile(GrammarSpec("json", json.dumps(schema)))(),
            b"",
        )
        for _ in range(300):
            token = choose.choice(sorted(left(here, vocab=320)))
            if token in ENDS:
                break
            data += BYTES[token]
            here.advance([token])
        else:
            pytest.fail(f"{data!r} does not end")
        validator.validate(json.loads(data))


def test_whitespace_is_one_space_after_commas_and_colons(grammars):
    here = grammars.compile(
        GrammarSpec("json", '{"x-guidance": {"whitespace_pattern": " +"}, "type": "object"}')
    )()
    assert complete(here, '{"a": 1, "b": [2, 3]}')
    for text in (
        "{ ",
        "{\n",
        '{"a" ',
        '{"a":1',
        '{"a":\n',
        '{"a":  ',
        '{"a": 1 ',
        '{"a": [1,2',
        '{"a": 1}\n',
        " ",
    ):
        letters = [BYTES.index(bytes([byte])) for byte in text.encode()]
        assert here.allowed(letters) == len(letters) - 1, text


CHOICE = ["ab", "abc", 'a"\n', "é|x", "[a]+", ""]


@pytest.mark.parametrize(
    ("field", "value", "texts", "others"),
    [
        ("guided_regex", "^[ab]{2}$", ["ab", "ba"], ["a", "abc", "ac"]),
        ("guided_choice", CHOICE, CHOICE, ["a", "é", "aa"]),
        ("guided_grammar", 'start: "a" b\nb: /[0-9]+/ | "(" start ")"', ["a1", "a(a12)"], ["a", "a(a1"]),
        ("grammar", 'root ::= "a" b # so\nb ::= [0-9]+ | "(" root ")"\n', ["a1", "a(a12)"], ["a", "a(a1"]),
        ("ebnf", 'root ::= "a"* | [^\\n\\u00e9] "\\u20AC" .', ["", "aa", "x€\n"], ["\n€x", "é€x", "b"]),
        ("json_schema", {"const": {"a": "\x07é/"}}, ['{"a": "\\u0007é/"}'], ['{"a":1}']),
    ],
)  # fmt: skip
def test_takes_the_texts_of_a_grammar_and_no_others(grammars, field, value, texts, others):
    make = grammars.compile(spec_of(None, {field: value}))
    assert [text for text in [*texts, *others] if complete(make(), text)] == texts


# Tools

WORD = {
    "type": "object",
    "properties": {"ab": {"$ref": "#/$defs/w"}},
    "required": ["ab"],
    "additionalProperties": False,
    "$defs": {"w": {"enum": [12, True]}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def call(name, key, arguments):
    return rf'\{{"name": "{name}", "{key}": {arguments}\}}'


AAB = call("aab", "arguments", r'\{"ab": (12|true)\}')
ABC = call("abc", "arguments", r"\{\}")
OTHER_KEY = AAB.replace("arguments", "ab")


@pytest.mark.parametrize(
    ("tools", "pattern"),
    [
        (
            ToolGrammar("ab\n", "\nbc", (("aab", WORD), ("abc", NOTHING)), True, "\nbc\nab\n"),
            rf"ab\n(?P<c>{AAB}|{ABC})(\nbc\nab\n(?&c))*\nbc",
        ),
        (ToolGrammar("", "", (("aab", WORD),), False, "; ", "ab"), OTHER_KEY),
        (ToolGrammar("", "", (("aab", WORD),), True, "; ", "ab"), rf"(?P<c>{OTHER_KEY})(; (?&c))*"),
    ],
)  # fmt: skip
def test_calls_of_tools_are_what_may_follow(grammars, tools, pattern):
    language = Language(pattern)
    for seed in range(3):
        choose, here, data = random.Random(seed), grammars.compile(tools)(), b""
        for _ in range(40):
            follow, forced = left(here, vocab=320), here.forced()
            if forced:
                assert follow == {forced[0]}
                assert language.forces(data, b"".join(BYTES[token] for token in forced))
            else:
                assert follow == language.follow(data), data
            token = choose.choice(sorted(follow))
            if token in ENDS:
                break
            data += BYTES[token]
            here.advance([token])


def test_tags_that_are_control_tokens_are_forced_as_such(grammars):
    tools = ToolGrammar("<x>ab", "<x>", (("aab", NOTHING),), False, "", control=(("<x>", OTHER),))
    here = grammars.compile(tools)()
    assert here.forced()[0] == OTHER
    here.advance([OTHER])
    assert BYTES[here.forced()[0]][:1] == b"a"
    tokens = TOKENIZER.encode('ab{"name": "aab", "arguments": {}}')
    assert here.allowed([*tokens, OTHER, min(ENDS)]) == len(tokens) + 2


def test_remarks_in_a_tools_schema_cost_nothing_but_properties_may_have_their_names():
    schema = {
        "description": "x" * 5000,
        "title": "y",
        "properties": {
            "description": {"$ref": "#/definitions/default", "title": "z"},
            "const": {"$ref": "#"},
        },
        "definitions": {"default": {"enum": [{"title": 1}], "default": 3}},
    }
    spec = spec_of_tools(ToolGrammar("", "", (("f", {}), ("g", schema)), False, ""))
    written = json.loads(spec.source.partition("%json")[2])["anyOf"][1]["properties"]["arguments"]
    place = "#/anyOf/1/properties/arguments"
    assert written == {
        "properties": {"description": {"$ref": f"{place}/definitions/default"}, "const": {"$ref": place}},
        "definitions": {"default": {"enum": [{"title": 1}]}},
    }


def test_a_tool_whose_schema_cannot_be_enforced_is_named(grammars):
    tools = ToolGrammar("", "", (("fine", WORD), ("odd", {"uniqueItems": True})), True, ";")
    with pytest.raises(FieldError, match=r"the schema of tool 'odd' cannot .*uniqueItems") as caught:
        grammars.compile(tools)
    assert caught.value.param == "tools"


# Many requests


def test_the_grammars_asked_for_last_are_kept(grammars):
    first, *others = (GrammarSpec("regex", f"b{{{length}}}") for length in range(1, 2 * KEPT + 1))
    made = grammars.compile(first)
    assert made() is not made()
    assert grammars.compile(GrammarSpec("regex", first.source, "another field")) is made
    for other in others[: KEPT - 1]:
        grammars.compile(other)
    assert grammars.compile(first) is made
    grammars.compile(others[KEPT])
    assert grammars.compile(first) is made
    for other in others[KEPT - 1 :]:
        grammars.compile(other)
    assert grammars.compile(first) is not made


def test_may_be_asked_by_several_threads_at_once(grammars):
    failed = []

    def work(number):
        try:
            for length in range(1, 20):
                here = grammars.compile(GrammarSpec("regex", f"[ab]{{{(number + length) % 7 + 1}}}"))()
                while not (follow := left(here, vocab=320)) & ENDS:
                    here.advance([min(follow)])
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


KEYWORDS = st.sampled_from(
    [
        *(
            "type",
            "properties",
            "items",
            "anyOf",
            "allOf",
            "oneOf",
            "$ref",
            "$defs",
            "enum",
            "const",
            "required",
        ),
        *(
            "pattern",
            "minimum",
            "maxLength",
            "minItems",
            "additionalProperties",
            "patternProperties",
            "format",
        ),
        *("prefixItems", "multipleOf", "x-guidance", "not", "a", ""),
    ]
)
TEXTS = ["object", "string", "array", "integer", "#", "#/$defs/a", "a", "^[a-z]+$", "date", "(", "\ud800"]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(TEXTS),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYWORDS, part, max_size=4),
    max_leaves=12,
)
LARK = st.lists(
    st.sampled_from(
        [
            *(
                "start:",
                "a",
                ":",
                '"x"',
                "/[ab]+/",
                "(",
                ")",
                "*",
                "?",
                "|",
                "%json",
                "{}",
                "%ignore",
                "~",
                "&",
            ),
            *("{2,3}", "A", "::=", "root", "<[0]>", "[lazy]", "é", "\n", " "),
        ]
    ),
    max_size=16,
).map("".join)
SCHEMA_LIKE = st.dictionaries(KEYWORDS, ANYTHING, max_size=5)
FIELDS_LIKE = st.dictionaries(
    st.sampled_from(["type", "json_schema", "schema", "json", "regex", "choice"]), ANYTHING
)
VALUES_OF = {
    "guided_json": SCHEMA_LIKE | st.text(max_size=8),
    "grammar": LARK | st.text(max_size=12),
    "guided_regex": LARK | st.text(max_size=12),
    "response_format": FIELDS_LIKE,
    "structured_outputs": FIELDS_LIKE,
}


@settings(deadline=None, max_examples=150)
@given(field=st.sampled_from(sorted(VALUES_OF)), data=st.data())
def test_whatever_is_asked_for_is_a_grammar_or_an_error_that_names_the_field(grammars, field, data):
    value = data.draw(VALUES_OF[field])
    try:
        spec = spec_of(value, {}) if field == "response_format" else spec_of(None, {field: value})
        here = grammars.compile(spec or GrammarSpec("regex", "abc"))()
        for _ in range(3):
            token = min(left(here, vocab=320))
            assert here.allowed([token]) == 1
            here.advance([token])
    except FieldError as error:
        assert error.param.startswith(field)
        assert len(str(error)) < 900
