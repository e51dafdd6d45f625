"""`foredraft bench`: which samples the wanted figures need, taken in an order that lets what is compared see
the same machine: passes in rounds, then long runs in rounds, ours and the peer's by turns, then fresh
processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from foredraft.errors import UsageError
from foredraft.measure.busy import BusyCore
from foredraft.measure.ceiling import SWEEPS
from foredraft.measure.figures import FIGURES, Figure, Measured, figures_of
from foredraft.measure.peer import LlamaBench
from foredraft.measure.probe import probe
from foredraft.measure.settings import Settings
from foredraft.measure.workbench import Workbench
from foredraft.models.cores import physical_cores

Say = Callable[[str], None]
RUNS = 5  # one round of long runs for so many rounds of passes


@dataclass(frozen=True)
class Order:
    """What is to be measured. `threads` 0: one for each physical core."""

    model: Path
    threads: int = 0
    repeat: int = 15  # rounds of passes
    only: tuple[str, ...] = tuple(FIGURES)
    peer: Path | None = None
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise UsageError(f"repeat is {self.repeat}, but must be 1 or more")
        for name in self.only:
            if name not in FIGURES:
                near = get_close_matches(name, FIGURES, 1)
                meant = f"; did you mean {near[0]}?" if near else "."
                raise UsageError(f"there is no figure {name!r}{meant} There are: {', '.join(FIGURES)}")
        object.__setattr__(self, "threads", self.threads or physical_cores())

    @property
    def runs(self) -> int:
        return -(-self.repeat // RUNS)


@dataclass(frozen=True)
class Result:
    measured: Measured
    figures: Sequence[Figure]
    isa: str
    peer_build: str | None


def bench(order: Order, say: Say) -> Result:
    """Measure. `say` is told what is being done."""
    peer = None if order.peer is None else LlamaBench(order.peer, order.model, order.threads)
    say("loading the model")
    # No name keeps the model: its memory goes before another process needs as much.
    measured, isa = _measure(Workbench(order.model, order.threads, order.settings, peer), order, say)
    samples = {**measured.samples, **_probe(order, measured.settings, say)}
    measured = replace(measured, samples=samples)
    return Result(measured, figures_of(measured, order.only), isa, None if peer is None else peer.build)


def _measure(workbench: Workbench, order: Order, say: Say) -> tuple[Measured, str]:
    """What is measured in this process, and the instruction set it ran on."""
    settings, model = workbench.settings, workbench.target.model
    needed = {key for name in order.only for key in FIGURES[name].needs(settings)}
    with BusyCore() as core:
        _rounds("passes", _needed(workbench.passes(core), needed), order.repeat, say)
    if "sweep" in needed:
        for _ in range(SWEEPS - order.repeat):
            workbench.sweep()
    _rounds("long runs", _needed(workbench.runs(), needed), order.runs, say)
    file_bytes = order.model.stat().st_size
    return Measured(settings, workbench.samples, int(model.weight_bytes), file_bytes), str(model.isa)


def _needed(actions: Mapping[str, Callable[[], None]], needed: set[str]) -> dict[str, Callable[[], None]]:
    return {key: action for key, action in actions.items() if key in needed}


def _rounds(what: str, actions: Mapping[str, Callable[[], None]], count: int, say: Say) -> None:
    """Every sample once, then every one again: a drift of the machine meets all of them."""
    for number in range(1, count + 1 if actions else 1):
        say(f"{what}: round {number} of {count}")
        for action in actions.values():
            action()


def _probe(order: Order, settings: Settings, say: Say) -> dict[str, list[float]]:
    """Samples of fresh processes that load the model; one of them fills its context."""
    samples: dict[str, list[float]] = {}
    if "load" in order.only:
        with order.model.open("rb") as file:
            while file.read(1 << 24):
                pass  # into the page cache
        for number in range(1, order.runs + 1):
            say(f"loading in a fresh process: {number} of {order.runs}")
            samples.setdefault("load_s", []).append(
                probe(order.model, order.threads, settings.filled, fill=False).load_s
            )
    if "memory" in order.only:
        say(f"filling a context of {settings.filled} in a fresh process")
        peak = probe(order.model, order.threads, settings.filled, fill=True).peak_bytes
        samples["peak_bytes"] = [peak]
    return samples
