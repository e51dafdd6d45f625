"""`foredraft serve` as a process of its own, from its start to its end."""

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from foredraft.errors import MeasurementError

ADDRESS = re.compile(r"http://([\w.\-]+|\[[\da-f:]+\]):(\d+)")
START_S = 300.0
STOP_S = 30.0
KEPT = 20  # of its last lines
API_KEY = "FOREDRAFT_API_KEY"  # in the environment, it would be asked for


class ServerProcess:
    """Started on entering the `with` block, when it has said where it listens; ended on leaving, however."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "foredraft", *arguments]
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._known = threading.Event()  # where it listens, or that it has ended
        self._address: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env={name: value for name, value in os.environ.items() if name != API_KEY},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._known.wait(START_S)
            if self._address is None:
                raise self.trouble("the server did not say where it listens")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def address(self) -> tuple[str, int]:
        assert self._address is not None
        return self._address

    def trouble(self, text: str) -> MeasurementError:
        """What went wrong, with how the server is and what it said last."""
        try:
            code = self._process.wait(timeout=0.5)  # one that dies is seen dead a little later
            self._reader.join(timeout=1)
            state = f"the server has ended with {code}"
        except subprocess.TimeoutExpired:
            state = "the server is running"
        said = "".join(f"\n  {line}" for line in self._lines)
        return MeasurementError(f"{text}; {state}. Its last lines:{said or ' none'}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            if self._address is None and (found := ADDRESS.search(line)):
                self._address = found[1].strip("[]"), int(found[2])
                self._known.set()
        self._known.set()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1)
        assert self._process.stdout is not None
        self._process.stdout.close()
