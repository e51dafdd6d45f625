"""Writing that no engine waits for: a disk may be slow or full, a pipe closed, or open and not read."""

import logging
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

log = logging.getLogger(__name__)
MOST = 10_000  # jobs that may wait
PATIENCE_S = 5.0  # that the end waits for the jobs before it

Job = Callable[[], None]


class Background:
    """A thread that does one job after another. `what` is written; if that fails it is reported once, and the
    next job is tried all the same.
    """

    def __init__(self, what: str, most: int = MOST) -> None:
        self._what = what
        self._most = most
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._behind = False
        thread = Thread(target=work, args=(what, self._jobs), name=f"foredraft: {what}", daemon=True)
        thread.start()
        # Whoever forgets to close it loses nothing: this is called when Python ends, too.
        self._finish = weakref.finalize(self, finish, self._jobs, thread)

    def do(self, job: Job) -> None:
        """Do it soon, or never if too many are waiting."""
        if self._jobs.qsize() < self._most:
            self._jobs.put(job)
        elif not self._behind:
            self._behind = True
            log.warning("%s is not written as fast as it grows, and will have gaps", self._what)

    def close(self) -> None:
        """Wait, but not for long, until all jobs are done. No more are done."""
        self._finish()


def work(what: str, jobs: SimpleQueue[Job | None]) -> None:
    failed = False
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - the next one may succeed
            if not failed:
                failed = True
                log.warning("%s cannot be written (%s: %s)", what, type(error).__name__, error)


def finish(jobs: SimpleQueue[Job | None], thread: Thread) -> None:
    jobs.put(None)
    thread.join(PATIENCE_S)
