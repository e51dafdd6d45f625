"""An answer on the terminal: who drafts for it, its text as it comes, one line of figures below it."""

import io
import sys
from collections.abc import Callable

from foredraft.engine.completion import Completion
from foredraft.engine.llm import LLM
from foredraft.engine.stream import Stream
from foredraft.models.cache import model_path
from foredraft.models.registry import entry_of


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


def say_who_drafts(llm: LLM, model: str) -> None:
    """Who it is, and who would be better if it were there."""
    names = llm.roster.names(llm.drafting)
    if not names:
        return
    entry = entry_of(model)
    hint = ""
    if "auto" in llm.drafting.names and entry and entry.drafter and not model_path(entry.drafter).is_file():
        hint = f" (faster with a draft model: foredraft pull {entry.drafter})"
    print(f"drafting: {' + '.join(names)}{hint}", file=sys.stderr)


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
    if figures.acceptance is not None:
        parts.append(
            f"{figures.tokens_per_round:.2f} tokens a round, {figures.acceptance:.0%} of drafts accepted"
        )
    parts += [f"total {figures.total_s:.2f} s", f"prompt {count(completion.prompt_tokens)}"]
    if sampled:
        parts.append(f"seed {completion.seed}")
    parts.append(completion.finish_reason)
    return f"[{' · '.join(parts)}]"


def count(tokens: int) -> str:
    return f"{tokens} token{'s' * (tokens != 1)}"
