"""Which requests are computed in the next pass: who is let in, how much of whose prompt goes beside others'
rounds, who gives way when memory runs out.

First come, first served, as long as memory reaches. Of the rows that a pass has for prompts
(`engine/stall.py`) the oldest has half at least, and the rest goes to whose prompt is done soonest. Not safe
for several threads: an `Engine` has one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from foredraft.core.trace import RoundEvent
from foredraft.engine.answer import Answer
from foredraft.engine.batch import Batch, Pass
from foredraft.engine.completion import Burst
from foredraft.engine.drafting import Drafting
from foredraft.engine.job import Job
from foredraft.engine.kv import BLOCK
from foredraft.engine.request import Request
from foredraft.engine.stall import FEWEST, Stall
from foredraft.errors import ContextError

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM


@dataclass(frozen=True, eq=False)
class Step:
    """What came of a pass: a burst and an event for whoever had a round, the reason for whoever failed. Jobs
    that have ended are in either.
    """

    passes: Sequence[Pass] = ()  # one, unless it failed for somebody
    rounds: Sequence[tuple[Job, Burst, RoundEvent]] = ()
    failed: Sequence[tuple[Job, Exception]] = ()


@dataclass(eq=False)
class Plan:
    """Of one pass: rounds, and parts of prompts. Prompts that are scored have passes of their own."""

    seats: list[Job] = field(default_factory=list)
    pieces: list[tuple[Job, int]] = field(default_factory=list)
    scored: list[tuple[Job, int]] = field(default_factory=list)
    failed: list[tuple[Job, Exception]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether nobody's prompt is computed."""
        return not self.pieces and not self.scored and all(job.is_decoding for job in self.seats)


class Scheduler:
    """Of one `LLM`."""

    def __init__(self, llm: "LLM", max_running: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.waiting: list[Job] = []
        self.running: list[Job] = []  # in the order they were let in
        self._llm = llm
        self._max_running = max_running
        self._clock = clock
        self._batch = Batch(llm.target, llm.roster.cost, clock)
        self._stall = Stall(llm.roster.cost)
        self._alone: Job | None = None  # whose pace the batch has, where one request has it all

    def add(self, ticket: int, request: Request, drafting: Drafting) -> Job:
        """Put a request at the end of the line."""
        speculator = self._llm.speculator(request, drafting)
        answer = Answer(replace(request, rule=drafting.rule), self._llm.text(request), speculator)
        job = Job(ticket, answer)
        self.waiting.append(job)
        return job

    def remove(self, job: Job) -> None:
        """Give back at once what a job holds, wherever it is."""
        for line in (self.waiting, self.running):
            if job in line:
                line.remove(job)
        self._release(job)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> Step:
        """Play one pass."""
        self._admit()
        plan = self._plan()
        is_plain, started = plan.is_plain, self._clock()
        step = self._play(plan)
        if step.passes:
            foreseen = sum(one.predicted_s for one in step.passes)
            self._stall.note(is_plain, self._clock() - started, foreseen)
        for job in self.running:
            self._publish(job)
        for job in (
            *(job for job, _, _ in step.rounds if job.answer.ended),
            *(job for job, _ in step.failed),
        ):
            self.remove(job)
        return step

    def _admit(self) -> None:
        for job in list(self.waiting):
            if len(self.running) >= self._max_running:
                return
            if any(self._is_ahead(other, job) for other in self.running):
                continue
            if not self._seat(job):
                return

    def _is_ahead(self, other: Job, job: Job) -> bool:
        """Whether another is just computing what this one could then take over."""
        request = job.answer.request
        if other.is_decoding or job.answer.is_scored:
            return False
        if other.answer.request.salt != request.salt:
            return False
        mine, theirs = job.answer.ids, other.answer.ids
        reusable = 0
        while reusable + BLOCK < len(mine) and (
            mine[reusable : reusable + BLOCK] == theirs[reusable : reusable + BLOCK]
        ):
            reusable += BLOCK
        return reusable > 0 and reusable > self._llm.pool.match(mine, request.salt)

    def _seat(self, job: Job) -> bool:
        """Let it in, if there is memory for what it has to compute and for the others to go on."""
        request, pool = job.answer.request, self._llm.pool
        cache = pool.open()
        cached = 0 if job.answer.is_scored else cache.adopt(job.answer.ids, request.salt)
        promised = sum(other.missing + 1 for other in self.running)
        job.cache = cache
        if self.running and job.missing + promised > pool.num_free:
            cache.close()
            job.cache = None
            return False
        self.waiting.remove(job)
        self.running.append(job)
        if not job.preempted:
            job.answer.cached = cached
            job.answer.queued_s = self._clock() - request.submitted
        return True

    def _plan(self) -> Plan:
        """Memory is made sure of for the oldest first."""
        plan = Plan()
        counts = self._shares()
        for job in list(self.running):
            count = counts.get(job.ticket, job.pending)
            if job.cache is None or count < 1:  # it has given way, or its turn comes later
                continue
            try:
                if not self._reserve(job, count):
                    continue
            except ContextError as error:
                plan.failed.append((job, error))
                continue
            if count == job.pending:
                plan.seats.append(job)
            elif job.answer.is_scored:
                plan.scored.append((job, count))
            else:
                plan.pieces.append((job, count))
        plan.seats = [job for job in plan.seats if job.cache is not None]
        plan.pieces = [(job, count) for job, count in plan.pieces if job.cache is not None]
        plan.scored = [(job, count) for job, count in plan.scored if job.cache is not None]
        return plan

    def _shares(self) -> dict[int, int]:
        """For each prompt in the making, by ticket, how many of its tokens are computed in this pass."""
        prompts = [job for job in self.running if not job.is_decoding]
        decoding = len(self.running) - len(prompts)
        shares = dict.fromkeys((job.ticket for job in prompts), 0)
        left = self._stall.rows(decoding, len(prompts))
        if prompts and prompts[0].answer.is_scored:  # it has a pass of its own: few rows beside rounds then
            first, left = prompts[0], FEWEST
            shares[first.ticket] = first.answer.chunk(first.place, self._stall.rows(decoding, apart=True))
        prompts = [job for job in prompts if not job.answer.is_scored]
        for job in prompts[:1]:
            shares[job.ticket] = min(job.pending, -(-left // 2))
            left -= shares[job.ticket]
        for job in sorted(prompts, key=lambda job: job.pending):
            before = shares[job.ticket]
            shares[job.ticket] = min(job.pending, before + left)
            left -= shares[job.ticket] - before
        return shares

    def _reserve(self, job: Job, rows: int) -> bool:
        """Room for its rows, if need be at the cost of whoever was let in last."""
        while True:
            try:
                job.place.reserve(rows)
                return True
            except ContextError:
                if self.running == [job]:
                    raise
                self._give_way(self.running[-1])
                if job.cache is None:
                    return False

    def _give_way(self, job: Job) -> None:
        """It is computed again when there is room; its text stays as far as it came."""
        job.place.close()
        job.cache = None
        job.preempted += 1
        job.answer.lose_cache()
        self.running.remove(job)
        self.waiting.insert(0, job)

    def _play(self, plan: Plan) -> Step:
        failed, passes = list(plan.failed), []
        for job, count in plan.scored:
            try:
                passes.append(self._batch.compute(job.seat, count))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                failed.append((job, error))
        self._restart_pace(plan.seats)
        step = self._together(plan.seats, plan.pieces)
        return replace(step, passes=[*passes, *step.passes], failed=[*failed, *step.failed])

    def _together(self, seats: Sequence[Job], pieces: Sequence[tuple[Job, int]]) -> Step:
        """One pass for all; if that fails, one for each half, until it is known for whom."""
        jobs = [*seats, *(job for job, _ in pieces)]
        if not jobs:
            return Step()
        try:
            return self._pass(seats, pieces)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            if len(jobs) == 1:
                return Step(failed=[(jobs[0], error)])
        half = len(jobs) // 2
        first = self._together(seats[:half], pieces[: max(0, half - len(seats))])
        second = self._together(seats[half:], pieces[max(0, half - len(seats)) :])
        return Step(
            [*first.passes, *second.passes], [*first.rounds, *second.rounds], [*first.failed, *second.failed]
        )

    def _pass(self, seats: Sequence[Job], pieces: Sequence[tuple[Job, int]]) -> Step:
        others = [(job.seat, count) for job, count in pieces]
        prompt_rows = sum(count for _, count in pieces) + sum(job.pending - 1 for job in seats)
        decoding = sum(job.is_decoding for job in seats)
        room = self._stall.room(decoding, prompt_rows)
        played = self._batch.play([job.seat for job in seats], others, len(self.running), room)
        rounds, failed = [], []
        for job, taken in zip(seats, played.taken, strict=True):
            if isinstance(taken, Exception):
                failed.append((job, taken))
            else:
                rounds.append((job, *taken))
        return Step([played], rounds, failed)

    def _restart_pace(self, seats: Sequence[Job]) -> None:
        """What one text reached alone says nothing of another."""
        if len(seats) == 1 and self._alone is not seats[0]:
            self._alone = seats[0]
            self._batch.pace.restart()

    def _publish(self, job: Job) -> None:
        """But for accepted tokens after the answer's end: they are in the memory, and not in the text."""
        job.place.truncate(min(job.place.length, len(job.answer.ids)))
        job.place.publish(job.answer.ids, job.answer.request.salt)

    def _release(self, job: Job) -> None:
        job.answer.speculator.close()
        if job.cache is not None:
            job.cache.close()
            job.cache = None
