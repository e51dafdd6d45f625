import logging
import threading

from foredraft.engine.completion import Completion, Figures
from foredraft.engine.observer import EndEvent, PassEvent
from foredraft.server.background import Background
from foredraft.server.observers import Observers

PASSED = PassEvent(1, 0, 1, 1, 0, 0, 8, 0.0, 0.0, 0.0, 0.0, 0.0, [])
ENDED = EndEvent(
    1, Completion("", (), 1, "stop", Figures(0, 0, 0, 0, 0, None, 0.0, 0.0, 0.0, 0.0)), "stop", None, 0.0, 0
)


class Witness:
    """Sees events, and fails at one of them."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.seen = []

    def passed(self, event):
        self._see(event)

    def ended(self, event):
        self._see(event)

    def _see(self, event):
        self.seen.append(event)
        if len(self.seen) == self.fails_at:
            raise RuntimeError("blind")


def test_all_see_everything_but_who_failed(caplog):
    first, broken, last = Witness(), Witness(2), Witness()
    observers = Observers([first, broken, last])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            observers.passed(PASSED)
            observers.ended(ENDED)
    assert first.seen == last.seen == [PASSED, ENDED, PASSED, ENDED]
    assert broken.seen == [PASSED, ENDED]
    assert [record.message for record in caplog.records] == [
        "Witness failed and sees nothing from here on (RuntimeError: blind)"
    ]


def test_jobs_that_nobody_can_do_in_time_are_left_out(caplog):
    done, started, go = [], threading.Event(), threading.Event()

    def first():
        started.set()
        go.wait(10)

    background = Background("a test", most=3)
    background.do(first)
    assert started.wait(10)
    with caplog.at_level(logging.WARNING):
        for number in range(6):
            background.do(lambda number=number: done.append(number))
    go.set()
    background.close()
    assert done == [0, 1, 2]
    assert [record.message for record in caplog.records] == [
        "a test is not written as fast as it grows, and will have gaps"
    ]
