"""Readers that go away, and readers that are slow."""

import contextlib
import json
import socket
import threading
import time

import pytest
from serving import NAME, Paced, serving
from tiny import write_tiny

from foredraft import LLM, Sampling

ROUTES = {
    "/v1/completions": {"model": NAME, "prompt": "the fox", "temperature": 0},
    "/v1/chat/completions": {
        "model": NAME,
        "messages": [{"role": "user", "content": "the fox"}],
        "temperature": 0,
    },
}
MOST = 200


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("http") / "tiny.gguf", "qwen2", seed=5)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "requests.jsonl"


@pytest.fixture
def server(path, log):
    llm = LLM(path, ctx=512, kv_tokens=2048, threads=1)
    llm.target = Paced(llm.target, 0.005)
    with llm, serving(llm, send_buffer=4096, request_log=str(log)) as server:
        yield server


def ask(server, route, **fields):
    """A socket on which a request was sent."""
    body = json.dumps({**ROUTES[route], "max_tokens": MOST, "ignore_eos": True, **fields}).encode()
    head = (
        f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    connection.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)
    return connection


def read_all(connection):
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


def events(data):
    """The events of a chunked reply, without how it was cut into pieces."""
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"200 OK" in head and b"text/event-stream" in head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    *chunks, done, empty = body.decode("ascii").split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def lines(log, count):
    """So many lines of the log, when they are there."""
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(FileNotFoundError):
            found = log.read_text().splitlines()
            if len(found) >= count:
                return [json.loads(line) for line in found]
        assert time.monotonic() < deadline, "a request did not end"
        time.sleep(0.005)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("choices", [1, 3])
def test_a_client_that_goes_away_in_a_stream_cancels_its_requests(server, log, route, choices):
    connection = ask(server, route, stream=True, n=choices)
    assert b"data: " in connection.recv(2000) + connection.recv(2000)
    connection.close()
    for line in lines(log, choices):
        assert line["outcome"] == "cancelled"
        assert line["completion_tokens"] < MOST


@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_goes_away_while_it_waits_cancels_its_request(server, log, route):
    connection = ask(server, route)
    while not server.state.running:
        time.sleep(0.002)
    connection.close()
    (line,) = lines(log, 1)
    assert (line["outcome"], line["route"]) == ("cancelled", route)
    assert line["completion_tokens"] < MOST


def test_a_slow_reader_stops_nobody_and_gets_everything(server, log):
    fields = {"stream": True, "logprobs": 20, "return_token_ids": True}
    slow = ask(server, "/v1/completions", **fields)
    reply = server.client().completions.create(**ROUTES["/v1/completions"], max_tokens=5)
    assert reply.usage.completion_tokens == 5
    assert {line["outcome"] for line in lines(log, 2)} == {"length"}
    server.await_idle()  # also the slow one is computed, and holds nothing of the engine
    chunks = events(read_all(slow))
    slow.close()
    expected = server.llm.generate(
        "the fox", Sampling(max_tokens=MOST, ignore_eos=True), raw=True, logprobs=20
    )
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == expected.text
    assert [token for choice in choices for token in choice["token_ids"]] == list(expected.ids)
    assert len(chunks) < MOST / 2  # what it did not read in time was merged
    logprobs = [one for choice in choices for one in choice["logprobs"]["token_logprobs"]]
    assert logprobs == pytest.approx([one.logprob for one in expected.logprobs], abs=1e-4)


def test_many_streams_at_once_lose_and_mix_nothing(server):
    prompts = [f"the fox {number} and the dog" for number in range(8)]
    whole = {}

    def read(prompt):
        with ask(server, "/v1/completions", prompt=prompt, stream=True, max_tokens=40) as connection:
            chunks = events(read_all(connection))
        whole[prompt] = "".join(chunk["choices"][0]["text"] for chunk in chunks)

    threads = [threading.Thread(target=read, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.await_idle()
    for prompt in prompts:
        answer = server.llm.generate(prompt, Sampling(max_tokens=40, ignore_eos=True), raw=True)
        assert whole[prompt] == answer.text
