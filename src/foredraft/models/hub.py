"""Fetches one file of the Hugging Face Hub over HTTPS, going on where an interrupted download stopped.

`HF_ENDPOINT` names another server with the same paths, `HF_HUB_OFFLINE` forbids the attempt; proxies are
taken from the environment as usual. A server that cannot be reached is given up after three seconds.
"""

import functools
import http.client
import os
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Protocol

from foredraft.errors import DownloadError, UsageError
from foredraft.models.partial import CHUNK_BYTES, Partial
from foredraft.models.registry import HubFile

ENDPOINT = "https://huggingface.co"
CONNECT_S = 3.0
READ_S = 30.0


class Progress(Protocol):
    """Whoever is told how a download gets on."""

    def note(self, text: str) -> None:
        """One line for the user."""

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` bytes."""


def fetch_from_hub(
    source: HubFile, partial: Partial, progress: Progress, connect_s: float = CONNECT_S
) -> None:
    """Append what is missing of the file; every try must bring some bytes, else `DownloadError`."""
    url = file_url(source)
    total = partial.entry.num_bytes
    while (before := partial.size) < total:
        cause = "the connection was closed"
        try:
            with _open(url, before, connect_s) as response:
                _check_answer(response, before, partial)
                partial.append(_chunks(response), progress.advance)
        except _ConnectionLostError as error:
            cause = str(error)
        if partial.size <= before:
            raise DownloadError(f"no data from {url}: {cause}")
        if partial.size < total:
            progress.note(f"{cause} after {partial.size} of {total} bytes, going on from there")


def file_url(source: HubFile) -> str:
    """The address of the file on the server that the environment names."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"):
        raise DownloadError("not asked, because HF_HUB_OFFLINE is set")
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    if urllib.parse.urlsplit(endpoint).scheme not in ("http", "https"):
        raise UsageError(
            f"HF_ENDPOINT is {endpoint!r}: expected an address that begins with https:// or http://"
        )
    path = urllib.parse.quote(f"{source.repo}/resolve/main/{source.file}")
    return f"{endpoint.rstrip('/')}/{path}"


class _ConnectionLostError(Exception):
    """The network failed while data was coming: what came is good, the rest can be asked for."""


def _open(url: str, start: int, connect_s: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "foredraft"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.build_opener(_Http, _Https).open(request, timeout=connect_s)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{url} answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        cause = str(reason) or type(reason).__name__
        raise DownloadError(f"{url} cannot be reached ({cause}): is this machine offline?") from error
    assert isinstance(response, http.client.HTTPResponse)  # the only kind that the two handlers make
    return response


def _check_answer(response: http.client.HTTPResponse, start: int, partial: Partial) -> None:
    """Make sure that the body continues our file; if it is sent from the beginning again, so do we begin."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        told = response.headers.get("Content-Range", "")
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", told)
        if span is None or int(span[1]) != start:
            raise DownloadError(f"asked for bytes from {start} on, the server sends {told or 'no range'!r}")
    else:
        start = 0
        partial.truncate(0)
    length = response.headers.get("Content-Length")
    if length is not None and start + int(length) != partial.entry.num_bytes:
        raise DownloadError(
            f"the file there has {start + int(length)} bytes, {partial.entry.name} has "
            f"{partial.entry.num_bytes}: it is another file"
        )


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            cause = str(error) or type(error).__name__
            raise _ConnectionLostError(f"the connection was lost ({cause})") from error
        if not chunk:
            return
        yield chunk


def _within(seconds: float, connect: Callable[[], None]) -> None:
    """Call `connect` in a thread that is not waited for longer.

    A socket's own timeout covers neither the look-up of the name nor a second address.
    """
    failures: list[Exception] = []

    def attempt() -> None:
        try:
            connect()
        except (OSError, http.client.HTTPException) as error:
            failures.append(error)

    thread = threading.Thread(target=attempt, name="foredraft-connect", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no connection within {seconds:g} s")
    if failures:
        raise failures[0]


class _HttpConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        _within(self.timeout or CONNECT_S, super().connect)
        self.sock.settimeout(READ_S)


class _HttpsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        _within(self.timeout or CONNECT_S, super().connect)
        self.sock.settimeout(READ_S)


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_HttpsConnection, context=ssl.create_default_context()), req)
