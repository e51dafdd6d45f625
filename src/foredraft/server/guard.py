"""Around all routes: who may ask, what a request is called, how it went."""

import hmac
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.server.errors import ApiError, failure
from foredraft.server.metrics import Metrics

OPEN = ("/health", "/ready")  # for those that watch over the process, and have no key
SOUND_ID = re.compile(r"[!-~]{1,128}")
OTHER = "other"  # route of what matches none


class Guard:
    """An ASGI application around another. Without keys everyone may ask."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], metrics: Metrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.perf_counter()
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        name = asked if SOUND_ID.fullmatch(asked) else f"req_{uuid.uuid4().hex}"
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            if scope["path"] not in OPEN and not self._knows(headers.get("authorization", "")):
                await _refusal().response()(scope, receive, named)
            else:
                await self._app(scope, receive, named)
        except Exception as error:
            if status:
                raise
            await failure(error).response()(scope, receive, named)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            self._metrics.observe_http(route, status or 500, time.perf_counter() - started)

    def _knows(self, authorization: str) -> bool:
        """Takes the same time for every wrong key of a length."""
        if not self._keys:
            return True
        scheme, _, given = authorization.partition(" ")
        matches = [hmac.compare_digest(given.strip().encode("latin-1"), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


def _refusal() -> ApiError:
    return ApiError(
        401,
        "the API key is missing or wrong; send one of the server's keys as Authorization: Bearer KEY",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
