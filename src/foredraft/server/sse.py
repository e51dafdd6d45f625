"""Server-sent events: what all chunks of a stream share is encoded once, each chunk's own part once."""

import json
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
# ASCII only: some clients take U+2028 for the end of a line, and of the event.
encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Frame:
    """Around the choices of all chunks."""

    def __init__(self, shared: Mapping[str, object]) -> None:
        self._head = f'data: {encode(shared)[:-1]},"choices":['

    def chunk(self, choice: Mapping[str, object] | None, rest: str = "") -> bytes:
        """An event with one choice, or none; `rest` are further members, encoded, each after a comma."""
        inner = "" if choice is None else encode(choice)
        return f"{self._head}{inner}]{rest}}}\n\n".encode("ascii")


def event(value: object) -> bytes:
    return f"data: {encode(value)}\n\n".encode("ascii")


class EventStream(Response):
    """A reply of events. `close` is called when it is over, however it ends: also when nobody reads."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()
