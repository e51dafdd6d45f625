"""Many requests in shared passes, step by step and without a thread: whatever the schedule, every answer is
the one that it is alone, and nothing is held longer than it must be. On a target that costs next to nothing,
whose logits depend on every token before, so that a wrong block shows.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from constraints_for_tests import Broken, Successors
from drafters_for_tests import Garbage, Truth
from engine_for_tests import HashedTarget, Priced, Served, alone, hashed_llm, shown
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import write_tiny
from twin_target import TwinTarget

from foredraft import NumericsError, Sampling
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import OFF, Drafting
from foredraft.engine.kv import BLOCK
from foredraft.engine.llm import LLM
from foredraft.engine.stall import CHUNK, DRIFT_STEP, FEWEST, STALL, UNPRICED, USUAL_SPEED
from foredraft.measure.prices import Prices
from foredraft.measure.replay import VirtualClock
from foredraft.models.chat import ChatTemplate
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer
from foredraft.models.twin import twin_forward

SMALL = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ff": 64}
CTX = 256
KNOWN = {}  # logits of texts, whoever asked
PLANTED = "ngram"  # a request with this drafter has those of the plan
ENDLESS = Sampling(max_tokens=20, ignore_eos=True, seed=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("scheduler") / "tiny.gguf", "qwen2", seed=5, **SMALL)


@pytest.fixture
def serve(path):
    """Makes an LLM on the hashed target, with as much memory as is said."""

    def make(kv_tokens=None, ctx=CTX, target=None):
        target = target or HashedTarget(300)
        target.known = KNOWN
        return hashed_llm(path, ctx, kv_tokens, target)

    return make


def text(length, seed=0):
    return np.random.default_rng(seed).integers(0, 299, length).tolist()


def plant(llm, request, drafter):
    """What a drafter that knows the answer proposes."""
    whole = (*request.prompt, *alone(llm, request).ids)
    llm.plan = {**llm.plan, tuple(request.prompt): [drafter(whole)]}


# Whatever the schedule

COMMON = text(150, 99)


@st.composite
def cases(draw):
    length = draw(st.sampled_from((1, 2, 5, 30, 63, 64, 65, 100, 140)))
    common = min(draw(st.sampled_from((0, 0, 64, 140))), length)
    prompt = [*COMMON[:common], *text(length - common, draw(st.integers(0, 99)))]
    sampling = Sampling(
        temperature=draw(st.sampled_from((0.0, 0.0, 1.0))),
        top_k=draw(st.sampled_from((0, 5))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.3))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.5))),
        seed=draw(st.integers(0, 5)),
        max_tokens=draw(st.sampled_from((1, 2, 12, 40, 90))),
        min_tokens=draw(st.sampled_from((0, 0, 4))),
        ignore_eos=draw(st.booleans()),
        stop=draw(st.sampled_from(((), (), ("a",), ("th", "e")))),
    )
    drafting = draw(
        st.sampled_from(
            (
                OFF,
                Drafting(),
                Drafting("suffix", 5),
                Drafting(PLANTED, 6),
                Drafting(PLANTED, 63),
                Drafting(PLANTED),
            )
        )
    )
    return {
        "ask": (prompt, sampling, 0.0, draw(st.sampled_from((None, None, 2)))),
        "scored": draw(st.sampled_from((None, None, None, 1))),
        "drafting": drafting,
        "garbage": draw(st.booleans()),
        "arrives": draw(st.integers(0, 9)),
        "leaves": draw(st.sampled_from((None,) * 5 + (0, 2, 7))),
    }


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    several=st.lists(cases(), min_size=1, max_size=9),
    kv_tokens=st.sampled_from((256, 256, 320, 512)),
    max_running=st.sampled_from((2, 4, 32)),
)
def test_every_answer_is_the_one_alone(serve, several, kv_tokens, max_running):
    llm, other = serve(kv_tokens), serve()
    served, expected = Served(llm, max_running), {}
    tickets, left = {}, set()
    for step in range(400):
        for number, case in enumerate(several):
            if case["arrives"] == step:
                request = llm.request(*case["ask"], prompt_logprobs=case["scored"])
                expected[number] = alone(other, other.request(*case["ask"], prompt_logprobs=case["scored"]))
                whole = (*request.prompt, *expected[number].ids)
                drafter = Garbage(300, number, whole) if case["garbage"] else Truth(whole)
                llm.plan = {tuple(request.prompt): [drafter]} if case["drafting"].drafter == PLANTED else {}
                tickets[number] = served.add(request, case["drafting"])
            if case["leaves"] is not None and case["arrives"] + case["leaves"] == step:
                job = served.jobs[tickets[number]]
                if not job.answer.ended:
                    served.scheduler.remove(job)
                    left.add(number)
        if served.scheduler.has_work:
            served.step()
        elif step > 9:
            break
    found = served.finish()
    assert not served.failed
    for number, ticket in tickets.items():
        bursts = served.bursts[ticket]
        assert sum((burst.ids for burst in bursts), ()) == found[ticket].ids
        assert sum((event.tokens for event in served.events[ticket]), ()) == found[ticket].ids
        assert "".join(burst.text for burst in bursts) == found[ticket].text
        if number in left:
            assert found[ticket].ids == expected[number].ids[: len(found[ticket].ids)]
        else:
            assert shown(found[ticket]) == shown(expected[number])


# Memory that runs out


@pytest.mark.parametrize("drafting", [OFF, Drafting(PLANTED, 7)])
def test_who_has_to_give_way_goes_on_where_it_was(serve, drafting):
    """Four texts of up to four blocks in a memory of five."""
    llm = serve(kv_tokens=256)
    assert llm.pool.num_blocks == 5
    sampling = replace(ENDLESS, max_tokens=180, temperature=0.8, seed=3, frequency_penalty=0.2)
    prompts = [text(60, seed) for seed in range(4)]
    requests = [llm.request(prompt, sampling, 0.0, 1) for prompt in prompts]
    expected = [alone(llm, llm.request(prompt, sampling, 0.0, 1)) for prompt in prompts]
    if drafting.drafter == PLANTED:
        for request in requests:
            plant(llm, request, Truth)
    served = Served(llm)
    for request in requests:
        served.add(request, drafting)
    found = served.finish()
    assert [shown(found[ticket]) for ticket in range(4)] == [shown(one) for one in expected]
    preempted = [served.jobs[ticket].preempted for ticket in range(4)]
    assert preempted[0] == 0 and sum(preempted) > 0
    for ticket, events in served.events.items():
        assert [event.round for event in events] == list(range(len(events)))
        starts = np.cumsum([60, *(len(event.tokens) for event in events)])
        assert [event.position for event in events] == starts[:-1].tolist()
        assert found[ticket].figures.rounds == len(events)
    ends = [max(n for n, step in enumerate(served.steps) if served_in(step, ticket)) for ticket in range(4)]
    assert ends == sorted(ends)  # the memory goes to whoever came first


def served_in(step, ticket):
    return any(job.ticket == ticket for job, _, _ in step.rounds)


def test_what_was_computed_before_giving_way_is_found_again(serve):
    """As long as its blocks were not needed."""
    llm = serve(kv_tokens=384)
    first, second = (llm.request(text(100, seed), replace(ENDLESS, max_tokens=150), 0.0) for seed in (1, 2))
    served = Served(llm)
    served.add(first), served.add(second)
    while not served.jobs[1].preempted:
        served.step()
    written = served.jobs[1].answer.completion.ids
    prompt_rows = sum(one.prompt_rows for step in served.steps for one in step.passes)
    found = served.finish()
    again = sum(one.prompt_rows for step in served.steps for one in step.passes) - prompt_rows
    assert again < len(second.prompt) + len(written) - BLOCK
    assert found[1].cached_tokens == 0
    assert found[1].ids == alone(llm, llm.request(text(100, 2), replace(ENDLESS, max_tokens=150), 0.0)).ids


@pytest.fixture(scope="module")
def twin(path):
    """Makes an LLM on the float64 twin of the tiny model."""
    file = read_gguf(path)
    tokenizer = Tokenizer.from_gguf(file)
    target = TwinTarget(file, describe(file))

    def make(ctx, kv_tokens):
        return LLM.of(
            target,
            tokenizer,
            ChatTemplate.from_gguf(file, tokenizer),
            ctx=ctx,
            kv_tokens=kv_tokens,
            drafting=OFF,
        )

    return make


def teacher_forced(target, prompt, count):
    """(token, logprob, the likeliest) for every token of a prompt but the first, by the definition."""
    logits = twin_forward(target.spec, target.weights, prompt)
    logits = logits - logits.max(axis=1, keepdims=True)
    known = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [
        (token, known[place, token], np.argsort(-known[place])[:count].tolist())
        for place, token in enumerate(prompt[1:])
    ]


def check_scored(completion, expected):
    first, *others = completion.prompt_logprobs
    assert first is None
    assert len(others) == len(expected) == completion.prompt_tokens - 1
    for found, (token, logprob, top) in zip(others, expected, strict=True):
        assert found.id == token
        assert found.logprob == pytest.approx(logprob, abs=1e-4)
        assert [one for one, _ in found.top] == top


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65, 66, 130])
def test_a_prompts_logprobs_are_what_the_model_says_of_it(twin, length):
    llm = twin(256, None)
    prompt = text(length, 7)
    served = Served(llm)
    served.add(llm.request(prompt, ENDLESS, 0.0))  # whose blocks are not to be used
    served.finish()
    scored = served.add(llm.request(prompt, ENDLESS, 0.0, prompt_logprobs=3))
    beside = served.add(llm.request(text(40, 8), ENDLESS, 0.0))
    found = served.finish()
    check_scored(found[scored], teacher_forced(llm.target, prompt, 3))
    assert found[scored].cached_tokens == 0
    assert found[scored].ids == found[0].ids
    assert found[beside].prompt_logprobs is None


def test_a_prompts_logprobs_survive_giving_way(twin):
    """Three that are scored in a memory of three blocks: after their first tokens they are computed again."""
    llm = twin(128, 128)
    prompts = [text(50, seed) for seed in range(3)]
    served = Served(llm)
    for prompt in prompts:
        served.add(llm.request(prompt, replace(ENDLESS, max_tokens=70), 0.0, prompt_logprobs=2))
    found = served.finish()
    assert not served.failed
    assert sum(job.preempted for job in served.jobs.values()) > 0
    for ticket, prompt in enumerate(prompts):
        check_scored(found[ticket], teacher_forced(llm.target, prompt, 2))
        assert found[ticket].ids == alone(llm, llm.request(prompt, replace(ENDLESS, max_tokens=70), 0.0)).ids


def test_scoring_begins_anew_if_a_prompt_gives_way_meanwhile(serve):
    """Beside an answer that grows by a block a pass."""
    llm = serve(kv_tokens=256)
    first = llm.request(text(63, 1), replace(ENDLESS, max_tokens=190), 0.0)
    plant(llm, first, Truth)
    expected = alone(llm, llm.request(text(120, 2), ENDLESS, 0.0, prompt_logprobs=1))
    llm.roster.cost = PassCost()
    served = Served(llm, clock=VirtualClock())  # so that no price is known
    served.add(first, Drafting(PLANTED, 63))
    served.step()
    scored = served.add(llm.request(text(120, 2), ENDLESS, 0.0, prompt_logprobs=1))
    while not served.jobs[scored].preempted:
        served.step()
    assert not served.bursts[scored]
    assert shown(served.finish()[scored]) == shown(expected)


# Prefixes


def test_many_with_one_prompt_have_it_computed_once(serve):
    llm = serve(kv_tokens=1024)
    prompt, sampling = text(200, 3), replace(ENDLESS, temperature=1.0)
    served = Served(llm)
    for seed in range(6):
        served.add(llm.request(prompt, replace(sampling, seed=seed), 0.0))
    found = served.finish()
    assert [found[ticket].cached_tokens for ticket in range(6)] == [0, *[192] * 5]
    assert sum(one.prompt_rows for step in served.steps for one in step.passes) == 199 + 5 * 7
    for seed in range(6):
        assert found[seed].ids == alone(llm, llm.request(prompt, replace(sampling, seed=seed), 0.0)).ids


def test_a_prompt_is_taken_over_as_soon_as_a_block_of_it_is_there(priced):
    """One that shares no more than a block does not wait for the whole prompt."""
    served, _ = priced
    decode(served, 1)
    llm, shared = served.llm, text(250, 3)
    long = served.add(llm.request(shared, replace(ENDLESS, max_tokens=5), 0.0))
    short = served.add(llm.request([*shared[:64], 5], replace(ENDLESS, max_tokens=5), 0.0))
    while not served.bursts[short]:
        served.step()
    assert not served.bursts[long]
    found = served.finish()
    assert (found[long].cached_tokens, found[short].cached_tokens) == (0, 64)


def test_nothing_is_shared_between_salts_or_with_what_is_scored(serve):
    llm = serve(kv_tokens=1024)
    prompt = text(150, 3)
    served = Served(llm)
    for salt in ("", "a", "b", "a"):
        served.add(llm.request(prompt, ENDLESS, 0.0, salt=salt))
        served.finish()
    served.add(llm.request(prompt, ENDLESS, 0.0, salt="a", prompt_logprobs=0))
    found = served.finish()
    assert [found[ticket].cached_tokens for ticket in range(5)] == [0, 0, 0, 128, 0]
    assert len({found[ticket].ids for ticket in range(5)}) == 1


@pytest.mark.parametrize("accepted", range(1, 12))
def test_what_was_accepted_after_the_end_is_no_prefix(serve, accepted):
    """A stop string ends the answer inside an accepted draft, on either side of a block's edge."""
    llm = serve()
    (token,) = llm.tokenize("b")
    sampling = Sampling(max_tokens=40, ignore_eos=True, stop=("b" * 4,), logit_bias={token: 1e4})
    prompt = text(64 - accepted, 4)
    llm.plan = {tuple(prompt): [Truth((*prompt, *[token] * 90))]}
    served = Served(llm)
    ticket = served.add(llm.request(prompt, sampling, 0.0), Drafting(PLANTED, 12))
    completion = served.finish()[ticket]
    assert (completion.text, completion.ids) == ("", (token,) * 4)
    assert completion.figures.accepted == 3
    again = served.add(llm.request([*prompt, *[token] * 20, 7], ENDLESS, 0.0))
    expected = alone(llm, llm.request([*prompt, *[token] * 20, 7], ENDLESS, 0.0))
    assert served.finish()[again].ids == expected.ids


# Whose turn it is


def test_who_came_first_is_let_in_first(serve):
    llm = serve(kv_tokens=1024)
    served = Served(llm, max_running=3)
    for seed in range(8):
        served.add(llm.request(text(5, seed), replace(ENDLESS, max_tokens=6 + seed % 3), 0.0))
    firsts = []
    while served.scheduler.has_work:
        step = served.step()
        assert len(served.scheduler.running) <= 3
        firsts += [job.ticket for job, _, event in step.rounds if event.round == 0]
    assert firsts == list(range(8))


def test_a_large_prompt_is_not_passed_over_for_small_ones_when_memory_is_short(serve):
    llm = serve(kv_tokens=256)
    served = Served(llm)
    served.add(llm.request(text(100, 1), replace(ENDLESS, max_tokens=100), 0.0))
    large = served.add(llm.request(text(200, 2), ENDLESS, 0.0))
    small = served.add(llm.request(text(5, 3), ENDLESS, 0.0))
    while not served.bursts[small]:
        served.step()
    assert served.bursts[large]
    served.finish()


PRICES = Prices({1: 0.050, 4: 0.052, 8: 0.066, 16: 0.110, 32: 0.220, 64: 0.44, 256: 1.76})


@pytest.fixture
def priced(serve):
    """Requests in an engine whose passes cost what the list says, on a clock of its own."""
    clock = VirtualClock()
    llm = serve(kv_tokens=8192, target=Priced(HashedTarget(300), PRICES, clock))
    llm.target.target.known = KNOWN
    return Served(llm, clock=clock), clock


def decode(served, count, tokens=200):
    """So many requests that write, until prices are known."""
    for seed in range(count):
        served.add(served.llm.request(text(3, 100 + seed), replace(ENDLESS, max_tokens=tokens), 0.0))
    for _ in range(40):
        served.step()
    assert len(served.scheduler.running) == count


@pytest.mark.parametrize("decoding", [1, 3, 12])
def test_a_pass_takes_as_much_of_prompts_as_the_stall_allows_and_no_more(priced, decoding):
    served, clock = priced
    decode(served, decoding)
    cost, plain_s = served.llm.roster.cost, PRICES.seconds(decoding)
    usual, drift = 0.0, 1.0
    for seed in range(3):
        served.add(served.llm.request(text(180 + seed, seed), ENDLESS, 0.0))
    full = 0
    for step in served.steps[1:]:
        assert step.passes[0].rows == decoding
        usual += (plain_s - usual) * (USUAL_SPEED if usual else 1.0)
    while prompts := [job for job in served.jobs.values() if job.pending > 1 and not job.answer.ended]:
        waiting = sum(job.pending for job in prompts)
        busy = sum(job.is_decoding for job in served.jobs.values())
        limit = (
            STALL * max(usual, cost.seconds(busy)) / drift * (1 + (len(prompts) - 1) / (len(prompts) + busy))
        )
        prices = {rows: cost.seconds(busy + rows) for rows in range(FEWEST, CHUNK + 2)}
        started = clock()
        (made,) = served.step().passes
        added = made.rows - busy
        assert added <= waiting
        assert added <= FEWEST or prices[added] <= limit
        assert added == min(waiting, CHUNK) or prices[added + 1] > limit
        assert clock() - started < 1.5 * limit
        longer = clock() - started > made.predicted_s * drift
        drift = max(1.0, drift * DRIFT_STEP if longer else drift / DRIFT_STEP)
        full += added < waiting
    assert full > 3
    served.finish()


def test_a_long_prompt_beside_others_keeps_half_its_speed(priced):
    served, clock = priced
    decode(served, 8)
    prompt = served.llm.request(text(250, 1), ENDLESS, 0.0)
    started, ticket = clock(), served.add(prompt)
    while not served.bursts[ticket]:
        served.step()
    beside = clock() - started
    assert PRICES.seconds(250) / beside >= 0.5
    served.finish()


def test_prompts_that_are_scored_stall_others_no_more_than_other_prompts(priced):
    served, clock = priced
    decode(served, 4)
    for seed in range(8):
        served.add(served.llm.request(text(3 + seed, seed), ENDLESS, 0.0, prompt_logprobs=0))
    while any(job.pending > 1 for job in served.jobs.values()):
        started, busy = clock(), sum(job.is_decoding for job in served.jobs.values())
        served.step()
        assert clock() - started < 3 * PRICES.seconds(busy)
    served.finish()


def test_while_prices_are_unknown_a_pass_takes_a_fixed_part_of_prompts(serve):
    llm = serve(kv_tokens=1024)
    served = Served(llm)
    served.add(llm.request([1], ENDLESS, 0.0))
    served.add(llm.request(text(200), ENDLESS, 0.0))
    (made,) = served.step().passes
    assert (made.rows, made.prompt_rows) == (1 + UNPRICED, UNPRICED)


def test_beside_nobody_a_prompt_has_a_whole_chunk(serve):
    llm = serve(ctx=600, kv_tokens=600)
    served = Served(llm)
    served.add(llm.request(text(590), replace(ENDLESS, max_tokens=2), 0.0))
    rows = [step.passes[0].rows for step in (served.step(), served.step(), served.step())]
    assert rows == [CHUNK, CHUNK, 590 - 2 * CHUNK]


def test_short_prompts_overtake_a_long_one(priced):
    served, _ = priced
    decode(served, 4)
    long = served.add(served.llm.request(text(250, 1), ENDLESS, 0.0))
    served.step()
    short = [served.add(served.llm.request(text(6, 10 + n), ENDLESS, 0.0)) for n in range(3)]
    while not all(served.bursts[ticket] for ticket in short):
        served.step()
        assert not served.bursts[long]
    served.finish()


@pytest.mark.parametrize("scored", [None, 0])
def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones(priced, scored):
    """It has half of what a pass takes of prompts, at least."""
    served, _ = priced
    decode(served, 4)
    long = served.add(served.llm.request(text(200, 1), ENDLESS, 0.0, prompt_logprobs=scored))
    passes = 0
    while not served.bursts[long]:
        for number in range(4):
            served.add(
                served.llm.request(text(9, 1000 + 4 * passes + number), replace(ENDLESS, max_tokens=2), 0.0)
            )
        before = served.jobs[long].pending
        served.step()
        passes += 1
        assert served.jobs[long].pending <= max(1, before - FEWEST // 2)
    assert passes <= 200 // (FEWEST // 2) + 2
    assert any(served.bursts[ticket] for ticket in list(served.jobs)[long + 1 :])
    served.finish()


def test_the_second_long_prompt_goes_on_as_soon_as_the_first_is_done(priced):
    served, _ = priced
    decode(served, 4)
    longs = [served.add(served.llm.request(text(200, seed), ENDLESS, 0.0)) for seed in (1, 2, 3)]
    done = []
    for passes in range(600):
        served.add(served.llm.request(text(9, 1000 + passes), replace(ENDLESS, max_tokens=1), 0.0))
        served.step()
        done += [ticket for ticket in longs if len(served.bursts[ticket]) == 1 and ticket not in done]
        if len(done) == 3:
            break
    assert done == longs
    served.finish()


# What is counted


def test_passes_add_up_to_the_answers(serve):
    llm = serve(kv_tokens=2048)
    served = Served(llm)
    prompts = [text(length, length) for length in (1, 2, 40, 64, 100, 150)]
    requests = [
        llm.request(prompt, replace(ENDLESS, max_tokens=10 + 3 * number), 0.0)
        for number, prompt in enumerate(prompts)
    ]
    for request in requests:
        plant(llm, request, Truth)
    llm.target.passes.clear()
    for number, request in enumerate(requests):
        served.add(request, Drafting(PLANTED, number))
        served.step()
    found = served.finish()
    passes = [one for step in served.steps for one in step.passes]
    events = [event for several in served.events.values() for event in several]
    assert sum(one.prompt_rows for one in passes) == sum(len(prompt) - 1 for prompt in prompts)
    drafted = sum(len(event.drafted) for event in events)
    assert sum(one.rows - one.prompt_rows for one in passes) == len(events) + drafted
    assert llm.target.passes == [one.rows for one in passes]
    for ticket, completion in found.items():
        own, figures = served.events[ticket], completion.figures
        assert figures.tokens == len(completion.ids) == 10 + 3 * ticket
        assert figures.rounds == len(own)
        assert figures.drafted == sum(len(event.drafted) for event in own)
        assert figures.accepted == sum(event.accepted for event in own) == figures.tokens - figures.rounds
        assert sum(one.drafted for one in figures.by_drafter.values()) == figures.drafted
        assert sum(one.accepted for one in figures.by_drafter.values()) == figures.accepted
        assert figures.draft_s == pytest.approx(sum(event.draft_s for event in own))


# Faults


class Poisoned(HashedTarget):
    """Computes no numbers for some texts."""

    def __init__(self, vocab, poison):
        super().__init__(vocab)
        self.poison = poison

    def logits(self, tokens):
        row = super().logits(tokens)
        return np.full_like(row, np.nan) if tokens[: len(self.poison)] == self.poison else row


def beside_a_faulty_one(llm, request, drafting=OFF):
    """Serve it with five others, which have to be as they are alone; its error."""
    others = [
        llm.request(text(40 + seed, seed), replace(ENDLESS, seed=seed, temperature=1.0), 0.0)
        for seed in range(5)
    ]
    expected = [shown(alone(llm, other)) for other in others]
    for other in others:
        plant(llm, other, Truth)
    served = Served(llm)
    for other in others[:3]:
        served.add(other, Drafting(PLANTED, 4))
    faulty = served.add(request, drafting)
    for other in others[3:]:
        served.add(other, Drafting(PLANTED, 4))
    found = served.finish()
    assert list(served.failed) == [faulty]
    del found[faulty]
    assert [shown(completion) for completion in found.values()] == expected
    return served.failed[faulty], served.jobs[faulty].answer.completion


@pytest.mark.parametrize("healthy", [0, 5])
@pytest.mark.parametrize("where", ["forbid", "allowed", "advance"])
@pytest.mark.parametrize("k", [0, 9])
def test_a_constraint_that_raises_fails_its_own_request(serve, where, healthy, k):
    """Also where what was accepted with the failing round reaches into a new block."""
    llm = serve(kv_tokens=1024)
    prompt = text(56, 70)
    free = alone(llm, llm.request(prompt, ENDLESS, 0.0))
    request = llm.request(prompt, ENDLESS, 0.0, constraint=Broken(where, healthy))
    llm.plan = {tuple(prompt): [Truth((*prompt, *free.ids))]}
    if where == "allowed" and not k:
        return
    error, completion = beside_a_faulty_one(llm, request, Drafting(PLANTED, k))
    assert str(error) == f"broken in {where}"
    assert completion.ids == free.ids[: len(completion.ids)]
    assert len(completion.ids) >= healthy


@pytest.mark.parametrize("after", [0, 3])
def test_a_row_that_is_no_number_fails_its_own_request(serve, after):
    clean = serve()
    prompt = text(70, 71)
    free = alone(clean, clean.request(prompt, ENDLESS, 0.0))
    llm = serve(kv_tokens=1024, target=Poisoned(300, (*prompt, *free.ids[:after])))
    error, completion = beside_a_faulty_one(llm, llm.request(prompt, ENDLESS, 0.0))
    assert isinstance(error, NumericsError)
    assert completion.ids == free.ids[:after]


def test_a_prompt_that_cannot_be_scored_fails_its_own_request(serve):
    """All its tokens forbidden to be anything: the first pass after the prompt has none to pick."""
    llm = serve(kv_tokens=1024)
    everything = {token: -float("inf") for token in range(300)}
    request = llm.request(text(70, 72), replace(ENDLESS, logit_bias=everything), 0.0, prompt_logprobs=0)
    error, completion = beside_a_faulty_one(llm, request)
    assert isinstance(error, NumericsError)
    assert len(completion.prompt_logprobs) == 70


def test_a_drafter_that_raises_fails_nobody(serve, caplog):
    class Raises(Truth):
        def propose(self, ask):
            raise RuntimeError("broken")

    llm = serve(kv_tokens=1024)
    requests = [llm.request(text(20, seed), ENDLESS, 0.0) for seed in range(3)]
    llm.plan = {tuple(request.prompt): [Raises(())] for request in requests}
    served = Served(llm)
    for request in requests:
        served.add(request, Drafting(PLANTED, 4))
    found = served.finish()
    assert [found[n].ids for n in range(3)] == [alone(llm, request).ids for request in requests]
    assert len(caplog.records) == 3


# Constraints


def test_constraints_are_obeyed_and_draft_or_not_the_same(serve):
    """Each request by its own, alone and in company, and logprobs stay the model's."""
    llm = serve(kv_tokens=1024)
    follow = [{token: set(range(token % step, 300, step)) for token in range(300)} for step in (2, 3, 5, 7)]
    sampling = replace(
        ENDLESS, temperature=1.0, seed=2, min_tokens=6, stop_token_ids=(7, 11, 13, 30), max_tokens=16
    )

    def ask(number):
        constraint = Successors(follow[number], None)
        return llm.request(text(30, number), sampling, 0.0, 1, constraint=constraint), constraint

    expected = [alone(llm, ask(number)[0]) for number in range(4)]
    for k in (0, 5):
        served, constraints = Served(llm), []
        for number in range(4):
            request, constraint = ask(number)
            llm.plan = {tuple(request.prompt): [Garbage(300, k, (*request.prompt, *expected[number].ids))]}
            constraints.append(constraint)
            served.add(request, Drafting(PLANTED, k))
        found = served.finish()
        assert [shown(found[number]) for number in range(4)] == [shown(one) for one in expected]
        assert [constraint.text for constraint in constraints] == [one.ids for one in expected]
    for number, completion in enumerate(expected):
        assert not {7, 11, 13, 30} & set(completion.ids[:6])
        prompt = text(30, number)
        for place, entry in enumerate(completion.logprobs):
            row = llm.target.logits((*prompt, *completion.ids[:place])).astype(np.float64)
            assert entry.logprob == pytest.approx(row[entry.id] - np.log(np.exp(row).sum()), abs=1e-4)


def test_what_a_constraint_forces_is_drafted_and_right(serve):
    """Runs of tokens that follow each other in any case, between free ones; by the drafter of `auto`."""
    llm, clock = serve(kv_tokens=1024), VirtualClock()
    for _ in range(40):
        for rows in range(1, 65):
            llm.roster.cost.note(rows, PRICES.seconds(1) + 1e-6 * rows)
    follow = {token: {(7 * token + 1) % 300} for token in range(300) if token % 8}
    requests = [llm.request(text(4, n), ENDLESS, 0.0, constraint=Successors(follow, None)) for n in range(3)]
    again = [llm.request(text(4, n), ENDLESS, 0.0, constraint=Successors(follow, None)) for n in range(3)]
    served = Served(llm, clock=clock)
    for request in requests:
        served.add(request, Drafting())
    found = served.finish()
    for n, request in enumerate(again):
        assert shown(found[n]) == shown(alone(llm, request))
        figures = found[n].figures.by_drafter["grammar"]
        assert figures.drafted == figures.accepted > 8


def test_counts_of_a_batch_by_length(serve):
    """Answers of every length, among each other: none is one token longer or shorter."""
    llm = serve(kv_tokens=2048)
    served, lengths = Served(llm), list(range(1, 13))
    for most in lengths:
        request = llm.request(text(10, most), replace(ENDLESS, max_tokens=most), 0.0)
        plant(llm, request, Truth)
        served.add(request, Drafting(PLANTED, 5))
    found = served.finish()
    assert [len(found[n].ids) for n in range(12)] == lengths
    assert Counter(one.finish_reason for one in found.values()) == {"length": 12}
