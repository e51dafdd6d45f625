"""What the server says of itself in its OpenAPI document: which bodies it takes, what it answers. Nothing is
checked against these models while it runs; tests see to it that they tell the truth.
"""

from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"
ID_FIELDS = {"prompt", "stop_token_ids", "tokens"}
BEARER = {"bearer": {"type": "http", "scheme": "bearer"}}


class ErrorParts(BaseModel):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    error: ErrorParts


class CachedTokens(BaseModel):
    cached_tokens: int


class PredictedTokens(BaseModel):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: PredictedTokens | None = None


class DrafterReply(BaseModel):
    drafted: int
    accepted: int
    seconds: float


class SpeculationReply(BaseModel):
    drafter: str
    k: int | None
    rule: Literal["match", "ratio", "block"]
    rounds: int
    drafted: int
    accepted: int
    acceptance: float | None
    tokens_per_round: float | None
    draft_s: float
    verify_s: float
    by_drafter: dict[str, DrafterReply]


class Timings(BaseModel):
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float | None
    cache_n: int
    draft_n: int
    draft_n_accepted: int


class FunctionCall(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class MessageReply(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None


class NamedLogprob(BaseModel):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprobReply(NamedLogprob):
    top_logprobs: list[NamedLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprobReply]


class ChatChoice(BaseModel):
    index: int
    message: MessageReply
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class AnswerReply(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    speculation: SpeculationReply
    timings: Timings


class ChatReply(AnswerReply):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionReply(AnswerReply):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelReply(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelReply]


class TokenizeReply(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeReply(BaseModel):
    prompt: str
    content: str


class TemplateReply(BaseModel):
    prompt: str


class StatusReply(BaseModel):
    status: Literal["ok", "ready", "draining", "dead"]


class VersionReply(BaseModel):
    version: str


Responses = dict[int | str, dict[str, Any]]


def failures(*statuses: int) -> Responses:
    return {status: {"model": ErrorReply} for status in statuses}


def answers_with(reply: type[BaseModel]) -> Responses:
    """The responses of a route that generates."""
    streamed: dict[str, Any] = {"text/event-stream": {}}
    return {
        200: {"model": reply, "content": streamed, "description": "The reply, or with stream its chunks."},
        **failures(400, 401, 404, 413, 415, 429, 500, 503, 504),
    }


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """The body of a route that reads it itself."""
    schema = {"$ref": REF.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(
    app: FastAPI, bodies: list[type[BaseModel]], names: tuple[str, ...], vocab: int, guarded: bool
) -> None:
    """Complete the application's document: its bodies, the model's names and tokens, the key."""
    document = app.openapi()
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=REF)
    defined: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    defined.update(schemas["$defs"])
    for body in bodies:
        fields = defined[body.__name__]["properties"]
        _name_models(fields["model"], names)
        for name in ID_FIELDS & fields.keys():
            _bound_ids(fields[name], vocab)
    if guarded:
        document["components"]["securitySchemes"] = BEARER
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path in ("/health", "/ready") else [{"bearer": []}]


def _name_models(schema: dict[str, Any], names: tuple[str, ...]) -> None:
    for one in schema.get("anyOf", [schema]):
        if one.get("type") == "string":
            one["enum"] = list(names)


def _bound_ids(schema: dict[str, Any], vocab: int) -> None:
    """No whole number in it is beyond the vocabulary."""
    if schema.get("type") == "integer":
        schema["maximum"] = vocab - 1
    for inner in [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]:
        _bound_ids(inner, vocab)
