"""What happened in every round of every request: a file for each, a line for each round (`core/trace.py`)."""

import hashlib
import re
from functools import partial
from pathlib import Path
from typing import TextIO

from foredraft.core.trace import RoundEvent, Trace
from foredraft.errors import UsageError
from foredraft.server.background import Background

MOST_OPEN = 64  # files at once
LONGEST = 100  # characters of an id in a file's name


class Traces:
    """Files are `<id>.jsonl`. A request without a round has none; one whose id was there before goes on in
    its file.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"traces cannot be kept in {folder}: {error.strerror or error}. Give a folder that is there, "
                "or that can be made."
            ) from None
        self._folder = folder
        self._files = Files()
        self._background = Background(f"the traces in {folder}")

    def open(self, request_id: str) -> Trace:
        """What notes this request's rounds."""
        path = self._path(request_id)

        def note(event: RoundEvent) -> None:
            self._background.do(partial(self._files.write, path, event))

        return note

    def close(self, request_id: str) -> None:
        """The request has ended."""
        self._background.do(partial(self._files.close, self._path(request_id)))

    def finish(self) -> None:
        """All have ended, and none will come."""
        self._background.do(self._files.close_all)
        self._background.close()

    def _path(self, request_id: str) -> Path:
        return self._folder / f"{file_name(request_id)}.jsonl"


class Files:
    """Open ones, the latest used last. One thread has them."""

    def __init__(self) -> None:
        self._files: dict[Path, TextIO] = {}

    def write(self, path: Path, event: RoundEvent) -> None:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= MOST_OPEN:
                self.close(next(iter(self._files)))
            file = path.open("a", encoding="utf-8")
        self._files[path] = file
        file.write(event.line() + "\n")
        file.flush()  # it is read while the answer is written

    def close(self, path: Path) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        while self._files:
            self.close(next(iter(self._files)))


def file_name(request_id: str) -> str:
    """The id where it can be a name, else what of it can, with a digest so that no two become one."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", request_id)[:LONGEST]
    if name and name == request_id:
        return name
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name}-{digest[:16]}"
