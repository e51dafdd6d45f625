"""From samples to figures, and what each figure must reach. Pure arithmetic: the raw samples of a run that
was kept give the same figures again.

The goals are those of qwen2.5-coder-1.5b on two cores, and of the default settings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from foredraft.measure.settings import PICKING, Settings
from foredraft.measure.stats import Summary, number, ratios, summarise
from foredraft.measure.workbench import pass_key

Samples = Mapping[str, Sequence[float]]

# A pass of so many rows against one of a single row: allowed up to 60 GB/s, and at 82 GB/s, where reading is
# so quick that arithmetic limits sooner. Beyond 60 the limit follows the line through both.
ROW_LIMITS: Mapping[int, tuple[float, float]] = {6: (1.25, 1.5), 8: (1.5, 2.1), 16: (2.5, 3.3)}
SLOW_GB_S, FAST_GB_S = 60.0, 82.0


@dataclass(frozen=True)
class Goal:
    limit: float
    at_least: bool = False  # else at most

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:.3g}"


@dataclass(frozen=True)
class Figure:
    """`goal` is None where a value is only to be known."""

    name: str  # as in --only
    title: str
    summary: Summary
    unit: str = ""
    goal: Goal | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.goal.met_by(self.summary.median)


@dataclass(frozen=True)
class Measured:
    """All that figures are made of."""

    settings: Settings
    samples: Samples
    weight_bytes: int  # of the file, read for one token
    file_bytes: int

    @property
    def bandwidth_gb_s(self) -> float:
        return max(self.samples["bandwidth_gb_s"])


def figures_of(measured: Measured, names: Sequence[str]) -> list[Figure]:
    """In the order of `FIGURES`. Goals hold for the default settings, and are left out for others."""
    figures = [figure for name in FIGURES if name in names for figure in FIGURES[name].make(measured)]
    if measured.settings == Settings():
        return figures
    return [Figure(f.name, f.title, f.summary, f.unit, None, f.note) for f in figures]


def row_limit(rows: int, bandwidth_gb_s: float) -> float:
    slow, fast = ROW_LIMITS[rows]
    return slow + (fast - slow) * max(0.0, (bandwidth_gb_s - SLOW_GB_S) / (FAST_GB_S - SLOW_GB_S))


def _bandwidth(m: Measured) -> Iterator[Figure]:
    samples = m.samples["bandwidth_gb_s"]
    best = f"the best, {max(samples):.1f}, is what the rest is compared to"
    yield Figure("bandwidth", "memory bandwidth", summarise(samples), "GB/s", None, best)


def _share(m: Measured) -> Iterator[Figure]:
    rates = [m.weight_bytes / seconds / 1e9 for seconds in m.samples[pass_key(1, m.settings.short)]]
    shares = summarise([rate / m.bandwidth_gb_s for rate in rates])
    note = f"{summarise(rates).median:.1f} of {m.bandwidth_gb_s:.1f} GB/s"
    title = f"1 row at context {m.settings.short}: file bytes/s ÷ bandwidth"
    yield Figure("share", title, shares, "", Goal(0.90, at_least=True), note)


def _rows(m: Measured) -> Iterator[Figure]:
    for rows in m.settings.rows[1:]:
        goal = Goal(row_limit(rows, m.bandwidth_gb_s)) if rows in ROW_LIMITS else None
        yield _against_one(m, "rows", rows, m.settings.middle, goal)


def _rows_long(m: Measured) -> Iterator[Figure]:
    yield _against_one(m, "rows-long", m.settings.picked, m.settings.long, Goal(2.0))


def _against_one(m: Measured, name: str, rows: int, context: int, goal: Goal | None) -> Figure:
    keys = pass_key(rows, context), pass_key(1, context)
    return _quotient(m, name, f"pass of {rows} rows ÷ 1, context {context}", keys, goal)


def _context(m: Measured) -> Iterator[Figure]:
    s = m.settings
    keys = pass_key(1, s.long), pass_key(1, s.short)
    yield _quotient(m, "context", f"time per token at context {s.long} ÷ at {s.short}", keys, Goal(1.3))


def _pick(m: Measured) -> Iterator[Figure]:
    rows = m.settings.picked
    keys = "pick_s", pass_key(rows, m.settings.middle)
    title = f"picking {rows} rows ({PICKING.temperature}, top-p {PICKING.top_p}) ÷ a pass of {rows}"
    yield _quotient(m, "pick", title, keys, Goal(0.05))


def _taken_core(m: Measured) -> Iterator[Figure]:
    title = "a core taken by another process: pass ÷ undisturbed"
    yield _quotient(m, "taken-core", title, ("taken_s", "free_s"), Goal(2.5))


def _quotient(m: Measured, name: str, title: str, keys: tuple[str, str], goal: Goal | None) -> Figure:
    """Of two times."""
    above, below = (m.samples[key] for key in keys)
    note = " ÷ ".join(f"{number(1e3 * summarise(samples).median)} ms" for samples in (above, below))
    return Figure(name, title, summarise(ratios(above, below)), "", goal, note)


def _against_peer(name: str, key: str, limit: float, m: Measured) -> Iterator[Figure]:
    s = m.settings
    what = {"generation": f"generation of {s.generated} tokens", "prompt": f"prompt of {s.prompt} tokens"}[
        name
    ]
    if theirs := m.samples.get(f"peer_{key}"):
        note = f"{summarise(m.samples[key]).median:.1f} ÷ {summarise(theirs).median:.1f} tokens/s"
        summary = summarise(ratios(m.samples[key], theirs))
        yield Figure(name, f"{what} ÷ llama.cpp's", summary, "", Goal(limit, at_least=True), note)
    else:
        yield Figure(name, what, summarise(m.samples[key]), "tokens/s", None, "no --peer to compare with")


def _overhead(m: Measured) -> Iterator[Figure]:
    summary = summarise([1e3 * seconds for seconds in m.samples["overhead_s"]])
    yield Figure(
        "overhead", "Python and binding time per pass", summary, "ms", Goal(0.2), "the greedy pick included"
    )


def _load(m: Measured) -> Iterator[Figure]:
    yield Figure("load", "load, file in the page cache", summarise(m.samples["load_s"]), "s", Goal(4.0))


def _memory(m: Measured) -> Iterator[Figure]:
    peaks = m.samples["peak_bytes"]
    note = f"{peaks[0] / 1e6:.0f} ÷ {m.file_bytes / 1e6:.0f} MB"
    title = f"peak resident memory ÷ file size, context {m.settings.filled}"
    yield Figure("memory", title, summarise([peak / m.file_bytes for peak in peaks]), "", Goal(1.45), note)


@dataclass(frozen=True)
class Kind:
    """What a name in --only means: how the figures are made, and from what (see `Workbench`, `bench.py`)."""

    make: Callable[[Measured], Iterator[Figure]]
    needs: Callable[[Settings], tuple[str, ...]]


def _needs(*keys: str) -> Callable[[Settings], tuple[str, ...]]:
    return lambda _: keys


FIGURES: Mapping[str, Kind] = {
    "bandwidth": Kind(_bandwidth, _needs("sweep")),
    "share": Kind(_share, lambda s: ("sweep", pass_key(1, s.short))),
    "generation": Kind(
        partial(_against_peer, "generation", "tok_s", 1.15), _needs("generate", "peer_generate")
    ),
    "rows": Kind(_rows, lambda s: ("sweep", *(pass_key(rows, s.middle) for rows in s.rows))),
    "rows-long": Kind(_rows_long, lambda s: (pass_key(1, s.long), pass_key(s.picked, s.long))),
    "context": Kind(_context, lambda s: (pass_key(1, s.short), pass_key(1, s.long))),
    "prompt": Kind(partial(_against_peer, "prompt", "prompt_tok_s", 1.8), _needs("prompt", "peer_prompt")),
    "pick": Kind(_pick, lambda s: ("pick", pass_key(s.picked, s.middle))),
    "taken-core": Kind(_taken_core, _needs("disturbed")),
    "overhead": Kind(_overhead, _needs("generate")),
    "load": Kind(_load, _needs()),  # both from fresh processes
    "memory": Kind(_memory, _needs()),
}
