"""The command `foredraft`: finds the command's file, runs it, turns errors into exit codes.

A command is one file of this folder, named like the command, with `add(subparsers)` (its options) and
`run(args)` (its exit code). Only the file of the command that was asked for is imported. Exit codes: 0, 1
failed, 2 wrong use, 130 interrupted.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from foredraft.errors import ForedraftError, UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS: tuple[tuple[str, str], ...] = (
    ("pull", "fetch a model into the cache"),
    ("models", "list the models that are known, and which of them are there"),
    ("run", "answer one prompt"),
    ("chat", "talk with a model"),
    ("serve", "serve OpenAI's interface"),
    ("ceiling", "what this machine's memory allows at best"),
    ("plan", "whether drafting pays, and how long drafts should be"),
    ("prove", "show that drafting leaves the text unchanged, on your own models"),
    ("bench", "measure the engine, beside llama.cpp if you like"),
)


class _ShowVersion(argparse.Action):
    """Imports the package's version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from foredraft import __version__

        print(f"foredraft {__version__}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except ForedraftError as error:
        print(f"foredraft: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("foredraft: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="foredraft",
        description="Makes a language model answer faster without changing the answer.",
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    # The main parser's own options take no value, so the first word that is no option is the command.
    asked = next((word for word in arguments if not word.startswith("-")), None)
    module: ModuleType | None = None
    for name, summary in COMMANDS:
        if name == asked:
            module = importlib.import_module(f"foredraft.cli.{name}")
            module.add(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    args = parser.parse_args(arguments)
    assert module is not None  # the parser has refused every other word
    code = module.run(args)
    sys.stdout.flush()
    return int(code)
