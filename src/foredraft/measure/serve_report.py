"""What a run of `foredraft bench --serve` prints and keeps."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from foredraft.measure.figures import Figure
from foredraft.measure.report import CALM_CORES, Circumstances, figure_json, row_of
from foredraft.measure.serve_figures import Row, figures_of, rows_of
from foredraft.measure.serve_load import Reply
from foredraft.measure.serve_runs import Load, Served
from foredraft.measure.stats import number

HEADS = (
    "AT ONCE",
    "",
    "TOKENS/S",
    "TTFT",
    "P99",
    "TPOT",
    "P99",
    "ACCEPTED",
    "A ROUND",
    "ROWS",
    "HOST",
    "NO DRAFT",
)
LIBRARIES = ("fastapi", "starlette", "uvicorn", "pydantic")
METHOD = (
    "TOKENS/S: requests at once x tokens ÷ summed time of the requests, in a closed loop that is never idle; "
    "TTFT and TPOT: to the first token, and per token after it, of all requests; ROWS: of a pass; "
    "HOST: ÷ time in passes; NO DRAFT: share of the rounds, by reason"
)
GOALS = "Goals are those of qwen2.5-coder-1.5b on two cores. The median of all repeats' ratios decides."
NOT_CALM = "Other programs were running: do not rely on these figures."
ONE_REPEAT = "A single repeat has no spread, and its ratios say little; --repeat 5 is what the goals are for."
SHOWN = 10  # differences


@dataclass(frozen=True)
class Shown:
    """What was measured and what it comes to."""

    served: Served
    rows: Sequence[Row]
    figures: Sequence[Figure]

    @classmethod
    def of(cls, served: Served) -> "Shown":
        return cls(served, rows_of(served), figures_of(served))


def as_text(shown: Shown, run: Circumstances) -> str:
    """Tables for people."""
    lines = [_headline(run)]
    if shown.rows:
        lines += ["", *_table([HEADS, *map(_row, shown.rows)])]
    lines += [
        "",
        *_table([("FIGURE", "MEDIAN", "QUARTILES", "N", "GOAL", "", ""), *map(row_of, shown.figures)]),
    ]
    return "\n".join([*lines, "", *_warnings(shown, run)])


def as_json(shown: Shown, run: Circumstances, raw: bool = False) -> dict[str, object]:
    """For programs; `raw` adds every request, every gap, and the first answer to every prompt."""
    served, order = shown.served, shown.served.order
    answer: dict[str, object] = {
        **asdict(run),
        "command": shlex.join(run.command),
        "libraries": _libraries(),
        "settings": {
            "requests": order.requests,
            "parts": order.parts,
            "max_tokens": order.max_tokens,
            "repeat": order.repeat,
            "prompts": [prompt.label for prompt in order.prompts],
            "sizes": asdict(served.sizes),
            "context": served.ctx,
        },
        "method": METHOD,
        "identical": not served.different,
        "different": served.different,
        "compared": served.compared,
        "figures": [figure_json(figure) for figure in shown.figures],
        "missed": [figure.title for figure in shown.figures if figure.met is False],
        "loads": [asdict(row) for row in shown.rows],
    }
    if raw:
        answer["samples"] = {
            "loads": [_load_json(load) for load in served.loads],
            "stalls": [_rounded(asdict(one)) for one in served.stalls],
            "steadies": [_rounded(asdict(one)) for one in served.steadies],
            "prefixes": [_rounded(asdict(one)) for one in served.prefixes],
        }
        answer["answers"] = {part: texts.first for part, texts in served.texts.items()}
    return answer


def _headline(run: Circumstances) -> str:
    before, after = run.load_average
    parts = [
        f"{run.model}: {run.threads} threads",
        run.machine.cpu or "unknown CPU",
        f"{run.machine.cores} cores",
        f"load average {before:.1f} before, {after:.1f} after",
        f"other programs used {run.others_cores:.2f} cores",
        f"commit {run.commit or 'unknown'}",
    ]
    return ", ".join(parts)


def _row(row: Row) -> tuple[str, ...]:
    return (
        str(row.at_once),
        row.side,
        number(row.tok_s),
        *(f"{number(ms)} ms" for ms in row.ttft_ms),
        *(f"{number(ms)} ms" for ms in row.tpot_ms or ()),
        *(() if row.tpot_ms else ("", "")),
        "" if row.acceptance is None else f"{row.acceptance:.0%}",
        "" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
        f"{row.rows_per_pass:.1f}",
        f"{row.host_share:.1%}",
        ", ".join(f"{reason} {share:.0%}" for reason, share in row.no_draft.items() if row.side != reason),
    )


def _warnings(shown: Shown, run: Circumstances) -> Iterator[str]:
    served = shown.served
    if shown.rows:
        yield f"{METHOD}."
        yield f"The client used {max(row.client_cores for row in shown.rows):.2f} cores at most."
    if any(figure.goal for figure in shown.figures):
        yield GOALS
    if served.order.repeat == 1:
        yield ONE_REPEAT
    if preempted := sum(row.preempted for row in shown.rows):
        yield f"Memory ran out: {preempted} times a request gave its own to others, and was computed anew."
    if run.others_cores > CALM_CORES:
        yield NOT_CALM
    if served.different:
        first = "; ".join(served.different[:SHOWN])
        more = len(served.different) - SHOWN
        yield (
            f"ERROR: THE SAME REQUEST WAS ANSWERED DIFFERENTLY, which must never be: {first}"
            f"{f'; and {more} more' if more > 0 else ''}."
        )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _libraries() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _load_json(load: Load) -> object:
    return _rounded(
        {
            "side": load.side,
            "repeat": load.repeat,
            "at_once": load.at_once,
            "tok_s": load.tok_s,
            "wall_s": load.wall_s,
            "client_s": load.client_s,
            "passes": asdict(load.passes),
            "requests": [_reply_json(reply) for reply in load.replies],
        }
    )


def _reply_json(reply: Reply) -> dict[str, object]:
    """Without its ids, which are those of the first answer."""
    return {
        "prompt": reply.label,
        "seconds": reply.seconds,
        "ttft_s": reply.ttft_s,
        "tpot_s": reply.tpot_s,
        "chunks": len(reply.moments),
        **{
            name: getattr(reply, name)
            for name in ("prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted")
        },
    }


def _rounded(value: object) -> object:
    """To six digits, all that is inside."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value
