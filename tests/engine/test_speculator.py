"""Asking, merging, choosing, learning: with drafters that are right or wrong on purpose, on a clock that
stands still unless somebody advances it.
"""

import numpy as np
import pytest
from drafters_for_tests import Experience, Fixed, Garbage, Slow, Truth, replay
from tiny import write_tiny

from foredraft.core.history import History
from foredraft.core.nouns import Draft
from foredraft.core.sampling import Sampling
from foredraft.core.tree import survivals
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.drafting import SCRATCH_ROWS
from foredraft.engine.proposal import UNSAID, completed
from foredraft.engine.speculator import (
    MEASURING,
    MOST,
    NO_GUESS,
    NO_ROOM,
    NOT_WORTH,
    OFF,
    Limits,
    Moment,
    Speculator,
    idle,
)
from foredraft.measure.prices import Prices
from foredraft.measure.replay import Recording, VirtualClock
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer

PRICES = Prices({1: 0.050, 2: 0.051, 4: 0.052, 6: 0.054, 8: 0.066, 16: 0.110})
TEXT = tuple(range(10, 90))
VOCAB = 100


def known_cost():
    cost = PassCost()
    for _ in range(100):
        for rows in (1, 2, 4, 6, 8, 16):
            cost.note(rows, PRICES.seconds(rows))
    return cost


def speculator(*drafters, k=None, cost=None, ends=(), clock=None):
    controller = Controller(cost or known_cost(), Acceptance())
    return Speculator(drafters, controller, Limits(VOCAB, ends, k), clock or VirtualClock())


def moment(length=5, pending=1, room=SCRATCH_ROWS, depth=50, drawn=False, text=TEXT):
    text = text[:length]
    return Moment(text, History(text), Sampling(), pending, room, depth, drawn)


# Why nothing is drafted


@pytest.mark.parametrize(
    ("reason", "one", "now"),
    [
        (OFF, lambda: idle(VOCAB), moment()),
        (OFF, lambda: speculator(Truth(TEXT), k=0), moment()),
        (NO_ROOM, lambda: speculator(Truth(TEXT)), moment(room=0)),
        (NO_ROOM, lambda: speculator(Truth(TEXT), k=4), moment(depth=0)),
        (MEASURING, lambda: speculator(Truth(TEXT), cost=PassCost()), moment()),
        (NO_GUESS, lambda: speculator(Truth(())), moment()),
        (NOT_WORTH, lambda: speculator(Truth(TEXT, chance=0.001)), moment()),
        ("", lambda: speculator(Truth(TEXT)), moment()),
        ("", lambda: speculator(Truth(TEXT), k=4, cost=PassCost()), moment()),
    ],
)
def test_the_reason_says_why_nothing_is_drafted(reason, one, now):
    one = one()
    assert (len(one.draft(now)) == 0) == bool(reason)
    assert one.reason == reason


# How much is drafted


@pytest.mark.parametrize("k", [1, 2, 7, 63])
def test_a_fixed_length_is_kept_as_far_as_it_is_of_use(k):
    one = speculator(Truth(TEXT, chance=0.01), k=k)
    assert one.draft(moment(depth=70)).tokens == TEXT[5 : 5 + k]
    assert one.draft(moment(depth=3)).tokens == TEXT[5 : 5 + min(k, 3)]
    assert one.draft(moment(room=2)).tokens == TEXT[5 : 5 + min(k, 2)]


def test_a_fixed_length_takes_the_likeliest_of_a_tree():
    tree = Draft((1, 2, 3, 4), (-1, -1, 1, 1), (0.3, 0.6, 0.1, 0.8), ("fixed",) * 4)
    draft = speculator(Fixed(tree), k=3).draft(moment())
    assert set(zip(draft.tokens, draft.chances, strict=True)) == {(2, 0.6), (4, 0.8), (1, 0.3)}


def test_who_is_not_needed_for_a_fixed_length_is_not_asked():
    first, second = Truth(TEXT), Garbage(VOCAB)
    speculator(first, second, k=4).draft(moment())
    assert (first.asked, second.asked) == (1, 0)


def test_the_controller_takes_what_is_worth_its_rows():
    one = speculator(Truth(TEXT, chance=0.9))
    draft = one.draft(moment())
    assert 4 <= len(draft) <= MOST
    gain = survivals(draft)
    assert one.expected(draft) == pytest.approx(1 + sum(gain))
    prices = one.controller.prices(1)
    longer = 0.9 ** (len(draft) + 1)
    assert gain[-1] > prices(len(draft)) - prices(len(draft) - 1)
    assert longer < prices(len(draft) + 1) - prices(len(draft))
    assert one.expected(Draft.empty) == 1.0


def test_drafts_are_merged_into_one_tree():
    first = Fixed(Draft.chain([1, 2], [0.9, 0.9], "first"))
    one = speculator(first, Named("second", Draft.chain([1, 3], [0.8, 0.4], "second")))
    draft = one.draft(moment())
    paths = {draft.branch(index): draft.drafters[index] for index in range(len(draft))}
    assert paths == {(1,): "second", (1, 2): "first", (1, 3): "second"}


class Named(Fixed):
    def __init__(self, name, answer):
        super().__init__(answer)
        self.name = name


def test_nothing_is_drafted_after_an_end_token():
    draft = speculator(Truth(TEXT, chance=0.99), ends={TEXT[7]}).draft(moment())
    assert draft.tokens == TEXT[5:8]


# What is learned


def test_tokens_that_were_proposed_and_not_checked_are_learned_from():
    one = speculator(Truth(TEXT, chance=0.001))
    assert one.draft(moment()) == Draft.empty
    for length in range(5, 60):
        one.draft(moment(length))
        one.learn(Draft.empty, (), TEXT[length : length + 1], 1)
    assert one.controller.belief("truth", 0.001) > 0.7
    assert len(one.draft(moment(60))) > 0


def test_figures_count_what_was_checked_and_what_was_right():
    clock = VirtualClock()
    one = speculator(Slow(Truth(TEXT), clock, 0.001), k=4, clock=clock)
    draft = one.draft(moment())
    one.learn(draft, (0, 1), TEXT[5:8], 5)
    figures = one.by_drafter["slow"]
    assert (figures.drafted, figures.accepted) == (4, 2)
    assert figures.seconds == pytest.approx(0.001)


# What a drafter says is looked at


WRONG = {
    "a token beyond the vocabulary": Draft.chain([5, VOCAB]),
    "a negative token": Draft.chain([-1]),
    "no token at all": Draft.chain(["a"]),
    "half a token": Draft.chain([1.5]),
    "a chance above 1": Draft.chain([5], [1.5]),
    "a chance that is none": Draft.chain([5], [float("nan")]),
    "a law of another vocabulary": Draft((5,), (-1,), (0.5,), ("fixed",), (np.ones(VOCAB - 1),)),
    "a law of two dimensions": Draft((5,), (-1,), (0.5,), ("fixed",), (np.ones((1, VOCAB)),)),
    "more drawn tokens than fit": Draft(
        (5,) * 64, tuple(range(-1, 63)), (0.5,) * 64, ("fixed",) * 64, (np.ones(VOCAB),) * 64
    ),
    "nothing": None,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("k", [None, 4])
def test_a_draft_that_no_target_could_take_is_refused_once(wrong, k, caplog):
    fixed, truth = Fixed(wrong), Truth(TEXT)
    one = speculator(fixed, truth, k=k)
    for length in (5, 6):
        assert one.draft(moment(length)).tokens[:2] == TEXT[length : length + 2]
    one.close()
    assert (fixed.asked, fixed.closed, truth.asked, truth.closed) == (1, 1, 2, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the drafter fixed failed" in caplog.text


def test_what_a_drafter_does_not_say_is_supplied():
    whole = Draft.chain([1, 2], [0.5, 0.5], "other")
    assert completed(whole, "a", VOCAB, 9) == whole
    assert completed(Draft.chain([1, 2]), "a", VOCAB, 9) == Draft.chain([1, 2], [UNSAID] * 2, "a")
    assert completed(Draft.empty, "a", VOCAB, 9) == Draft.empty


def test_more_than_was_asked_for_is_cut():
    one = speculator(Fixed(Draft.chain([1] * 90, [0.99] * 90)), k=None)
    assert 0 < len(one.draft(moment())) <= MOST
    assert len(one.draft(moment(room=3, depth=2))) == 2


def test_a_drawn_draft_is_judged_alone_and_whole():
    """Whatever was left out of it, or put beside it, because of its tokens would bias the text."""
    laws = (np.full(VOCAB, 1 / VOCAB),) * 3
    drawn = Draft((7, 8, 9), (-1, 0, 1), (0.01,) * 3, ("fixed",) * 3, laws)
    one = speculator(Truth(TEXT), Fixed(drawn))
    draft = one.draft(moment(drawn=True))
    assert draft == drawn
    assert draft.laws == laws


# On a replayed answer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("speculator") / "tiny.gguf", "qwen2")
    return Tokenizer.from_gguf(read_gguf(path))


LONG = Recording(TEXT[:4], tuple((7 * n * n + 3 * n) % 97 for n in range(400)))
WHOLE = (*LONG.prompt, *LONG.output)


def off_s(tokenizer, recording=LONG):
    return replay(tokenizer, recording, PRICES, ()).figures.decode_s


@pytest.mark.parametrize("k", [1, 3, 7, 63])
def test_the_truth_is_accepted_whole(tokenizer, k):
    figures = replay(tokenizer, LONG, PRICES, [Truth(WHOLE)], k=k).figures
    assert figures.drafted == figures.accepted
    assert figures.alpha == 1.0
    # The prompt of four tokens and a draft are one pass already; the last one ends where the answer does.
    assert figures.rounds == -(-400 // (k + 1))


def test_the_truth_is_believed_more_and_more(tokenizer):
    """12 tokens a pass of at most 16 rows would come to 0.11 s at best."""
    figures = replay(tokenizer, LONG, PRICES, [Truth(WHOLE, chance=0.5)]).figures
    assert figures.acceptance == 1.0
    assert figures.decode_s < 0.3 * off_s(tokenizer)


@pytest.mark.parametrize("chance", [0.3, 0.9, 0.999])
def test_garbage_costs_next_to_nothing(tokenizer, chance):
    garbage = Garbage(97, seed=2, chance=chance)
    figures = replay(tokenizer, LONG, PRICES, [garbage]).figures
    assert figures.decode_s < 1.02 * off_s(tokenizer)


def test_garbage_does_not_spoil_the_truth(tokenizer):
    both = replay(tokenizer, LONG, PRICES, [Garbage(97, seed=2), Truth(WHOLE)]).figures
    alone = replay(tokenizer, LONG, PRICES, [Truth(WHOLE)]).figures
    assert both.decode_s < 1.05 * alone.decode_s


@pytest.mark.parametrize("seconds", [0.01, 0.05, 0.2])
def test_a_slow_drafter_that_is_of_no_use_is_asked_rarely(tokenizer, seconds):
    clock = VirtualClock()
    slow = Slow(Garbage(97, seed=2), clock, seconds)
    figures = replay(tokenizer, LONG, PRICES, [slow], clock=clock).figures
    assert slow.asked < 40
    assert figures.decode_s < 1.03 * off_s(tokenizer)


def test_a_slow_drafter_that_pays_is_asked_on(tokenizer):
    clock = VirtualClock()
    slow = Slow(Truth(WHOLE), clock, 0.05)
    figures = replay(tokenizer, LONG, PRICES, [slow], clock=clock).figures
    assert figures.decode_s < 0.6 * off_s(tokenizer)


def test_what_one_request_has_learned_serves_the_next(tokenizer):
    experience = Experience()
    first, second = (
        replay(tokenizer, LONG, PRICES, [Truth(WHOLE, chance=0.5)], experience=experience) for _ in range(2)
    )
    assert second.figures.rounds < first.figures.rounds


def test_the_trace_says_what_was_expected(tokenizer):
    events = []
    replay(tokenizer, LONG, PRICES, [Truth(WHOLE)], trace=events.append)
    assert events[0].reason == MEASURING
    assert events[0].predicted_s == 0.0
    late = [event for event in events[5:-1] if event.drafted]
    assert late
    for event in late:
        assert event.tokens == (*event.drafted, event.picks[-1])
        assert event.predicted_tokens == pytest.approx(len(event.tokens), rel=0.2)
        assert event.predicted_s == pytest.approx(event.verify_s, rel=0.3)
    assert late[-1].predicted_s == pytest.approx(late[-1].verify_s, rel=0.05)
