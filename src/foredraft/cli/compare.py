"""`foredraft run --compare`: the same answer without drafting and with it, and what the difference is."""

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.cli.answer import TextOut, count, say_who_drafts, show
from foredraft.cli.run import INTERRUPTED, nowhere, report, trace_to
from foredraft.engine.drafting import OFF
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.core.sampling import Sampling
    from foredraft.engine.completion import Completion
    from foredraft.engine.drafting import Drafting
    from foredraft.engine.prompt import Prompt

WIDTH = 60  # of the lines between the parts


def compare(args: argparse.Namespace, asked: "Prompt", sampling: "Sampling", drafting: "Drafting") -> int:
    """Exit code 1 if the two answers differ, where they must not."""
    if drafting.is_off:
        raise UsageError("--compare answers without drafting and with it, but -d or -k turns drafting off")
    sampling = sampling.resolve()
    out = TextOut()
    answers: list[Completion] = []
    with trace_to(args.trace) as trace, options.load(args, drafting) as llm:
        say_who_drafts(llm, args.model)
        # The first passes meet cold memory, which would count against whoever answers first.
        llm.generate(asked, replace(sampling, max_tokens=1), raw=args.raw, drafting=OFF)
        for title, wishes in (("drafting off", OFF), ("drafting on", drafting)):
            if not args.json:
                out.write(heading(title))
            own_trace = None if wishes is OFF else trace
            stream = llm.stream(asked, sampling, raw=args.raw, trace=own_trace, drafting=wishes)
            completion, interrupted = show(stream, nowhere if args.json else out.write)
            out.end_line(interrupted)
            if interrupted:
                return INTERRUPTED
            answers.append(completion)
        off, on = answers
        if args.json:
            both = {
                "off": report(args, llm, off, None) | {"drafter": "off"},
                "on": report(args, llm, on, None),
            }
            print(json.dumps(both | verdict(off, on)))
        else:
            print(heading("figures") + as_text(off, on, drafting))
    return 0 if off.ids == on.ids or may_differ(drafting, sampling) else 1


def may_differ(drafting: "Drafting", sampling: "Sampling") -> bool:
    """Whether a seed gives another text for another draft."""
    return drafting.rule != "match" and sampling.temperature > 0.0


def verdict(off: "Completion", on: "Completion") -> dict[str, object]:
    """What both say together."""
    return {
        "identical": off.ids == on.ids,
        "tok_s_ratio": _ratio(on.figures.tok_s, off.figures.tok_s),
        "total_s_ratio": _ratio(off.figures.total_s, on.figures.total_s),
    }


def as_text(off: "Completion", on: "Completion", drafting: "Drafting") -> str:
    """The figures side by side, who drafted what, and the verdict."""
    both = [off.figures, on.figures]
    rows = [
        ("", ["off", "on"]),
        ("tokens", [str(figures.tokens) for figures in both]),
        ("tokens/s", [_number(figures.tok_s, ".1f") for figures in both]),
        ("first token after", [_number(figures.ttft_s, ".2f", " s") for figures in both]),
        ("total", [f"{figures.total_s:.2f} s" for figures in both]),
        ("rounds", [str(figures.rounds) for figures in both]),
        ("tokens per round", [_number(figures.tokens_per_round, ".2f") for figures in both]),
        ("drafts accepted", [_number(figures.acceptance, ".0%") for figures in both]),
    ]
    lines = [f"{name:20}{first:>12}{second:>12}" for name, (first, second) in rows]
    for name, own in on.figures.by_drafter.items():
        lines.append(f"{name} drafted {count(own.drafted)} in {own.seconds:.3f} s, {own.accepted} accepted")
    speed, total = _ratio(both[1].tok_s, both[0].tok_s), _ratio(both[0].total_s, both[1].total_s)
    if speed is not None:
        lines.append(f"speed: {speed:.2f} × the tokens per second, {_number(total, '.2f')} × in all")
    return "\n".join([*lines, f"identical: {_agreement(off, on, drafting)}"])


def heading(title: str) -> str:
    """A line that begins a part."""
    return f"── {title} ".ljust(WIDTH, "─") + "\n"


def _agreement(off: "Completion", on: "Completion", drafting: "Drafting") -> str:
    if off.ids == on.ids:
        return "yes"
    pairs = enumerate(zip(off.ids, on.ids, strict=False))
    first = next((index for index, (one, other) in pairs if one != other), min(len(off.ids), len(on.ids)))
    expected = f" (the rule {drafting.rule} keeps the law of a text, not the text of a seed)"
    return f"no, from token {first + 1} on" + expected * (drafting.rule != "match")


def _ratio(part: float | None, whole: float | None) -> float | None:
    """None where there is none."""
    return part / whole if part and whole else None


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else format(value, form) + unit
