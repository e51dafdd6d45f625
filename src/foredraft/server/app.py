"""The application: routes around one model and its engine."""

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TextIO

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft import __version__
from foredraft.engine.llm import LLM
from foredraft.engine.observer import Observer
from foredraft.errors import ForedraftError, UsageError
from foredraft.server import routes_chat, routes_completions, routes_health, routes_models, routes_tokens
from foredraft.server.bridge import Bridge
from foredraft.server.chat_body import ChatBody, TemplateBody
from foredraft.server.completion_body import CompletionBody
from foredraft.server.documents import describe
from foredraft.server.errors import ApiError, api_error
from foredraft.server.guard import Guard
from foredraft.server.metrics import Metrics
from foredraft.server.observers import Observers
from foredraft.server.replies import TokenTexts
from foredraft.server.request_log import RequestLog
from foredraft.server.routes_tokens import DetokenizeBody, TokenizeBody
from foredraft.server.service import Service
from foredraft.server.settings import STDERR, ServeOptions
from foredraft.server.structured import Grammars
from foredraft.server.traces import Traces

BODIES: list[type[BaseModel]] = [ChatBody, CompletionBody, TemplateBody, TokenizeBody, DetokenizeBody]
FIELDS = frozenset(name for body in BODIES for name in body.model_fields)
ROUTES = (routes_chat, routes_completions, routes_models, routes_tokens, routes_health)


def build_app(llm: LLM, options: ServeOptions) -> FastAPI:
    """Around a model that is loaded; nobody else may use it meanwhile. The engine runs while the application
    does.
    """
    metrics = Metrics(options.names[0], llm.roster.names(llm.drafting))
    stream = None if options.request_log is None else _open_log(options.request_log)
    log = None if stream is None else RequestLog(stream)
    observers: list[Observer] = [metrics, *([] if log is None else [log])]
    service = Service(
        llm=llm,
        options=options,
        bridge=Bridge(llm, options.engine, Observers(observers)),
        metrics=metrics,
        grammars=Grammars(llm),
        texts=TokenTexts(llm.tokenizer),
        log=log,
        traces=None if options.trace_dir is None else Traces(options.trace_dir),
        created=int(time.time()),
    )
    metrics.watch(lambda: service.bridge.state)
    app = FastAPI(
        title="foredraft",
        version=__version__,
        summary="OpenAI's interface to one model",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_running(service, stream),
    )
    app.state.service = service
    for routes in ROUTES:
        app.include_router(routes.router)
    describe(app, BODIES, options.names, llm.target.vocab, guarded=bool(options.api_keys))
    _answer_errors(app)
    app.add_middleware(Guard, keys=options.api_keys, metrics=metrics)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app


def _running(
    service: Service, stream: TextIO | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.bridge.start()
        try:
            yield
        finally:
            await service.bridge.close()
            if service.log is not None:
                service.log.close()
            if stream is not None and stream is not sys.stderr:
                with suppress(OSError):  # what could not be written was reported
                    stream.close()
            if service.traces is not None:
                service.traces.finish()

    return lifespan


def _open_log(name: str) -> TextIO:
    if name == STDERR:
        return sys.stderr
    try:
        return Path(name).open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the log of requests {name!r} cannot be written: {error.strerror or error}. Give a file that "
            "can be written to, or - for standard error."
        ) from None


def _answer_errors(app: FastAPI) -> None:
    there = ", ".join(
        f"{method} {route.path_format}"
        for routes in ROUTES
        for route in routes.router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
    )

    @app.exception_handler(ApiError)
    async def known(_: HttpRequest, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(ForedraftError)
    async def refused(http: HttpRequest, error: ForedraftError) -> Response:
        prompt = "prompt" if http.url.path == routes_completions.PATH else "messages"
        return api_error(error, FIELDS, prompt).response()

    @app.exception_handler(HTTPException)
    async def unrouted(http: HttpRequest, error: HTTPException) -> Response:
        what = f"{http.method} {http.url.path}"
        if error.status_code == 404:
            message, code = f"there is no {what[:200]} here; there are {there}", "unknown_url"
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message, code = f"{what[:200]} is not allowed; {allowed} is", "method_not_allowed"
        else:
            message, code = str(error.detail), "http_error"
        return ApiError(error.status_code, message, code=code, headers=error.headers).response()
