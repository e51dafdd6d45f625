"""`foredraft plan`: whether drafting pays, and how long drafts should be."""

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.core.theory import VerifyCost
    from foredraft.measure.plan import Plan

PROMPT = (
    "Write a Python function that counts how often each word occurs in a text, then explain it line by line, "
    "repeating every line of the code before its explanation."
)
MAX_K = 12
MOST_K = 63
TOKENS = 128
DESCRIBED = ("alpha", "draft_cost", "verify_cost", "max_k")
MEASURED = ("drafter", "max_tokens", "prompt")


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "plan",
        help="whether drafting pays, and how long drafts should be",
        description="From an acceptance rate and prices, or with -m from what is measured: expected tokens "
        "per round and speed against not drafting, by the number of drafted tokens. Prices are in units of a "
        "plain pass of the target.",
    )
    options.add_model_options(parser, required=False)
    group = parser.add_argument_group("arithmetic without a model")
    group.add_argument(
        "--alpha", type=float, metavar="A", help="chance that a drafted token is accepted, 0 to 1"
    )
    group.add_argument("--draft-cost", type=float, metavar="C", help="what drafting a token takes")
    group.add_argument(
        "--verify-cost", metavar="N=COST,…", help="what passes of N rows take, as in 4=1.1,8=2.1 (all 1)"
    )
    group.add_argument("--max-k", type=int, metavar="N", help=f"longest draft ({MAX_K})")
    group = parser.add_argument_group("measured")
    group.add_argument("-d", "--drafter", metavar="DRAFTER", help="who drafts (auto)")
    group.add_argument("-n", "--max-tokens", type=int, metavar="N", help=f"tokens of each answer ({TOKENS})")
    group.add_argument("prompt", nargs="?", metavar="PROMPT", help="what is asked (a small task with code)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    refused = DESCRIBED if args.model is not None else MEASURED
    for name in refused:
        if getattr(args, name) is not None:
            option = name if name == "prompt" else "--" + name.replace("_", "-")
            needed = "is for arithmetic without a model; leave it or -m out"
            raise UsageError(f"{option} {needed if args.model is not None else 'needs a model: -m MODEL'}")
    result = measured(args) if args.model is not None else computed(args)
    print(as_text(result))
    if args.json:
        print(json.dumps(as_json(args.model, result)))
    return 0


def computed(args: argparse.Namespace) -> "Plan":
    from foredraft.measure.plan import plan

    if args.alpha is None or args.draft_cost is None:
        raise UsageError("plan takes either -m MODEL, or --alpha and --draft-cost (and --verify-cost)")
    if not 0.0 <= args.alpha <= 1.0:
        raise UsageError(f"--alpha is {args.alpha:g}, but must be 0 to 1: it is a chance")
    if not 0.0 <= args.draft_cost < math.inf:
        raise UsageError(f"--draft-cost is {args.draft_cost:g}, but must be a number of 0 or more")
    max_k = MAX_K if args.max_k is None else args.max_k
    if not 1 <= max_k <= MOST_K:
        raise UsageError(f"--max-k is {max_k}, but must be 1 to {MOST_K}")
    return plan(args.alpha, args.draft_cost, parse_cost(args.verify_cost), max_k)


def parse_cost(text: str | None) -> "VerifyCost | None":
    """`N=COST,…`, the pass of one row being 1."""
    from foredraft.core.theory import VerifyCost

    if text is None:
        return None
    points = {1: 1.0}
    for part in text.split(","):
        rows, _, cost = part.partition("=")
        try:
            row, value = int(rows), float(cost)
        except ValueError:
            raise UsageError(
                f"--verify-cost {part!r}: rows, =, and a number are expected, as in 4=1.1,8=2.1"
            ) from None
        if row < 1 or not 0.0 < value < math.inf or (row == 1 and value != 1.0):
            raise UsageError(
                f"--verify-cost {part!r}: rows must be 1 or more and the cost above 0; a pass of 1 row is "
                "the unit, and costs 1"
            )
        points[row] = value
    return VerifyCost(tuple(sorted(points.items())))


def measured(args: argparse.Namespace) -> "Plan":
    from foredraft.engine.drafting import Drafting
    from foredraft.measure.plan import measured_plan

    drafter = "auto" if args.drafter is None else args.drafter
    tokens = TOKENS if args.max_tokens is None else args.max_tokens
    with options.load(args, Drafting(drafter), remember=False) as llm:
        return measured_plan(llm, drafter, args.prompt or PROMPT, tokens, say)


def say(text: str) -> None:
    print(f"plan: {text}", file=sys.stderr)


def as_json(model: str | None, plan: "Plan") -> dict[str, object]:
    return {
        "model": model,
        "alpha": plan.alpha,
        "draft_cost": plan.draft_cost,
        "verify_cost": {str(rows): cost for rows, cost in plan.verify_cost.points}
        if plan.verify_cost
        else None,
        "best_k": plan.best_k,
        "break_even_alpha": plan.break_even,
        "by_k": [
            {
                "k": line.k,
                "tokens_per_round": line.tokens_per_round,
                "speed": line.speed,
                "speed_by_survival": line.by_survival,
                "measured_speed": line.measured,
            }
            for line in plan.lines
        ],
    }


def as_text(plan: "Plan") -> str:
    is_measured = any(line.measured is not None for line in plan.lines)
    lines = [
        f"acceptance {plan.alpha:.3g}, a drafted token costs {plan.draft_cost:.3g} of a plain pass",
        f"{'k':>3} {'tokens/round':>13} {'speed':>7}"
        + (f" {'by depth':>9} {'measured':>9}" if is_measured else ""),
    ]
    for line in plan.lines:
        row = f"{line.k:3} {line.tokens_per_round:13.2f} {line.speed:6.2f}x"
        if line.by_survival is not None and line.measured is not None:
            row += f" {line.by_survival:8.2f}x {line.measured:8.2f}x"
        lines.append(row)
    if is_measured:
        lines.append(
            "speed: from one acceptance rate everywhere; by depth: from the acceptance at each depth"
        )
    lines.append(f"best: drafts of {plan.best_k}" if plan.best_k else "best: not to draft")
    if plan.break_even is None:
        lines.append("no acceptance makes drafting pay at these prices")
    else:
        lines.append(f"drafting pays from an acceptance of {plan.break_even:.3g}")
    return "\n".join(lines)
