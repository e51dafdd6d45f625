"""`foredraft bench --speculation`: what drafting gains on this machine, prompt by prompt."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.measure.regret import Regret
    from foredraft.measure.report import Circumstances
    from foredraft.measure.speculation import Speculated, SpeculationOrder
    from foredraft.measure.speculation_report import Shown

OPTIONS = ("drafters", "tokens", "kinds", "prompts")  # of --speculation alone


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --speculation")
    group.add_argument(
        "--speculation", action="store_true", help="compare answers with drafting to answers without"
    )
    group.add_argument(
        "-d",
        "--drafters",
        metavar="DRAFTER,...",
        help="configurations of drafters (suffix,auto: without a model, and with one if it is pulled)",
    )
    group.add_argument("--tokens", type=int, metavar="N", help="most tokens of an answer (400)")
    group.add_argument("--kinds", metavar="KINDS", help="only prompts of these kinds, as in json,code")
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='prompts of your own, a JSON object a line: {"kind": "code", "name": "sort", "prompt": "…"}',
    )


def refuse_options(args: argparse.Namespace) -> None:
    """Without --speculation its options would be ignored."""
    for name in OPTIONS:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} is for `bench --speculation`; add --speculation, or leave it out")


def order_of(args: argparse.Namespace) -> "SpeculationOrder":
    """What is asked for, checked."""
    from foredraft.measure.prompts import chosen, own_prompts, read_prompts
    from foredraft.measure.speculation import DRAFTERS, SpeculationOrder
    from foredraft.models.cache import find_model

    if args.peer is not None:
        raise UsageError("--peer is for `bench` without --speculation: llama-bench does not draft")
    prompts = own_prompts() if args.prompts is None else read_prompts(args.prompts)
    find_model(args.model)  # complains before anything is loaded
    return SpeculationOrder(
        model=args.model,
        prompts=chosen(prompts, _words(args.kinds), _words(args.only)),
        drafters=DRAFTERS if args.drafters is None else tuple(args.drafters.split(",")),
        tokens=400 if args.tokens is None else args.tokens,
        repeat=5 if args.repeat is None else args.repeat,
        threads=args.threads,
    )


def measure(order: "SpeculationOrder", say: Callable[[str], None]) -> "Shown":
    from foredraft.measure.speculation import speculate
    from foredraft.measure.speculation_figures import comparisons, lines_of
    from foredraft.measure.speculation_report import Shown

    measured = speculate(order, say)
    compared, regrets = comparisons(measured), regrets_of(measured, say)
    return Shown(measured, compared, regrets, lines_of(measured, compared, regrets))


def regrets_of(measured: "Speculated", say: Callable[[str], None]) -> Sequence["Regret"]:
    from foredraft.measure.regret import Replayer

    replayer = Replayer(measured.prices.prices(), measured.tokenizer)
    regrets = []
    for answer in measured.answers:
        if answer.is_measurable:
            say(f"replaying {answer.prompt.label} with every fixed length of drafts")
            regrets.append(replayer.regret(answer.prompt.label, answer.recording))
    return regrets


def show(args: argparse.Namespace, shown: "Shown", circumstances: "Circumstances") -> int:
    """Print and keep; the exit code is 1 where drafting changed a text."""
    from foredraft.cli.bench import write
    from foredraft.measure.speculation_report import as_json, as_text

    print(as_text(shown, circumstances))
    if args.out is not None:
        write(args.out, as_json(shown, circumstances, raw=True))
    if args.json:
        print(json.dumps(as_json(shown, circumstances), ensure_ascii=False))
    return 1 if shown.different else 0


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(","))
