"""`foredraft prove`: anyone's check that drafting leaves the text unchanged."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.measure.prove_parts import Claim

SHOWN = 5  # failures of a claim


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "prove",
        help="show that drafting leaves the text unchanged, on your own models",
        description="Compares answers with drafting and without, logits of rows alone and together, and the "
        "law of texts under the rules ratio and block. A verdict for each claim; exit code 1 if one fails.",
    )
    options.add_model_options(parser)
    parser.add_argument("-d", "--drafter", default="auto", metavar="DRAFTER", help="who drafts (auto)")
    parser.add_argument("--quick", action="store_true", help="fewer prompts, lengths and seeds")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    from foredraft.engine.drafting import Drafting
    from foredraft.engine.llm import LLM
    from foredraft.measure.prove import FULL, QUICK, prove

    drafting = Drafting(args.drafter)
    if drafting.is_off or "prediction" in drafting.names:
        raise UsageError(f"-d {args.drafter}: prove needs a drafter that can draft for any prompt, as auto")
    claims = []
    print(f"loading {Path(args.model).name}", file=sys.stderr)
    with LLM(
        args.model, ctx=args.ctx, threads=args.threads, kv=args.kv, drafting=drafting, remember=False
    ) as llm:
        for claim in prove(llm, args.drafter, QUICK if args.quick else FULL, say):
            print(as_text(claim), flush=True)
            claims.append(claim)
    if args.json:
        print(json.dumps(as_json(args.model, args.drafter, claims)))
    return 0 if all(claim.holds for claim in claims) else 1


def say(text: str) -> None:
    print(f"prove: {text}", file=sys.stderr, flush=True)


def as_text(claim: "Claim") -> str:
    verdict = "holds" if claim.holds else "FAILS"
    lines = [f"{verdict}  {claim.name}: {claim.says} ({claim.checks:,} checks)"]
    lines += [f"       {failure}" for failure in claim.failures[:SHOWN]]
    if len(claim.failures) > SHOWN:
        lines.append(f"       and {len(claim.failures) - SHOWN} more")
    return "\n".join(lines)


def as_json(model: str, drafter: str, claims: "list[Claim]") -> dict[str, object]:
    return {
        "model": model,
        "drafter": drafter,
        "holds": all(claim.holds for claim in claims),
        "claims": [
            {
                "name": claim.name,
                "claim": claim.says,
                "holds": claim.holds,
                "checks": claim.checks,
                "failures": list(claim.failures),
            }
            for claim in claims
        ],
    }
