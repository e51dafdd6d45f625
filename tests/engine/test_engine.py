"""The engine on its thread: every request gets the answer that it gets alone, to the bit and whatever happens
to others; what it gets adds up; and what it held is free when it is over.
"""

import random
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from constraints_for_tests import Broken, Successors
from drafters_for_tests import Truth
from engine_for_tests import (
    PATIENCE_S,
    Watch,
    Watched,
    alone,
    halted,
    hashed_llm,
    is_last,
    serving,
    shown,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny import write_tiny

from foredraft import LLM, Sampling, TokenError, UsageError
from foredraft.engine.drafting import OFF, Drafting
from foredraft.engine.engine import Engine
from foredraft.engine.kv import KVPool
from foredraft.errors import ClosedError, QueueFullError

SMALL = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 64}
CTX = 192
PLANTED = "ngram"
ENDLESS = Sampling(max_tokens=20, ignore_eos=True, seed=0)
# Whoever waits in vain waits long: no simpler example is looked for.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
WHATEVER = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("engine") / "tiny.gguf", "qwen2", seed=5, **SMALL)


@pytest.fixture
def llm(path):
    """On the hashed target, with room for all."""
    return watched(path)


def watched(path):
    llm = hashed_llm(path, kv_tokens=256 * 16)
    llm.target = Watched(llm.target)
    return llm


def text(length, seed=0):
    return np.random.default_rng(seed).integers(0, 299, length).tolist()


def plain(llm, *seeds, length=5, sampling=ENDLESS, **options):
    return [llm.request(text(length, seed), sampling, 0.0, **options) for seed in seeds]


# Bits

COMMON = text(128, 1)
WAYS = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"frequency_penalty": 0.6, "presence_penalty": 0.2},
    {"repetition_penalty": 1.3, "temperature": 1.4, "seed": 5},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, 300, 7)), "temperature": 1.0, "seed": 6},
    {"stop": ("th", "e"), "temperature": 1.0, "seed": 7},
    {"logit_bias": {118: -100.0, 65: 2.0}, "temperature": 0.9, "seed": 8},
)
FOLLOW = {token: set(range(token % 3, 300, 3)) for token in range(300)}


def sixteenth(llm, number):
    """One of sixteen requests: each way to sample twice, some with logprobs, scored, or constrained."""
    length = (3, 100, 64, 20, 129, 65, 9, 40)[number % 8]
    own = text(length, number)
    prompt = (
        own if number % 3 == 0 else [*COMMON, *own][-length:] if length < 100 else [*COMMON, *own][:length]
    )
    sampling = replace(ENDLESS, **{"max_tokens": 30 + 6 * number, **WAYS[number // 2]})
    return llm.request(
        prompt,
        sampling,
        0.0,
        (None, 2)[number % 2],
        prompt_logprobs=1 if number in (4, 11) else None,
        constraint=Successors(FOLLOW, None) if number == 6 else None,
    )


@pytest.fixture(scope="module")
def expected(path):
    """Of each of them, alone, with a memory to itself."""
    with LLM(path, ctx=CTX, threads=1, drafting=OFF) as llm:
        return [shown(alone(llm, sixteenth(llm, number))) for number in range(16)]


@contextmanager
def native(path, kv_tokens):
    with LLM(path, ctx=CTX, kv_tokens=kv_tokens, threads=1, drafting=OFF) as llm:
        llm.target = Watched(llm.target)
        yield llm


def draftings(path):
    model = f"model:{path}"
    return (
        OFF,
        Drafting(),
        Drafting("suffix", 6),
        Drafting("ngram+suffix", 20),
        Drafting(model, 4),
        Drafting(f"auto+{model}"),
        Drafting("suffix", 0),
        Drafting("prediction", 63, prediction="the fox, the dog, the fox"),
    )


def check_updates(watch, ticket):
    """One after the other they are the completion, and only the last one is the last."""
    updates, completion = watch.updates[ticket], watch.completion(ticket)
    assert [is_last(update) for update in updates] == [False] * (len(updates) - 1) + [True]
    bursts = [update.burst for update in updates]
    assert sum((burst.ids for burst in bursts), ()) == completion.ids
    assert "".join(burst.text for burst in bursts) == completion.text
    assert sum((burst.logprobs for burst in bursts), ()) == (completion.logprobs or ())
    rounds = [event for one in watch.passes for number, event in one.rounds if number == ticket]
    assert [event.tokens for event in rounds] == [burst.ids for burst in bursts]
    figures = completion.figures
    assert (figures.rounds, figures.tokens) == (len(rounds), len(completion.ids))
    assert figures.drafted == sum(len(event.drafted) for event in rounds)
    assert figures.accepted == sum(event.accepted for event in rounds)


@settings(WHATEVER, max_examples=6)
@given(data=st.data())
def test_among_fifteen_others_every_answer_is_the_one_alone(path, expected, data):
    """Whoever drafts, in whatever order they come, whenever, and however little memory there is."""
    with native(path, data.draw(st.sampled_from((CTX, 320, 4096)))) as llm:
        order = data.draw(st.permutations(range(16)))
        arrivals = [1, *(data.draw(st.sampled_from((1, 1, 2, 5, 20))) for _ in order[1:])]
        ways = [data.draw(st.sampled_from(draftings(path))) for _ in order]
        watch, tickets = Watch(), {}
        with serving(llm, watch, max_running=data.draw(st.sampled_from((3, 16)))) as engine:

            def arrive(caches=()):
                for number, arrival, way in zip(order, arrivals, ways, strict=True):
                    if number not in tickets and arrival <= llm.target.passes:
                        tickets[number] = engine.submit(sixteenth(llm, number), way)

            resume = halted(engine, llm)
            llm.target.before = arrive
            arrive()
            resume.set()
            while len(tickets) < 16:
                watch.wait(*tickets.values())
                llm.target.passes += 20  # they all came too late for those that are done
                if not engine.state.running:
                    arrive()
            watch.wait(*tickets.values())
        for number, ticket in tickets.items():
            assert shown(watch.completion(ticket)) == expected[number]
            check_updates(watch, ticket)


def test_memory_for_one_serves_sixteen(path, expected):
    """Who has to give way loses nothing."""
    with native(path, CTX) as llm:
        watch = Watch()
        with serving(llm, watch) as engine:
            tickets = [engine.submit(sixteenth(llm, number), Drafting("suffix", 9)) for number in range(16)]
            ends = watch.wait(*tickets)
        assert sum(end.preempted for end in ends) > 0
        assert [shown(watch.completion(ticket)) for ticket in tickets] == expected
        for ticket in tickets:
            check_updates(watch, ticket)


def test_a_prefix_that_another_request_computed_gives_the_same_bits(path):
    def asks(llm):
        sampling = replace(ENDLESS, temperature=1.0)
        return [llm.request([*COMMON, seed], replace(sampling, seed=seed), 0.0, 2) for seed in range(4)]

    with native(path, 2048) as llm:
        alike = [shown(alone(llm, request)) for request in asks(llm)]
        watch = Watch()
        with serving(llm, watch) as engine:
            for drafting in (OFF, Drafting("suffix", 5)):
                tickets = [engine.submit(request, drafting) for request in asks(llm)]
                watch.wait(*tickets)
                assert [shown(watch.completion(ticket)) for ticket in tickets] == alike
        assert [watch.completion(ticket).cached_tokens for ticket in range(8)] == [0, *[128] * 7]


# Figures


def test_passes_add_up_to_what_the_target_saw_and_what_was_delivered(llm):
    """Scored prompts too."""
    requests = [llm.request(text(length, length), ENDLESS, 0.0) for length in (1, 5, 64, 100, 180)]
    requests += [llm.request(text(100, 9), ENDLESS, 0.0, prompt_logprobs=0)]
    for request in requests:
        llm.plan = {**llm.plan, tuple(request.prompt): [Truth((*request.prompt, *alone(llm, request).ids))]}
    llm.target.target.passes.clear()
    watch = Watch()
    with serving(llm, watch) as engine:
        tickets = [engine.submit(request, Drafting(PLANTED, 3)) for request in requests]
        watch.wait(*tickets)
    for ticket in tickets:
        check_updates(watch, ticket)
    events = [event for one in watch.passes for _, event in one.rounds]
    drafted = sum(len(event.drafted) for event in events)
    prompt_rows = sum(len(request.prompt) - 1 for request in requests)
    assert sum(one.prompt_rows for one in watch.passes) == prompt_rows
    assert sum(one.rows for one in watch.passes) == prompt_rows + len(events) + drafted
    assert sum(one.rows for one in watch.passes) == sum(llm.target.target.passes)
    assert sum(len(event.tokens) for event in events) == 20 * len(tickets)
    for one in watch.passes:
        assert 0 <= one.kv_used <= one.kv_blocks == llm.pool.num_blocks
        assert min(one.draft_s, one.pass_s, one.host_s) >= 0.0
        assert one.decoding == len(one.rounds)
    last = watch.passes[-1]
    assert (last.running, last.waiting, last.kv_used) == (0, 0, 0)


def test_the_end_says_how_it_came(llm):
    (free,) = (alone(llm, request) for request in plain(llm, 5))
    watch = Watch()
    with serving(llm, watch, max_running=1) as engine:
        (early,) = plain(llm, 5, sampling=replace(ENDLESS, stop_token_ids=(free.ids[7],)))
        stopped, full = engine.submit(early), engine.submit(*plain(llm, 6))
        first, second = watch.wait(stopped, full)
    assert (first.outcome, first.completion.stopped_by, first.error) == ("stop", free.ids[7], None)
    assert (second.outcome, second.completion.finish_reason, second.preempted) == ("length", "length", 0)
    assert 0.0 < first.queued_s < second.queued_s
    assert shown(second.completion) == shown(watch.completion(full))


def test_what_is_traced_is_what_is_observed(llm):
    watch, traced = Watch(), []
    with serving(llm, watch) as engine:
        watch.wait(engine.submit(*plain(llm, 5, trace=traced.append)))
    assert traced == [event for one in watch.passes for _, event in one.rounds]
    assert len(traced) == 20


# Cancelling


@settings(WHATEVER, max_examples=20)
@given(
    lengths=st.lists(st.sampled_from((1, 3, 5, 150)), min_size=1, max_size=6),
    cuts=st.dictionaries(st.integers(1, 6), st.integers(1, 24), min_size=1, max_size=4),
    max_running=st.sampled_from((2, 8)),
    k=st.sampled_from((0, 4)),
)
def test_who_is_cancelled_holds_nothing_in_the_next_pass(path, lengths, cuts, max_running, k):
    """While it waits, in its prompt, while it writes, and when it is just ending."""
    llm = watched(path)
    prompts = [text(length, seed) for seed, length in enumerate(lengths)]
    expected = [alone(llm, llm.request(prompt, ENDLESS, 0.0)).ids for prompt in prompts]
    llm.plan = {
        tuple(prompt): [Truth((*prompt, *ids))] for prompt, ids in zip(prompts, expected, strict=True)
    }
    watch, cancelled, full = Watch(), {}, []
    llm.target.passes = 0
    with serving(llm, watch, max_running=max_running) as engine:

        def cut(caches):
            assert cancelled.keys() <= watch.ends.keys()
            running = engine.state.running
            assert running == min(max_running, 1 + len(lengths) - len(watch.ends))
            if len(caches) == running:  # else a prompt has no rows in this pass
                llm.pool.check(list(caches))
                full.append(llm.target.passes)
            for ticket, at in cuts.items():
                if at + 1 == llm.target.passes and ticket <= len(lengths):
                    engine.cancel(ticket)
                    cancelled[ticket] = len(watch.updates[ticket])

        resume = halted(engine, llm)
        tickets = [
            engine.submit(llm.request(prompt, ENDLESS, 0.0), Drafting(PLANTED, k)) for prompt in prompts
        ]
        assert tickets == list(range(1, 1 + len(lengths)))
        llm.target.before = cut
        resume.set()
        ends = watch.wait(*tickets)
    assert full
    for ticket, end, ids in zip(tickets, ends, expected, strict=True):
        delivered = sum((update.burst.ids for update in watch.updates[ticket]), ())
        assert delivered == end.completion.ids == ids[: len(delivered)]
        if end.outcome == "cancelled":
            assert not any(is_last(update) for update in watch.updates[ticket])
            assert len(watch.updates[ticket]) <= cancelled[ticket] + 1  # of the pass that was under way
        else:
            assert (end.outcome, delivered) == ("length", ids)
            check_updates(watch, ticket)


def test_cancelling_twice_or_too_late_does_nothing(llm):
    watch = Watch()
    watch.on_deliver = lambda updates: [engine.cancel(one) for one, update in updates if is_last(update)]
    with serving(llm, watch) as engine:
        ticket = engine.submit(*plain(llm, 5))
        watch.wait(ticket)
        for other in (ticket, ticket, 99, -1):
            engine.cancel(other)
        again = engine.submit(*plain(llm, 5))
        watch.wait(again)
    assert watch.completion(again).ids == watch.completion(ticket).ids
    assert {end.outcome for end in watch.ends.values()} == {"length"}
    assert len(watch.ends) == 2


def test_from_many_threads_at_once_every_request_ends_once(llm):
    watch, tickets, failures = Watch(), [], []

    def client(seed):
        dice = random.Random(seed)
        try:
            for number in range(12):
                ticket = engine.submit(
                    *plain(llm, 100 * seed + number, sampling=replace(ENDLESS, max_tokens=6))
                )
                tickets.append(ticket)
                if dice.random() < 0.5:
                    engine.cancel(dice.choice(tickets))
        except Exception as failure:  # noqa: BLE001
            failures.append(failure)

    with serving(llm, watch, max_running=5) as engine:
        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        ends = watch.wait(*tickets)
        assert engine.drain(PATIENCE_S)
    assert not failures
    assert sorted(tickets) == list(range(48)) == sorted(watch.ends)
    assert {end.outcome for end in ends} == {"length", "cancelled"}
    for ticket, end in watch.ends.items():
        if end.outcome == "length":
            check_updates(watch, ticket)


# Coming and going


def test_more_than_may_wait_are_refused(llm):
    watch = Watch()
    with serving(llm, watch, max_running=2, max_waiting=3) as engine:
        resume = halted(engine, llm)
        tickets = [engine.submit(request) for request in plain(llm, *range(4))]
        assert (engine.state.running, engine.state.waiting) == (1, 4)
        with pytest.raises(QueueFullError, match="2 requests are being answered and 3 wait"):
            engine.submit(*plain(llm, 9))
        resume.set()
        watch.wait(*tickets)
        late = engine.submit(*plain(llm, 9))
        watch.wait(late)
    assert len(watch.ends) == 6


def test_draining_lets_all_finish_and_nobody_in(llm):
    watch = Watch()
    with serving(llm, watch, max_running=2) as engine:
        resume = halted(engine, llm)
        tickets = [engine.submit(request) for request in plain(llm, *range(5))]
        assert engine.drain(timeout=0.0) is False
        assert engine.state.draining and engine.state.alive
        with pytest.raises(ClosedError):
            engine.submit(*plain(llm, 9))
        resume.set()
        assert engine.drain() is True
        assert not engine.state.running and not engine.state.waiting
        with pytest.raises(ClosedError):
            engine.submit(*plain(llm, 9))
        for ticket in tickets:
            assert len(watch.completion(ticket).ids) == 20


def test_closing_fails_whoever_is_there(llm):
    """Writing, in a prompt, waiting, or not even seen yet."""
    watch = Watch()
    expected = [alone(llm, request).ids for request in plain(llm, 1)]
    entered, resume = threading.Event(), threading.Event()

    def halt(caches):
        if len(watch.updates[0]) == 5 and not entered.is_set():
            entered.set()
            assert resume.wait(PATIENCE_S)

    llm.target.before = halt
    with serving(llm, watch, max_running=2) as engine:
        tickets = [engine.submit(request) for request in plain(llm, 1)]
        tickets += [
            engine.submit(request) for request in plain(llm, 2, 3, length=240, sampling=replace(ENDLESS))
        ]
        assert entered.wait(PATIENCE_S)
        tickets += [engine.submit(request) for request in plain(llm, 4)]
        closer = threading.Thread(target=engine.close)
        closer.start()
        while engine.state.alive:
            pass
        with pytest.raises(ClosedError):
            engine.submit(*plain(llm, 9))
        resume.set()
        closer.join()
        for ticket in tickets:
            assert isinstance(watch.error(ticket), ClosedError)
            assert watch.ends[ticket].outcome == "failed"
            assert isinstance(watch.ends[ticket].error, ClosedError)
        assert engine.drain(timeout=0.0) is True
        engine.close()
    ids = sum((update.burst.ids for update in watch.updates[0]), ())
    assert ids == expected[0][: len(ids)] and len(ids) >= 5


def test_an_engine_that_was_not_started_takes_nobody(llm):
    engine = Engine(llm, lambda updates: None)
    assert not engine.state.alive
    with pytest.raises(ClosedError):
        engine.submit(*plain(llm, 1))
    assert engine.drain() is True
    engine.close()


def test_the_state_says_who_holds_what(llm):
    watch, states = Watch(), []
    llm.target.before = lambda caches: states.append(engine.state)
    with serving(llm, watch, max_running=2) as engine:
        resume = halted(engine, llm)
        tickets = [engine.submit(request) for request in plain(llm, *range(3), length=100)]
        llm.target.before = lambda caches: states.append(engine.state)
        resume.set()
        watch.wait(*tickets)
        assert engine.drain(PATIENCE_S)
        idle = engine.state
    assert (states[0].running, states[0].waiting, states[0].alive, states[0].draining) == (2, 1, True, False)
    assert all(0 < state.kv_used <= 2 * 3 for state in states)
    assert (idle.running, idle.waiting, idle.kv_used) == (0, 0, 0)
    assert idle.kv_cached == 3  # a full block of each
    assert idle.kv_blocks == llm.pool.num_blocks


def test_who_is_told_may_ask_at_once(llm):
    """From the engine's own thread."""
    watch, tickets = Watch(), []

    def more(updates):
        for one, update in updates:
            if is_last(update) and len(tickets) < 5:
                tickets.append(engine.submit(*plain(llm, 10 + one)))

    watch.on_deliver = more
    with serving(llm, watch) as engine:
        tickets.append(engine.submit(*plain(llm, 1)))
        watch.wait(*range(5))
    assert tickets == list(range(5))


# Faults


class Loud(Watch):
    """Raises whenever it is told something."""

    def deliver(self, updates):
        super().deliver(updates)
        raise RuntimeError("loud")

    def passed(self, event):
        super().passed(event)
        raise RuntimeError("loud")

    def ended(self, event):
        super().ended(event)
        raise RuntimeError("loud")


def test_listeners_that_raise_stop_nobody(llm, caplog):
    def trace(event):
        raise RuntimeError("loud")

    expected = [shown(alone(llm, request)) for request in plain(llm, 1, 2, 3)]
    watch = Loud()
    with serving(llm, watch) as engine:
        tickets = [engine.submit(request) for request in plain(llm, 1, 2, 3, trace=trace)]
        watch.wait(*tickets)
        assert engine.drain(PATIENCE_S)
    assert [shown(watch.completion(ticket)) for ticket in tickets] == expected
    assert {record.message for record in caplog.records} == {"a listener of the engine failed"}


@pytest.mark.parametrize("where", ["forbid", "advance"])
def test_a_request_that_fails_says_why_and_how_far_it_came(llm, where):
    (free,) = (alone(llm, request) for request in plain(llm, 1))
    watch = Watch()
    with serving(llm, watch) as engine:
        tickets = [
            engine.submit(request)
            for request in [*plain(llm, 1, constraint=Broken(where, 6)), *plain(llm, 2)]
        ]
        failed, fine = watch.wait(*tickets)
    assert (failed.outcome, str(failed.error)) == ("failed", f"broken in {where}")
    assert watch.error(tickets[0]) is failed.error
    assert watch.completion(tickets[0]) is None
    assert failed.completion.ids == free.ids[:6]
    assert "".join(update.burst.text for update in watch.updates[tickets[0]]) == failed.completion.text
    assert fine.outcome == "length"


@pytest.mark.parametrize("drafting", [Drafting("model:nowhere"), Drafting("suffix+model:nowhere", 3)])
def test_a_drafter_that_cannot_be_had_fails_the_request_that_names_it(llm, drafting):
    watch = Watch()
    with serving(llm, watch) as engine:
        good, bad = engine.submit(*plain(llm, 1)), engine.submit(*plain(llm, 2), drafting)
        end, failed = watch.wait(good, bad)
    assert (end.outcome, failed.outcome, failed.completion.ids) == ("length", "failed", ())
    assert isinstance(watch.error(bad), UsageError)


def test_a_token_that_the_model_does_not_have_harms_nobody(path):
    """If it comes so far."""
    with native(path, 1024) as llm:
        watch = Watch()
        with serving(llm, watch) as engine:
            good = engine.submit(*plain(llm, 1))
            bad = engine.submit(replace(plain(llm, 2, length=70)[0], prompt=[300, *text(70)]))
            end, failed = watch.wait(good, bad)
        assert (end.outcome, failed.outcome) == ("length", "failed")
        assert isinstance(watch.error(bad), TokenError)


class BrokenPool(KVPool):
    """Gives no more sequences out when it is told so."""

    broken = False

    def open(self):
        if self.broken:
            raise RuntimeError("broken")
        return super().open()


def test_an_engine_that_fails_itself_tells_everybody(llm, caplog):
    llm.pool = BrokenPool(llm.pool.num_blocks)
    watch = Watch()
    with serving(llm, watch) as engine:
        resume = halted(engine, llm)
        tickets = [engine.submit(request) for request in plain(llm, 1, 2)]
        llm.pool.broken = True
        resume.set()
        ends = watch.wait(*tickets)
        assert not engine.state.alive
        with pytest.raises(ClosedError):
            engine.submit(*plain(llm, 3))
        assert engine.drain(timeout=0.0) is True
    assert {end.outcome for end in ends} == {"failed"}
    assert all(isinstance(watch.error(ticket), ClosedError) for ticket in tickets)
    assert "the engine failed" in caplog.text
