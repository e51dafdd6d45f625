"""What a run of `foredraft bench --speculation` prints and keeps."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from foredraft.measure.paired import METHOD, Paired
from foredraft.measure.regret import Regret
from foredraft.measure.report import CALM_CORES, VERDICTS, Circumstances
from foredraft.measure.speculation import Run, Speculated
from foredraft.measure.speculation_figures import TOKENS, Compared, Line
from foredraft.measure.stats import number

HEADS = (
    *("PROMPT", "TOKENS", "OFF", "SPEED", "95 %", "TOTAL", "95 %", "ACCEPTED", "A ROUND", "HOST"),
    *("REPLAY", "IDS"),
)
PRICED = (2, 4, 6, 8, 16, 32)  # sizes whose price is shown
EXPLAINED = (
    "SPEED: tokens per second after the first token; TOTAL: the time of the whole request; both are medians "
    "of the pairs' ratios, above 1 where drafting is faster. REPLAY: what the reference policy, which has no "
    "model, would reach at the prices of this run."
)
GOALS = (
    "Goals are those of qwen2.5-coder-1.5b on two cores; those of speed hold for memory of at most 60 GB/s, "
    "beyond it the measured speed must be at least 0.9 of the replay's."
)
NOT_CALM = "Other programs were running: do not rely on these figures."
ONE_PAIR = "A single pair of runs has no interval, and its ratio says little; --repeat 5 gives one."


@dataclass(frozen=True)
class Shown:
    """What was measured and what it comes to."""

    measured: Speculated
    compared: Sequence[Compared]
    regrets: Sequence[Regret]
    lines: Sequence[Line]

    @property
    def different(self) -> list[str]:
        """Where drafting changed the text, which it must never do."""
        return [
            f"{answer.prompt.label} with {name}"
            for answer in self.measured.answers
            for name, runs in answer.runs.items()
            if not all(run.identical for run in runs)
        ]

    @property
    def left_out(self) -> list[str]:
        """Prompts that were answered with a single token."""
        return [answer.prompt.label for answer in self.measured.answers if not answer.is_measurable]


def as_text(shown: Shown, run: Circumstances) -> str:
    """Tables for people."""
    measured = shown.measured
    lines = [_headline(measured, run), _prices(measured)]
    for drafter in measured.order.drafters:
        own = [one for one in shown.compared if one.drafter == drafter]
        lines += ["", f"{drafter}, against not drafting:", *_table([HEADS, *map(_row, own)])]
        lines += [f"  {text}" for text in _by_drafter(own)]
    lines += ["", *_table([("FIGURE", "", "VALUE", "GOAL", "", ""), *map(_figure_row, shown.lines)])]
    lines += [
        "",
        f"SPEED is tokens per second after the first token, TOTAL the time of the request. {METHOD}.",
    ]
    lines += _warnings(shown, run)
    return "\n".join(lines)


def as_json(shown: Shown, run: Circumstances, raw: bool = False) -> dict[str, object]:
    """For programs; `raw` adds the tokens of every answer, every run and every sample of the prices."""
    measured = shown.measured
    answer: dict[str, object] = {
        **asdict(run),
        "command": shlex.join(run.command),
        "isa": measured.isa,
        "bandwidth_gb_s": measured.prices.best_gb_s,
        "weight_bytes": measured.weight_bytes,
        "settings": {name: getattr(measured.order, name) for name in ("drafters", "tokens", "repeat")},
        "method": METHOD,
        "pass_ms": {str(rows): 1e3 * median(s) for rows, s in measured.prices.seconds.items()},
        "identical": not shown.different,
        "different": shown.different,
        "left_out": shown.left_out,
        "figures": [_line_json(line) for line in shown.lines],
        "missed": [f"{line.drafter} {line.name}".strip() for line in shown.lines if line.met is False],
        "prompts": [_compared_json(one) for one in shown.compared],
        "regret": [one.as_dict() for one in shown.regrets],
        "draft_step": None if measured.step is None else asdict(measured.step),
    }
    if raw:
        answer["samples"] = {
            "bandwidth_gb_s": measured.prices.bandwidth_gb_s,
            "pass_s": {str(rows): times for rows, times in measured.prices.seconds.items()},
        }
        answer["answers"] = [
            {
                "kind": one.prompt.kind,
                "name": one.prompt.name,
                "prompt_ids": one.recording.prompt,
                "output_ids": one.recording.output,
                "runs": {name: [_run_json(each) for each in runs] for name, runs in one.runs.items()},
            }
            for one in measured.answers
        ]
    return answer


def _headline(measured: Speculated, run: Circumstances) -> str:
    before, after = run.load_average
    parts = [
        f"{run.model}: {run.threads} threads",
        measured.isa,
        run.machine.cpu or "unknown CPU",
        f"{run.machine.cores} cores",
        f"load average {before:.1f} before, {after:.1f} after",
        f"other programs used {run.others_cores:.2f} cores",
    ]
    return ", ".join(parts)


def _prices(measured: Speculated) -> str:
    prices = measured.prices.prices()
    sizes = ", ".join(f"{rows}: {prices.relative(rows):.2f}" for rows in PRICED)
    return (
        f"Bandwidth {measured.prices.best_gb_s:.1f} GB/s. A pass of one row takes "
        f"{1e3 * prices.seconds(1):.1f} ms; of more rows, against one: {sizes}."
    )


def _row(one: Compared) -> tuple[str, ...]:
    return (
        one.prompt.label,
        str(one.tokens),
        f"{number(one.off_tok_s)}/s",
        f"{one.speed.median:.2f}",
        _interval(one.speed),
        f"{one.total.median:.2f}",
        _interval(one.total),
        "" if one.acceptance is None else f"{one.acceptance:.0%}",
        f"{one.tokens_per_round:.2f}",
        "" if one.host_ms is None else f"{one.host_ms:.2f} ms",
        f"{one.simulated:.2f}",
        "same" if one.identical else "DIFFERENT",
    )


def _by_drafter(compared: Sequence[Compared]) -> Iterator[str]:
    """What each drafter gave, over all prompts."""
    for name in dict.fromkeys(name for one in compared for name in one.by_drafter):
        own = [one.by_drafter[name] for one in compared if name in one.by_drafter]
        drafted, accepted = sum(each.drafted for each in own), sum(each.accepted for each in own)
        share = f", {accepted / drafted:.0%}" if drafted else ""
        yield (
            f"{name}: {accepted} of {drafted} drafted tokens accepted{share}, "
            f"{sum(each.seconds for each in own):.2f} s of drafting"
        )


def _figure_row(line: Line) -> tuple[str, ...]:
    return (
        line.drafter,
        line.name,
        f"{number(line.value)} {line.unit}".rstrip(),
        "" if line.goal is None else f"{line.goal} {line.unit}".rstrip(),
        VERDICTS[line.met],
        line.note,
    )


def _warnings(shown: Shown, run: Circumstances) -> Iterator[str]:
    order = shown.measured.order
    if any(line.goal for line in shown.lines):
        yield GOALS
    if order.tokens != TOKENS:
        yield f"Goals of speed are for answers of {TOKENS} tokens, and left out for {order.tokens}."
    if order.repeat == 1:
        yield ONE_PAIR
    if shown.left_out:
        yield f"Answered with a single token, and left out: {', '.join(shown.left_out)}."
    if run.others_cores > CALM_CORES:
        yield NOT_CALM
    if shown.different:
        yield (
            "ERROR: DRAFTING CHANGED THE TEXT, which it must never do: "
            f"{', '.join(shown.different)}. `foredraft prove` finds the first difference."
        )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _interval(ratio: Paired) -> str:
    return "" if ratio.low is None else f"{ratio.low:.2f}–{ratio.high:.2f}"


def _line_json(line: Line) -> dict[str, object]:
    return {**asdict(line), "goal": None if line.goal is None else str(line.goal), "met": line.met}


def _compared_json(one: Compared) -> dict[str, object]:
    answer = asdict(one)
    del answer["prompt"]
    return {
        "kind": one.prompt.kind,
        "name": one.prompt.name,
        **answer,
        "share": one.share,
        "slower": one.is_slower,
    }


def _run_json(run: Run) -> dict[str, object]:
    return {**asdict(run), "host_ms": run.host_ms}
