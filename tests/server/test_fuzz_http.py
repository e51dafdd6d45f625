"""Bodies and bytes that nobody should send: none may be a 5xx, none may hang, and after each of them the
server says what it said before.
"""

import json
import re
import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import NAME, serving
from tiny import write_tiny

from foredraft import LLM, Sampling
from foredraft.server.chat_body import ChatBody, TemplateBody
from foredraft.server.completion_body import CompletionBody
from foredraft.server.fields import IGNORED
from foredraft.server.routes_tokens import DetokenizeBody, TokenizeBody

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
LEAST = {
    CHAT: {"model": NAME, "messages": MESSAGES, "max_tokens": 2},
    COMPLETE: {"model": NAME, "prompt": "the fox", "max_tokens": 2},
    "/apply-template": {"messages": MESSAGES},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
KINDS = {
    CHAT: ChatBody,
    COMPLETE: CompletionBody,
    "/apply-template": TemplateBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
KNOWN = {"model": NAME, "prompt": "over the lazy dog", "max_tokens": 12, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}
JSON = {"Content-Type": "application/json"}
PATIENCE_S = 30.0
CTX = 640


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("fuzz") / "tiny.gguf", "qwen2", seed=5, context=CTX)
    with LLM(path, ctx=CTX, kv_tokens=4 * CTX, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm):
    """Before the server has the model."""
    return llm.generate(KNOWN["prompt"], Sampling(max_tokens=KNOWN["max_tokens"]), raw=True).text


@pytest.fixture(scope="module")
def server(llm, expected):
    with serving(llm) as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    return server.http()


@pytest.fixture(autouse=True)
def unharmed(server, http, expected):
    """After each test."""
    before = failures(http)
    yield
    server.await_idle()
    assert http.post(COMPLETE, json=KNOWN).json()["choices"][0]["text"] == expected
    assert failures(http) == before
    assert http.get("/health").status_code == 200


def failures(http):
    return sum(count for status, count in answered(http).items() if status >= 500)


def answered(http):
    """How many HTTP requests were answered with each status."""
    counts = {}
    for status, count in re.findall(
        r'^foredraft:http_requests_total\{.*status="(\d+)"\} (\d+)', http.get("/metrics").text, re.MULTILINE
    ):
        counts[int(status)] = counts.get(int(status), 0) + int(count)
    return counts


def checked(reply):
    """The reply's error, or None; whatever it is, it has the shape that was promised."""
    assert reply.status_code in (200, 400, 404, 413), reply.text[:300]
    assert reply.headers["x-request-id"]
    if reply.status_code == 200:
        return None
    (error,) = reply.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 2000
    return error


def post(http, route, data):
    return checked(http.post(route, content=data, headers=JSON))


# Fields

WRONG = (
    *(True, 0, -1, 1.5, 1e300, 2**63, 10**400),
    *("", "x", "\x00\u2028", "0", "a" * 100_000),
    *([], [0], [""], [None], [[[]]], [{}], [1, "x"], [2**40], [True]),
    *({}, {"": None}, {"type": None}, {"type": "text"}, {"type": "function"}, {"1": "x"}),
)
SAME = {"/tokenize": "prompt"}  # what is blamed where one of several fields is to be given


def fields_of(route):
    kind = KINDS[route]
    idle = getattr(kind, "IDLE", {})
    return [*kind.model_fields, *(IGNORED if idle else ()), *idle, "no_such_field"]


@pytest.mark.parametrize("route", KINDS)
def test_a_field_with_anything_in_it_is_taken_or_blamed(http, route):
    for field in fields_of(route):
        for value in WRONG:
            error = post(http, route, json.dumps({**LEAST[route], field: value}))
            blamed = "" if error is None else str(error["param"])
            assert error is None or blamed.startswith(field) or blamed == SAME.get(route), (field, value)


# Bodies

DEEP = 10**5
VALID = json.dumps(LEAST[COMPLETE]).encode()


def with_field(name, value):
    """A body that is valid but for a field, written out by hand."""
    return VALID[:-1] + b', "%s": %s}' % (name.encode(), value)


BODIES = {
    "empty": b"",
    "space": b" \n\t",
    "open brackets": b"[" * DEEP,
    "brackets": b"[" * DEEP + b"]" * DEEP,
    "open objects": b'{"a":' * DEEP,
    "deep field": with_field("tools", b"[" * DEEP + b"]" * DEEP),
    "deep schema": with_field("json_schema", b'{"not":' * DEEP + b"{}" + b"}" * DEEP),
    "less deep schema": with_field("json_schema", b'{"not":' * 180 + b"{}" + b"}" * 180),
    "infinite": with_field("temperature", b"1e400"),
    "infinite in a schema": with_field("json_schema", b'{"const": 1e400}'),
    "infinite by name": with_field("temperature", b"-Infinity"),
    "nan": with_field("temperature", b"NaN"),
    "nan in a schema": with_field("json_schema", b'{"const": NaN}'),
    "many digits": with_field("max_tokens", b"1" * 10**4),
    "many digits in a schema": with_field("json_schema", b'{"const": %s}' % (b"9" * 10**4)),
    "lone surrogate": with_field("user", b'"\\ud800"'),
    "lone surrogate in a prompt": with_field("prompt", b'"\\udfff x"'),
    "surrogates the wrong way round": with_field("prompt", b'"\\udc00\\ud800"'),
    "invalid utf-8": with_field("prompt", b'"\xff\xfe"'),
    "overlong utf-8": with_field("prompt", b'"\xc0\x80"'),
    "raw control characters": with_field("prompt", b'"\x00\x01\n"'),
    "utf-16": VALID.decode().encode("utf-16"),
    "utf-32": VALID.decode().encode("utf-32"),
    "byte order mark": b"\xef\xbb\xbf" + VALID,
    "nul after it": VALID + b"\x00",
    "twice": VALID + VALID,
    "trailing comma": VALID[:-1] + b",}",
    "comment": VALID + b"// x",
    "single quotes": VALID.replace(b'"', b"'"),
    "form": b"model=tiny&prompt=x",
    "many fields": json.dumps({f"x{number}": 1 for number in range(50_000)}).encode(),
    "many prompts of a wrong kind": with_field("prompt", b"[" + b"[{}]," * 200_000 + b"[{}]]"),
    "many stop tokens": with_field("stop_token_ids", b"[" + b"5," * 400_000 + b"5]"),
    "many biases": with_field("logit_bias", json.dumps({f"{i}x": i for i in range(100_000)}).encode()),
    "many choices of a wrong kind": with_field("guided_choice", b"[" + b"1," * 100_000 + b"1]"),
    "many prompts, many answers": with_field("prompt", b'["' + b'a","' * 5000 + b'a"], "n": 128'),
    "a long salt": with_field("cache_salt", b'"' + b"x" * 10**6 + b'"'),
    "just too large": b" " * (4 << 20) + VALID,
    "megabytes of text": with_field("prompt", b'"' + b"the " * 500_000 + b'"'),
}
ACCEPTED = {
    "many digits after the point": with_field("temperature", b"0." + b"3" * 10**4),
    "many digits in an exponent": with_field("temperature", b"1e-" + b"9" * 10**4),
    "nul": with_field("prompt", b'"a\\u0000b"'),
    "the last of equals": with_field("max_tokens", b'2, "max_tokens": 3'),
    "escaped name": VALID.replace(b'"model"', b'"\\u006dodel"'),
    "space around it": b"\r\n\t " * 10_000 + VALID + b"\n",
    "harmless": with_field("metadata", b"[" + b'["x"],' * 100_000 + b"1]"),
    "long stop": with_field("stop", json.dumps(["e" * 200_000 + "x", "a" * 200_000]).encode()),
    "extremes": with_field(
        "repetition_penalty",
        b'1e6, "temperature": 1e6, "presence_penalty": -1e6, "frequency_penalty": 1e6, "top_p": 5e-324',
    ),
    "all forbidden": with_field("logit_bias", json.dumps({str(i): -1e6 for i in range(300)}).encode()),
}


@pytest.mark.parametrize("data", BODIES.values(), ids=BODIES)
def test_a_body_that_cannot_be_is_refused(http, data):
    assert post(http, COMPLETE, data) is not None


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_a_body_that_is_only_odd_is_taken(http, data):
    assert post(http, COMPLETE, data) is None


def test_an_answer_may_not_reach_beyond_its_context_whatever_is_asked_for(http):
    data = with_field("max_tokens", b'2147483647, "min_tokens": 2147483647, "ignore_eos": true')
    usage = http.post(COMPLETE, content=data, headers=JSON).json()["usage"]
    assert usage["total_tokens"] == CTX


# Grammars, tools, templates


def chain(*links):
    """A schema of definitions that refer to each other."""
    return {"$ref": "#/$defs/0", "$defs": {str(number): link for number, link in enumerate(links)}}


SCHEMAS = {
    "itself": {"$ref": "#"},
    "each other": chain({"$ref": "#/$defs/1"}, {"$ref": "#/$defs/0"}),
    "a tree": {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
    "elsewhere": {"$ref": "http://127.0.0.1:9/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
    "nowhere": {"$ref": "#/$defs/none"},
    "doubling": chain(
        *({"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)), {"type": "string"}
    ),
    "products": {"allOf": [{"anyOf": [{"minimum": i * j} for j in range(8)]} for i in range(8)]},
    "a large enum": {"enum": [f"x{number}" for number in range(50_000)]},
    "an enum": {"enum": [f"x{number}" for number in range(5000)]},
    "many fields": {"properties": {f"p{number}": {"type": "string"} for number in range(5000)}},
    "all required": {"type": "object", "required": [f"p{number}" for number in range(3000)]},
    "long": {"type": "string", "minLength": 10**9},
    "many items": {"type": "array", "minItems": 10**9, "items": {"$ref": "#"}},
    "a remainder": {"type": "integer", "multipleOf": 7919, "minimum": 10**18},
    "a pattern": {"type": "string", "pattern": "^(a+)+$"},
    "patterns": {"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}$"} for i in range(10, 20)]},
    "names by pattern": {"patternProperties": {"(a*)*b": {}, "^(.*a){9}$": {}}, "additionalProperties": {}},
    "impossible": {"type": "integer", "minimum": 5, "maximum": 4},
    "nothing": {"not": {}},
    "no schema": {"type": ["strange", 5], "properties": 3, "required": "x", "enum": {}},
}
REGEXES = (
    *("(a*)*b" * 100, "(.*a){20}", "[ab]*a[ab]{20}", "(a|aa)+$", ".*x.{200}", "(x+x+)+y", "(?:a?){60}a{60}"),
    *("((a{1000}){1000}){1000}", "a{2147483648}", "(" * 4000 + ")" * 4000, "\\p{L}{100}", "(?=a)b", "(a)\\1"),
    *("[", "[^\\x00-\U0010ffff]", "\x00", "(?i)ﬃ{50}", "\ud7ff" * 500),
)
GRAMMARS = (
    *('root ::= root root | "a" | ""', 'root ::= ("" | "a")* root', "root ::= x", "root ::= [", "\x00", ""),
    "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(60)) + '\na60 ::= "x"\nroot ::= a0',
    "\n".join(f"a{i} ::= a{(i + 1) % 500}" for i in range(500)) + "\nroot ::= a0",
    *(
        "start: /((a|b)*c){50}/",
        'start: %json {"$ref": "#"}',
        'start: "a"{1000000}',
        "start: start",
        "start:",
    ),
    *("%import common (INT)\nstart: INT", "start: <[0-299]>", "start: <[99999]>", "start: /x/i /.*/s"),
    "root ::= " + "(" * 1500 + '"a"' + ")" * 1500,
)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_hostile_schema_is_followed_or_refused(http, schema):
    post(http, COMPLETE, json.dumps({**LEAST[COMPLETE], "max_tokens": 20, "json_schema": schema}))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **schema}}}
    post(http, CHAT, json.dumps({**LEAST[CHAT], "tools": [tool], "tool_choice": "required"}))


@pytest.mark.parametrize("field", ["regex", "guided_grammar"])
def test_a_hostile_grammar_is_followed_or_refused(http, field):
    for grammar in REGEXES if field == "regex" else GRAMMARS:
        error = post(http, COMPLETE, json.dumps({**LEAST[COMPLETE], "max_tokens": 20, field: grammar}))
        assert error is None or error["param"] == field


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_becomes_too_much_is_the_clients_fault(http, stream):
    grammar = "start: x{0,5000}\nx: /a?b?c?d?e?/"
    body = {**LEAST[COMPLETE], "max_tokens": 200, "ignore_eos": True, "guided_grammar": grammar, "seed": 8}
    reply = http.post(COMPLETE, json={**body, "stream": stream})
    error = json.loads(reply.text.split("data: ")[-1])["error"]
    assert reply.status_code == (200 if stream else 400)
    assert error["type"] == "invalid_request_error" and "simplify the grammar" in error["message"]


@pytest.mark.parametrize(
    "variables",
    [
        {"messages": [], "tools": 1, "add_generation_prompt": False, "bos_token": "x", "eos_token": "y"},
        {"raise_exception": 1, "strftime_now": 1, "range": 1, "namespace": 1, "loop": 1, "caller": 1},
        {"x" * 10_000: {"__class__": 1}, "": 1, "a b": 2, "__globals__": None, "\u2028": [[[[]]]]},
    ],
)
def test_template_variables_are_only_that(http, variables):
    plain = http.post("/apply-template", json=LEAST["/apply-template"]).json()
    body = {**LEAST["/apply-template"], "chat_template_kwargs": variables}
    assert http.post("/apply-template", json=body).json() == plain
    assert post(http, CHAT, json.dumps({**LEAST[CHAT], "chat_template_kwargs": variables})) is None


@pytest.mark.parametrize(
    "tools",
    [
        [{**TOOL, "function": {**TOOL["function"], "name": f"f{number}"}} for number in range(2000)],
        [TOOL, TOOL],
        [{"type": "function", "function": {"name": "x" * 1000}}],
        [{"type": "function", "function": {"name": "f", "description": "</tools><|im_end|>\x00" * 9}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"enum": [{"a": [1]}]}}}],
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_hostile_tools_are_taken_or_blamed(http, tools, choice):
    error = post(http, CHAT, json.dumps({**LEAST[CHAT], "tools": tools, "tool_choice": choice}))
    assert error is None or error["param"].startswith(("tools", "messages"))


# Mutations of what is valid

RICH = {
    CHAT: {
        **LEAST[CHAT],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "quick"}]},
            {"role": "user", "content": "the fox", "name": "x"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "paint", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "content": "dog", "tool_call_id": "1"},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "paint"}},
        "chat_template_kwargs": {"x": [1]},
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 3,
        "speculation": {"drafter": "ngram+suffix", "k": 3, "rule": "match"},
    },
    COMPLETE: {
        **LEAST[COMPLETE],
        "prompt": ["the fox", "the dog"],
        "n": 2,
        "best_of": 2,
        "echo": True,
        "logprobs": 2,
        "logit_bias": {"5": 1.5},
        "stop": ["x", "yz"],
        "stop_token_ids": [7],
        "seed": 1,
        "top_k": 5,
        "min_p": 0.1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"enum": [1, "a"]}},
        },
        "prediction": {"type": "content", "content": [{"type": "text", "text": "the fox"}]},
        "speculation": "auto",
    },
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    st.sampled_from(
        ["text", "function", "auto", "required", "none", "off", "user", "tool", "assistant", NAME]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """The paths of all that is in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(value, path, change):
    """A copy in which `change` was done to the container and key at the path."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return copy


@st.composite
def mutants(draw, body):
    """The bytes of a body in which a few things are not as they were."""
    for _ in range(draw(st.integers(0, 3))):
        paths = [path for path in places(body) if path]
        path, new = draw(st.sampled_from(paths)), draw(VALUES)
        change = draw(st.sampled_from(["set", "drop", "wrap", "add"]))
        if change == "add" or not paths:
            body = {**body, draw(st.sampled_from(["stream", "stream_options", *body, "x"])): new}
        elif change == "set":
            body = changed(body, path, lambda inner, key: inner.__setitem__(key, new))  # noqa: B023
        elif change == "drop":
            body = changed(body, path, lambda inner, key: inner.__delitem__(key))
        else:
            body = changed(body, path, lambda inner, key: inner.__setitem__(key, [inner[key]]))
    data = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@pytest.mark.parametrize("route", RICH)
def test_a_mutant_is_taken_or_refused(http, route):
    @settings(
        max_examples=150,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(mutants(RICH[route]))
    def send(data):
        post(http, route, data)

    assert post(http, route, json.dumps(RICH[route])) is None
    send()


# HTTP

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(VALID)
WHOLE = HEAD + LENGTH + b"\r\n" + VALID
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
# What is sent, and the statuses that come back before the connection ends or has nothing more to say.
EXCHANGES = {
    "pipelined": (WHOLE * 3, [200, 200, 200]),
    "garbage after a request": (WHOLE + b"\x00\x01 garbage\r\n\r\n", [200, 400]),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, [400]),
    "no version": (b"GET\r\n\r\n", [400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "no length": (HEAD + b"\r\n", [400]),
    "negative length": (HEAD + b"Content-Length: -5\r\n\r\n" + VALID, [400]),
    "two lengths": (HEAD + LENGTH + b"Content-Length: 1\r\n\r\n" + VALID, [400]),
    "chunked": (CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in VALID) + b"0\r\n\r\n", [200]),
    "a chunk of no size": (CHUNKED + b"zz\r\n{}", [400]),
    "a chunk of less than nothing": (CHUNKED + b"-1\r\n{}", [400]),
    "chunks that end nowhere": (CHUNKED + b"1\r\n{ab\r\n", [400]),
    "zipped chunks": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", [400]),
    "http/1.0": (WHOLE.replace(b"1.1", b"1.0"), [200]),
    "expecting": (HEAD + LENGTH + b"Expect: 100-continue\r\n\r\n" + VALID, [100, 200]),
    "websocket": (HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", [200]),
    "many headers": (HEALTH + b"X: y\r\n" * 5000 + b"\r\n", [200]),
    "a nul in a header": (HEALTH + b"X: a\x00b\r\n\r\n", [400]),
    "no text in headers": (
        HEALTH + b"Authorization: \xff\xfe\r\nX-Request-Id: \xe9\r\nAccept: \xff\r\n\r\n",
        [200],
    ),
    "a long path": (b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "bytes in a path": (b"GET /v1/models/%00%ff%0d%0a?%ff=&& HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "a star": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", [404]),
    "a strange method": (HEALTH.replace(b"GET", b"FROB") + b"\r\n", [405]),
    "no type": (WHOLE.replace(b"application/json", b""), [415]),
    "an odd type": (WHOLE.replace(b"/json", b"/x+json; charset=\xff"), [200]),
    "zipped": (WHOLE.replace(VALID, b"\x1f\x8b" + VALID[2:]), [400]),
}
WHILE_SENDING = {
    "a part of the body": WHOLE[:-9],
    "a part of a chunk": CHUNKED + b"5\r\n{",
    "a part of the head": HEAD,
}


def connected(server):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def statuses(connection, count):
    """Those of so many replies."""
    data = b""
    while len(found := re.findall(rb"HTTP/1\.1 (\d+)", data)) < count and (part := connection.recv(65536)):
        data += part
    return [int(status) for status in found]


@pytest.mark.parametrize(("data", "expected_statuses"), EXCHANGES.values(), ids=EXCHANGES)
def test_bytes_that_are_http_or_not(server, data, expected_statuses):
    with connected(server) as connection:
        connection.sendall(data)
        assert statuses(connection, len(expected_statuses)) == expected_statuses


@pytest.mark.parametrize("data", WHILE_SENDING.values(), ids=WHILE_SENDING)
def test_clients_that_go_away_while_they_send_are_no_failures(server, http, data):
    before = sum(answered(http).values())
    for _ in range(5):
        with connected(server) as connection:
            connection.sendall(data)
    until(lambda: sum(answered(http).values()) >= before + 5 * (data is not HEAD))


def test_clients_that_send_slowly_are_waited_for(server, http, expected):
    data = json.dumps(KNOWN).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data
    slow = [connected(server) for _ in range(20)]
    for byte in whole[:-1]:
        for connection in slow:
            connection.sendall(bytes([byte]))
    assert http.post(COMPLETE, json=KNOWN).json()["choices"][0]["text"] == expected
    for connection in slow:
        connection.sendall(whole[-1:])
    for connection in slow:
        assert statuses(connection, 1) == [200]
        connection.close()


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
