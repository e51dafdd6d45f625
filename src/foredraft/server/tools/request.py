"""The fields `tools`, `tool_choice` and `parallel_tool_calls` of a request."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from foredraft.server.field_error import FieldError, fields_of, shown

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Tool = Mapping[str, object]


@dataclass(frozen=True)
class ToolRequest:
    """What is shown to the model, what it may call, and whether it must.

    All tools are shown, also where only some may be called: so the prompt stays the same from one request to
    the next, and its cache. A tool's own `strict` cannot be kept where the model need not call.
    """

    tools: tuple[Tool, ...]
    schemas: tuple[tuple[str, Mapping[str, object]], ...]
    forced: bool
    many: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.schemas)


def read_tools(tools: object, choice: object, parallel: bool) -> ToolRequest | None:
    """None where the model is to know of no tools: there are none, or `tool_choice` is "none"."""
    offered = tuple(_tools(tools))
    schemas = dict(map(_schema, offered))
    names, forced, one = _chosen(choice, frozenset(schemas))
    if forced and not offered:
        raise FieldError(
            f"tool_choice is {shown(choice)}, but there are no tools to choose from", "tool_choice"
        )
    if not names:
        return None
    allowed = tuple((name, schema) for name, schema in schemas.items() if name in names)
    return ToolRequest(offered, allowed, forced, parallel and not one)


def _tools(tools: object) -> Iterator[Tool]:
    if tools is None:
        return
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise FieldError(f"tools is {shown(tools)}; a list of tools is expected", "tools")
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        checked = _tool(tool, f"tools[{number}]")
        name = _schema(checked)[0]
        if name in seen:
            path = f"tools[{number}].function.name"
            raise FieldError(f"{path} is {name!r}, as that of an earlier tool", path)
        seen.add(name)
        yield checked


def _tool(tool: object, path: str) -> Tool:
    """A tool in the form that templates know, all its fields there."""
    fields = fields_of(tool, path, ("type", "function"))
    if fields.get("type") != "function":
        raise FieldError(
            f'{path}.type is {shown(fields.get("type"))}; only "function" is supported', f"{path}.type"
        )
    path += ".function"
    function = fields_of(fields.get("function"), path, ("name", "description", "parameters", "strict"))
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise FieldError(
            f"{path}.name is {shown(name)}; 1 to 64 letters, digits, _ and - are expected", f"{path}.name"
        )
    description = function.get("description", "")
    if not isinstance(description, str):
        raise FieldError(f"{path}.description must be a text", f"{path}.description")
    if not isinstance(function.get("strict", False), bool):
        raise FieldError(f"{path}.strict must be true or false", f"{path}.strict")
    parameters = _parameters(function.get("parameters", {}), f"{path}.parameters")
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _parameters(schema: object, path: str) -> Mapping[str, object]:
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise FieldError(f'{path} must be a JSON schema whose type is "object"', path)
    if not isinstance(schema.get("properties", {}), Mapping):
        raise FieldError(f"{path}.properties must be an object", f"{path}.properties")
    return {"type": "object", "properties": {}, **schema}


def _schema(tool: Tool) -> tuple[str, Mapping[str, object]]:
    function = tool["function"]
    assert isinstance(function, Mapping)
    return function["name"], function["parameters"]


def _chosen(choice: object, names: frozenset[str]) -> tuple[frozenset[str], bool, bool]:
    """The tools that may be called, whether one must be, and whether it is one call in any case."""
    if choice is None or choice == "auto":
        return names, False, False
    if choice == "none":
        return frozenset(), False, False
    if choice == "required":
        return names, True, False
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        fields = fields_of(choice, "tool_choice", ("type", "function"))
        return frozenset((_named(fields.get("function"), "tool_choice.function", names),)), True, True
    if kind == "allowed_tools":
        fields = fields_of(choice, "tool_choice", ("type", "allowed_tools"))
        return *_allowed(fields.get("allowed_tools"), "tool_choice.allowed_tools", names), False
    raise FieldError(
        f'tool_choice is {shown(choice)}; "none", "auto", "required" or an object of type "function" or '
        '"allowed_tools" is expected',
        "tool_choice",
    )


def _allowed(value: object, path: str, names: frozenset[str]) -> tuple[frozenset[str], bool]:
    fields = fields_of(value, path, ("mode", "tools"))
    if fields.get("mode") not in ("auto", "required"):
        raise FieldError(
            f'{path}.mode is {shown(fields.get("mode"))}; "auto" or "required" is expected', f"{path}.mode"
        )
    tools = fields.get("tools")
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise FieldError(f"{path}.tools must be a list of tools", f"{path}.tools")
    chosen = []
    for number, tool in enumerate(tools):
        place = f"{path}.tools[{number}]"
        function = fields_of(tool, place, ("type", "function")).get("function")
        chosen.append(_named(function, f"{place}.function", names))
    return frozenset(chosen), fields["mode"] == "required"


def _named(function: object, path: str, names: frozenset[str]) -> str:
    name = fields_of(function, path, ("name",)).get("name")
    if not isinstance(name, str) or name not in names:
        known = ", ".join(sorted(names)) or "none at all"
        raise FieldError(
            f"{path}.name is {shown(name)}, which is no tool of this request ({known})", "tool_choice"
        )
    return name
