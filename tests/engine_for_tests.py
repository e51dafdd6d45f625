"""A target that costs next to nothing, and ways to serve many requests at once and to see what came of it."""

import threading
import time
from array import array
from collections import Counter, defaultdict
from contextlib import contextmanager
from types import SimpleNamespace
from zlib import crc32

import numpy as np
from twin_target import TwinTarget

from foredraft import Sampling
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.drafting import OFF
from foredraft.engine.engine import Engine, EngineOptions
from foredraft.engine.llm import LLM
from foredraft.engine.scheduler import Scheduler
from foredraft.engine.speculator import Limits, Speculator
from foredraft.models.chat import ChatTemplate
from foredraft.models.gguf import read_gguf
from foredraft.models.native_pick import NativePicker
from foredraft.models.tokenizer import Tokenizer

PATIENCE_S = 30.0
MOST_STEPS = 2000


class HashedTarget(TwinTarget):
    """Logits that depend on every token before, most of all on the last two, so that texts repeat themselves.
    Memory is read and written as the twin does.
    """

    def __init__(self, vocab):
        self.spec = SimpleNamespace(vocab=vocab)
        self.slots, self.known, self.passes = {}, {}, []
        self.pick = NativePicker().pick

    def logits(self, tokens):
        if tokens not in self.known:
            parts = [(3.0, tokens[-2:]), (0.5, tokens)]
            self.known[tokens] = sum(
                (np.random.default_rng(crc32(array("i", part).tobytes())).normal(0.0, scale, self.vocab))
                for scale, part in parts
            ).astype(np.float32)
        return self.known[tokens]


class Watched:
    """A target in front of which things happen: `before` is called with the caches of every pass. What it
    raises is a test's complaint.
    """

    def __init__(self, target):
        self.target = target
        self.before = lambda caches: None
        self.passes = 0
        self.complaints = []

    def __getattr__(self, name):
        return getattr(self.target, name)

    def forward(self, rows, caches, wanted):
        self.passes += 1
        try:
            self.before(caches)
        except Exception as complaint:  # noqa: BLE001
            self.complaints.append(complaint)
        return self.target.forward(rows, caches, wanted)


class Priced:
    """A target whose passes take what a list of prices says, on a clock that stands still otherwise."""

    def __init__(self, target, prices, clock):
        self.target = target
        self.prices = prices
        self.clock = clock

    def __getattr__(self, name):
        return getattr(self.target, name)

    def forward(self, rows, caches, wanted):
        self.clock.advance(self.prices.seconds(len(rows)))
        return self.target.forward(rows, caches, wanted)


class PlannedLLM(LLM):
    """Its requests have the drafters of `plan`, by their prompts, if they have drafters there. They take the
    time that `clock` says.
    """

    plan = {}  # noqa: RUF012 - replaced, never changed
    clock = staticmethod(time.perf_counter)

    def speculator(self, request, drafting):
        drafters = self.plan.get(tuple(request.prompt))
        if drafters is None or drafting.is_off:
            return super().speculator(request, drafting)
        limits = Limits(self.target.vocab, request.ends, drafting.k)
        return Speculator(list(drafters), Controller(self.roster.cost, Acceptance()), limits, self.clock)


def hashed_llm(path, ctx=256, kv_tokens=None, target=None, vocab=300):
    """An LLM around such a target, with the tokenizer of the model in the file."""
    file = read_gguf(path)
    tokenizer = Tokenizer.from_gguf(file)
    template = ChatTemplate.from_gguf(file, tokenizer)
    target = target or HashedTarget(vocab)
    return PlannedLLM.of(target, tokenizer, template, ctx=ctx, kv_tokens=kv_tokens, drafting=OFF)


def alone(llm, request):
    """The completion of a request without anything that this issue is about."""
    with llm.start(request, drafting=OFF) as stream:
        list(stream)
    return stream.completion


def shown(completion):
    """All of a completion that does not depend on time or drafts."""
    return (
        completion.ids,
        completion.text,
        completion.finish_reason,
        completion.stopped_by,
        completion.logprobs,
        completion.prompt_logprobs,
        completion.prompt_tokens,
        completion.seed,
    )


class Served:
    """Requests given to a scheduler, and what became of them."""

    def __init__(self, llm, max_running=32, **options):
        self.llm = llm
        self.scheduler = Scheduler(llm, max_running, **options)
        self.jobs = {}
        self.bursts = defaultdict(list)
        self.events = defaultdict(list)
        self.failed = {}
        self.steps = []

    def add(self, request, drafting=OFF):
        ticket = len(self.jobs)
        self.jobs[ticket] = self.scheduler.add(ticket, request, drafting)
        return ticket

    def step(self):
        assert len(self.steps) < MOST_STEPS, f"no end: {[job.pending for job in self.scheduler.running]}"
        step = self.scheduler.step()
        self.steps.append(step)
        for job, burst, event in step.rounds:
            self.bursts[job.ticket].append(burst)
            self.events[job.ticket].append(event)
        self.failed |= {job.ticket: error for job, error in step.failed}
        running = self.scheduler.running
        self.llm.pool.check([job.cache for job in running])
        assert all(job.cache is None for job in self.jobs.values() if job not in running)
        return step

    def finish(self):
        while self.scheduler.has_work:
            self.step()
        self.llm.pool.check([])
        assert self.llm.pool.num_free == self.llm.pool.num_blocks
        return {ticket: job.answer.completion for ticket, job in self.jobs.items()}


class Watch:
    """Hears all that an engine tells. `on_deliver` is called after each delivery. What is delivered last must
    have been counted before.
    """

    def __init__(self):
        self.updates = defaultdict(list)
        self.passes = []
        self.ends = {}
        self.complaints = []
        self.on_deliver = lambda updates: None
        self._given = Counter()  # tokens in rounds that were told of, by ticket
        self._over = set()  # who gets no more updates
        self._changed = threading.Condition()

    def deliver(self, updates):
        for ticket, update in updates:
            if ticket in self._over:
                self.complaints.append(f"{ticket} has ended, and got {update}")
            self.updates[ticket].append(update)
            if is_last(update) and ticket not in self.ends:
                self.complaints.append(f"{ticket} got its last update before its end was told")
            if self._given[ticket] < sum(len(one.burst.ids) for one in self.updates[ticket]):
                self.complaints.append(f"{ticket} got tokens that were not counted")
        self._end(ticket for ticket, update in updates if is_last(update))
        self.on_deliver(updates)

    def passed(self, event):
        self.passes.append(event)
        for ticket, one in event.rounds:
            self._given[ticket] += len(one.tokens)

    def ended(self, event):
        if event.ticket in self.ends:
            self.complaints.append(f"{event.ticket} has ended twice")
        self.ends[event.ticket] = event
        if event.outcome == "cancelled":
            self._end([event.ticket])

    def _end(self, tickets):
        with self._changed:
            self._over.update(tickets)
            self._changed.notify_all()

    def wait(self, *tickets):
        """Until all have ended and their last update is here; the events that say so."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._over.issuperset(tickets), PATIENCE_S)
        return [self.ends[ticket] for ticket in tickets]

    def completion(self, ticket):
        return self.updates[ticket][-1].completion

    def error(self, ticket):
        return self.updates[ticket][-1].error


def is_last(update):
    return update.completion is not None or update.error is not None


@contextmanager
def serving(llm, watch, **options):
    """A running engine, closed at the end; then nothing may be held any more."""
    engine = Engine(llm, watch.deliver, EngineOptions(**options), watch)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()
    assert not watch.complaints
    assert not getattr(llm.target, "complaints", ())
    llm.pool.check([])
    assert llm.pool.num_free == llm.pool.num_blocks


def halted(engine, llm):
    """An event that the engine waits for in the midst of a pass, with nothing else to do: what comes in until
    it is set is taken in together. It has one request for that, and nobody before the next pass.
    """
    entered, resume = threading.Event(), threading.Event()

    def halt(caches):
        entered.set()
        assert resume.wait(PATIENCE_S)

    llm.target.before = halt
    engine.submit(llm.request([1], Sampling(max_tokens=1), 0.0), OFF)
    assert entered.wait(PATIENCE_S)
    llm.target.before = lambda caches: None
    return resume
