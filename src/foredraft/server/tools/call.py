"""Reads one call: a JSON object with a name and arguments.

Until the arguments begin, it must be sound JSON, name one of the tools, and is held. From then on it is a
call, and the arguments' text goes out as the model writes it, sound or not: they end where their brackets
are closed.
"""

import json
from collections.abc import Set

from foredraft.server.tools.page import Page, Scan

NAMES = ("name", "function")
ARGUMENTS = ("arguments", "parameters")
OTHERS = ("type", "id")  # what else may come before: any other JSON is not held back as a whole
WORD = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class NotACall(Exception):  # noqa: N818  (it is caught nearby: nothing went wrong)
    """The character read last does not go on with a call."""


def read_call(page: Page, names: Set[str]) -> Scan[None]:
    """Read on after the opening brace, to the closing one.

    `NotACall` if this is none; if the page has a call more by then, only what follows it is none.
    """
    name: str | None = None
    arguments: str | None = None
    char = ","
    while char == ",":
        key = yield from _key(page)
        char = yield from page.skip_space()
        if key in NAMES and name is None and char == '"':
            name = yield from _string(page)
            if name not in names:
                raise NotACall
            if arguments is not None:
                page.begin_call(name, arguments)
                page.end_arguments()
        elif key in ARGUMENTS and arguments is None and (name is None or char != "{"):
            arguments = yield from _held_arguments(page, char)
            if name is not None:
                page.begin_call(name, arguments)
                page.end_arguments()
        elif key in ARGUMENTS and arguments is None and name is not None:
            arguments = char
            page.begin_call(name, char)
            yield from _balanced(page)
            page.end_arguments()
        elif key in OTHERS or (name is not None and arguments is not None):
            yield from _value(page, char)
        else:
            raise NotACall
        char = yield from page.skip_space()
    if char != "}" or name is None or arguments is None:
        raise NotACall


def is_object(text: str) -> bool:
    """Whether it is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _key(page: Page) -> Scan[str]:
    if (yield from page.skip_space()) != '"':
        raise NotACall
    key = yield from _string(page)
    if (yield from page.skip_space()) != ":":
        raise NotACall
    return key


def _held_arguments(page: Page, first: str) -> Scan[str]:
    """Arguments that cannot go out while they are read: the name follows, or they are a text in a text."""
    text = yield from _value(page, first)
    if first == '"':
        text = _decoded(text)
        if not is_object(text):
            raise NotACall
    elif text == "null":
        text = "{}"
    elif first != "{":
        raise NotACall
    return text


def _value(page: Page, first: str) -> Scan[str]:
    """The text of a value whose first character has been read."""
    start = page.size - 1
    if first == '"':
        yield from _string(page)
    elif first in "{[":
        yield from _balanced(page)
    elif first in WORD:
        while (yield from page.read()) in WORD:
            pass
        page.unread()
    else:
        raise NotACall
    return page.held(start)


def _string(page: Page) -> Scan[str]:
    """A string whose opening quote has been read, decoded."""
    start = page.size - 1
    char = ""
    while char != '"':
        char = yield from page.read()
        if char < " ":
            raise NotACall
        if char == "\\":
            yield from page.read()
    return _decoded(page.held(start))


def _decoded(text: str) -> str:
    try:
        decoded = json.loads(text)
        decoded.encode()  # a lone surrogate, written as an escape, could not be sent
    except ValueError:
        raise NotACall from None
    return str(decoded)


def _balanced(page: Page) -> Scan[None]:
    """Read on to the bracket that closes the one read last. Brackets in strings do not count."""
    depth = 1
    in_string = False
    while depth:
        char = yield from page.read()
        if char == '"':
            in_string = not in_string
        elif in_string:
            if char == "\\":
                yield from page.read()
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
