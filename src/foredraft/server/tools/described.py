"""Tools for models whose template knows none: described in a message, called as Hermes is taught to.

The tools' answers are messages of the user, for such templates know no other role.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from foredraft.errors import TemplateError
from foredraft.models.chat import ChatTemplate
from foredraft.server.tools.format import Format, Messages
from foredraft.server.tools.hermes import CLOSE, HERMES, OPEN
from foredraft.server.tools.request import Tool
from foredraft.server.tools.turns import Turn, for_template

TEACHING = f"""\
You can call these tools, each described by a line of JSON:
<tools>
%s
</tools>

To call one, answer with its name and its arguments in tags, like this:
{OPEN}
{{"name": "the tool's name", "arguments": {{"an argument": "its value"}}}}
{CLOSE}
What the tool returns will be in the next message. Call a tool only if it helps to answer."""
SYSTEM = "Answer in English."


def described(template: ChatTemplate) -> Format:
    """The format of a model with this template."""
    return replace(HERMES, prepare=partial(_prepare, template))


def _prepare(
    template: ChatTemplate, turns: Sequence[Turn], tools: Sequence[Tool]
) -> tuple[Messages, Sequence[Tool]]:
    told = list(_told(turns))
    if tools:
        lines = (json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        told = _taught(template, told, TEACHING % "\n".join(lines))
    return [for_template(turn) for turn in told], ()


def _told(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The conversation without the role of a tool: messages of the user in a row, where one of them is a
    tool's, become one.
    """
    waiting: list[str] = []
    for turn in turns:
        if turn.role == "tool":
            waiting.append(f"<tool_response>\n{turn.content}\n</tool_response>")
            continue
        if waiting and turn.role == "user":
            yield replace(turn, content="\n".join([*waiting, turn.content]))
        else:
            if waiting:
                yield Turn("user", "\n".join(waiting))
            yield _with_calls(turn)
        waiting.clear()
    if waiting:
        yield Turn("user", "\n".join(waiting))


def _with_calls(turn: Turn) -> Turn:
    calls = [
        f'{OPEN}\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n{CLOSE}'
        for call in turn.calls
    ]
    return replace(turn, content="\n".join([turn.content] * bool(turn.content) + calls), calls=())


def _taught(template: ChatTemplate, turns: Sequence[Turn], teaching: str) -> list[Turn]:
    """With the teaching in the system message, or before the first message where there can be none."""
    first = turns[0]
    if first.role == "system":
        return [replace(first, content=f"{first.content}\n\n{teaching}"), *turns[1:]]
    if _takes_system(template):
        return [Turn("system", teaching), *turns]
    if first.role == "user":
        return [replace(first, content=f"{teaching}\n\n{first.content}"), *turns[1:]]
    return [Turn("user", teaching), *turns]


def _takes_system(template: ChatTemplate) -> bool:
    try:
        text = template.render([{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}])
    except TemplateError:
        return False
    return SYSTEM in text
