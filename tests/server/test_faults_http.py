"""Things that break under a server: drafters, the model, memory, disks, clients. Whoever is not to blame gets
what was asked for, everybody else is told, and the server goes on.
"""

import itertools
import json
import logging
import random
import re
import shutil
import socket
import threading
import time
from contextlib import contextmanager, nullcontext

import openai
import pytest
from drafters_for_tests import Broken, Garbage, Truth
from engine_for_tests import PlannedLLM
from serving import NAME, Paced, serving
from tiny import write_tiny

from foredraft import LLM, Sampling
from foredraft.engine.drafting import OFF
from foredraft.errors import NumericsError

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
CTX = 256
MOST = 24
LONG = {"model": NAME, "prompt": "the fox", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("faults") / "tiny.gguf", "qwen2", seed=5)


def body(prompt="the fox", most=MOST, **fields):
    given = {"model": NAME, "prompt": prompt, "max_tokens": most, "ignore_eos": True, "temperature": 0}
    return {**given, "return_token_ids": True, **fields}


def alone(llm, prompt="the fox", most=MOST, **options):
    return llm.generate(prompt, Sampling(max_tokens=most, ignore_eos=True, **options), raw=True, drafting=OFF)


def ids(reply):
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return tuple(choice["token_ids"])


def refused(reply, status, code=None):
    assert reply.status_code == status, reply.text
    (error,) = reply.json().values()
    assert error["message"] and (code is None or error["code"] == code)
    return error


def events(http, **fields):
    """The data of a stream's events."""
    with http.stream("POST", COMPLETE, json=body(stream=True, **fields)) as reply:
        assert reply.status_code == 200, reply.read()
        return [line.removeprefix("data: ") for line in reply.iter_lines() if line]


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Faulty:
    """A target that fails when `fails` says so: before a pass, or when it has been computed."""

    def __init__(self, target, error=RuntimeError):
        self._target = target
        self._error = error
        self.before = self.after = lambda rows: False
        self.passes = 0

    def __getattr__(self, name):
        return getattr(self._target, name)

    def forward(self, rows, *more, **options):
        self.passes += 1
        if self.before(rows):
            raise self._error("the model broke")
        scores = self._target.forward(rows, *more, **options)
        if self.after(rows):
            raise self._error("the model broke afterwards")
        return scores


@contextmanager
def held(target, count=1):
    """From the `count`-th pass from here on nothing goes on inside of this. Waits until it is so; what is to
    bring it about is asked for first, by whoever calls what this gives.
    """
    entered, resume, passes = threading.Event(), threading.Event(), itertools.count(1)

    def before(rows):
        if next(passes) == count:
            entered.set()
            assert resume.wait(PATIENCE_S)
        return False

    def wait():
        assert entered.wait(PATIENCE_S)

    target.before = before
    try:
        yield wait
    finally:
        resume.set()


@contextmanager
def faulty(path, error=RuntimeError, **options):
    with LLM(path, ctx=CTX, kv_tokens=4 * CTX, threads=1) as llm:
        llm.target = Faulty(llm.target, error)
        with serving(llm, **options) as server:
            yield server, llm.target


# Drafters


@pytest.mark.parametrize("where", ["propose", "catch_up_s", "close", "propose close"])
@pytest.mark.parametrize("healthy", [0, 2])
def test_a_drafter_that_raises_costs_no_token(path, where, healthy, caplog):
    with PlannedLLM(path, ctx=CTX, threads=1) as llm:
        expected = alone(llm)
        prompt = llm.prompter.encode("the fox", raw=True)
        text = (*prompt, *expected.ids)
        broken = Broken(text, where.split(), healthy)
        llm.plan = {tuple(prompt): [broken, Truth(text)]}
        with serving(llm) as server:
            http = server.http()
            reply = http.post(COMPLETE, json=body(speculation={"drafter": "auto", "k": 4}))
            assert ids(reply) == expected.ids
            assert reply.json()["speculation"]["by_drafter"]["truth"]["accepted"] > 0
            assert http.post(COMPLETE, json=body("the dog", most=2)).status_code == 200
    assert broken.closed >= 1
    assert [record.levelno for record in caplog.records if "the drafter broken failed" in record.message] == [
        logging.WARNING
    ]


def test_a_drafter_of_garbage_changes_nothing(path):
    with PlannedLLM(path, ctx=CTX, threads=1) as llm:
        expected = alone(llm)
        prompt = llm.prompter.encode("the fox", raw=True)
        garbage = Garbage(llm.target.vocab, text=(*prompt, *expected.ids))
        llm.plan = {tuple(prompt): [garbage]}
        with serving(llm) as server:
            reply = server.http().post(COMPLETE, json=body(speculation={"drafter": "auto", "k": 20}))
            assert ids(reply) == expected.ids
            assert reply.json()["speculation"]["by_drafter"]["garbage"]["drafted"] > 0


# The model


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, 500), (NumericsError, 500), (MemoryError, 500)])
def test_while_every_pass_fails_every_request_is_told_and_afterwards_all_is_well(path, error, status):
    with faulty(path, error) as (server, target):
        http, client = server.http(), server.client()
        expected = ids(http.post(COMPLETE, json=body()))
        target.before = lambda rows: True
        for fields in ({}, {"stream": True}, {"n": 5}, {"echo": True, "logprobs": 1}):
            given = refused(http.post(COMPLETE, json=body(**fields)), status, "internal_error")
            assert given["type"] == "server_error"
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model=NAME, prompt="x")
        assert [http.get(route).status_code for route in ("/health", "/ready")] == [200, 200]
        server.await_idle()
        assert server.state.kv_used == 0
        target.before = lambda rows: False
        assert ids(http.post(COMPLETE, json=body())) == expected


def test_a_stream_that_breaks_ends_with_the_error(path):
    with faulty(path) as (server, target):
        client = server.client()
        stream = client.completions.create(
            model=NAME,
            prompt="the fox",
            max_tokens=200,
            stream=True,
            n=2,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        target.after = lambda rows: True
        with pytest.raises(openai.APIError, match="the server failed"):
            list(stream)
        target.after = lambda rows: False
        *_, last, done = events(server.http())
        assert json.loads(last)["choices"][0]["finish_reason"] == "length" and done == "[DONE]"


def test_passes_that_fail_now_and_then_lose_and_change_nothing(path):
    prompts = [("the quick brown fox " * 9)[: 5 + 20 * number] for number in range(9)]
    with LLM(path, ctx=CTX, threads=1) as llm:
        expected = {prompt: alone(llm, prompt).ids for prompt in prompts}
    dice, failed = random.Random(4), []

    def fails(rows):
        """Passes of several requests fail as one, and are tried again for each of them."""
        failed.append(len(set(rows.owners.tolist())) > 1 and dice.random() < 0.3)
        return failed[-1]

    with faulty(path) as (server, target):
        target.before = target.after = fails
        for _ in range(2):
            assert together(server, prompts) == expected
    assert any(failed)


def together(server, prompts, most=MOST):
    """The tokens of all, asked at once."""
    got = {}

    def ask(prompt):
        got[prompt] = ids(server.http().post(COMPLETE, json=body(prompt, most)))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_one_request_that_breaks_the_model_breaks_no_other(path):
    with LLM(path, ctx=CTX, threads=1) as llm:
        poison = llm.tokenize("@")[0]
        prompts = ["the fox", "the dog and", "over the trees"]
        expected = {prompt: alone(llm, prompt).ids for prompt in prompts}
    with faulty(path) as (server, target):
        target.before = lambda rows: poison in rows.tokens
        statuses = []

        def break_it():
            for _ in range(5):
                statuses.append(server.http().post(COMPLETE, json=body("a @ b")).status_code)

        breaking = threading.Thread(target=break_it)
        breaking.start()
        for _ in range(3):
            assert together(server, prompts) == expected
        breaking.join()
        assert statuses == [500] * 5


# Memory and context


def test_without_memory_requests_are_told_to_come_again(path):
    with LLM(path, ctx=CTX, kv_tokens=CTX, threads=1) as llm:
        expected = alone(llm).ids
        held = llm.pool.open()
        held.reserve((llm.pool.num_blocks - 1) * 64)
        with serving(llm) as server:
            http = server.http()
            reply = http.post(COMPLETE, json=body("the " * 100))
            refused(reply, 503, "out_of_memory")
            assert int(reply.headers["retry-after"]) >= 1
            with pytest.raises(openai.APIError, match="KV cache is full"):
                for _ in server.client().completions.create(
                    model=NAME, prompt="the fox", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
                ):
                    pass
            assert ids(http.post(COMPLETE, json=body())) == expected  # one block is enough for it
            server.await_idle()
            held.close()
            assert http.post(COMPLETE, json=body("the " * 100)).status_code == 200


def test_requests_that_need_all_the_memory_take_turns(path):
    prompts = [f"{number} the fox and the dog" for number in range(5)]
    with LLM(path, ctx=CTX, kv_tokens=CTX, threads=1) as llm:
        expected = {prompt: alone(llm, prompt, 200).ids for prompt in prompts}
        with serving(llm) as server:
            assert together(server, prompts, 200) == expected
            metrics = server.http().get("/metrics").text
    assert int(re.search(r"num_preemptions_total\{.*\} (\d+)", metrics)[1]) > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_has_to_leave_room_for_a_token(path, stream):
    with LLM(path, ctx=64, threads=1) as llm, serving(llm) as server:
        http = server.http()
        error = refused(
            http.post(COMPLETE, json=body([5] * 64, stream=stream)), 400, "context_length_exceeded"
        )
        assert error["param"] == "prompt" and "64" in error["message"]
        messages = [{"role": "user", "content": "the " * 64}]
        reply = http.post(CHAT, json={"model": NAME, "messages": messages, "stream": stream})
        assert refused(reply, 400, "context_length_exceeded")["param"] == "messages"
        assert len(ids(http.post(COMPLETE, json=body([5] * 63)))) == 1


# The line


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_are_taken_together_or_not_at_all(path, stream):
    with faulty(path, max_running=1, max_waiting=3) as (server, target):
        http = server.http()
        with held(target) as wait, connected(server, body(most=1)):
            wait()
            reply = http.post(COMPLETE, json=body(n=4, stream=stream))
            assert refused(reply, 429, "queue_full")["type"] == "rate_limit_error"
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            refused(http.post(COMPLETE, json=body(n=5, stream=stream)), 400)
        server.await_idle()  # also those of the four that there was room for
        assert len(http.post(COMPLETE, json=body(most=2, n=4)).json()["choices"]) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_time_runs_out_while_one_waits_and_while_one_is_read(path, stream, waits):
    """Nothing has been sent, so that the status says it."""
    with faulty(path, max_running=1, request_timeout=0.2) as (server, target):
        with held(target) as wait, connected(server, body(most=1)) if waits else nullcontext():
            if waits:
                wait()
            refused(server.http().post(COMPLETE, json=body(stream=stream)), 504, "timeout")
        server.await_idle()
        assert server.state.kv_used == 0


# Clients


def connected(server, fields, buffer=None):
    """A socket on which this was asked."""
    data = json.dumps(fields).encode()
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, int(port)))
    head = (
        f"POST {COMPLETE} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


def read_all(connection):
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("passes", [1, 2, 6])
def test_who_leaves_while_read_or_answered_is_gone_a_pass_later(path, stream, choices, passes):
    with faulty(path) as (server, target):
        with held(target, passes) as wait:
            connection = connected(server, body("the fox and the dog " * 12, 200, stream=stream, n=choices))
            wait()
            connection.close()
            until(lambda: not server.service.bridge._flows)
            done = target.passes
        server.await_idle()
        assert target.passes == done
        assert server.state.kv_used == 0


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_while_waiting_is_gone_and_others_stay(path, stream):
    with faulty(path, max_running=1) as (server, target):
        expected = ids(server.http().post(COMPLETE, json=body()))
        with held(target, 3) as wait:
            running = connected(server, body())
            wait()
            waiting = connected(server, body("the dog", n=3, stream=stream))
            until(lambda: len(server.service.bridge._flows) == 4)
            waiting.close()
            until(lambda: len(server.service.bridge._flows) == 1)
        assert tuple(json.loads(read_all(running))["choices"][0]["token_ids"]) == expected
        running.close()
        server.await_idle()
        assert server.state.kv_used == 0


def test_clients_that_only_knock_are_no_trouble(path):
    llm = LLM(path, ctx=CTX, kv_tokens=4 * CTX, threads=1)
    llm.target = Paced(llm.target, 0.002)
    with serving(llm) as server:
        http = server.http()
        for number in range(60):
            connected(server, body(most=50, n=1 + number % 3, stream=number % 2 == 0)).close()
        until(
            lambda: (
                sum(
                    map(
                        int,
                        re.findall(
                            r"http_requests_total\{.*completions.*\} (\d+)", http.get("/metrics").text
                        ),
                    )
                )
                == 60
            )
        )
        server.await_idle()
        assert server.state.kv_used == 0
        assert not server.service.bridge._flows
        assert http.post(COMPLETE, json=body()).status_code == 200


def test_who_does_not_read_holds_up_nobody(path):
    """The answers of those who read nothing are computed, what they hold is given back, and when they read at
    last everything is there.
    """
    with LLM(path, ctx=CTX, kv_tokens=4 * CTX, threads=1) as llm:
        expected = alone(llm, most=200)
        with serving(llm, send_buffer=4096) as server:
            idle = [
                connected(server, body(most=200, stream=True, logprobs=20), buffer=4096) for _ in range(6)
            ]
            http = server.http()
            for _ in range(10):
                assert ids(http.post(COMPLETE, json=body())) == expected.ids[:MOST]
            server.await_idle()
            assert server.state.kv_used == 0
            for connection in idle:
                *chunks, done, empty = read_all(connection).decode().split("\n\n")
                assert (done, empty) == ("data: [DONE]", "")
                choices = [json.loads(chunk.removeprefix("data: "))["choices"][0] for chunk in chunks]
                assert tuple(token for choice in choices for token in choice["token_ids"]) == expected.ids
                connection.close()


# Disks


def test_a_log_on_a_full_disk_is_reported_once_and_stops_nobody(path, tmp_path, caplog):
    options = {"request_log": "/dev/full", "trace_dir": tmp_path / "traces"}
    with LLM(path, ctx=CTX, threads=1) as llm, serving(llm, **options) as server:
        replies = [server.http().post(COMPLETE, json=body()) for _ in range(5)]
        assert len({ids(reply) for reply in replies}) == 1
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message.partition(" (")[0] for record in complaints] == [
        "the log of requests cannot be written"
    ]
    assert len(list((tmp_path / "traces").iterdir())) == 5


def test_traces_whose_folder_is_gone_stop_nobody(path, tmp_path, caplog):
    folder = tmp_path / "traces"
    with LLM(path, ctx=CTX, threads=1) as llm, serving(llm, trace_dir=folder) as server:
        http = server.http()
        expected = ids(http.post(COMPLETE, json=body()))
        shutil.rmtree(folder)
        assert ids(http.post(COMPLETE, json=body())) == expected
    assert [record.levelno for record in caplog.records if "traces" in record.message] == [logging.WARNING]
