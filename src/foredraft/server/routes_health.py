"""`GET /health`, `/ready` and `/metrics`."""

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft.server.documents import Responses, StatusReply, failures
from foredraft.server.errors import JSON
from foredraft.server.service import service_of

router = APIRouter()
STATUS: Responses = {200: {"model": StatusReply}, 503: {"model": StatusReply}}


@router.get("/health", responses=STATUS, response_model=None)
async def health(http: HttpRequest) -> Response:
    """Whether the process lives, and its engine; if not, start it anew."""
    alive = service_of(http).bridge.state.alive
    return JSON({"status": "ok" if alive else "dead"}, 200 if alive else 503)


@router.get("/ready", responses=STATUS, response_model=None)
async def ready(http: HttpRequest) -> Response:
    """Whether requests are taken; if not, send them elsewhere."""
    state = service_of(http).bridge.state
    status = "dead" if not state.alive else "draining" if state.draining else "ready"
    return JSON({"status": status}, 200 if status == "ready" else 503)


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **failures(401)},
    response_class=Response,
    response_model=None,
)
async def metrics(http: HttpRequest) -> Response:
    """For Prometheus."""
    data, kind = service_of(http).metrics.render()
    return Response(data, headers={"Content-Type": kind})
