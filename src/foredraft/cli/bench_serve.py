"""`foredraft bench --serve`: what the server does with many requests at once, drafting and not."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.measure.report import Circumstances
    from foredraft.measure.serve_order import ServeOrder
    from foredraft.measure.serve_report import Shown

OPTIONS = ("requests", "parts", "max_tokens")  # of --serve alone
REFUSED = ("peer", "drafters", "tokens")


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --serve", "also --kinds, --prompts, --only")
    group.add_argument(
        "--serve",
        action="store_true",
        help="start a server and ask it with and without drafting; takes hours for everything",
    )
    group.add_argument("--requests", metavar="N,...", help="requests at once (1,2,4,8,16,32)")
    group.add_argument(
        "--parts", metavar="PARTS", help="only these of throughput, exact, stall, host, prefix"
    )
    group.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer (256)")


def refuse_options(args: argparse.Namespace) -> None:
    """Without --serve its options would be ignored."""
    for name in OPTIONS:
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is for `bench --serve`; add --serve, or leave it out")


def order_of(args: argparse.Namespace) -> "ServeOrder":
    """What is asked for, checked."""
    from foredraft.measure.prompts import chosen, own_prompts, read_prompts
    from foredraft.measure.serve_order import PARTS, REQUESTS, ServeOrder
    from foredraft.models.cache import find_model

    if args.speculation:
        raise UsageError("--serve and --speculation measure different things; give one of them")
    for name in REFUSED:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} has no meaning with --serve; leave it out")
    prompts = own_prompts() if args.prompts is None else read_prompts(args.prompts)
    find_model(args.model)  # complains before anything is started
    return ServeOrder(
        model=args.model,
        prompts=chosen(prompts, _words(args.kinds), _words(args.only)),
        requests=REQUESTS if args.requests is None else _numbers(args.requests),
        parts=PARTS if args.parts is None else tuple(args.parts.split(",")),
        max_tokens=256 if args.max_tokens is None else args.max_tokens,
        repeat=5 if args.repeat is None else args.repeat,
        threads=args.threads,
    )


def measure(order: "ServeOrder", say: Callable[[str], None]) -> "Shown":
    from foredraft.measure.serve_report import Shown
    from foredraft.measure.serve_runs import serve

    return Shown.of(serve(order, say))


def show(args: argparse.Namespace, shown: "Shown", circumstances: "Circumstances") -> int:
    """Print and keep; the exit code is 1 where a text was not the same."""
    from foredraft.cli.bench import write
    from foredraft.measure.serve_report import as_json, as_text

    print(as_text(shown, circumstances))
    if args.out is not None:
        write(args.out, as_json(shown, circumstances, raw=True))
    if args.json:
        print(json.dumps(as_json(shown, circumstances), ensure_ascii=False))
    return 1 if shown.served.different else 0


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise UsageError(f"--requests {text!r}: whole numbers are expected, as in 1,4,16") from None
