"""Reading a text that grows: every token once."""

from collections.abc import Sequence

CHECKED = 16  # tokens before the new ones that must be those read before


class Unread:
    """How much of a request's text was read.

    Whether the text only grew is seen from its length and from the last tokens read. A caller that changes
    earlier ones gets worse drafts, and never another text.
    """

    def __init__(self) -> None:
        self._read = 0
        self._last: list[int] = []

    def take(self, text: Sequence[int]) -> tuple[bool, list[int]]:
        """Whether the text goes on from what was read, and what is new in it: all of it, if not."""
        continues = self._read <= len(text) and self._last == list(
            text[max(0, self._read - CHECKED) : self._read]
        )
        new = list(text[self._read :] if continues else text)
        self._read = len(text)
        self._last = list(text[-CHECKED:])
        return continues, new
