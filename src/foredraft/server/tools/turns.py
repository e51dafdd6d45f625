"""The messages of a conversation, checked, and as templates take them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """A call that an assistant has made. `arguments` is text: JSON, unless a model has made a mistake."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """A message. `more` are fields that only some templates look at."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str | None = None  # the call that a tool answers
    more: Mapping[str, str] = field(default_factory=dict)


def for_template(turn: Turn) -> dict[str, object]:
    """Fields that do not apply are left out: templates ask whether they are there."""
    message: dict[str, object] = {"role": turn.role, "content": turn.content, **turn.more}
    if turn.calls:
        message["tool_calls"] = [_call(call) for call in turn.calls]
    if turn.call_id is not None:
        message["tool_call_id"] = turn.call_id
    return message


def uses_tools(turns: Sequence[Turn]) -> bool:
    return any(turn.calls or turn.role == "tool" for turn in turns)


def _call(call: Call) -> dict[str, object]:
    function = {"name": call.name, "arguments": _object(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _object(arguments: str) -> object:
    """Templates write the arguments as JSON, so they want them read; what is no JSON object stays text."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
