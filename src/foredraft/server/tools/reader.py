"""Tells the calls in an answer from its text.

Calls stand between tags, or in a fenced block that begins a line, or begin a line themselves; one after the
other or in a list. Models do not keep to the form that their template teaches them: Qwen2.5-Coder, told to
use tags, fences its calls. So every form is read, whatever was taught; what makes a call is its JSON.
"""

from collections.abc import Set

from foredraft.server.tools.call import NotACall, read_call
from foredraft.server.tools.page import SPACE, Page, Scan

FENCE = "```"
LABEL = 16  # the most characters of a fence's label, such as "json"
# What opens calls, and what then closes them.
TAGS = {"<tool_call>": "</tool_call>", "<tools>": "</tools>", "<|python_tag|>": ""}


def read_answer(page: Page, names: Set[str]) -> Scan[None]:
    """Read on without end. `names` are those of the tools that may be called."""
    while True:
        closer = yield from _opening(page)
        if closer is None:
            page.say()
        else:
            yield from _calls(page, names, closer)


def _opening(page: Page) -> Scan[str | None]:
    """What closes the calls that begin here; None if what is held is text."""
    char = yield from page.read()
    if char == "<":
        return (yield from _tag(page))
    if page.fresh and char == FENCE[0]:
        return (yield from _fence(page))
    if page.fresh and char in "{[":
        page.unread()
        return ""
    return None


def _tag(page: Page) -> Scan[str | None]:
    while page.held() not in TAGS:
        if not any(tag.startswith(page.held()) for tag in TAGS):
            page.unread()
            return None
        yield from page.read()
    return TAGS[page.held()]


def _fence(page: Page) -> Scan[str | None]:
    if not (yield from page.match(FENCE)):
        yield from page.read()
        return None
    for _ in range(LABEL):
        char = yield from page.read()
        if char == "\n":
            return FENCE
        if not (char.isalnum() or char in "_ \r"):
            break
    page.unread()
    return None


def _calls(page: Page, names: Set[str], closer: str) -> Scan[None]:
    """Calls after what opens them, and what closes them; held text, if there is no call."""
    char = yield from page.skip_space()
    in_list = char == "["
    if in_list:
        char = yield from page.skip_space()
    if char != "{":
        page.unread()
        page.say()
        return
    while char == "{":
        before = page.whole
        try:
            yield from read_call(page, names)
            page.drop()
        except NotACall:
            page.unread()
            held_only_space = not page.held().strip(SPACE)
            if page.whole == before or not held_only_space:
                page.say()
                return
        char = yield from _next(page)
    yield from _closing(page, char, in_list, closer)


def _next(page: Page) -> Scan[str]:
    """The first character after a call and what separates it from another."""
    char = yield from page.skip_space()
    if char in ",;":
        page.leave_call()
        char = yield from page.skip_space()
    if char == "{":
        page.leave_call()
    return char


def _closing(page: Page, char: str, in_list: bool, closer: str) -> Scan[None]:
    if in_list and char == "]":
        page.drop()
        char = yield from page.skip_space()
    if not closer or char != closer[0]:
        page.unread()
    elif (yield from page.match(closer)):
        page.drop()
    page.say()
