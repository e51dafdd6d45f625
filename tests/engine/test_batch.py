"""Rounds that are played together: whose drafted tokens have rows, and that a law is not touched by it."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from constraints_for_tests import Broken, Successors
from drafters_for_tests import Truth
from engine_for_tests import HashedTarget, Served, alone, hashed_llm
from planted import before_unlikely
from tiny import write_tiny

from foredraft import Sampling
from foredraft.core.nouns import Draft
from foredraft.core.pick import Place, draw
from foredraft.core.rules import DRAFT, Dice
from foredraft.engine.answer import Answer
from foredraft.engine.batch import Batch, Seat
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import OFF, Drafting
from foredraft.engine.speculator import MOST, NOT_WORTH, TOO_DEAR
from foredraft.measure.chisquare import chi_square
from foredraft.measure.prove_toy import Toy, own_law
from foredraft.measure.replay import VirtualClock

PLANTED = "ngram"
ENDLESS = Sampling(max_tokens=60, ignore_eos=True, seed=0)
AUTO, PLAIN = Drafting(PLANTED), OFF


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("batch") / "tiny.gguf", "qwen2", dim=32, layers=1, ff=64)


@pytest.fixture
def llm(path):
    llm = hashed_llm(path, kv_tokens=256 * 40)
    llm.clock = VirtualClock()
    return llm


def seconds(rows):
    """Convex: reading takes as long as the arithmetic of eight rows."""
    return 0.04 * (1.0 + (rows / 8) ** 4) ** 0.25


@pytest.fixture(scope="module")
def prices():
    cost = PassCost()
    for _ in range(60):
        for rows in range(1, 65):
            cost.note(rows, seconds(rows))
    return cost


def seat_of(llm, request, drafting=PLAIN):
    return Seat(
        Answer(replace(request, rule=drafting.rule), llm.text(request), llm.speculator(request, drafting)),
        llm.pool.open(),
    )


def told(llm, number, drafting, chance=0.9, sampling=ENDLESS, **options):
    """A seat whose drafter knows the answer and says of each token that it has this chance."""
    request = llm.request([number, 7, number], sampling, 0.0, **options)
    llm.plan = {tuple(request.prompt): [Truth((*request.prompt, *answer(llm, number, sampling)), chance)]}
    return seat_of(llm, request, drafting)


ANSWERS = {}  # of the hashed target, whoever asked


def answer(llm, number, sampling=ENDLESS):
    if (number, sampling) not in ANSWERS:
        ANSWERS[number, sampling] = alone(llm, llm.request([number, 7, number], sampling, 0.0)).ids
    return ANSWERS[number, sampling]


def events_of(played):
    return [event for _, event in played.taken]


# Who has rows


def drafted_in_company(llm, prices, size):
    """Of each request, once prices and pace are known, in rounds that stand still."""
    batch = Batch(llm.target, prices, VirtualClock())
    seats = [told(llm, number, AUTO) for number in range(size)]
    for seat in seats:
        seat.answer.speculator.controller.cost = prices
    return [len(event.drafted) for event in events_of(batch.play(seats))]


def test_drafts_are_long_alone_shorter_in_company_and_none_where_rows_are_dear(llm, prices):
    lengths = [drafted_in_company(llm, prices, size) for size in (1, 2, 4, 8, 16, 32)]
    means = [sum(several) / len(several) for several in lengths]
    assert means[0] >= 6
    assert all(later <= earlier for earlier, later in pairwise(means))
    assert means[2] < means[0] / 2
    assert means[-1] == 0.0


def test_where_rows_are_too_dear_for_any_token_nobody_is_asked(llm, prices):
    batch = Batch(llm.target, prices, VirtualClock())
    seats = [told(llm, number, AUTO) for number in range(32)]
    for seat in seats:
        seat.answer.speculator.controller.cost = prices
    played = batch.play(seats)
    assert {event.reason for event in events_of(played)} == {TOO_DEAR}
    assert played.rows == 3 * 32


def test_the_rows_go_to_the_likeliest_tokens_of_all(llm, prices):
    """At the edge: the last token that has a row is worth it, the next one of anybody's is not."""
    chances = [0.97, 0.9, 0.8, 0.5, 0.3, 0.05]
    seats = [told(llm, number, AUTO, chance) for number, chance in enumerate(chances)]
    for seat in seats:
        seat.answer.speculator.controller.cost = prices
    batch = Batch(llm.target, prices, VirtualClock())
    batch.pace.size = len(seats)
    rate = batch.pace.rate
    pending = sum(seat.pending for seat in seats)
    lengths = [len(event.drafted) for event in events_of(batch.play(seats))]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[3] and lengths[-1] == 0
    total = sum(lengths)
    last, following = (
        rate * (seconds(pending + rows) - seconds(pending + rows - 1)) for rows in (total, total + 1)
    )
    for chance, length in zip(chances, lengths, strict=True):
        assert length == 0 or chance**length >= last * 0.97
        assert chance ** (length + 1) <= following * 1.03


def test_a_token_that_got_no_row_has_a_reason(llm, prices):
    seats = [told(llm, number, AUTO, chance) for number, chance in enumerate((0.9, 0.04))]
    for seat in seats:
        seat.answer.speculator.controller.cost = prices
    sure, unsure = events_of(Batch(llm.target, prices, VirtualClock()).play(seats))
    assert sure.drafted and sure.reason == ""
    assert not unsure.drafted and unsure.reason == NOT_WORTH


@pytest.mark.parametrize("k", [1, 9, 40])
def test_a_fixed_length_is_kept_in_company(llm, prices, k):
    seats = [told(llm, number, Drafting(PLANTED, k) if number % 2 else AUTO) for number in range(24)]
    for seat in seats:
        seat.answer.speculator.controller.cost = prices
    lengths = [
        len(event.drafted) for event in events_of(Batch(llm.target, prices, VirtualClock()).play(seats))
    ]
    assert lengths[1::2] == [k] * 12
    assert lengths[::2] == [0] * 12  # beside so many rows, one more is too dear


def test_no_draft_is_longer_than_the_most(llm, prices):
    """Of several drafters together."""
    request = llm.request([5, 7, 5], ENDLESS, 0.0)
    llm.plan = {(5, 7, 5): [Named(name, first) for name, first in (("a", 10), ("b", 120))]}
    seat = seat_of(llm, request, AUTO)
    free = PassCost()
    for _ in range(50):
        for rows in range(1, 65):
            free.note(rows, 0.05 + 1e-9 * rows)
    seat.answer.speculator.controller.cost = free
    (event,) = events_of(Batch(llm.target, free, VirtualClock()).play([seat]))
    assert 40 < len(event.drafted) <= MOST


class Named(Truth):
    """Says a run of numbers, each as likely as can be."""

    def __init__(self, name, first):
        super().__init__(())
        self.name = name
        self.first = first

    def propose(self, ask):
        count = min(ask.most, ask.depth)
        return Draft.chain(range(self.first, self.first + count), [0.99] * count, self.name)


# Drafts that were drawn


class Drawn(Truth):
    """Draws chains of two tokens from the toy's drafter, as a draft model does; with `cut`, leaves tokens out
    that it has drawn.
    """

    name = "drawn"

    def __init__(self, toy, start, length=2, cut=None):
        super().__init__(())
        self.toy = toy
        self.start = start
        self.length = length
        self.cut = cut
        self.drafts = []

    def propose(self, ask):
        assert ask.drawn
        said, dice = tuple(ask.text[self.start :]), Dice(ask.sampling.seed, len(ask.text))
        drawn = []
        for index in range(min(self.length, ask.most)):
            path = tuple(one.token for one in drawn)
            place = Place(ask.sampling, len(ask.text) + index, stream=dice.stream(DRAFT))
            drawn.append(draw(logits_of(self.toy.drafter(said + path)), place))
        draft = replace(Draft.chain([one.token for one in drawn]), laws=tuple(one.law for one in drawn))
        if self.cut is not None:
            draft = draft.part(range(self.cut(draft)))
        self.drafts.append(draft)
        return draft


def logits_of(law):
    with np.errstate(divide="ignore"):
        return np.log(law).astype(np.float32)


class ToyTarget(HashedTarget):
    """Says what the toy's target says of the text after a prompt of one token."""

    def __init__(self, toy):
        super().__init__(len(toy.target(())))
        self.toy = toy

    def logits(self, tokens):
        if tokens not in self.known:
            self.known[tokens] = logits_of(self.toy.target(tuple(tokens[1:])))
        return self.known[tokens]


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("size", [1, 4])
def test_a_drawn_draft_is_checked_whole_whatever_rows_cost(path, prices, rule, size):
    toy = Toy.random(3, 3)
    llm = hashed_llm(path, kv_tokens=256 * size, target=ToyTarget(toy), vocab=3)
    drafter = Drawn(toy, 1, length=9)
    llm.plan, llm.clock = {(0,): [drafter]}, VirtualClock()
    dear = PassCost()
    for _ in range(50):
        for rows in range(1, 65):
            dear.note(rows, 0.05 + 0.008 * rows)
    seats = []
    for seed in range(size):
        sampling = replace(ENDLESS, temperature=1.0, seed=seed)
        seats.append(seat_of(llm, llm.request([0], sampling, 0.0), Drafting(PLANTED, None, rule)))
        seats[-1].answer.speculator.controller.cost = dear
    batch = Batch(llm.target, dear, VirtualClock())
    for _ in range(3):
        asked = len(drafter.drafts)
        events = events_of(batch.play(seats))
        assert [event.drafted for event in events] == [draft.tokens for draft in drafter.drafts[asked:]]
    assert len(drafter.drafts) == 3 * size


def constrained(toy, follow):
    def target(text):
        law = toy.target(text).copy()
        named = follow.get(text[-1]) if text else None
        if named is not None:
            law[[token for token in range(len(law)) if token not in named]] = 0.0
        return law / law.sum()

    return Toy(target, toy.drafter)


def written(path, toy, rule, follow, cut, draws):
    """How often each text of three tokens was written, in passes that four requests share."""
    llm = hashed_llm(path, kv_tokens=256 * 4, target=ToyTarget(toy), vocab=3)
    for _ in range(20):
        for rows in range(1, 17):
            llm.roster.cost.note(rows, seconds(rows))
    llm.clock = VirtualClock()
    served = Served(llm, max_running=4, clock=llm.clock)
    for seed in range(draws):
        constraint = None if follow is None else Successors(follow, None)
        sampling = Sampling(temperature=1.0, seed=seed, max_tokens=3 + seed % 3, ignore_eos=True)
        request = llm.request([0], sampling, 0.0, constraint=constraint)
        llm.plan = {(0,): [Drawn(toy, 1, 1 + seed % 3, cut)]}
        served.add(request, Drafting(PLANTED, None, rule))
    return Counter(completion.ids[:3] for completion in served.finish().values())


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("follow", [None, {0: {1, 2}, 1: {0, 1}, 2: {0}}], ids=["free", "constrained"])
def test_in_shared_passes_the_law_is_the_targets(path, rule, follow):
    toy, draws = Toy.random(5, 3), 300
    law = own_law(toy if follow is None else constrained(toy, follow), 3)
    counts = written(path, toy, rule, follow, None, draws)
    test = chi_square([counts[text] for text in law], [draws * law[text] for text in law])
    assert sum(counts[text] for text in law) == draws
    assert test.cells > 5 and test.p_value > 1e-6


def test_a_draft_cut_by_its_own_tokens_would_be_seen(path):
    toy, draws = Toy.random(5, 3), 300
    law = own_law(toy, 3)
    counts = written(path, toy, "ratio", None, before_unlikely, draws)
    assert chi_square([counts[text] for text in law], [draws * law[text] for text in law]).p_value < 1e-6


# A pass


def test_a_round_that_cannot_be_used_is_its_own_requests_affair(llm, prices):
    """The pass is over for all of them; the others take what it gave."""
    seats = [told(llm, 1, Drafting(PLANTED, 4)), told(llm, 2, PLAIN, constraint=Broken("advance", 0))]
    seats.append(told(llm, 3, Drafting(PLANTED, 4)))
    expected = [answer(llm, number)[:5] for number in (1, 3)]
    first, failed, third = Batch(llm.target, prices).play(seats).taken
    assert isinstance(failed, RuntimeError)
    assert [burst.ids for burst, _ in (first, third)] == expected


def test_without_drafts_a_pass_is_expected_to_take_what_it_would_without(path):
    """Whatever it holds: prompts alone, prompts beside rounds, rounds."""
    llm = hashed_llm(path, ctx=600, kv_tokens=2048)
    served = Served(llm)
    served.add(llm.request([number % 250 for number in range(590)], ENDLESS, 0.0))
    served.step()
    assert served.steps[0].passes and not served.steps[0].rounds
    for number in range(5):
        prompt = np.random.default_rng(number).integers(0, 299, 4 + 60 * number).tolist()
        served.add(llm.request(prompt, replace(ENDLESS, max_tokens=12), 0.0))
        served.step()
    served.finish()
    for step in served.steps:
        for one in step.passes:
            assert one.plain_s == pytest.approx(one.spent_s, rel=1e-3)


def test_what_drafts_save_is_counted_in_rounds_without_a_prompt(llm, prices):
    """Five tokens of one request, in a pass beside a part of another's prompt: without drafts that is this
    pass and four of one row.
    """
    cost = prices
    seat = told(llm, 1, Drafting(PLANTED, 4))
    Batch(llm.target, cost, VirtualClock()).play([seat])
    other = seat_of(llm, llm.request(list(range(100)), ENDLESS, 0.0))
    played = Batch(llm.target, cost, VirtualClock()).play([seat], [(other, 40)])
    ((burst, event),) = played.taken
    assert (len(burst.ids), event.accepted, played.rows, played.prompt_rows) == (5, 4, 45, 40)
    assert played.plain_s == pytest.approx(cost.seconds(41) + 4 * cost.seconds(1), rel=1e-3)
    assert played.spent_s == pytest.approx(cost.seconds(45), rel=1e-3)
    assert other.cache.length == 40
