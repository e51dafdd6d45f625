"""The body of `/v1/completions`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from foredraft.server.errors import ApiError
from foredraft.server.fields import (
    IDLE_IN_COMPLETIONS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    Count,
    Shared,
    TokenIds,
)

DEFAULT_MOST = 16
Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]
Ids = Annotated[TokenIds, Field(min_length=1)]
Prompt = (
    Annotated[str, Field(min_length=1)]
    | Texts
    | Ids
    | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
)


class CompletionBody(Shared):
    IDLE: ClassVar[Mapping[str, tuple[object, ...]]] = IDLE_IN_COMPLETIONS

    prompt: Prompt
    max_tokens: Count | None = Field(None, description="16 if not given; 0 only with echo.")
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="So many answers, of which the n likeliest per token are given. Not with stream."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | Literal[False] | None = None
    echo: bool | None = None

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(
                400, "max_tokens is 0, but must be 1 or more, except with echo", param="max_tokens"
            )
        if self.best_of is not None and self.best_of < (self.n or 1):
            message = f"best_of is {self.best_of}, but must not be less than n, which is {self.n}"
            raise ApiError(400, message, param="best_of")
        if self.best_of is not None and self.best_of > (self.n or 1) and self.streams:
            raise ApiError(400, "best_of picks among whole answers: it cannot be streamed", param="best_of")

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One or more."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        return [prompt] if isinstance(prompt[0], int) else prompt

    @property
    def most(self) -> int:
        return DEFAULT_MOST if self.max_tokens is None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens go with each one; None: no logprobs."""
        return None if self.logprobs is None or self.logprobs is False else self.logprobs
