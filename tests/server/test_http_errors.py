"""What is refused, how, and that the server is as well as before."""

import json
import threading
import time

import openai
import pytest
from serving import NAME, Paced, serving
from tiny import write_tiny

from foredraft import LLM

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
LEAST = {
    CHAT: {"model": NAME, "messages": MESSAGES, "max_tokens": 2},
    COMPLETE: {"model": NAME, "prompt": "the fox", "max_tokens": 2},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": MESSAGES},
}
LONG = {"model": NAME, "prompt": "the fox", "max_tokens": 200, "ignore_eos": True}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("http") / "tiny.gguf", "qwen2", seed=5)


@pytest.fixture(scope="module")
def server(path):
    with LLM(path, ctx=256, threads=1) as llm, serving(llm, max_body_bytes=1 << 20) as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    return server.http()


def paced(path, seconds=0.01, **options):
    llm = LLM(path, ctx=256, kv_tokens=1024, threads=1)
    llm.target = Paced(llm.target, seconds)
    return serving(llm, **options)


def refused(reply, status, param=None, code=None):
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    (error,) = reply.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and error["param"] == param
    assert code is None or error["code"] == code
    return error


@pytest.mark.parametrize("route", LEAST)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"temperature": NaN}',
        b'{"x": ' + b"1" * 6000 + b"}",
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b'{"messages": ' + b"[" * 199 + b"]" * 199 + b"}",
        json.dumps({"x" * 1000: None}).encode(),
        json.dumps({f"x{number}": 1 for number in range(10_000)}).encode(),
    ],
    ids=range(12),
)
def test_a_body_that_is_none_is_a_400(http, route, data):
    reply = http.post(route, content=data, headers=JSON)
    assert reply.status_code == 400
    refused(reply, 400, reply.json()["error"]["param"])


@pytest.mark.parametrize(
    ("route", "field", "value", "param"),
    [
        (CHAT, "temperature", "hot", "temperature"),
        (CHAT, "temperature", 1e-9, "temperature"),
        (CHAT, "logit_bias", {"99999": 1}, "logit_bias"),
        (CHAT, "stop_token_ids", [99999], "stop_token_ids"),
        (CHAT, "messages", [{"role": "nobody", "content": "x"}], "messages[0].role"),
        (CHAT, "messages", [{"role": "user", "content": "\x00", "x": 1}], "messages[0].x"),
        (CHAT, "tool_choice", "required", "tool_choice"),
        (CHAT, "speculation", {"drafter": "model:/etc/passwd"}, "speculation"),
        (CHAT, "functions", [{}], "functions"),
        (CHAT, "foo", 1, "foo"),
        (COMPLETE, "prompt", [99999], "prompt"),
        (COMPLETE, "suffix", "x", "suffix"),
        (COMPLETE, "n", 64, "n"),
        ("/tokenize", "content", "both", "prompt"),
        ("/detokenize", "tokens", [99999], "tokens"),
    ],
)
def test_a_field_that_is_wrong_is_named(http, route, field, value, param):
    reply = http.post(route, json={**LEAST[route], field: value})
    error = refused(reply, 400, param)
    assert error["type"] == "invalid_request_error"


def test_openais_client_raises_what_it_would_for_openai(server):
    client = server.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=MESSAGES, extra_body={"foo": 1})
    assert caught.value.param == "foo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/none")
    with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
        client.embeddings.create(model=NAME, input="x")
    with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
        client.responses.create(model=NAME, input="x")


@pytest.mark.parametrize("route", LEAST)
def test_the_wrong_model_content_type_or_method(http, route):
    body = LEAST[route]
    refused(http.post(route, json={**body, "model": "other"}), 404, "model", "model_not_found")
    refused(http.post(route, content=json.dumps(body), headers={"Content-Type": "text/plain"}), 415)
    refused(http.post(route, data={"model": NAME}), 415)
    reply = http.get(route)
    refused(reply, 405, code="method_not_allowed")
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize("url", ["/", "/v1", "/v1/embeddings", "/v1/images/generations", "/health/", "/%ff"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_there_says_what_is(http, url, method):
    error = refused(http.request(method, url), 404, code="unknown_url")
    assert "GET /v1/models/{name}, " in error["message"]


@pytest.mark.parametrize("route", LEAST)
def test_a_body_that_is_too_large_is_a_413(http, route):
    refused(http.post(route, content=b"x" * ((1 << 20) + 1), headers=JSON), 413, code="body_too_large")

    def unannounced():
        for _ in range(40):
            yield b" " * 65536

    refused(http.post(route, content=unannounced(), headers=JSON), 413, code="body_too_large")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_has_openais_code(http, stream):
    body = {**LEAST[CHAT], "messages": [{"role": "user", "content": "the " * 400}], "stream": stream}
    refused(http.post(CHAT, json=body), 400, "messages", "context_length_exceeded")
    body = {**LEAST[COMPLETE], "prompt": [5] * 256, "stream": stream}
    refused(http.post(COMPLETE, json=body), 400, "prompt", "context_length_exceeded")
    body = {**LEAST[COMPLETE], "prompt": [5] * 255, "max_tokens": 100, "ignore_eos": True}
    reply = http.post(COMPLETE, json=body).json()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (1, "length")


def test_a_full_queue_is_a_429_that_says_when_to_come_again(path):
    with paced(path, max_running=1, max_waiting=1) as server:
        http, client = server.http(), server.client()
        stream = client.completions.create(**stream_of(LONG))
        waiting = threading.Thread(target=http.post, args=(COMPLETE,), kwargs={"json": LEAST[COMPLETE]})
        waiting.start()
        until(lambda: server.state.waiting == 1)
        reply = server.http().post(COMPLETE, json=LONG)
        assert refused(reply, 429, code="queue_full")["type"] == "rate_limit_error"
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        stream.close()
        waiting.join()


def stream_of(body):
    extra = {"ignore_eos": body["ignore_eos"]}
    return {
        **{name: value for name, value in body.items() if name not in extra},
        "stream": True,
        "extra_body": extra,
    }


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_request_that_takes_too_long_is_a_504(path):
    with paced(path, request_timeout=0.3) as server:
        http = server.http()
        refused(http.post(COMPLETE, json=LONG), 504, code="timeout")
        with http.stream("POST", COMPLETE, json={**LONG, "stream": True}) as reply:
            assert reply.status_code == 200
            events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
        assert json.loads(events[-1])["error"]["code"] == "timeout"
        assert all("choices" in json.loads(event) for event in events[:-1])
        with pytest.raises(openai.APIError, match="request timeout"):
            list(server.client().completions.create(**stream_of(LONG)))
        server.await_idle()


def test_a_server_that_drains_ends_what_runs_and_refuses_what_comes(path):
    with paced(path) as server:
        http = server.http()
        stream = server.client().completions.create(**stream_of({**LONG, "max_tokens": 60}))
        first = next(iter(stream))
        draining = threading.Thread(target=server.service.bridge._engine.drain)
        draining.start()
        until(lambda: server.state.draining)
        reply = http.post(COMPLETE, json=LEAST[COMPLETE])
        assert refused(reply, 503, code="shutting_down")["type"] == "server_error"
        assert int(reply.headers["retry-after"]) >= 1
        assert http.get("/ready").status_code == 503
        assert http.get("/health").status_code == 200
        chunks = [first, *stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        draining.join()


def test_an_engine_that_is_gone_is_said_by_health(path):
    with paced(path) as server:
        http = server.http()
        stream = server.client().completions.create(**stream_of(LONG))
        next(iter(stream))
        server.service.bridge._engine.close()
        with pytest.raises(openai.APIError, match="closed"):
            list(stream)
        refused(http.post(COMPLETE, json=LEAST[COMPLETE]), 503, code="shutting_down")
        for route in ("/health", "/ready"):
            assert (http.get(route).status_code, http.get(route).json()) == (503, {"status": "dead"})


def test_after_all_this_it_still_answers(http):
    assert http.post(CHAT, json=LEAST[CHAT]).status_code == 200
