"""The real server around a small model, on a real socket, in a thread of the test's process.

with serving(llm, api_keys=("secret",)) as server:
    server.client(api_key="secret").models.list()
"""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import openai

from foredraft.engine.engine import EngineOptions
from foredraft.server.app import build_app
from foredraft.server.run import Server, listen, url_of
from foredraft.server.settings import ServeOptions

NAME = "tiny"
PATIENCE_S = 30.0


class Serving:
    """A server that runs. `clients` are closed with it."""

    def __init__(self, llm, app, url, key):
        self.llm = llm
        self.app = app
        self.url = url
        self.key = key
        self._clients = []

    @property
    def service(self):
        return self.app.state.service

    @property
    def state(self):
        return self.service.bridge.state

    def client(self, **options):
        """OpenAI's client."""
        client = openai.OpenAI(
            **{"base_url": f"{self.url}/v1", "api_key": self.key, "max_retries": 0, "timeout": 60, **options}
        )
        self._clients.append(client)
        return client

    def http(self, **options):
        """A plain client."""
        headers = {"Authorization": f"Bearer {self.key}", **options.pop("headers", {})}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)
        self._clients.append(client)
        return client

    def await_idle(self):
        """Until no request is there; fails if that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while self.state.running or self.state.waiting:
            assert time.monotonic() < deadline, f"requests did not end: {self.state}"
            time.sleep(0.005)

    def close_clients(self):
        for client in self._clients:
            client.close()


class Paced:
    """A target whose passes take so many seconds more: so that there is time for something to happen."""

    def __init__(self, target, seconds):
        self._target = target
        self._seconds = seconds

    def __getattr__(self, name):
        return getattr(self._target, name)

    def forward(self, *rows, **options):
        time.sleep(self._seconds)
        return self._target.forward(*rows, **options)


@contextmanager
def serving(llm, *, max_running=8, max_waiting=32, send_buffer=None, **options):
    """At the end no request may be left, and no block be lost. `send_buffer`: bytes that the system takes
    from the server for a client that does not read.
    """
    settings = ServeOptions(
        names=options.pop("names", (NAME,)), engine=EngineOptions(max_running, max_waiting), **options
    )
    bound = listen(settings)
    if send_buffer is not None:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # those accepted inherit it
    app = build_app(llm, settings)
    server = Server(app)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[bound]),), name="server")
    thread.start()
    running = Serving(llm, app, url_of(bound), next(iter(settings.api_keys), "none"))
    try:
        _await(lambda: server.started, "the server did not start")
        yield running
        running.await_idle()
        llm.pool.check([])
    finally:
        running.close_clients()
        server.should_exit = True
        thread.join(PATIENCE_S)
        bound.close()
    assert not thread.is_alive(), "the server did not end"


def _await(condition, complaint):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.005)
