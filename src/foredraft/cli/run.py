"""`foredraft run -m MODEL PROMPT`: one answer. Text goes to standard output as it comes, one line of figures
to standard error; with `--json` standard output has one JSON object instead.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from foredraft.cli import options
from foredraft.errors import OutOfMemoryError, UsageError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.core.trace import RoundEvent, Trace
    from foredraft.engine.completion import Completion
    from foredraft.engine.llm import LLM

INTERRUPTED = 130  # exit code


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "run",
        help="answer one prompt",
        description="Answers one prompt. The text comes on standard output, figures on standard error.",
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt, or - to read it from standard input")
    options.add_model_options(parser)
    options.add_draft_options(parser)
    options.add_sampling_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt, without the chat template")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write one line of JSON per round")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object instead of the text (and measure memory bandwidth: a second or two)",
    )
    parser.add_argument(
        "--compare", action="store_true", help="answer twice, without drafting and with it, and compare"
    )


def run(args: argparse.Namespace) -> int:
    drafting = options.drafting_of(args)
    if args.raw and args.system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out; give one of the two")
    sampling = options.sampling_of(args)
    prompt = read_prompt(args.prompt)
    messages = [{"role": "system", "content": args.system}, {"role": "user", "content": prompt}]
    from foredraft.cli.answer import TextOut, figures_line, say_who_drafts, show

    if args.compare:
        from foredraft.cli.compare import compare

        return compare(args, prompt if args.system is None else messages, sampling, drafting)
    out = TextOut()
    with trace_to(args.trace) as trace, options.load(args, drafting) as llm:
        say_who_drafts(llm, args.model)
        asked = prompt if args.system is None else messages
        stream = llm.stream(asked, sampling, raw=args.raw, trace=trace)
        completion, interrupted = show(stream, out.write if not args.json else nowhere)
        out.end_line(interrupted)
        print(figures_line(completion, sampling.temperature > 0), file=sys.stderr)
        if args.json:
            print(json.dumps(report(args, llm, completion, None if interrupted else ceiling_tok_s(llm))))
    return INTERRUPTED if interrupted else 0


def read_prompt(argument: str) -> str:
    """The prompt itself, or what standard input has, exactly as it is there."""
    if argument != "-":
        return argument
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}. Convert "
            "it first (iconv -t utf-8)."
        ) from None


@contextmanager
def trace_to(path: Path | None) -> Iterator["Trace | None"]:
    """A trace that writes to the file, line by line, so that it can be read while the answer is written."""
    if path is None:
        yield None
        return
    with _open(path) as file:

        def write(event: "RoundEvent") -> None:
            file.write(event.line() + "\n")
            file.flush()

        yield write


def report(
    args: argparse.Namespace, llm: "LLM", completion: "Completion", ceiling: float | None
) -> dict[str, object]:
    """The JSON object. Rates that do not exist are null: the acceptance of no drafts is not 0."""
    figures = completion.figures
    return {
        "model": args.model,
        "drafter": args.drafter,
        "drafters": llm.roster.names(llm.drafting),
        "k": args.draft_tokens,
        "rule": args.rule,
        "text": completion.text,
        "ids": list(completion.ids),
        "prompt_tokens": completion.prompt_tokens,
        "tokens": figures.tokens,
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "ttft_s": figures.ttft_s,
        "decode_s": figures.decode_s,
        "total_s": figures.total_s,
        "tok_s": figures.tok_s,
        "rounds": figures.rounds,
        "drafted": figures.drafted,
        "accepted": figures.accepted,
        "acceptance": figures.acceptance,
        "alpha": figures.alpha,
        "tokens_per_round": figures.tokens_per_round,
        "by_drafter": {
            name: {
                "drafted": own.drafted,
                "accepted": own.accepted,
                "seconds": own.seconds,
                "accepted_per_draft_s": own.accepted_per_draft_s,
            }
            for name, own in figures.by_drafter.items()
        },
        "draft_s": figures.draft_s,
        "verify_s": figures.verify_s,
        "ceiling_tok_s": ceiling,
        "load_s": llm.load_s,
    }


def ceiling_tok_s(llm: "LLM") -> float | None:
    """Measured after the answer, in a fraction of a second; None where there is no memory for it."""
    from foredraft.measure.ceiling import Bandwidth
    from foredraft.models.target import NativeTarget

    assert isinstance(llm.target, NativeTarget)
    try:
        best = Bandwidth().best_gb_s(llm.target)
    except OutOfMemoryError:
        return None
    return best * 1e9 / llm.target.model.weight_bytes


def _open(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--trace {path}: cannot be written: {error.strerror or error}") from error


def nowhere(text: str) -> None:
    """With --json the text is in the object."""
