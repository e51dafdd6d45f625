"""What a stream of an answer has read and not yet told apart, and what it has to give out.

Readers are generators: they are sent one character at a time, so that how the text was cut into pieces
cannot matter. What is read is held until it is known to be text (`say`) or part of a call.
"""

import secrets
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Scan = Generator[None, str, T]

SPACE = " \t\r\n"


@dataclass(frozen=True)
class CallDelta:
    """What came of call number `index`: its id and name once, first; then pieces of its arguments' text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


class Page:
    """Space beside a call separates it from text: it is given out only if text follows."""

    def __init__(self) -> None:
        self.begun = 0  # calls
        self.whole = 0
        self.fresh = True  # nothing but space since the line began
        self._held: list[str] = []
        self._again: list[str] = []  # to be read once more, the next one last
        self._in_arguments = False
        self._in_tail = False  # after a call's arguments, before what closes it
        self._space = ""
        self._beside_call = False
        self._content: list[str] = []
        self._calls: list[tuple[int, str | None, str | None, list[str]]] = []

    # Reading

    def read(self) -> Scan[str]:
        char = self._again.pop() if self._again else (yield)
        if self._in_arguments:
            self._argue(char)
        else:
            self._held.append(char)
        return char

    def skip_space(self) -> Scan[str]:
        """The next character that is no space."""
        char = yield from self.read()
        while char in SPACE:
            char = yield from self.read()
        return char

    def match(self, text: str) -> Scan[bool]:
        """Whether the character read last and those that follow are this text; if not, all are unread."""
        for done, wanted in enumerate(text[1:], 2):
            if (yield from self.read()) != wanted:
                self.unread(done)
                return False
        return True

    def unread(self, count: int = 1) -> None:
        for _ in range(count):
            self._again.append(self._held.pop())

    def held(self, start: int = 0) -> str:
        return "".join(self._held[start:])

    @property
    def size(self) -> int:
        """How much is held."""
        return len(self._held)

    # Deciding

    def say(self) -> None:
        """What is held is text."""
        text = self.held()
        self._held.clear()
        self._in_tail = False
        _, newline, line = text.rpartition("\n")
        self.fresh = (self.fresh or newline != "") and not line.strip(SPACE)
        body = text.rstrip(SPACE)
        if body:
            self._content.append(self._space + body)
            self._space = text[len(body) :]
            self._beside_call = False
        else:
            self._space += text

    def drop(self) -> None:
        """What is held closes a call."""
        self._held.clear()

    def leave_call(self) -> None:
        """What is held may belong to another call than the last."""
        self._in_tail = False

    def begin_call(self, name: str, arguments: str) -> None:
        """What is held began a call. What is read next goes on with its arguments."""
        self._held.clear()
        self._beside_call = True
        self._calls.append((self.begun, f"call_{secrets.token_hex(12)}", name, [arguments]))
        self.begun += 1
        self._in_arguments = True

    def end_arguments(self) -> None:
        self._in_arguments = False
        self._in_tail = True
        self.fresh = True
        self.whole += 1

    # Giving out

    def take(self) -> tuple[str, tuple[CallDelta, ...]]:
        """What was decided since the last time."""
        content = "".join(self._content)
        calls = tuple(
            CallDelta(index, id_, name, "".join(pieces)) for index, id_, name, pieces in self._calls
        )
        self._content.clear()
        self._calls.clear()
        return content, calls

    def end(self) -> None:
        """No more text comes."""
        if self._in_tail:
            self.drop()
        self.say()
        if not self._beside_call:
            self._content.append(self._space)
        self._space = ""

    def _argue(self, char: str) -> None:
        if not self._calls:
            self._calls.append((self.begun - 1, None, None, []))
        self._calls[-1][3].append(char)
