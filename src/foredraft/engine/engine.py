"""Many requests at once, on a thread of its own: whoever serves them hands requests in and gets updates back,
once a pass for all.

    engine = Engine(llm, deliver)
    engine.start()
    ticket = engine.submit(llm.request(ids, sampling, time.perf_counter()))

The thread alone touches model, memory and drafters. What comes from outside waits in an inbox until the pass
is over, so a cancelled request has given its memory back one pass later at most.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.core.trace import RoundEvent
from foredraft.engine.answer import Answer
from foredraft.engine.completion import Burst, Completion
from foredraft.engine.drafting import Drafting
from foredraft.engine.job import Job
from foredraft.engine.llm import LLM
from foredraft.engine.observer import EndEvent, Nobody, Observer, Outcome, PassEvent
from foredraft.engine.request import Request
from foredraft.engine.scheduler import Scheduler, Step
from foredraft.engine.speculator import idle
from foredraft.errors import ClosedError, QueueFullError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """How many requests are computed together, and how many more may wait."""

    max_running: int = 32
    max_waiting: int = 128


@dataclass(frozen=True)
class EngineState:
    running: int
    waiting: int
    kv_blocks: int
    kv_used: int  # held by requests
    kv_cached: int  # kept for reuse alone
    alive: bool
    draining: bool


@dataclass(frozen=True, eq=False)
class Update:
    """What a request got from a pass. The last one has its completion, or the error that ended it."""

    burst: Burst
    completion: Completion | None = None
    error: Exception | None = None


Deliver = Callable[[Sequence[tuple[int, Update]]], None]  # by ticket; on the engine's thread


class Engine:
    """Around one `LLM`, which nobody else may use meanwhile."""

    def __init__(
        self,
        llm: LLM,
        deliver: Deliver,
        options: EngineOptions = EngineOptions(),
        observer: Observer = Nobody(),  # noqa: B008 - has no state
    ) -> None:
        self._llm = llm
        self._deliver = deliver
        self._options = options
        self._observer = observer
        self._scheduler = Scheduler(llm, options.max_running)
        self._changed = threading.Condition()  # guards all that follows
        self._inbox: list[tuple[int, Request, Drafting]] = []
        self._cancelled: set[int] = set()
        self._open: set[int] = set()  # tickets of requests that have not ended
        self._next_ticket = 0
        self._draining = self._closing = False
        self._jobs: dict[int, Job] = {}  # the thread's own, as is what follows
        self._late_s = 0.0  # that handing out the last pass took, after it was counted
        self._thread = threading.Thread(target=self._run, name="foredraft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request, drafting: Drafting | None = None) -> int:
        """Hand in a request; returns its ticket. Raises QueueFullError or ClosedError."""
        with self._changed:
            if self._draining or self._closing or not self._thread.is_alive():
                raise ClosedError("the server is ending and takes no more requests; try another one")
            if len(self._open) >= self._options.max_running + self._options.max_waiting:
                raise QueueFullError(
                    f"{self._options.max_running} requests are being answered and "
                    f"{self._options.max_waiting} wait, which is as many as may; try again later"
                )
            ticket = self._next_ticket
            self._next_ticket += 1
            self._open.add(ticket)
            self._inbox.append((ticket, request, self._llm.drafting if drafting is None else drafting))
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: int) -> None:
        """End a request, if it has not ended."""
        with self._changed:
            if ticket in self._open:
                self._cancelled.add(ticket)
                self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests, and wait for the end of those that are there. Returns whether it came."""
        with self._changed:
            self._draining = True
            return self._changed.wait_for(lambda: not self._open, timeout)

    def close(self) -> None:
        """End everything at once, and the thread. Open requests fail with ClosedError."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def state(self) -> EngineState:
        """As it is at this moment; counted without stopping anything."""
        pool = self._llm.pool
        return EngineState(
            running=len(self._scheduler.running),
            waiting=len(self._inbox) + len(self._scheduler.waiting),
            kv_blocks=pool.num_blocks,
            kv_used=pool.num_blocks - pool.num_free,
            kv_cached=pool.num_cached,
            alive=self._thread.is_alive() and not self._closing,
            draining=self._draining,
        )

    def _run(self) -> None:
        try:
            while self._await_work():
                self._advance()
        except Exception:  # what can be laid to one request has been by now
            log.exception("the engine failed, and answers no more requests")
        with self._changed:
            self._closing = True
        self._take_in()
        for job in list(self._jobs.values()):
            self._fail(job, ClosedError("the server was closed before the answer was complete; ask again"))

    def _await_work(self) -> bool:
        """Sleep until there is something to do; False when there never will be."""
        with self._changed:
            while not (self._closing or self._inbox or self._cancelled or self._scheduler.has_work):
                self._changed.wait()
            return not self._closing

    def _advance(self) -> None:
        """What came in, and one pass."""
        started = time.perf_counter()
        self._take_in()
        step = self._scheduler.step()
        updates = []
        for job, burst, event in step.rounds:
            self._trace(job, event)
            completion = job.answer.completion if job.answer.ended else None
            updates.append((job.ticket, Update(burst, completion)))
        # Who has an answer finds it counted, so the observer is told first.
        if step.passes:
            self._watch(step, started)
        over = [job for job, _, _ in step.rounds if job.answer.ended]
        for job in over:
            self._end(job, "stop" if job.answer.reason == "stop" else "length")
        told = time.perf_counter()
        self._send(updates)
        self._late_s = time.perf_counter() - told
        self._forget(over)
        for job, error in step.failed:
            self._fail(job, error)

    def _take_in(self) -> None:
        with self._changed:
            inbox, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, set()
        for ticket, request, drafting in inbox:
            try:
                self._jobs[ticket] = self._scheduler.add(ticket, request, drafting)
            except Exception as error:  # noqa: BLE001 - a draft model that cannot be loaded, for example
                unheard = Answer(request, self._llm.text(request), idle(self._llm.target.vocab))
                self._jobs[ticket] = Job(ticket, unheard)
                self._fail(self._jobs[ticket], error)
        for ticket in cancelled:
            if (job := self._jobs.get(ticket)) is not None:
                self._scheduler.remove(job)
                self._end(job, "cancelled")
                self._forget([job])

    def _fail(self, job: Job, error: Exception) -> None:
        self._scheduler.remove(job)
        rest = Burst(job.answer.interrupt(), ())
        self._end(job, "failed", error)
        self._send([(job.ticket, Update(rest, error=error))])
        self._forget([job])

    def _end(self, job: Job, outcome: Outcome, error: Exception | None = None) -> None:
        """It gets no more tokens, and holds no memory any more."""
        del self._jobs[job.ticket]
        answer = job.answer
        event = EndEvent(job.ticket, answer.completion, outcome, error, answer.queued_s, job.preempted)
        self._safely(lambda: self._observer.ended(event))

    def _forget(self, jobs: Sequence[Job]) -> None:
        """All has been told of them: others may come in their place."""
        with self._changed:
            self._open.difference_update(job.ticket for job in jobs)
            self._changed.notify_all()

    def _watch(self, step: Step, started: float) -> None:
        passes, state = step.passes, self.state
        draft_s, pass_s = sum(one.draft_s for one in passes), sum(one.pass_s for one in passes)
        event = PassEvent(
            rows=sum(one.rows for one in passes),
            prompt_rows=sum(one.prompt_rows for one in passes),
            decoding=len(step.rounds),
            running=state.running,
            waiting=state.waiting,
            kv_used=state.kv_used,
            kv_blocks=state.kv_blocks,
            draft_s=draft_s,
            pass_s=pass_s,
            host_s=max(0.0, time.perf_counter() - started - draft_s - pass_s) + self._late_s,
            plain_s=sum(one.plain_s for one in passes),
            spent_s=sum(one.spent_s for one in passes),
            rounds=[(job.ticket, event) for job, _, event in step.rounds],
        )
        self._safely(lambda: self._observer.passed(event))

    def _send(self, updates: Sequence[tuple[int, Update]]) -> None:
        if updates:
            self._safely(lambda: self._deliver(updates))

    def _trace(self, job: Job, event: RoundEvent) -> None:
        if (trace := job.answer.request.trace) is not None:
            self._safely(lambda: trace(event))

    def _safely(self, tell: Callable[[], None]) -> None:
        """Whoever listens must not be able to stop the engine."""
        try:
            tell()
        except Exception:
            log.exception("a listener of the engine failed")
