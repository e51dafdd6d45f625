"""A call is the whole answer, as Llama 3.1 and later are taught it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from foredraft.server.tools.format import Format, Messages
from foredraft.server.tools.request import Tool
from foredraft.server.tools.turns import Turn, for_template

TAUGHT = re.compile(r'\{"name": ?[^{}\n,]*, ?"parameters":')


def prepare(turns: Sequence[Turn], tools: Sequence[Tool]) -> tuple[Messages, Sequence[Tool]]:
    return [for_template(turn) for turn in _one_by_one(turns)], tools


def _one_by_one(turns: Sequence[Turn]) -> Iterator[Turn]:
    """The template allows a message one call and no text beside it: each call gets a message of its own,
    followed by its answer.
    """
    answered: set[int] = set()
    for number, turn in enumerate(turns):
        if number in answered:
            continue
        if turn.calls and turn.content:
            yield replace(turn, calls=())
        for call in turn.calls:
            yield replace(turn, content="", calls=(call,))
            if len(turn.calls) > 1:
                answer = _answer_to(call.id, turns, number + 1)
                if answer is not None and answer not in answered:
                    answered.add(answer)
                    yield turns[answer]
        if not turn.calls:
            yield turn


def _answer_to(call_id: str, turns: Sequence[Turn], start: int) -> int | None:
    """Which of the tools' messages that follow at once is the answer to a call."""
    for number in range(start, len(turns)):
        if turns[number].role != "tool":
            break
        if turns[number].call_id == call_id:
            return number
    return None


LLAMA3 = Format(begin="", between="; ", end="", key="parameters", tags=(), prepare=prepare)
