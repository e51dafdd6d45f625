"""Another program that wants a core: a process bound to it, busy when told so and asleep else. It ends when
its input does, so it never outlives us.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from foredraft.errors import MeasurementError

PROGRAM = """
import os, select, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.read(0, 1):
    os.write(1, b".")
    while not select.select([0], [], [], 0)[0]:
        for _ in range(10000):
            pass
    if not os.read(0, 1):
        break
    os.write(1, b".")
"""


class BusyCore:
    """The last core that this process may use."""

    def __init__(self) -> None:
        core = max(os.sched_getaffinity(0))
        command = [sys.executable, "-c", PROGRAM, str(core)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The core is kept busy while the `with` block runs."""
        self._toggle()
        try:
            yield
        finally:
            self._toggle()

    def _toggle(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            os.write(self._process.stdin.fileno(), b".")
        except BrokenPipeError:
            raise MeasurementError(
                "the process that should keep a core busy has ended; was it killed?"
            ) from None
        if not os.read(self._process.stdout.fileno(), 1):
            raise MeasurementError("the process that should keep a core busy did not start or was killed")
