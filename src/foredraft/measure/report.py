"""What a run of `foredraft bench` prints and keeps."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from foredraft.measure.bench import Result
from foredraft.measure.figures import Figure
from foredraft.measure.machine import Machine
from foredraft.measure.stats import number

CALM_CORES = 0.1
NOT_CALM = (
    "Other programs were running: do not rely on these figures, least of all on those against llama.cpp, "
    "whose threads wait for each other and so suffer most."
)
VERDICTS = {None: "", True: "pass", False: "MISS"}


@dataclass(frozen=True)
class Circumstances:
    """Of one run. Load averages are those before and after; `others_cores` is what other programs used
    meanwhile.
    """

    model: str
    command: Sequence[str]
    date: str
    commit: str | None
    threads: int
    machine: Machine
    versions: dict[str, str]
    load_average: tuple[float, float]
    others_cores: float


def as_text(result: Result, run: Circumstances) -> str:
    """A table for people."""
    before, after = run.load_average
    parts = [
        f"{run.model}: {run.threads} threads",
        result.isa,
        run.machine.cpu or "unknown CPU",
        f"{run.machine.cores} cores",
        f"load average {before:.1f} before, {after:.1f} after",
        f"other programs used {run.others_cores:.2f} cores",
    ]
    if result.peer_build:
        parts.append(f"llama.cpp {result.peer_build}")
    lines = [", ".join(parts)]
    rows = [("FIGURE", "MEDIAN", "QUARTILES", "N", "GOAL", "", ""), *map(row_of, result.figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if any(figure.goal for figure in result.figures):
        lines.append("Goals are those of qwen2.5-coder-1.5b on two cores.")
    if run.others_cores > CALM_CORES:
        lines.append(NOT_CALM)
    return "\n".join(lines)


def row_of(figure: Figure) -> tuple[str, ...]:
    s = figure.summary
    return (
        figure.title,
        f"{number(s.median)} {figure.unit}".rstrip(),
        f"{number(s.low)}–{number(s.high)}" if s.n > 1 else "",
        str(s.n),
        "" if figure.goal is None else f"{figure.goal} {figure.unit}".rstrip(),
        VERDICTS[figure.met],
        figure.note,
    )


def as_json(result: Result, run: Circumstances, raw: bool = False) -> dict[str, object]:
    """For programs; `raw` adds the settings and every sample."""
    measured = result.measured
    answer: dict[str, object] = {
        **asdict(run),
        "command": shlex.join(run.command),
        "isa": result.isa,
        "peer": None if result.peer_build is None else f"llama.cpp {result.peer_build}",
        "bandwidth_gb_s": max(measured.samples.get("bandwidth_gb_s", ()), default=None),
        "weight_bytes": measured.weight_bytes,
        "file_bytes": measured.file_bytes,
        "figures": [figure_json(figure) for figure in result.figures],
        "missed": [figure.title for figure in result.figures if figure.met is False],
    }
    if raw:
        answer["settings"] = asdict(measured.settings)
        answer["samples"] = {key: [float(f"{x:.6g}") for x in xs] for key, xs in measured.samples.items()}
    return answer


def figure_json(figure: Figure) -> dict[str, object]:
    goal = figure.goal
    return {
        "name": figure.name,
        "title": figure.title,
        **asdict(figure.summary),
        "unit": figure.unit,
        "goal": None if goal is None else str(goal),
        "met": figure.met,
        "note": figure.note,
    }
