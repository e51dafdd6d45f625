"""The body of `/v1/chat/completions`, and of those that only render messages."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from foredraft.server.errors import ApiError
from foredraft.server.fields import IDLE_IN_CHATS, MAX_LOGPROBS, Limit, Shared, Strict

TEXT = {"type": "string"}
NULL = {"type": "null"}


def _object(required: Mapping[str, object], **others: object) -> dict[str, Any]:
    """The schema of an object with these fields, and no other ones, except with null."""
    nullable = {name: {"anyOf": [schema, NULL]} for name, schema in others.items()}
    return {
        "type": "object",
        "properties": {**required, **nullable},
        "required": list(required),
        "additionalProperties": NULL,
    }


PARTS = {"type": "array", "minItems": 1, "items": _object({"type": {"const": "text"}, "text": TEXT})}
CONTENT = {"anyOf": [TEXT, PARTS]}
FUNCTION = _object({"name": TEXT, "arguments": TEXT})
CALL = _object({"id": TEXT, "function": FUNCTION}, type={"const": "function"})
CALLS = {"type": "array", "items": CALL}
ASSISTANT = {"const": "assistant"}
MESSAGE = {
    "anyOf": [
        _object({"role": {"enum": ["system", "developer", "user"]}, "content": CONTENT}, name=TEXT),
        _object({"role": {"const": "tool"}, "content": CONTENT, "tool_call_id": TEXT}, name=TEXT),
        _object({"role": ASSISTANT}, name=TEXT, content=CONTENT, tool_calls=CALLS, refusal=TEXT),
    ]
}
Message = Annotated[dict[str, Any], WithJsonSchema(MESSAGE)]
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class TemplateBody(Strict):
    """What goes through the chat template."""

    model: str | None = None
    messages: Messages
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = Field(None, description="true if not given.")
    continue_final_message: bool | None = Field(None, description="The answer goes on with the last message.")


class ChatBody(Shared):
    IDLE: ClassVar[Mapping[str, tuple[object, ...]]] = IDLE_IN_CHATS

    messages: Messages
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = Field(None, description="The same; the smaller one holds.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="With logprobs."
    )
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the chat template.")
    add_generation_prompt: bool | None = Field(None, description="true if not given.")
    continue_final_message: bool | None = Field(None, description="The answer goes on with the last message.")

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs is given, but logprobs is not true", param="top_logprobs")

    def most(self, context: int) -> int:
        """How many tokens the answer may have; as many as fit if that is not said."""
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(limits, default=context)

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens go with each one; None: no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None
