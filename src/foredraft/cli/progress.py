"""Shows on standard error how something long gets on: a bar on a terminal, a line per tenth elsewhere."""

import shutil
import sys
import time
from types import TracebackType
from typing import Self, TextIO

REDRAW_S = 0.1
CLEAR = "\r\x1b[K"


class Bar:
    """One bar, gone from the terminal when its `with` block ends, however it ends."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._drawn_at = float("-inf")
        self._tenth = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._clear()
        print(f"{self._label}: {text}", file=self._stream, flush=True)
        self._tenth = 0

    def advance(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are there."""
        if self._terminal:
            now = time.monotonic()
            if now - self._drawn_at >= REDRAW_S or done == total:
                self._drawn_at = now
                self._stream.write(
                    CLEAR + bar_line(self._label, done, total, shutil.get_terminal_size().columns)
                )
                self._stream.flush()
            return
        tenth = 10 * done // total if total else 10
        if tenth > self._tenth:
            self._tenth = tenth
            print(f"{self._label}: {figures(done, total)}", file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            self._stream.write(CLEAR)
            self._stream.flush()


def figures(done: int, total: int) -> str:
    """`12 % of 98.4 MB`, in decimal units."""
    share = 100 * done // total if total else 100
    return f"{share:3d} % of {human_bytes(total)}"


def human_bytes(count: int) -> str:
    """A number of bytes in the largest decimal unit of which there is at least one."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def bar_line(label: str, done: int, total: int, columns: int) -> str:
    """One line that is shorter than the terminal is wide, so that it can be drawn over."""
    text = figures(done, total)
    width = min(40, columns - len(label) - len(text) - 6)
    if width < 4:
        return f"{label} {text}"[: max(columns - 1, 0)]
    filled = width * done // total if total else width
    return f"{label} [{'#' * filled}{'.' * (width - filled)}] {text}"
