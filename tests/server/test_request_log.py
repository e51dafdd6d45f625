import io
import json
import logging
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from foredraft.engine.completion import Completion, DrafterFigures, Figures
from foredraft.engine.observer import EndEvent
from foredraft.errors import ContextError
from foredraft.server.request_log import MOST_NAMELESS, RequestLog

FIGURES = Figures(
    tokens=5,
    rounds=2,
    drafted=8,
    accepted=3,
    depths=4,
    ttft_s=0.25,
    decode_s=0.5,
    total_s=0.75,
    draft_s=0.125,
    verify_s=0.5,
    by_drafter={"suffix": DrafterFigures(8, 3, 0.1234567891)},
)
NONE = Figures(0, 0, 0, 0, 0, None, 0.0, 0.0, 0.0, 0.0)


def ended(ticket=1, outcome="stop", figures=FIGURES, error=None):
    completion = Completion(
        text="a secret",
        ids=(7,) * figures.tokens,
        prompt_tokens=100,
        finish_reason="stop" if outcome == "stop" else "interrupted",
        figures=figures,
        cached_tokens=64,
    )
    return EndEvent(ticket, completion, outcome, error, 0.0625, 2)


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_how_it_went_and_not_what_was_said():
    stream, before = io.StringIO(), datetime.now(UTC)
    log = RequestLog(stream)
    log.name(1, "chatcmpl-1", "/v1/chat/completions")
    log.ended(ended())
    log.close()
    (line,) = lines(stream)
    time = datetime.fromisoformat(line.pop("time"))
    assert time.utcoffset() == timedelta(0)
    assert before - timedelta(milliseconds=1) <= time <= datetime.now(UTC)
    assert line == {
        "request_id": "chatcmpl-1",
        "route": "/v1/chat/completions",
        "ticket": 1,
        "outcome": "stop",
        "error": None,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "completion_tokens": 5,
        "queued_s": 0.0625,
        "ttft_s": 0.25,
        "decode_s": 0.5,
        "total_s": 0.75,
        "tok_s": 8.0,
        "rounds": 2,
        "drafted": 8,
        "accepted": 3,
        "acceptance": 0.375,
        "tokens_per_round": 2.5,
        "by_drafter": {"suffix": {"drafted": 8, "accepted": 3, "seconds": 0.123457}},
        "preempted": 2,
    }
    assert "secret" not in stream.getvalue()


def test_figures_that_do_not_exist_are_null():
    stream = io.StringIO()
    log = RequestLog(stream)
    log.name(4, "x", "/v1/completions")
    log.ended(ended(4, "failed", NONE, ContextError("the prompt is too long")))
    log.close()
    (line,) = lines(stream)
    assert (line["outcome"], line["error"]) == ("failed", "ContextError: the prompt is too long")
    figures = ("ttft_s", "tok_s", "acceptance", "tokens_per_round")
    assert [line[name] for name in figures] == [None] * 4
    assert line["by_drafter"] == {}


def test_the_name_may_come_later_than_the_end():
    stream = io.StringIO()
    log = RequestLog(stream)
    log.ended(ended(1))
    log.name(2, "second", "/b")
    log.ended(ended(2))
    log.name(1, "first", "/a")
    log.ended(ended(3))
    log.close()  # nobody will name the third one any more
    names = [(line["ticket"], line["request_id"], line["route"]) for line in lines(stream)]
    assert names == [(2, "second", "/b"), (1, "first", "/a"), (3, None, None)]


def test_requests_that_nobody_names_do_not_pile_up():
    stream = io.StringIO()
    log = RequestLog(stream)
    for ticket in range(MOST_NAMELESS + 3):
        log.ended(ended(ticket))
    log.name(3, "kept", "/a")
    log.close()
    written = [(line["ticket"], line["request_id"]) for line in lines(stream)]
    assert written[:4] == [(0, None), (1, None), (2, None), (3, "kept")]
    assert sorted(ticket for ticket, _ in written) == list(range(MOST_NAMELESS + 3))


@pytest.fixture
def restless_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_names_and_ends_from_two_threads_meet():
    for _ in range(20):
        stream = io.StringIO()
        log = RequestLog(stream)
        tickets = range(MOST_NAMELESS)

        def name(log=log, tickets=tickets):
            for ticket in tickets:
                log.name(ticket, f"id-{ticket}", "/a")

        thread = threading.Thread(target=name)
        thread.start()
        for ticket in tickets:
            log.ended(ended(ticket))
        thread.join()
        log.close()
        written = sorted((line["ticket"], line["request_id"]) for line in lines(stream))
        assert written == [(ticket, f"id-{ticket}") for ticket in tickets]


class Disk(io.StringIO):
    """Full for three lines."""

    refused = 0

    def write(self, text):
        if self.refused < 3:
            self.refused += 1
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_full_disk_is_reported_once_and_tried_again(caplog):
    disk = Disk()
    log = RequestLog(disk)
    with caplog.at_level(logging.WARNING):
        for ticket in range(5):
            log.name(ticket, "x", "/a")
            log.ended(ended(ticket))
        log.close()
    assert [line["ticket"] for line in lines(disk)] == [3, 4]
    assert [record.message for record in caplog.records] == [
        "the log of requests cannot be written (OSError: [Errno 28] No space left on device)"
    ]


def test_a_closed_stream_hurts_nobody(caplog):
    stream = io.StringIO()
    stream.close()
    log = RequestLog(stream)
    for ticket in range(2):
        log.name(ticket, "x", "/a")
        log.ended(ended(ticket))
    log.close()
    assert len(caplog.records) == 1


class Pipe(io.StringIO):
    """Nobody reads it until it is opened."""

    def __init__(self):
        super().__init__()
        self.opened = threading.Event()

    def write(self, text):
        self.opened.wait(10)
        return super().write(text)


def test_nobody_waits_for_a_reader():
    pipe = Pipe()
    log = RequestLog(pipe)
    for ticket in range(5):
        log.name(ticket, "x", "/a")
        log.ended(ended(ticket))
    assert pipe.getvalue() == ""  # all ends are over, no line is through
    pipe.opened.set()
    log.close()
    assert [line["ticket"] for line in lines(pipe)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("closed", [True, False])
def test_no_line_is_lost_at_the_end_of_the_program(closed):
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_request_log import RequestLog, ended\n"
        "log = RequestLog(sys.stdout)\n"
        "for ticket in range(50):\n"
        "    log.name(ticket, 'x', '/a'); log.ended(ended(ticket))\n"
        f"{'log.close()' if closed else ''}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)], capture_output=True, text=True, timeout=60
    )
    assert len(done.stdout.splitlines()) == 50, done.stderr
