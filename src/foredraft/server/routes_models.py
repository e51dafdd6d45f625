"""`GET /v1/models`, `/v1/models/{id}` and `/version`."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft import __version__
from foredraft.server.documents import ModelList, ModelReply, VersionReply, failures
from foredraft.server.errors import JSON
from foredraft.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models", responses={200: {"model": ModelList}, **failures(401)}, response_model=None)
async def models(http: HttpRequest) -> Response:
    """The names of the model."""
    service = service_of(http)
    return JSON({"object": "list", "data": [_entry(service, name) for name in service.options.names]})


@router.get(
    "/v1/models/{name:path}",
    responses={200: {"model": ModelReply}, "4XX": failures(400)[400]},
    response_model=None,
)
async def model(http: HttpRequest, name: str) -> Response:
    """One of them."""
    service = service_of(http)
    service.check_model(name)
    return JSON(_entry(service, name))


@router.get("/version", responses={200: {"model": VersionReply}, **failures(401)}, response_model=None)
async def version() -> Response:
    """Of foredraft."""
    return JSON({"version": __version__})


def _entry(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "foredraft",
        "root": service.name,
        "max_model_len": service.llm.ctx,
    }
