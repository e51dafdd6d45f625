"""A server's life: it listens, says so, and at a signal ends what it has begun."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from foredraft.errors import UsageError
from foredraft.server.service import Service
from foredraft.server.settings import ServeOptions

KEEP_ALIVE_S = 75  # that a connection may be idle: longer than clients and balancers keep theirs
INTERRUPTED = 130  # exit code
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(options: ServeOptions) -> socket.socket:
    """The socket, before a model is loaded: so that a port that is taken is known at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        raise _no_listening(options, error) from None
    return bound


def _no_listening(options: ServeOptions, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(
        f"cannot listen at {options.host} port {options.port}: {reason}. Is another server there? Give "
        "another --port (0: any that is free) or --host."
    )


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Leaves signals to whoever runs it. The log is for what goes wrong."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="auto",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(app: FastAPI, bound: socket.socket) -> int:
    """Serve until a signal comes; the exit code."""
    try:
        bound.listen()
    except OSError as error:  # another one that was started at the same time was faster
        raise _no_listening(app.state.service.options, error) from None
    return asyncio.run(_run(app, bound))


async def _run(app: FastAPI, bound: socket.socket) -> int:
    service: Service = app.state.service
    server, loop = Server(app), asyncio.get_running_loop()
    told = asyncio.Event()

    def tell() -> None:
        if told.is_set():
            print("foredraft: interrupted", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
        told.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, tell)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    while not (server.started or serving.done()):
        await asyncio.sleep(0.01)
    print(f"foredraft: serving {service.name} at {url_of(bound)}", file=sys.stderr, flush=True)
    await asyncio.wait([serving, asyncio.create_task(told.wait())], return_when=asyncio.FIRST_COMPLETED)
    ended = serving.done() or await _drain(server, service)
    await serving
    return 0 if ended else 1


async def _drain(server: Server, service: Service) -> bool:
    """End what runs, refuse what comes, then stop; whether all came to its end in time."""
    running = service.bridge.state.running + service.bridge.state.waiting
    patience = service.options.drain_timeout
    print(
        f"foredraft: ending; {running} requests have {patience:g} s to end (a second signal ends at once)",
        file=sys.stderr,
        flush=True,
    )
    started = time.monotonic()
    ended = await service.bridge.drain(patience)
    if not ended:
        await service.bridge.close()
    service.stop_reading()
    # What is computed must still be read.
    server.config.timeout_graceful_shutdown = max(1, round(patience - (time.monotonic() - started)))
    server.should_exit = True
    return ended
