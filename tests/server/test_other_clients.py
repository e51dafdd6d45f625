"""Clients that have nothing to do with OpenAI's: curl, and litellm, which many agents call models through."""

import json
import subprocess
import warnings

import openai
import pytest
from scripted import END, scripted_llm
from serving import NAME, serving
from tiny import write_tiny

STORY = "the fox saw ☃ and a dog.\nwhat is drafted here is checked there."
MESSAGES = [{"role": "user", "content": "tell"}]
ARGUMENTS = '{"city": "Zürich ☃"}'
CALL = f'<tool_call>\n{{"name": "travel", "arguments": {ARGUMENTS}}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "travel",
        "description": "Go there.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("others") / "tiny.gguf", "qwen2")
    with scripted_llm(path) as llm, serving(llm, api_keys=("secret",)) as server:
        yield server


def told(server, text, tools=()):
    """Let the model answer the messages so. Returns the ids."""
    body = {"messages": MESSAGES, "tools": list(tools)}
    prompt = server.http().post("/tokenize", json=body).json()["tokens"]
    ids = [*server.llm.tokenize(text), END]
    server.llm.target.write(prompt, ids)
    return ids


def predicted(text):
    """Fields that have the answer come in a few bursts."""
    return {
        "prediction": {"type": "content", "content": text},
        "speculation": {"drafter": "prediction", "k": 7},
    }


# curl


def curl(server, path, body, *options, key="secret", kind="application/json"):
    """Status, content type and body of the reply."""
    headers = ["-H", f"Content-Type: {kind}", "-H", f"Authorization: Bearer {key}"]
    run = subprocess.run(
        [
            "curl",
            "-sS",
            "-w",
            "\n%{http_code} %{content_type}",
            *headers,
            *options,
            "-d",
            "@-",
            server.url + path,
        ],
        input=body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    text, _, last = run.stdout.decode().rpartition("\n")
    status, _, kind = last.partition(" ")
    return int(status), kind, text


def test_curl_streams_a_chat(server):
    ids = told(server, STORY)
    body = {"model": NAME, "messages": MESSAGES, "temperature": 0, "stream": True, **predicted(STORY)}
    body |= {"stream_options": {"include_usage": True}}
    status, kind, text = curl(server, "/v1/chat/completions", body, "-N")
    assert (status, kind.partition(";")[0]) == (200, "text/event-stream")
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == STORY
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == len(ids)
    assert chunks[-1]["speculation"]["tokens_per_round"] > 4


def test_curl_completes_a_text(server):
    ids = [*server.llm.tokenize(STORY), END]
    server.llm.target.write(server.llm.prompter.encode("Grüezi ☃", raw=True), ids)
    body = {"model": NAME, "prompt": "Grüezi ☃", "temperature": 0, "max_tokens": 99, **predicted(STORY)}
    status, kind, text = curl(server, "/v1/completions", body)
    reply = json.loads(text)
    assert (status, kind) == (200, "application/json")
    assert reply["choices"][0]["text"] == STORY
    assert reply["usage"]["completion_tokens"] == len(ids)
    assert reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body", "options", "status", "code"),
    [
        ("/v1/completions", {"model": NAME, "prompt": "x", "bogus": 1}, {}, 400, "unknown_parameter"),
        ("/v1/completions", b'{"model": ', {}, 400, "invalid_json"),
        ("/v1/completions", b'{"model": "\xff"}', {}, 400, "invalid_json"),
        ("/v1/completions", {"model": "gpt-4", "prompt": "x"}, {}, 404, "model_not_found"),
        ("/v1/embeddings", {"model": NAME, "input": "x"}, {}, 404, "unknown_url"),
        ("/v1/models", {}, {}, 405, "method_not_allowed"),
        ("/v1/completions", {}, {"kind": "text/plain"}, 415, "unsupported_media_type"),
        ("/v1/completions", {}, {"key": "guess"}, 401, "invalid_api_key"),
    ],
)
def test_curl_is_told_what_is_wrong(server, path, body, options, status, code):
    given, kind, text = curl(server, path, body, **options)
    assert (given, kind) == (status, "application/json")
    error = json.loads(text)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code and error["message"]


# litellm


@pytest.fixture
def litellm(monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch one
    with warnings.catch_warnings(action="ignore"):  # of what it imports
        import litellm
    yield litellm
    for client in litellm.in_memory_llm_clients_cache.cache_dict.values():
        if isinstance(client, openai.OpenAI):
            client.close()


def complete(litellm, server, **fields):
    given = {"model": f"openai/{NAME}", "api_base": f"{server.url}/v1", "api_key": "secret", "temperature": 0}
    return litellm.completion(**given, messages=MESSAGES, max_retries=0, **fields)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Items? .* using the `ReadOnly` qualifier:UserWarning")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_.*' attribute on the instance:DeprecationWarning")
def test_litellm_answers_streams_and_calls_tools(litellm, server):
    ids = told(server, STORY)
    reply = complete(litellm, server, seed=1, stop=["never"], extra_body=predicted(STORY))
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (STORY, "stop")
    assert reply.usage.completion_tokens == len(ids)
    chunks = list(complete(litellm, server, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == STORY
    assert litellm.stream_chunk_builder(chunks, messages=MESSAGES).usage.completion_tokens == len(ids)
    told(server, CALL, [TOOL])
    for stream in (False, True):
        reply = complete(litellm, server, tools=[TOOL], stream=stream, extra_body=predicted(CALL))
        whole = litellm.stream_chunk_builder(list(reply), messages=MESSAGES) if stream else reply
        (call,) = whole.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("travel", ARGUMENTS)
        assert whole.choices[0].finish_reason == "tool_calls"
    with pytest.raises(litellm.BadRequestError, match="bogus"):
        complete(litellm, server, extra_body={"bogus": 1})
