"""`foredraft serve` as a process: what it says, how it ends, what it writes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import openai
import pytest
from tiny import write_tiny

from foredraft import LLM, UsageError
from foredraft.cli import main
from foredraft.server.app import build_app
from foredraft.server.run import listen, run
from foredraft.server.settings import ServeOptions

COMPLETE = "/v1/completions"
PATIENCE_S = 60.0
HINT = "pip install 'foredraft[serve]'"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("serve") / "tiny.gguf", "qwen2", seed=5)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model whose answers take a while."""
    path = tmp_path_factory.mktemp("serve") / "slow.gguf"
    return write_tiny(path, "qwen2", dim=256, layers=8, ff=1024, context=2048)


class Process:
    """A server that says it is there. What it says on standard error is kept."""

    def __init__(self, process):
        self.process = process
        self.clients = []
        self.said = [process.stderr.readline()]
        assert self.said[0].startswith("foredraft: serving "), self.said[0] + process.stderr.read()
        self.url = self.said[0].split()[-1]
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self):
        self.said += self.process.stderr

    def client(self, key="none"):
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)
        self.clients.append(client)
        return client

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def end(self):
        """The exit code, and all lines on standard error. Standard output has none."""
        code = self.process.wait(PATIENCE_S)
        self._reading.join()
        assert self.process.stdout.read() == ""
        assert "Traceback" not in "".join(self.said)
        return code, self.said


@contextmanager
def serve(path, *options, **environment):
    line = [sys.executable, "-m", "foredraft", "serve", "-m", path, "--threads", 1, "--port", 0, *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*map(str, line)], env={**os.environ, **environment}, **pipes) as process:
        try:
            yield (server := Process(process))
            for client in server.clients:
                client.close()
        finally:
            process.kill()


def long_stream(client, most):
    """A stream that has begun."""
    stream = client.completions.create(
        model="slow", prompt="the fox", max_tokens=most, stream=True, extra_body={"ignore_eos": True}
    )
    return next(iter(stream)), stream


def test_it_says_where_it_is_writes_what_it_is_told_to_and_ends_when_told_to(path, tmp_path):
    log, traces = tmp_path / "log.jsonl", tmp_path / "traces"
    options = ("--api-key", "first", "--served-model-name", "fox", "--log-requests", log, "--trace", traces)
    with serve(path, *options, FOREDRAFT_API_KEY="second") as server:
        assert server.said == [f"foredraft: serving fox at {server.url}\n"]
        assert server.url.startswith("http://127.0.0.1:")
        with pytest.raises(openai.AuthenticationError):
            server.client("third").models.list()
        assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}
        replies = [
            server.client(key).completions.create(model="fox", prompt="the dog", max_tokens=3, n=2)
            for key in ("first", "second")
        ]
        server.signal()
        code, said = server.end()
    assert (code, len(said)) == (0, 2)
    lines = {line["request_id"]: line for line in map(json.loads, log.read_text().splitlines())}
    assert lines.keys() == {f"{reply.id}-{index}" for reply in replies for index in range(2)}
    for name, line in lines.items():
        assert (line["route"], line["completion_tokens"], line["outcome"]) == (COMPLETE, 3, "length")
        rounds = map(json.loads, (traces / f"{name}.jsonl").read_text().splitlines())
        assert sum(len(one["tokens"]) for one in rounds) == 3
    assert len(list(traces.iterdir())) == 4


def test_under_load_what_runs_is_finished_and_what_comes_is_sent_elsewhere(slow):
    with serve(slow, "--ctx", 2048, "--max-running", 2, "--log-requests") as server:
        client = server.client()
        running = [long_stream(client, 800) for _ in range(2)]
        pool = ThreadPoolExecutor()
        waiting = [pool.submit(take, server) for _ in range(2)]
        until(lambda: metric(server, "num_requests_waiting") == 2)
        server.signal()
        with httpx.Client(base_url=server.url) as http:
            until(lambda: http.get("/ready").is_error)
            assert http.get("/ready").json() == {"status": "draining"}
            assert http.get("/health").status_code == 200
            reply = http.post(COMPLETE, json={"model": "slow", "prompt": "x"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert int(reply.headers["retry-after"]) >= 1
        for first, stream in running:
            chunks = [first, *stream]
            assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
            assert chunks[-1].timings["predicted_n"] == 800
        assert [reply.result(PATIENCE_S) for reply in waiting] == [200, 200]
        code, said = server.end()
    assert code == 0
    assert "4 requests" in said[1]
    assert [json.loads(line)["outcome"] for line in said[2:]] == ["length"] * 4


def take(server):
    body = {"model": "slow", "prompt": "the dog", "max_tokens": 5, "ignore_eos": True}
    return httpx.post(server.url + COMPLETE, json=body, timeout=PATIENCE_S).status_code


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def metric(server, name):
    text = httpx.get(f"{server.url}/metrics").text
    return float(re.search(rf"^foredraft:{name}\{{.*\}} (\S+)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(slow, first):
    with serve(slow, "--ctx", 2048) as server:
        _, stream = long_stream(server.client(), 2000)
        server.signal(first)
        until(lambda: httpx.get(f"{server.url}/ready").is_error)
        server.signal(signal.SIGTERM)
        code, said = server.end()
        stream.close()
    assert (code, said[-1]) == (130, "foredraft: interrupted\n")


def test_what_has_not_ended_in_time_is_told_so(slow):
    with serve(slow, "--ctx", 2048, "--drain-timeout", 0.5) as server:
        _, stream = long_stream(server.client(), 2000)
        server.signal()
        with pytest.raises(openai.APIError, match="closed before the answer was complete"):
            list(stream)
        code, _ = server.end()
    assert code == 1


def test_who_never_finishes_a_request_cannot_keep_it_up(path):
    with serve(path) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE_S) as stuck,
            socket.create_connection((host, int(port))),
        ):
            stuck.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            assert httpx.get(f"{server.url}/health").status_code == 200
            server.signal()
            assert b"503 Service Unavailable" in stuck.recv(1 << 16)
            assert server.end()[0] == 0


def test_a_port_that_is_taken(path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "-m", str(path), "--port", port]) == 2
    said = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use" in said
    assert "Is another server there?" in said


def test_of_two_that_start_at_once_one_says_that_the_port_is_taken(path):
    with listen(ServeOptions(names=("x",))) as first, LLM(path, ctx=64, threads=1) as llm:
        options = ServeOptions(names=("x",), port=first.getsockname()[1])
        with listen(options) as second:
            first.listen()
            with pytest.raises(UsageError, match=rf"cannot listen at 127.0.0.1 port {options.port}"):
                run(build_app(llm, options), second)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--port", "70000"], "port is 70000"),
        (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid"),
        (["--api-key", ""], "an API key is empty"),
        (["--served-model-name", ""], "the model's name"),
        (["--max-running", "0"], "max_running is 0"),
        (["--max-waiting", "-1"], "max_waiting -1"),
        (["--max-body-bytes", "0"], "max_body_bytes is 0"),
        (["--request-timeout", "nan"], "request_timeout is nan"),
        (["--drain-timeout", "-1"], "drain_timeout is -1"),
        (["--ctx", "1000000"], "ctx is 1000000"),
        (["--ctx", "128", "--kv-tokens", "127"], "kv_tokens is 127"),
        (["-d", "nonsense"], "nonsense"),
        (["-k", "many"], "-k 'many'"),
        (["--log-requests", "/dev/null/log"], "the log of requests '/dev/null/log' cannot be written"),
        (["--trace", "/dev/null/traces"], "traces cannot be kept in /dev/null/traces"),
    ],
)
def test_options_that_cannot_be_exit_with_2(path, options, complaint, capsys):
    assert main(["serve", "-m", str(path), "--port", "0", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith("foredraft: error: ") and complaint in said


def test_models_that_cannot_be_exit_with_1(path, tmp_path, capsys):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:5000])
    for options in (["-m", "no-such-model"], ["-m", str(broken)], ["-m", str(path), "-d", f"model:{broken}"]):
        assert main(["serve", "--port", "0", *options]) == 1
        assert capsys.readouterr().err.startswith("foredraft: error: ")


BARE = """
import sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Bare())
from foredraft.cli import main
print(main(["serve", "-m", sys.argv[2], "--port", "0"]))
print(main(["run", "-m", sys.argv[2], "-n", "2", "--raw", "the"]))
"""


@pytest.mark.parametrize(
    ("missing", "first"),
    [
        ("fastapi,starlette,pydantic,uvicorn,prometheus_client,llguidance", "fastapi"),
        ("uvicorn", "uvicorn"),
        ("prometheus_client", "prometheus_client"),
    ],
)
def test_without_its_packages_serve_says_what_to_install_and_all_else_works(path, missing, first):
    line = [sys.executable, "-c", BARE, missing, str(path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.splitlines()[:1] == ["2"], done.stderr
    assert done.stdout.splitlines()[-1] == "0"
    assert HINT in done.stderr and f"({first})" in done.stderr
    assert "Traceback" not in done.stderr
