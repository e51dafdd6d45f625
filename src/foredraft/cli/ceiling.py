"""`foredraft ceiling`: how fast a model can be at best on this machine, or on one that is only described."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.cli.progress import human_bytes
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.measure.ceiling import Ceiling


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "ceiling",
        help="what this machine's memory allows at best",
        description="Every token needs one read of the weights, so memory bandwidth sets a ceiling. With "
        "-m it is measured, beside what passes of 1 to 32 rows take; else --bandwidth and --params give it.",
    )
    options.add_model_options(parser, required=False)
    group = parser.add_argument_group("arithmetic without a model")
    group.add_argument(
        "--bandwidth", type=float, metavar="GB/S", help="memory bandwidth, in 10^9 bytes a second"
    )
    group.add_argument("--params", type=float, metavar="N", help="parameters read for a token, as in 70e9")
    group.add_argument("--bits", type=float, metavar="B", help="bits a parameter (16)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    described = [name for name in ("bandwidth", "params", "bits") if getattr(args, name) is not None]
    if args.model is not None and described:
        raise UsageError(f"--{described[0]} is for arithmetic without a model; leave it or -m out")
    ceiling = measured(args) if args.model is not None else computed(args)
    if args.json:
        print(json.dumps(as_json(args.model, ceiling)))
    else:
        print(as_text(ceiling))
    return 0


def computed(args: argparse.Namespace) -> "Ceiling":
    """The ceiling of a machine and a model that are only described."""
    from foredraft.measure.ceiling import Ceiling

    if args.bandwidth is None or args.params is None:
        raise UsageError("ceiling takes either -m MODEL, or --bandwidth and --params (and --bits)")
    bits = 16.0 if args.bits is None else args.bits
    for name, value in (("bandwidth", args.bandwidth), ("params", args.params), ("bits", bits)):
        if not 0 < value < float("inf"):
            raise UsageError(f"--{name} is {value:g}, but must be a number above 0")
    return Ceiling(args.bandwidth, args.params * bits / 8, {})


def measured(args: argparse.Namespace) -> "Ceiling":
    from foredraft.measure.ceiling import Bandwidth, measure_ceiling
    from foredraft.models.target import NativeTarget

    with options.load(args) as llm:
        assert isinstance(llm.target, NativeTarget)
        print("measuring, some seconds", file=sys.stderr)
        return measure_ceiling(llm.target, llm.pool, Bandwidth())


def as_json(model: str | None, ceiling: "Ceiling") -> dict[str, object]:
    return {
        "model": model,
        "bandwidth_gb_s": ceiling.bandwidth_gb_s,
        "weight_bytes": ceiling.weight_bytes,
        "ceiling_tok_s": ceiling.tok_s,
        "pass_ms": {str(rows): time for rows, time in ceiling.pass_ms.items()},
    }


def as_text(ceiling: "Ceiling") -> str:
    lines = [
        f"memory bandwidth    {ceiling.bandwidth_gb_s:8.1f} GB/s",
        f"read for a token    {human_bytes(round(ceiling.weight_bytes)):>8}",
        f"ceiling             {ceiling.tok_s:8.3g} tokens/s without drafting",
    ]
    if ceiling.pass_ms:
        lines.append(f"{'rows':>4} {'pass':>10} {'÷ one row':>10} {'a row':>12}")
        one = ceiling.pass_ms[1]
        for rows, time in ceiling.pass_ms.items():
            lines.append(f"{rows:4} {time:7.2f} ms {time / one:10.2f} {time / rows:9.2f} ms")
    return "\n".join(lines)
