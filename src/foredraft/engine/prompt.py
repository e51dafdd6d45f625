"""From what a caller calls a prompt to token ids: a text, messages, or ids already."""

import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex, TypeGuard

import numpy as np
import numpy.typing as npt

from foredraft.errors import TokenError, UsageError
from foredraft.models.chat import ChatTemplate, Message
from foredraft.models.tokenizer import Tokenizer

Prompt = str | Sequence[Message] | Sequence[int] | npt.NDArray[np.integer]
Prompts = list[str] | list[list[Message]] | list[list[int]]


def is_many(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    """A list of texts or of lists is a list of prompts; one of messages or ids is a single prompt."""
    return (
        isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list | tuple | np.ndarray)
    )


class Prompter:
    """Reads prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._vocab = vocab

    def encode(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """The ids of a prompt: one at least, all of them in the vocabulary."""
        if isinstance(prompt, str):
            return self._text(prompt, raw)
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
            raise UsageError(
                f"a prompt is a text, a list of messages or a list of token ids, not {prompt!r:.80}"
            )
        if not len(prompt):
            raise empty_prompt()
        if isinstance(prompt[0], Mapping):
            if raw:
                raise UsageError(
                    "raw asks for a text to be continued, but messages need the chat template; leave raw out"
                )
            return self._messages(
                [message for message in prompt if isinstance(message, Mapping)], len(prompt)
            )
        return [self._checked(index, token) for index, token in enumerate(prompt)]

    def _text(self, text: str, raw: bool) -> list[int]:
        if not text:
            raise empty_prompt()
        if raw or not self._template.templates:
            return self._tokenizer.encode(text, special=True, bos=True)
        return self._messages([{"role": "user", "content": text}], 1)

    def _messages(self, messages: Sequence[Message], count: int) -> list[int]:
        if len(messages) != count:
            raise UsageError("a prompt mixes messages with something else; a message has a role and content")
        return self._tokenizer.encode(self._template.render(messages), special=True, bos=True)

    def _checked(self, index: int, token: object) -> int:
        number = None if isinstance(token, bool | np.ndarray) else _whole(token)
        if number is None:
            raise UsageError(f"item {index} of the prompt is {token!r:.80}, not a token id")
        if not 0 <= number < self._vocab:
            raise TokenError(
                f"token {number} (item {index} of the prompt) is outside the vocabulary, which ends at "
                f"{self._vocab - 1}. Do the ids come from another model?"
            )
        return number


def _whole(value: object) -> int | None:
    return operator.index(value) if isinstance(value, SupportsIndex) else None


def empty_prompt() -> UsageError:
    return UsageError("the prompt is empty; give at least one character, message or token id")
