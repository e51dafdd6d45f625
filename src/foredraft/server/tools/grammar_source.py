"""What a text must be that has to be tool calls: plain data, for whoever makes a grammar of it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolGrammar:
    """The text is `begin`, a call, `end`; if `many`, more calls may follow, each after `between`.

    A call is the JSON object {"name": one of the names, <key>: what that name's schema describes}, keys in
    this order.
    """

    begin: str
    end: str
    schemas: tuple[tuple[str, Mapping[str, object]], ...]
    many: bool
    between: str
    key: str = "arguments"
    control: tuple[tuple[str, int], ...] = ()  # texts in begin, between and end that are one control token
