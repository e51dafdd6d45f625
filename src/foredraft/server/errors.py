"""What goes wrong, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import logging
import re
from collections.abc import Container, Mapping
from typing import Any

from starlette.responses import Response

from foredraft.errors import (
    ClosedError,
    ContextError,
    ForedraftError,
    OutOfMemoryError,
    QueueFullError,
    TemplateError,
    TokenError,
    UsageError,
)
from foredraft.server.field_error import FieldError
from foredraft.server.sse import encode

log = logging.getLogger(__name__)
TOO_LONG = "context_length_exceeded"
GONE = 499  # status of a request whose client is not there any more: for the metrics, nobody sees it
_NAMED = re.compile(r"[a-z_]+")


class ApiError(Exception):
    """A reply that is an error. `param` is the field to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        return JSON(self.body, self.status, self.headers)


class JSON(Response):
    """A reply of JSON, in ASCII: a client that guesses the encoding guesses right."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encode(content).encode()


def api_error(
    error: ForedraftError, fields: Container[str] = (), prompt: str | None = None, retry_after: int = 1
) -> ApiError:
    """The reply to a request that was refused before it ran. To blame is the field that the error names, or
    that of `fields` which its message begins with, or `prompt`, the one that has the prompt.
    """
    message = str(error)
    if isinstance(error, QueueFullError | ClosedError):
        full = isinstance(error, QueueFullError)
        status, code = (429, "queue_full") if full else (503, "shutting_down")
        return ApiError(status, message, code=code, headers={"Retry-After": str(retry_after)})
    if isinstance(error, UsageError | TokenError | TemplateError | ContextError):
        first = _NAMED.match(message)
        param = first[0] if first and first[0] in fields else None
        if isinstance(error, FieldError):
            param = error.param
        elif param is None and (isinstance(error, ContextError | TemplateError) or "the prompt" in message):
            param = prompt
        return ApiError(400, message, param=param, code=TOO_LONG if isinstance(error, ContextError) else None)
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, message, code="out_of_memory")
    return ApiError(500, message, code="internal_error")


def failure(error: Exception) -> ApiError:
    """The reply to a request that ran into this."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ClosedError | UsageError):
        return api_error(error)
    if isinstance(error, ContextError | OutOfMemoryError):
        return ApiError(503, str(error), code="out_of_memory", headers={"Retry-After": "1"})
    if isinstance(error, ForedraftError):
        return ApiError(500, str(error), code="internal_error")
    log.error("a request failed", exc_info=error)
    return ApiError(
        500, "the server failed; what it said about it is on its standard error", code="internal_error"
    )
