from dataclasses import replace
from math import sqrt
from types import SimpleNamespace

import pytest

from foredraft.engine.completion import DrafterFigures
from foredraft.measure.ceiling import Bandwidth
from foredraft.measure.draft_step import DraftStep
from foredraft.measure.figures import Goal
from foredraft.measure.paired import Paired
from foredraft.measure.prices import PriceList, Prices
from foredraft.measure.prompts import KINDS, Prompt
from foredraft.measure.regret import Regret
from foredraft.measure.replay import Recording
from foredraft.measure.speculation import Answer, Run, Speculated, SpeculationOrder
from foredraft.measure.speculation_figures import (
    ALL,
    WITH_MODEL,
    WITHOUT_MODEL,
    Compared,
    compare,
    comparisons,
    lines_of,
)

PROMPT = Prompt("json", "a", "A")
RECORDING = Recording((1, 2, 3), tuple(range(10, 20)))  # nothing repeats: the reference policy gains nothing
FLAT = Prices({1: 1.0, 2: 1.0})


def run_of(tok_s=10.0, total_s=2.0, host_s=0.0, identical=True, by_drafter=None, **counts):
    counts = {"rounds": 5, "tokens": 10, "drafted": 8, "accepted": 5} | counts
    return Run(
        tok_s=tok_s,
        total_s=total_s,
        host_s=host_s,
        identical=identical,
        by_drafter=by_drafter or {},
        **counts,
    )


def answer_of(off, on, prompt=PROMPT, recording=RECORDING):
    return Answer(prompt, recording, {"off": off, "auto": on})


def test_each_run_is_compared_with_the_one_beside_it():
    off = [run_of(10.0, 4.0), run_of(20.0, 2.0), run_of(10.0, 4.0)]
    on = [run_of(20.0, 2.0), run_of(60.0, 1.0), run_of(10.0, 4.0)]
    one = compare(answer_of(off, on), "auto", FLAT)
    assert (one.speed.median, one.speed.n) == (2.0, 3)  # of 2, 3 and 1
    assert (one.total.median, one.total.n) == (2.0, 3)  # of 2, 2 and 1
    assert one.off_tok_s == 10.0
    assert one.tokens == 10
    assert one.identical
    assert one.simulated == pytest.approx(1.0)
    assert one.share == pytest.approx(2.0)


def test_counts_are_those_of_all_runs_together():
    first = {"ngram": DrafterFigures(4, 2, 0.5), "suffix": DrafterFigures(2, 1, 0.25)}
    second = {"ngram": DrafterFigures(6, 1, 0.5)}
    on = [
        run_of(drafted=6, accepted=3, rounds=5, host_s=0.004, by_drafter=first),
        run_of(drafted=6, accepted=1, rounds=3, host_s=0.001, by_drafter=second),
    ]
    one = compare(answer_of([run_of(), run_of()], on), "auto", FLAT)
    assert one.acceptance == pytest.approx(4 / 12)
    assert one.tokens_per_round == pytest.approx(20 / 8)
    assert one.host_ms == pytest.approx(0.75)  # the median of 1 ms in each of 4 rounds, 0.5 ms in each of 2
    assert one.by_drafter == {"ngram": DrafterFigures(10, 3, 1.0), "suffix": DrafterFigures(2, 1, 0.25)}


def test_what_was_not_drafted_has_no_acceptance():
    on = [run_of(drafted=0, accepted=0, rounds=1, tokens=1)]
    one = compare(answer_of([run_of()], on), "auto", FLAT)
    assert one.acceptance is None
    assert one.host_ms is None


def test_a_run_with_another_text_is_left_out_of_the_speed_and_seen():
    off = [run_of(10.0), run_of(10.0)]
    on = [run_of(20.0), run_of(90.0, identical=False)]
    one = compare(answer_of(off, on), "auto", FLAT)
    assert (one.speed.median, one.speed.n) == (2.0, 1)
    assert not one.identical


def test_nothing_is_said_of_a_single_token_or_of_other_texts_only():
    assert compare(answer_of([run_of()], [run_of(identical=False)]), "auto", FLAT) is None
    short = Recording((1, 2), (3,))
    assert compare(answer_of([run_of()], [run_of()], recording=short), "auto", FLAT) is None


@pytest.mark.parametrize(
    ("speed", "total", "slower"),
    [((0.9, 0.98), (0.9, 1.0), True), ((0.9, 1.0), (0.9, 0.98), True), ((0.9, 0.99), (0.98, 0.99), False)],
)
def test_slower_is_a_prompt_whose_whole_interval_lies_below(speed, total, slower):
    one = compare(answer_of([run_of()], [run_of()]), "auto", FLAT)
    one = replace(one, speed=Paired(0.95, *speed, 5), total=Paired(0.95, *total, 5))
    assert one.is_slower == slower


def test_answers_are_compared_a_configuration_at_a_time():
    answers = [
        Answer(prompt, RECORDING, {name: [run_of()] for name in ("off", "ngram", "auto")})
        for prompt in (PROMPT, Prompt("chat", "b", "B"))
    ]
    found = comparisons(measured_of(answers, drafters=("ngram", "auto")))
    assert [(one.drafter, one.prompt.name) for one in found] == [
        ("ngram", "a"),
        ("ngram", "b"),
        ("auto", "a"),
        ("auto", "b"),
    ]


def measured_of(answers=(), tokens=400, gb_s=20.0, drafters=("auto",), step=None):
    order = SpeculationOrder("m", (PROMPT,), drafters, tokens=tokens, threads=1)
    prices = PriceList(Bandwidth(1 << 20))
    prices.bandwidth_gb_s += [gb_s]
    prices.seconds.update({1: [1.0], 2: [1.0]})
    return Speculated(order, answers, prices, 1.0, "none", SimpleNamespace(), step)


def compared_of(speeds, model=False, simulated=1.0, host_ms=0.1):
    by_drafter = {"model:x" if model else "ngram": DrafterFigures(1, 1, 0.0)}
    return [
        Compared(
            prompt=Prompt(kind, f"{kind}{index}", "A"),
            drafter="auto",
            tokens=400,
            off_tok_s=10.0,
            speed=Paired(speed, speed, speed, 5),
            total=Paired(speed, speed, speed, 5),
            acceptance=0.5,
            tokens_per_round=2.0,
            host_ms=host_ms,
            identical=True,
            simulated=simulated,
            by_drafter=by_drafter,
        )
        for kind, own in speeds.items()
        for index, speed in enumerate(own)
    ]


def line(lines, name):
    (found,) = [one for one in lines if one.name == name]
    return found


def test_speeds_are_geometric_means_of_prompts_and_of_kinds():
    speeds = {kind: [1.0, 4.0] for kind in KINDS[:5]} | {"prose": [8.0, 8.0]}
    lines = lines_of(measured_of(), compared_of(speeds))
    assert line(lines, "json").value == pytest.approx(2.0)
    assert line(lines, "prose").value == pytest.approx(8.0)
    assert line(lines, ALL).value == pytest.approx((2.0**5 * 8.0) ** (1 / 6))


def test_goals_depend_on_whether_a_model_drafts():
    speeds = {kind: [3.0] for kind in KINDS}
    without = lines_of(measured_of(), compared_of(speeds))
    assert {one.name: one.goal for one in without if one.name in WITH_MODEL} == {
        kind: WITHOUT_MODEL.get(kind) for kind in (*KINDS, ALL)
    }
    assert not line(without, "edit").met
    with_model = lines_of(measured_of(), compared_of(speeds, model=True))
    assert {one.name: one.goal for one in with_model if one.name in WITH_MODEL} == dict(WITH_MODEL)
    assert line(with_model, "json").met


def test_the_mean_of_fewer_kinds_has_no_goal():
    lines = lines_of(measured_of(), compared_of({"json": [3.0], "edit": [5.0]}, model=True))
    assert line(lines, ALL).value == pytest.approx(sqrt(15.0))
    assert line(lines, ALL).goal is None
    assert line(lines, "json").met


def test_other_lengths_of_answers_have_no_goals_of_speed():
    lines = lines_of(measured_of(tokens=200), compared_of({kind: [3.0] for kind in KINDS}))
    assert all(line(lines, kind).goal is None for kind in (*KINDS, ALL))
    assert line(lines, "host time a round").goal


def test_quick_memory_is_compared_with_the_replay_instead():
    compared = compared_of({kind: [2.0] for kind in KINDS}, simulated=2.5)
    slow, quick = (lines_of(measured_of(gb_s=gb_s), compared) for gb_s in (60.0, 60.1))
    assert line(slow, "edit").met is False
    assert line(slow, "edit ÷ replay").goal is None
    assert line(quick, "edit").goal is None
    assert line(quick, "edit ÷ replay").value == pytest.approx(0.8)
    assert line(quick, "edit ÷ replay").met is False


def test_slower_prompts_and_host_time_are_judged():
    lines = lines_of(measured_of(), compared_of({"chat": [0.9, 1.2, 0.98]}, host_ms=0.4))
    slower = line(lines, "prompts slower than 0.99 of off")
    assert (slower.value, slower.met, slower.note) == (2.0, False, "chat-chat0, chat-chat2")
    assert (line(lines, "host time a round").value, line(lines, "host time a round").met) == (0.4, False)


def test_regret_and_draft_step_are_judged():
    regrets = [Regret("a", 10.1, 10.0, "off"), Regret("b", 10.5, 10.0, "ngram -k 3")]
    step = DraftStep("model:x", 200_000_000, 0.0125)  # 16 GB/s of 20
    lines = lines_of(measured_of(step=step), [], regrets)
    assert line(lines, "regret in replay, mean").value == pytest.approx(0.03)
    assert line(lines, "regret in replay, worst").value == pytest.approx(0.05)
    assert line(lines, "regret in replay, worst").note == "b: ngram -k 3 is best"
    assert line(lines, "regret in replay, worst").met is False
    assert (line(lines, "read by a draft step").value, line(lines, "read by a draft step").met) == (
        200.0,
        True,
    )
    share = line(lines, "draft step ÷ bandwidth")
    assert (share.value, share.goal, share.met) == (pytest.approx(0.8), Goal(0.85, at_least=True), False)
