"""What all routes share: the model, the engine's bridge, and what every request goes through."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from foredraft import __version__
from foredraft.core.constraint import Constraint
from foredraft.engine.drafting import MODEL, Drafting
from foredraft.engine.llm import LLM
from foredraft.engine.request import Request
from foredraft.errors import ClosedError, QueueFullError
from foredraft.server.bridge import Bridge, Flow
from foredraft.server.errors import GONE, ApiError, api_error
from foredraft.server.fields import Shared
from foredraft.server.metrics import Metrics
from foredraft.server.parsing import B, parse
from foredraft.server.replies import TokenTexts
from foredraft.server.request_log import RequestLog
from foredraft.server.settings import ServeOptions
from foredraft.server.structured import Grammars, spec_of
from foredraft.server.tools.grammar_source import ToolGrammar
from foredraft.server.traces import Traces
from foredraft.server.writer import Asked

INLINE = 16 << 10  # bytes of a body that the event loop works on itself

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Service:
    """Of one application."""

    llm: LLM
    options: ServeOptions
    bridge: Bridge
    metrics: Metrics
    grammars: Grammars
    texts: TokenTexts
    log: RequestLog | None
    traces: Traces | None
    created: int  # Unix time
    reading: set[asyncio.Task[Any]] = field(default_factory=set)  # those that wait for a request's body

    @property
    def name(self) -> str:
        return self.options.names[0]

    @property
    def fingerprint(self) -> str:
        """Of what decides the text, as far as the server knows it."""
        known = f"{__version__} {self.llm.name} {self.llm.target.vocab} {self.llm.ctx}"
        return "fp_" + hashlib.sha256(known.encode("utf-8", "surrogateescape")).hexdigest()[:10]

    @property
    def models(self) -> frozenset[str]:
        """The draft models that are loaded, as drafters are named."""
        names = self.llm.roster.names(self.llm.drafting)
        return frozenset(name for name in names if name.startswith(MODEL))

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.options.names:
            there = ", ".join(map(repr, self.options.names))
            raise ApiError(
                404,
                f"there is no model {name[:200]!r} here; there is {there}",
                param="model",
                code="model_not_found",
            )

    def check_open(self) -> None:
        if self.bridge.state.draining:
            raise self._closed()

    def stop_reading(self) -> None:
        """Wait no longer for bodies that may never come: the server ends."""
        for task in self.reading:
            task.cancel()

    def check_answers(self, count: int) -> None:
        """Refuse more answers than there can be, before anything is done for each of them."""
        if count > self.bridge.capacity:
            raise ApiError(
                400,
                f"{count} answers are asked for at once (prompts times n), but the server takes "
                f"{self.bridge.capacity}; ask in several requests",
                param="n",
            )

    async def read(self, http: HttpRequest, kind: type[B]) -> tuple[B, int]:
        """The body, and its size in bytes."""
        media = http.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
            raise ApiError(
                415,
                f"Content-Type is {media[:80]!r}, but must be application/json",
                code="unsupported_media_type",
            )
        data = await self._read_bytes(http)
        return parse(kind, data), len(data)

    async def _read_bytes(self, http: HttpRequest) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self.reading.add(task)
        try:
            return await read_bytes(http, self.options.max_body_bytes)
        except asyncio.CancelledError:
            raise self._closed() from None
        finally:
            self.reading.discard(task)

    def _closed(self) -> ApiError:
        return ApiError(
            503,
            "the server is ending and takes no more requests; try another one",
            code="shutting_down",
            headers={"Retry-After": str(self.bridge.retry_after)},
        )

    async def work(self, size: int, job: Callable[[], T]) -> T:
        """What takes long for a long body is done on a thread, so that others' chunks go on."""
        return job() if size <= INLINE else await asyncio.to_thread(job)

    def submit(
        self,
        reply_id: str,
        route: str,
        requests: Sequence[Request],
        drafting: Drafting | None,
        arrived: float,
    ) -> Flow:
        """Hand requests to the engine."""
        names = [f"{reply_id}-{index}" for index in range(len(requests))]
        if self.traces is not None:
            requests = [
                replace(request, trace=self.traces.open(name))
                for request, name in zip(requests, names, strict=True)
            ]
        timeout = self.options.request_timeout
        if timeout is not None:
            timeout -= time.perf_counter() - arrived
        try:
            flow = self.bridge.submit(requests, drafting, timeout)
        except (QueueFullError, ClosedError) as error:
            raise api_error(error, retry_after=self.bridge.retry_after) from None
        for ticket, name in zip(flow.tickets, names, strict=True):
            if self.log is not None:
                self.log.name(ticket, name, route)
            if self.traces is not None:
                flow.at_end(partial(self.traces.close, name))
        return flow

    def asked(
        self,
        reply_id: str,
        body: Shared,
        prompt_tokens: int,
        per_prompt: int,
        drafting: Drafting | None,
    ) -> Asked:
        """What a reply says of its request."""
        return Asked(
            id=reply_id,
            created=int(time.time()),
            body=body,
            fingerprint=self.fingerprint,
            prompt_tokens=prompt_tokens,
            per_prompt=per_prompt,
            drafting=drafting or self.llm.drafting,
        )

    async def constraints(
        self, body: Shared, forced: ToolGrammar | None, has_tools: bool
    ) -> Callable[[], Constraint | None]:
        """Makes what each answer must obey: tool calls that are `forced`, or the grammar of the body."""
        spec = spec_of(body.response_format, body.grammars)
        if spec is not None and has_tools:
            raise ApiError(
                400,
                "a grammar (response_format, guided_* or the like) and tools exclude each other: an answer "
                'cannot be both; leave one out, or set tool_choice to "none"',
                param="tool_choice",
            )
        source = forced or spec
        return _free if source is None else await asyncio.to_thread(self.grammars.compile, source)


async def read_bytes(http: HttpRequest, limit: int) -> bytes:
    """The body, if it is not larger than that, and comes to its end."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in http.stream():
            size += len(part)
            if size > limit:
                raise ApiError(
                    413,
                    f"the body has more than {limit} bytes; send less, or start the server with a larger "
                    "--max-body-bytes",
                    code="body_too_large",
                )
            parts.append(part)
    except ClientDisconnect:
        raise ApiError(GONE, "the client went away before its request was complete") from None
    return b"".join(parts)


def _free() -> None:
    """Anything may follow."""


def service_of(http: HttpRequest) -> Service:
    service: Service = http.app.state.service
    return service
