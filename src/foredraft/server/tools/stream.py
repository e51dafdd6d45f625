"""The answer of a model that has tools, taken apart while it arrives."""

from dataclasses import dataclass

from foredraft.server.tools.page import CallDelta, Page
from foredraft.server.tools.reader import read_answer


@dataclass(frozen=True)
class ToolDelta:
    """What a piece of text added."""

    content: str
    calls: tuple[CallDelta, ...]


class ToolStream:
    """Made by `ToolParser.new`. However the text is cut into pieces, what comes out is the same in all.

    - What is not a call is content, to the letter; so is a call of a tool that there is not, for no client
      could do anything with it, and one whose JSON breaks before its arguments.
    - Arguments go out as they come. If they break, or the answer ends within them, the client gets them as
      the model wrote them.
    - Space between content and calls is given out only if content follows.
    """

    def __init__(self, names: frozenset[str], many: bool) -> None:
        self._many = many
        self._page = Page()
        self._reader = read_answer(self._page, names)
        next(self._reader)

    @property
    def called(self) -> bool:
        """Whether there is a call, finished or not."""
        return self._page.begun > 0

    @property
    def complete(self) -> bool:
        """Only one call is allowed, and it is finished: what follows is ignored, and need not be computed."""
        return not self._many and self._page.whole > 0

    def feed(self, text: str) -> ToolDelta:
        for char in text:
            if self.complete:
                break
            self._reader.send(char)
        return ToolDelta(*self._page.take())

    def finish(self) -> ToolDelta:
        """The answer has ended: what was held back because it could have become a call is content."""
        self._reader.close()
        self._page.end()
        return ToolDelta(*self._page.take())


@dataclass(frozen=True)
class ToolParser:
    """Reads the calls of these tools in a request's answers, one only if not `many`."""

    names: frozenset[str]
    many: bool = True

    def new(self) -> ToolStream:
        """For one answer."""
        return ToolStream(self.names, self.many)
