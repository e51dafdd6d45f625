"""The messages of a chat request, as OpenAI defines them, to the model's prompt."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from foredraft.engine.llm import LLM
from foredraft.errors import TemplateError, UsageError
from foredraft.models.chat import ChatTemplate
from foredraft.server.field_error import FieldError, fields_of, shown
from foredraft.server.tools.choose import choose_format
from foredraft.server.tools.format import Format
from foredraft.server.tools.grammar_source import ToolGrammar
from foredraft.server.tools.request import Tool, ToolRequest, read_tools
from foredraft.server.tools.stream import ToolParser
from foredraft.server.tools.turns import Call, Turn, for_template, uses_tools

T = TypeVar("T")

ROLES = ("system", "developer", "user", "assistant", "tool")
# What a message may have beside its role and content. What an assistant's reply comes with may be sent back
# as it is; it says nothing that the model should know.
COMMON = ("role", "content", "name")
ASSISTANT = (*COMMON, "tool_calls", "refusal", "annotations", "reasoning_content", "parsed")
TOOL = (*COMMON, "tool_call_id")
OTHER_PARTS = {
    "image_url": "an image",
    "input_image": "an image",
    "input_audio": "sound",
    "file": "a file",
    "video_url": "a video",
}


@dataclass(frozen=True)
class ChatPrompt:
    """`parser` reads the answer, where there are tools; `constraint_source` says what the answer must be,
    where one must be called. `visible` are control tokens that the parser has to see as text.
    """

    text: str
    ids: list[int]
    parser: ToolParser | None = None
    constraint_source: ToolGrammar | None = None
    visible: frozenset[int] = frozenset()


def render_messages(
    llm: LLM,
    body_messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] | None = None,
    tool_choice: str | Mapping[str, object] | None = None,
    parallel: bool = True,
    variables: Mapping[str, object] | None = None,
    add_generation_prompt: bool = True,
    continue_final: bool = False,
) -> ChatPrompt:
    """The prompt of a chat request; `FieldError` where a field is wrong.

    `variables` are the template's own switches. `continue_final` lets the answer go on with the last message,
    which is an assistant's; there is no new beginning of an answer then.
    """
    request = read_tools(tools, tool_choice, parallel)
    turns = read_messages(body_messages)
    if not llm.template.templates:
        raise FieldError(
            "the model has no chat template, as base models have none; use /v1/completions", "messages"
        )
    form = choose_format(llm.template) if request or uses_tools(turns) else None
    render = _Render(llm.template, form, request.tools if request else (), variables)
    try:
        text = render.continued(turns) if continue_final else render.whole(turns, add_generation_prompt)
        ids = llm.tokenizer.encode(text, special=True, bos=True)
    except FieldError:
        raise
    except (TemplateError, UsageError) as error:
        raise FieldError(str(error), "messages") from error
    except RecursionError:
        raise FieldError("a tool's schema is nested too deep", "tools") from None
    return _prompt(llm, text, ids, request, form)


def read_messages(messages: object) -> list[Turn]:
    """The messages of a request's body, checked."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise FieldError("messages must be a list with one message at least", "messages")
    return [_turn(message, f"messages[{number}]") for number, message in enumerate(messages)]


# Rendering


@dataclass(frozen=True)
class _Render:
    template: ChatTemplate
    form: Format | None
    tools: Sequence[Tool]
    variables: Mapping[str, object] | None

    def whole(self, turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        if self.form is None:
            messages, tools = [for_template(turn) for turn in turns], self.tools
        else:
            messages, tools = self.form.prepare(turns, self.tools)
        return self.template.render(
            messages,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            variables=self.variables,
        )

    def continued(self, turns: Sequence[Turn]) -> str:
        """The text up to where the last message ends. A mark that no message holds shows where."""
        last = turns[-1]
        if last.role != "assistant" or last.calls:
            raise FieldError(
                f"the last message is of the {last.role}{', with calls' if last.calls else ''}; only a text "
                "of the assistant can be continued",
                "continue_final_message",
            )
        mark = secrets.token_hex(16)
        marked = replace(last, content=last.content + mark)
        text, found, _ = self.whole([*turns[:-1], marked], add_generation_prompt=False).rpartition(mark)
        if not found:
            raise FieldError(
                "the chat template does not show the last message as it is, so it cannot be continued",
                "continue_final_message",
            )
        return text


def _prompt(
    llm: LLM, text: str, ids: list[int], request: ToolRequest | None, form: Format | None
) -> ChatPrompt:
    if request is None or form is None:
        return ChatPrompt(text, ids)
    return ChatPrompt(
        text,
        ids,
        ToolParser(request.names, request.many),
        form.grammar(request, llm.tokenizer) if request.forced else None,
        frozenset(token for _, token in form.control(llm.tokenizer)),
    )


# Reading


def _turn(message: object, path: str) -> Turn:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role == "function":
        raise FieldError(f'{path}.role is "function", which is obsolete; use "tool"', f"{path}.role")
    if role not in ROLES:
        raise FieldError(f"{path}.role is {shown(role)}; {', '.join(ROLES)} are known", f"{path}.role")
    if role == "assistant":
        return _assistant(fields_of(message, path, ASSISTANT), path)
    if role == "tool":
        fields = fields_of(message, path, TOOL)
        call_id = _text(fields.get("tool_call_id"), f"{path}.tool_call_id")
        return Turn("tool", _content(fields, path), call_id=call_id, more=_more(fields, path))
    fields = fields_of(message, path, COMMON)
    return Turn("user" if role == "user" else "system", _content(fields, path), more=_more(fields, path))


def _assistant(fields: Mapping[str, object], path: str) -> Turn:
    calls = tuple(_each(fields.get("tool_calls", ()), f"{path}.tool_calls", _call))
    content = _content(fields, path) if "content" in fields else ""
    refusal = _text(fields.get("refusal", ""), f"{path}.refusal")
    return Turn("assistant", content or refusal, calls, more=_more(fields, path))


def _more(fields: Mapping[str, object], path: str) -> Mapping[str, str]:
    names = ("name", "reasoning_content")
    return {name: _text(fields[name], f"{path}.{name}") for name in names if name in fields}


def _content(fields: Mapping[str, object], path: str) -> str:
    """The text of a message; parts are joined by line breaks."""
    content = fields.get("content")
    path += ".content"
    if isinstance(content, str):
        return content
    if not content or not isinstance(content, Sequence):
        raise FieldError(f"{path} is {shown(content)}; a text or a list of text parts is expected", path)
    kinds = ("text", "refusal") if fields["role"] == "assistant" else ("text",)
    return "\n".join(_each(content, path, lambda part, place: _part(part, place, kinds)))


def _part(part: object, path: str, kinds: Sequence[str]) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in kinds and isinstance(kind, str):
        fields = fields_of(part, path, ("type", kind, "prompt_cache_breakpoint"))
        return _text(fields.get(kind), f"{path}.{kind}")
    if isinstance(kind, str) and kind in OTHER_PARTS:
        raise FieldError(f"{path} is {OTHER_PARTS[kind]}, but the model reads text only", path)
    raise FieldError(f"{path} is of type {shown(kind)}; {' or '.join(kinds)} is expected", path)


def _call(call: object, path: str) -> Call:
    # `index` is there where a client has put the call together from a stream.
    fields = fields_of(call, path, ("id", "type", "function", "index"))
    if fields.get("type", "function") != "function":
        raise FieldError(
            f'{path}.type is {shown(fields["type"])}; only "function" is supported', f"{path}.type"
        )
    # `parsed_arguments` is what OpenAI's client has read the arguments to.
    function = fields_of(
        fields.get("function"), f"{path}.function", ("name", "arguments", "parsed_arguments")
    )
    return Call(
        _text(fields.get("id"), f"{path}.id"),
        _text(function.get("name"), f"{path}.function.name"),
        _text(function.get("arguments"), f"{path}.function.arguments"),
    )


def _each(items: object, path: str, read: Callable[[object, str], T]) -> Iterator[T]:
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise FieldError(f"{path} is {shown(items)}; a list is expected", path)
    for number, item in enumerate(items):
        yield read(item, f"{path}[{number}]")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise FieldError(f"{path} is {shown(value)}; a text is expected", path)
    return value
