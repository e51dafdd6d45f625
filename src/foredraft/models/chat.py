"""Chat templates: messages to the text that a model was trained on.

A model file carries its template, at times several by name. They are rendered as Transformers renders them,
with the same options, filters and functions; `sandbox.py` says what keeps a hostile one in bounds. The
tokenizer must read the result with `special=True`.
"""

import json
import types
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2

from foredraft.errors import TemplateError
from foredraft.models.gguf import GGUFFile, Value
from foredraft.models.sandbox import BoundedEnvironment
from foredraft.models.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"
TOOL_USE = "tool_use"  # the variant that Transformers takes when there are tools
MISTAKES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

Message = Mapping[str, object]


class ChatTemplate:
    """The templates of a model, compiled when first used. Safe to use from several threads."""

    def __init__(self, templates: Mapping[str, str], *, bos_token: str = "", eos_token: str = "") -> None:
        """`templates` by name; the usual one is called "default"."""
        self.templates = dict(templates)
        self.tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled: dict[str, types.CodeType] = {}

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, tokenizer: Tokenizer) -> "ChatTemplate":
        return cls.from_metadata(gguf.metadata, tokenizer)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Value], tokenizer: Tokenizer) -> "ChatTemplate":
        templates: dict[str, str] = {}
        for key, value in metadata.items():
            if key == KEY or key.startswith(KEY + "."):
                if not isinstance(value, str):
                    raise TemplateError(f"{key} is not a text: the model file is corrupt")
                templates[key[len(KEY) + 1 :] or "default"] = value
        texts = [
            "" if index is None else _text(tokenizer, index) for index in (tokenizer.bos_id, tokenizer.eos_id)
        ]
        return cls(templates, bos_token=texts[0], eos_token=texts[1])

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variant: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The conversation as text, by default with the beginning of the answer.

        `variables` are the template's own switches.
        """
        _check_messages(messages)
        name = self._choose(variant, tools)
        given = {
            **(variables or {}),
            **self.tokens,
            "messages": [dict(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _environment().render(self._code(name), given)
        except MISTAKES as error:
            raise TemplateError(
                f"the chat template {name!r} fails on these messages: {_reason(error)}. Does it allow "
                "these roles in this order?"
            ) from error

    def _choose(self, variant: str | None, tools: Sequence[object] | None) -> str:
        if not self.templates:
            raise TemplateError(
                "the model has no chat template, as base models have none. Give the text to be continued "
                "as it is (run --raw)."
            )
        name = variant or (TOOL_USE if tools and TOOL_USE in self.templates else "default")
        if name not in self.templates:
            raise TemplateError(
                f"the model has no chat template {name!r}; it has "
                f"{', '.join(map(repr, sorted(self.templates)))}"
            )
        return name

    def _code(self, name: str) -> types.CodeType:
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().compile_bounded(self.templates[name])
            except MISTAKES as error:
                raise TemplateError(f"the chat template {name!r} is broken: {_reason(error)}") from error
        return self._compiled[name]


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment()
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: Jinja2's own filter would escape <, >, & and quotes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _check_messages(messages: Sequence[Message]) -> None:
    if isinstance(messages, str | bytes | Mapping) or not messages:
        raise TemplateError("messages must be a non-empty list of objects with a role and content")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TemplateError(
                f"message {number} is {str(message)[:80]!r}; an object with a role (system, user, "
                "assistant) is expected"
            )


def _reason(error: BaseException) -> str:
    line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"{str(error).rstrip('.') or type(error).__name__}{line}"
