"""Options that several commands share, and what they make of them."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.cli.progress import Bar
from foredraft.core.sampling import Sampling
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.engine.drafting import Drafting
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
    group.add_argument(
        "-d",
        "--drafter",
        default="auto",
        metavar="DRAFTER",
        help="who drafts (auto): off, ngram, suffix, prediction:FILE, model:NAME, or several joined by +",
    )
    group.add_argument(
        "-k",
        "--draft-tokens",
        default="auto",
        metavar="N|auto",
        help="tokens of a draft (auto: as many as pay, in every round anew)",
    )
    group.add_argument(
        "--rule", choices=("match", "ratio", "block"), default="match", help="how drafts are judged (match)"
    )
    group.add_argument(
        "--draft-quant", choices=("q4", "file"), default="q4", help="weights of a draft model (q4: 4 bits)"
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
    group.add_argument(
        "--min-tokens", type=int, default=defaults.min_tokens, metavar="N", help="least tokens (0: off)"
    )
    group.add_argument("--ignore-eos", action="store_true", help="do not end at the model's end tokens")


def drafting_of(args: argparse.Namespace) -> "Drafting":
    """How the answer is to be drafted for; the file of a prediction is read."""
    from foredraft.engine.drafting import NEXT, Drafting

    names, prediction = [], None
    for name in NEXT.split(args.drafter):
        drafter, _, path = name.partition(":")
        if drafter == "prediction" and path:
            prediction, name = read_text(Path(path), "-d prediction"), "prediction"
        names.append(name)
    return Drafting("+".join(names), draft_tokens_of(args.draft_tokens), args.rule, prediction)


def draft_tokens_of(text: str) -> int | None:
    """What -k says; None for auto."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"-k {text!r}: a whole number or auto is expected") from None


def read_text(path: Path, option: str) -> str:
    """The text of a file that an option names."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{option}: {path} is not UTF-8 at offset {error.start}. Convert it first (iconv -t utf-8)."
        ) from None


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
        min_tokens=args.min_tokens,
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


def load(args: argparse.Namespace, drafting: "Drafting | None" = None, remember: bool = True) -> "LLM":
    """The model, with a progress bar where somebody watches; without `drafting` nothing is drafted."""
    from foredraft.engine.drafting import OFF
    from foredraft.engine.llm import LLM

    with Bar(f"loading {Path(args.model).name}") as bar:
        progress = bar.advance if sys.stderr.isatty() else None
        return LLM(
            args.model,
            ctx=args.ctx,
            threads=args.threads,
            kv=args.kv,
            drafting=OFF if drafting is None else drafting,
            draft_quant=getattr(args, "draft_quant", "q4"),
            remember=remember,
            progress=progress,
        )
