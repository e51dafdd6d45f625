"""An answer on the terminal: its text as it comes, and one line of figures below it."""

import io
import sys
from collections.abc import Callable

from foredraft.engine.completion import Completion
from foredraft.engine.stream import Stream


def show(stream: Stream, write: Callable[[str], None]) -> tuple[Completion, bool]:
    """Write the text while it comes. Ctrl-C ends the answer only; the second value says whether it did."""
    interrupted = False
    try:
        for burst in stream:
            write(burst.text)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        stream.close()
    return stream.completion, interrupted


class TextOut:
    """Text to standard output, at once; characters it cannot show become question marks."""

    def __init__(self) -> None:
        self._last = "\n"
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")

    def write(self, text: str) -> None:
        if text:
            self._last = text[-1]
            sys.stdout.write(text)
            sys.stdout.flush()

    def end_line(self, interrupted: bool) -> None:
        """What comes next begins a line of its own, also where a terminal shows the ^C."""
        if self._last != "\n" or (interrupted and sys.stdout.isatty()):
            self.write("\n")


def figures_line(completion: Completion, sampled: bool) -> str:
    """The figures of an answer in one line: tokens, speed, times, and how it can be had again."""
    figures = completion.figures
    parts = [count(figures.tokens)]
    if figures.tok_s is not None:
        parts.append(f"{figures.tok_s:.1f} tok/s")
    if figures.ttft_s is not None:
        parts.append(f"first after {figures.ttft_s:.2f} s")
    parts += [f"total {figures.total_s:.2f} s", f"prompt {count(completion.prompt_tokens)}"]
    if sampled:
        parts.append(f"seed {completion.seed}")
    parts.append(completion.finish_reason)
    return f"[{' · '.join(parts)}]"


def count(tokens: int) -> str:
    return f"{tokens} token{'s' * (tokens != 1)}"
