"""Keys, browsers, names, logs, and a server's end."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import openai
import pytest
from serving import NAME, serving
from tiny import write_tiny

from foredraft import LLM, UsageError
from foredraft.server.run import listen
from foredraft.server.settings import ServeOptions

COMPLETE = "/v1/completions"
BODY = {"model": NAME, "prompt": "the fox", "max_tokens": 3}
KEYS = ("first-key", "schlüssel-zwei")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("http") / "tiny.gguf", "qwen2", seed=5)


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, ctx=256, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def guarded(llm):
    options = {"api_keys": KEYS, "cors_origins": ("https://chat.example",), "names": (NAME, "alias")}
    with serving(llm, **options) as server:
        yield server


@pytest.mark.parametrize(
    "value",
    [None, "", "Bearer", "Bearer  ,", "Bearer wrong-key", "Basic first-key", "first-key", "Bearer first-ke"],
)
def test_without_a_key_only_the_health_is_told(guarded, value):
    http = guarded.http()
    http.headers.pop("Authorization")
    headers = {} if value is None else {"Authorization": value}
    for method, route in [("POST", COMPLETE), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/none")]:
        reply = http.request(method, route, json=BODY if method == "POST" else None, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    for route in ("/health", "/ready"):
        assert http.get(route, headers=headers).status_code == 200


def test_each_key_opens(guarded):
    assert guarded.client().completions.create(**BODY).choices
    second = guarded.http(headers={"Authorization": b"bearer " + KEYS[1].encode()})
    assert second.post(COMPLETE, json=BODY).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        guarded.client(api_key="wrong").models.list()


def test_a_page_from_elsewhere_may_ask_if_it_is_named(guarded):
    http = guarded.http()
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    http.headers.pop("Authorization")  # browsers ask without it
    reply = http.options(COMPLETE, headers={"Origin": "https://chat.example", **asks})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"
    assert http.options(COMPLETE, headers={"Origin": "https://evil.example", **asks}).status_code == 400
    reply = http.post(COMPLETE, json=BODY, headers={"Origin": "https://chat.example"})
    assert reply.status_code == 401  # which the page can read
    assert reply.headers["access-control-allow-origin"] == "https://chat.example"


def test_a_request_keeps_the_id_it_came_with_if_that_is_sound(guarded):
    http = guarded.http()
    assert http.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "", "x" * 129, "é".encode()):
        given = http.get("/health", headers={"X-Request-Id": bad}).headers["x-request-id"]
        assert re.fullmatch("req_[0-9a-f]{32}", given)


def test_a_model_may_have_several_names(guarded):
    client = guarded.client()
    assert [model.id for model in client.models.list().data] == [NAME, "alias"]
    assert client.completions.create(**{**BODY, "model": "alias"}).model == "alias"


def test_the_document_says_what_a_request_needs(guarded):
    document = guarded.http().get("/openapi.json").json()
    assert document["components"]["schemas"]["ChatBody"]["properties"]["model"]["enum"] == [NAME, "alias"]
    assert document["paths"][COMPLETE]["post"]["security"] == [{"bearer": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    text = json.dumps(document)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names and names <= document["components"]["schemas"].keys()


def test_requests_and_rounds_are_written_down(llm, tmp_path):
    log, traces = tmp_path / "log.jsonl", tmp_path / "traces"
    with serving(llm, request_log=str(log), trace_dir=traces) as server:
        reply = server.client().completions.create(**BODY, n=2)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["request_id"] for line in lines) == [f"{reply.id}-0", f"{reply.id}-1"]
    assert [(line["outcome"], line["route"], line["completion_tokens"]) for line in lines] == [
        ("length", COMPLETE, 3)
    ] * 2
    for line in lines:
        rounds = [
            json.loads(one) for one in (traces / f"{line['request_id']}.jsonl").read_text().splitlines()
        ]
        assert sum(len(one["tokens"]) for one in rounds) == 3


def test_http_is_measured_by_route_and_status(llm):
    with serving(llm) as server:
        http = server.http()
        http.post(COMPLETE, json=BODY)
        http.post(COMPLETE, json={})
        http.get("/invented/by/a/client")
        text = http.get("/metrics").text
    counts = dict(re.findall(r"^foredraft:http_requests_total\{(.*)\} (\d+)", text, re.MULTILINE))
    routes = {
        (re.search('route="(.*?)"', labels)[1], re.search('status="(.*?)"', labels)[1]) for labels in counts
    }
    assert routes == {(COMPLETE, "200"), (COMPLETE, "400"), ("other", "404")}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"names": ()}, "name"),
        ({"names": ("",)}, "name"),
        ({"port": 70000}, "port is 70000"),
        ({"api_keys": ("",)}, "API key"),
        ({"max_body_bytes": 0}, "max_body_bytes is 0"),
        ({"request_timeout": 0.0}, "request_timeout is 0"),
        ({"drain_timeout": -1.0}, "drain_timeout is -1"),
    ],
)
def test_options_that_cannot_be(options, complaint):
    with pytest.raises(UsageError, match=complaint):
        ServeOptions(**{"names": (NAME,), **options})


def test_a_port_that_is_taken_is_known_before_the_model_is_loaded():
    with listen(ServeOptions(names=(NAME,))) as bound:
        bound.listen()
        with pytest.raises(UsageError, match=r"cannot listen at 127.0.0.1 port"):
            listen(ServeOptions(names=(NAME,), port=bound.getsockname()[1]))
    with pytest.raises(UsageError, match="cannot listen at"):
        listen(ServeOptions(names=(NAME,), host="no.such.host.invalid"))


# The command


@contextmanager
def command(path, *arguments):
    """`foredraft serve`, and the URL that it says."""
    line = [
        sys.executable,
        "-m",
        "foredraft",
        "serve",
        "-m",
        str(path),
        "--threads",
        "1",
        "--port",
        "0",
        *arguments,
    ]
    environment = {**os.environ, "FOREDRAFT_API_KEY": "from-outside"}
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        said = process.stderr.readline()
        assert "foredraft: serving" in said, said + process.stderr.read()
        yield process, said.split()[-1]
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Slow enough to be interrupted."""
    path = tmp_path_factory.mktemp("http") / "large.gguf"
    return write_tiny(path, "qwen2", dim=256, layers=8, ff=1024, context=2048)


def test_at_a_signal_what_runs_comes_to_its_end(large):
    with command(large, "--ctx", "2048") as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="from-outside", max_retries=0)
        with (
            client,
            client.completions.create(
                model="large", prompt="the fox", max_tokens=600, stream=True, extra_body={"ignore_eos": True}
            ) as stream,
        ):
            first = next(stream)
            process.send_signal(signal.SIGTERM)
            *_, last = stream
        assert first.choices[0].finish_reason is None
        assert last.choices[0].finish_reason == "length"
        assert last.timings["predicted_n"] == 600
        assert process.wait(30) == 0


def test_a_second_signal_ends_it_at_once(large):
    with command(large, "--ctx", "2048") as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="from-outside", max_retries=0)
        with (
            client,
            client.completions.with_streaming_response.create(
                model="large", prompt="the fox", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
            ) as reply,
        ):
            next(reply.iter_lines())
            process.send_signal(signal.SIGINT)
            assert "ending" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 130


def test_without_its_packages_serve_says_what_to_install(path):
    program = "import sys; sys.modules['uvicorn'] = None; from foredraft.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", program, "serve", "-m", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'foredraft[serve]'" in done.stderr
