"""Options that several commands share, and what they make of them."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.cli.progress import Bar
from foredraft.core.sampling import Sampling
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM


def add_model_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m", "--model", required=required, metavar="MODEL", help="a pulled name, or the path of a GGUF file"
    )
    group.add_argument(
        "--ctx", type=int, metavar="N", help="most tokens of prompt and answer (4096, or what the model can)"
    )
    group.add_argument(
        "--threads", type=int, default=0, metavar="N", help="threads (0, the default: one a physical core)"
    )
    group.add_argument(
        "--kv", choices=("f16", "f32"), default="f16", help="type of cached keys and values (f16)"
    )


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drafting")
    group.add_argument("-d", "--drafter", default="off", metavar="DRAFTER", help="who drafts (off)")
    group.add_argument(
        "-k", "--draft-tokens", default="auto", metavar="N|auto", help="length of a draft (auto)"
    )
    group.add_argument(
        "--rule", choices=("match", "ratio", "block"), default="match", help="how drafts are judged (match)"
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    defaults = Sampling()
    group = parser.add_argument_group("sampling")
    # Option, type, default, what stands for the value, help.
    for option, kind, default, value, text in (
        ("--temp", float, defaults.temperature, "T", "temperature (0: always the likeliest token)"),
        ("--top-k", int, defaults.top_k, "K", "only the K likeliest tokens (0: off)"),
        ("--top-p", float, defaults.top_p, "P", "only the likeliest tokens that make up P (1: off)"),
        ("--min-p", float, defaults.min_p, "P", "only tokens P times as likely as the likeliest (0: off)"),
        ("--seed", int, defaults.seed, "S", "the same seed gives the same text (drawn if not given)"),
        (
            "--repetition-penalty",
            float,
            defaults.repetition_penalty,
            "X",
            "for what was seen before (1: off)",
        ),
        ("--presence-penalty", float, defaults.presence_penalty, "X", "for what was written before (0: off)"),
        ("--frequency-penalty", float, defaults.frequency_penalty, "X", "the same, each time (0: off)"),
    ):
        group.add_argument(option, type=kind, default=default, metavar=value, help=text)
    for option, value, text in (
        ("--logit-bias", "ID=BIAS", "added to a token's logit (-inf forbids it); may be repeated"),
        ("--stop", "TEXT", "end the answer before this text; may be repeated"),
    ):
        group.add_argument(option, action="append", default=[], metavar=value, help=text)
    most = defaults.max_tokens
    group.add_argument(
        "-n", "--max-tokens", type=int, default=most, metavar="N", help=f"most tokens ({most})"
    )
    group.add_argument("--ignore-eos", action="store_true", help="do not end at the model's end tokens")


def check_draft_options(args: argparse.Namespace) -> None:
    """Refuse what this version cannot honour."""
    if args.drafter != "off":
        raise UsageError(
            f"-d {args.drafter}: this version of foredraft has no drafters; only -d off is built in"
        )
    if args.draft_tokens not in ("auto", "0"):
        raise UsageError(
            f"-k {args.draft_tokens}: with -d off nothing is drafted; leave -k out, or give 0 or auto"
        )
    if args.rule != "match":
        raise UsageError(f"--rule {args.rule}: this version of foredraft judges drafts by match only")


def sampling_of(args: argparse.Namespace) -> Sampling:
    return Sampling(
        temperature=args.temp,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(parse_bias(text) for text in args.logit_bias),
        seed=args.seed,
        stop=tuple(args.stop),
        max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos,
    )


def parse_bias(text: str) -> tuple[int, float]:
    """`ID=BIAS`, as in 50256=-inf."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UsageError(
            f"--logit-bias {text!r}: a token id, =, and a number are expected, as in 42=-1.5 or 42=-inf"
        ) from None


def load(args: argparse.Namespace) -> "LLM":
    """The model, with a progress bar where somebody watches."""
    from foredraft.engine.llm import LLM

    with Bar(f"loading {Path(args.model).name}") as bar:
        progress = bar.advance if sys.stderr.isatty() else None
        return LLM(args.model, ctx=args.ctx, threads=args.threads, kv=args.kv, progress=progress)
