"""HTTP/1.1 and server-sent events over plain sockets, as light as the standard library allows: the client of
`foredraft bench --serve` runs on the cores that it measures.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from foredraft.errors import MeasurementError

Trouble = Callable[[str], MeasurementError]
READ_BYTES = 1 << 16
PATIENCE_S = 600.0  # without a byte: 32 long prompts may be before ours


class Unchunked:
    """Takes a body with chunked transfer's framing, in reads of any size, and gives it without."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0  # bytes of the chunk that has begun, its line end included
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        self._held += data
        parts = []
        while self._held and not self.ended:
            if not self._left:
                line, found, rest = self._held.partition(b"\r\n")
                if not found:
                    break
                size = int(line.partition(b";")[0], 16)
                self._held, self._left, self.ended = rest, size + 2, size == 0
                continue
            part = self._held[: self._left]
            parts.append(part[: max(0, self._left - 2)])
            self._held = self._held[len(part) :]
            self._left -= len(part)
        return b"".join(parts)


class Events:
    """Takes server-sent events in reads of any size, and gives the data of those that are whole."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, body: bytes) -> list[bytes]:
        *whole, self._held = (self._held + body).replace(b"\r\n", b"\n").split(b"\n\n")
        return [data for event in whole if (data := _data(event))]


def _data(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


@dataclass(frozen=True)
class Head:
    status: int
    chunked: bool

    @classmethod
    def parse(cls, text: bytes) -> "Head":
        status, *fields = text.decode("latin-1").lower().split("\r\n")
        named = dict(field.replace(" ", "").partition(":")[::2] for field in fields if field)
        return cls(int(status.split()[1]), named.get("transfer-encoding") == "chunked")


@dataclass(frozen=True)
class Http:
    """One server, asked on a connection for each request. `trouble` makes an error that tells how it is."""

    host: str
    port: int
    trouble: Trouble

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self._asked("GET", path, b"") as (head, reader):
            return head.status, await _rest(head, reader)

    async def post(self, path: str, body: object) -> dict[str, object]:
        """The answer of a request that is not streamed, which must succeed."""
        async with self._asked("POST", path, json.dumps(body).encode()) as (head, reader):
            text = await _rest(head, reader)
            if head.status != 200:
                raise self._refused(path, head, text)
            answer: dict[str, object] = json.loads(text)
            return answer

    async def stream(self, path: str, body: object) -> AsyncIterator[tuple[float, list[bytes]]]:
        """When something came, and the data of the events in it. Leaving early closes the connection."""
        async with self._asked("POST", path, json.dumps(body).encode()) as (head, reader):
            if head.status != 200:
                raise self._refused(path, head, await _rest(head, reader))
            unchunked, events = Unchunked(), Events()
            while data := await _read(reader):
                now = time.perf_counter()
                if found := events.feed(unchunked.feed(data) if head.chunked else data):
                    yield now, found
                if unchunked.ended:
                    return
            if head.chunked:
                raise ConnectionResetError("the stream broke off")

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: bytes
    ) -> AsyncIterator[tuple[Head, asyncio.StreamReader]]:
        """The head of the answer, and the rest to be read. What goes wrong with the connection is trouble."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(
                    f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                async with asyncio.timeout(PATIENCE_S):
                    head = Head.parse(await reader.readuntil(b"\r\n\r\n"))
                yield head, reader
            finally:
                writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            raise self.trouble(f"{method} {path} failed: {error or type(error).__name__}") from error

    def _refused(self, path: str, head: Head, text: bytes) -> MeasurementError:
        return self.trouble(f"{path} was answered with {head.status}: {text.decode(errors='replace')[:300]}")


async def _read(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read(READ_BYTES)


async def _rest(head: Head, reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        data = await reader.read()
    return Unchunked().feed(data) if head.chunked else data
