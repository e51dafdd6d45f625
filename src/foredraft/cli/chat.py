"""`foredraft chat -m MODEL`: a conversation on the terminal. What was said stays computed."""

import argparse
import importlib
import io
import sys
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.errors import ForedraftError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.core.sampling import Sampling
    from foredraft.engine.chat import Chat

PROMPT = "> "
HELP = "/reset begins anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "chat",
        help="talk with a model",
        description=f"A conversation, line by line. {HELP}.",
    )
    options.add_model_options(parser)
    options.add_draft_options(parser)
    options.add_sampling_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message at the beginning")
    parser.add_argument(
        "--forget",
        action="store_true",
        help="draft without what earlier answers said, as if each came from another user",
    )


def run(args: argparse.Namespace) -> int:
    drafting = options.drafting_of(args)
    sampling = options.sampling_of(args)
    with options.load(args, drafting, remember=not args.forget) as llm, llm.chat(args.system) as chat:
        from foredraft.cli.answer import say_who_drafts

        say_who_drafts(llm, args.model)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # so that a line that is no text ends a turn only
        if sys.stdin.isatty():
            importlib.import_module("readline")  # gives `input` editing and a history
            print(f"{args.model}: {HELP}", file=sys.stderr)
        while (line := read_line()) is not None:
            if line.startswith("/"):
                if not command(line.strip(), chat):
                    break
            elif line.strip():
                answer(chat, line, sampling)
    return 0


def read_line() -> str | None:
    """What the user says, or None when they leave. Ctrl-C throws the line away."""
    while True:
        try:
            return input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return None
        except KeyboardInterrupt:
            print()


def command(line: str, chat: "Chat") -> bool:
    """Do what a line that begins with / says; False to leave."""
    if line == "/exit":
        return False
    if line == "/reset":
        chat.reset()
        print("a new conversation", file=sys.stderr)
    else:
        print(f"unknown command {line!r}: {HELP}", file=sys.stderr)
    return True


def answer(chat: "Chat", text: str, sampling: "Sampling") -> None:
    """One turn. A mistake ends the turn, not the conversation."""
    from foredraft.cli.answer import TextOut, figures_line, show

    out = TextOut()
    try:
        completion, interrupted = show(chat.stream(text, sampling), out.write)
    except ForedraftError as error:
        print(f"foredraft: error: {error}", file=sys.stderr)
        return
    out.end_line(interrupted)
    print(figures_line(completion, sampling.temperature > 0), file=sys.stderr)
