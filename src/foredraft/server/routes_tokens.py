"""`POST /tokenize`, `/detokenize` and `/apply-template`: what the model sees, without asking it."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft.server.chat_body import Messages, TemplateBody
from foredraft.server.documents import DetokenizeReply, TemplateReply, TokenizeReply, failures, takes
from foredraft.server.errors import JSON, ApiError
from foredraft.server.fields import Strict, TokenIds
from foredraft.server.routes_chat import render
from foredraft.server.service import Service, service_of

router = APIRouter()
FAILURES = failures(400, 401, 404, 413, 415)


def _one_of(schema: dict[str, Any]) -> None:
    names = ("prompt", "content", "messages")
    fields = schema["properties"]
    schema["oneOf"] = [
        {
            "required": [one],
            "properties": {name: fields[name]["anyOf"][name != one] for name in names},
        }
        for one in names
    ]


class TokenizeBody(Strict):
    """One of `prompt`, `content` (another name of it) and `messages`."""

    model_config = ConfigDict(json_schema_extra=_one_of)

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Messages | None = None
    tools: list[dict[str, Any]] | None = Field(None, description="With messages.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="With messages.")
    add_generation_prompt: bool | None = Field(None, description="With messages; true if not given.")
    add_special_tokens: bool | None = Field(
        None, description="Whether a text begins as the model wants it; true if not given."
    )
    return_token_strs: bool | None = None


class DetokenizeBody(Strict):
    model: str | None = None
    tokens: Annotated[TokenIds, Field()]


@router.post(
    "/tokenize",
    responses={200: {"model": TokenizeReply}, **FAILURES},
    response_model=None,
    openapi_extra=takes(TokenizeBody),
)
async def tokenize(http: HttpRequest) -> Response:
    """The ids of a text, or of messages in the chat template."""
    service = service_of(http)
    body, size = await service.read(http, TokenizeBody)
    service.check_model(body.model)
    ids = await service.work(size, partial(_ids, service, body))
    return JSON(
        {
            "count": len(ids),
            "max_model_len": service.llm.ctx,
            "tokens": ids,
            "token_strs": [service.texts.chat(token)[0] for token in ids] if body.return_token_strs else None,
        }
    )


@router.post(
    "/detokenize",
    responses={200: {"model": DetokenizeReply}, **FAILURES},
    response_model=None,
    openapi_extra=takes(DetokenizeBody),
)
async def detokenize(http: HttpRequest) -> Response:
    """The text of ids, control tokens by their names."""
    service = service_of(http)
    body, size = await service.read(http, DetokenizeBody)
    service.check_model(body.model)
    for token in body.tokens:
        if token >= service.llm.tokenizer.vocab_size:
            raise ApiError(
                400,
                f"tokens has {token}, but the vocabulary ends at {service.llm.tokenizer.vocab_size - 1}",
                param="tokens",
            )
    text = await service.work(size, partial(service.llm.detokenize, body.tokens, special=True))
    return JSON({"prompt": text, "content": text})


@router.post(
    "/apply-template",
    responses={200: {"model": TemplateReply}, **FAILURES},
    response_model=None,
    openapi_extra=takes(TemplateBody),
)
async def apply_template(http: HttpRequest) -> Response:
    """Messages as the text that the model would get."""
    service = service_of(http)
    body, size = await service.read(http, TemplateBody)
    service.check_model(body.model)
    prompt = await service.work(size, partial(render, service, body))
    return JSON({"prompt": prompt.text})


def _ids(service: Service, body: TokenizeBody) -> list[int]:
    texts = [text for text in (body.prompt, body.content) if text is not None]
    if len(texts) + (body.messages is not None) != 1:
        raise ApiError(400, "give one of prompt, content and messages", param="prompt")
    if body.messages is None:
        return service.llm.tokenizer.encode(texts[0], special=True, bos=body.add_special_tokens is not False)
    names = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt")
    return render(service, TemplateBody(**{name: getattr(body, name) for name in names})).ids
