"""One line of JSON for each request that has ended: how it went, and never what was asked or answered."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import TextIO

from foredraft.engine.observer import EndEvent, PassEvent
from foredraft.server.background import Background

MOST_NAMELESS = 256  # requests that may have ended before their names are known


@dataclass(frozen=True)
class Name:
    """What the outside calls a request."""

    request_id: str | None
    route: str | None


NAMELESS = Name(None, None)


@dataclass(frozen=True, eq=False)
class End:
    time: datetime
    event: EndEvent


class RequestLog:
    """An observer of an engine. A line is written when a request has ended and was named, in either order."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._background = Background("the log of requests")
        self._lock = Lock()
        self._names: dict[int, Name] = {}  # by ticket, of requests that go on
        self._nameless: dict[int, End] = {}  # by ticket, oldest first

    def name(self, ticket: int, request_id: str, route: str) -> None:
        """Say what a submitted request is called."""
        name = Name(request_id, route)
        with self._lock:
            end = self._nameless.pop(ticket, None)
            if end is None:
                self._names[ticket] = name
                return
        self._write(name, end)

    def passed(self, event: PassEvent) -> None:
        """Of no interest."""

    def ended(self, event: EndEvent) -> None:
        name, end = None, End(datetime.now(UTC), event)
        with self._lock:
            name = self._names.pop(event.ticket, None)
            if name is None:
                self._nameless[event.ticket] = end
                if len(self._nameless) <= MOST_NAMELESS:
                    return
                name, end = NAMELESS, self._nameless.pop(next(iter(self._nameless)))
        self._write(name, end)

    def close(self) -> None:
        """Write what is left. The stream stays open."""
        with self._lock:
            left = list(self._nameless.values())
            self._nameless.clear()
        for end in left:
            self._write(NAMELESS, end)
        self._background.close()

    def _write(self, name: Name, end: End) -> None:
        self._background.do(partial(put, self._stream, name, end))


def put(stream: TextIO, name: Name, end: End) -> None:
    stream.write(json.dumps(record(name, end)) + "\n")
    stream.flush()


def record(name: Name, end: End) -> Mapping[str, object]:
    """A figure that does not exist is null."""
    event, completion, figures = end.event, end.event.completion, end.event.completion.figures
    error = event.error
    return {
        "time": end.time.isoformat(timespec="milliseconds"),
        "request_id": name.request_id,
        "route": name.route,
        "ticket": event.ticket,
        "outcome": event.outcome,
        "error": None if error is None else f"{type(error).__name__}: {error}",
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "completion_tokens": len(completion.ids),
        "queued_s": rounded(event.queued_s),
        "ttft_s": rounded(figures.ttft_s),
        "decode_s": rounded(figures.decode_s),
        "total_s": rounded(figures.total_s),
        "tok_s": rounded(figures.tok_s),
        "rounds": figures.rounds,
        "drafted": figures.drafted,
        "accepted": figures.accepted,
        "acceptance": rounded(figures.acceptance),
        "tokens_per_round": rounded(figures.tokens_per_round),
        "by_drafter": {
            drafter: {name: rounded(value) for name, value in asdict(part).items()}
            for drafter, part in figures.by_drafter.items()
        },
        "preempted": event.preempted,
    }


def rounded(value: float | None) -> float | None:
    """Microseconds are enough."""
    return None if value is None else round(value, 6)
