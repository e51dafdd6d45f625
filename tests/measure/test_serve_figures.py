import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from foredraft.measure.figures import Goal
from foredraft.measure.machine import Machine
from foredraft.measure.prompts import own_prompts
from foredraft.measure.report import Circumstances
from foredraft.measure.serve_counts import Passes
from foredraft.measure.serve_figures import figures_of, p99, row_of
from foredraft.measure.serve_load import Reply
from foredraft.measure.serve_order import AUTO, OFF, PARTS, ServeOrder, Sizes
from foredraft.measure.serve_parts import Prefix, Stall, Steady
from foredraft.measure.serve_report import Shown, as_json, as_text
from foredraft.measure.serve_runs import Load, Served
from foredraft.measure.serve_session import Texts

PASSES = Passes(
    passes=10,
    rows=40,
    prompt_rows=8,
    rounds=20,
    tokens=30,
    drafts=5,
    drafted=20,
    accepted=10,
    preempted=0,
    pass_s=4.0,
    draft_s=1.0,
    host_s=0.1,
    reasons={"no guess": 10.0, "not worth its rows": 5.0},
    by_drafter={"suffix": (20.0, 10.0)},
)


def reply(seconds=4.0, tokens=10, first=2, label="json-a", ids=(1, 2)):
    return Reply(
        label=label,
        sent=100.0,
        ended=100.0 + seconds,
        moments=((101.0, first), (100.0 + seconds, tokens - first)),
        ids=ids,
        prompt_tokens=7,
        cached_tokens=0,
        tokens=tokens,
        rounds=4,
        drafted=8,
        accepted=6,
    )


def load(side, repeat=0, at_once=1, seconds=(4.0,), passes=PASSES):
    replies = [reply(each) for each in seconds]
    return Load(side, repeat, at_once, replies, passes, wall_s=6.0, client_s=0.3)


def served(**parts):
    order = ServeOrder("m", own_prompts(), parts=tuple(part for part in PARTS if part in parts), threads=2)
    texts = parts.pop("texts", {part: Texts() for part in order.parts})
    order = replace(order, requests=parts.pop("requests", (1,)), repeat=parts.pop("repeat", 1))
    names = {"throughput": "loads", "stall": "stalls", "host": "steadies", "prefix": "prefixes"}
    samples = {names[part]: runs for part, runs in parts.items() if part in names and part in order.parts}
    return Served(order, parts.get("sizes", Sizes()), 4096, texts, **samples)


def test_throughput_is_that_of_workers_that_are_never_idle():
    # Four workers; the requests took 2, 4 and 6 s and have 10 tokens each: a worker gives 30 tokens in 12 s.
    assert load(OFF, at_once=4, seconds=(2.0, 4.0, 6.0)).tok_s == 10.0


def test_both_sides_are_compared_within_a_repeat():
    loads = [
        *(load(OFF, repeat, 1, (each,)) for repeat, each in enumerate((4.0, 8.0, 4.0))),
        *(load(AUTO, repeat, 1, (each,)) for repeat, each in enumerate((2.0, 2.0, 4.0))),
        *(load(OFF, repeat, 16, (each,)) for repeat, each in enumerate((16.0, 16.0, 32.0))),
        *(load(AUTO, repeat, 16, (each,)) for repeat, each in enumerate((20.0, 16.0, 32.0))),
    ]
    alone, crowd, many, texts = figures_of(served(throughput=loads, requests=(1, 16), repeat=3))
    assert (alone.summary.median, alone.summary.low, alone.summary.high) == (2.0, 1.5, 3.0)  # of 2, 4 and 1
    assert alone.goal == Goal(2.0, at_least=True)
    assert crowd.summary.median == 1.0  # of 0.8, 1 and 1
    assert crowd.goal == Goal(0.98, at_least=True)
    # Off alone 2.5, 1.25 and 2.5 tokens/s; 16 at once 10, 10 and 5.
    assert many.summary.median == 4.0  # of 4, 8 and 2
    assert many.met
    assert texts.summary.median == 0.0


def test_goals_of_throughput_are_for_prompts_of_all_kinds():
    some = served(throughput=[load(OFF), load(AUTO)])
    some.order = replace(some.order, prompts=some.order.prompts[:3])
    assert next(figure.goal for figure in figures_of(some)) is None


def test_row():
    twice = row_of([load(AUTO, 0, 4, (4.0, 5.0)), load(AUTO, 1, 4, (8.0,), replace(PASSES, preempted=2))])
    assert twice.tok_s == pytest.approx((4 * 20 / 9 + 4 * 10 / 8) / 2)
    assert twice.ttft_ms == pytest.approx((1000.0, 1000.0))
    assert twice.tpot_ms[0] == pytest.approx(1e3 * 4 / 8)  # the middle one: 8 tokens from 101 to 105
    assert twice.acceptance == 6 / 8
    assert twice.tokens_per_round == 10 / 4
    assert twice.rows_per_pass == 4
    assert (twice.draft_share, twice.host_share) == (0.25, pytest.approx(0.025))
    assert twice.no_draft == {"no guess": 0.5, "not worth its rows": 0.25}
    assert twice.preempted == 2
    assert twice.served_tok_s == 60 / 12
    assert twice.client_cores == pytest.approx(0.6 / 12)


def test_answers_of_one_chunk_have_no_time_per_token():
    single = replace(reply(), moments=((101.0, 10),))
    assert row_of([replace(load(OFF), replies=[single])]).tpot_ms is None


def stall(side, repeat=0, before=(0.1,) * 9, during=(0.2,) * 99 + (0.5,), alone=4.0, busy=6.0):
    return Stall(side, repeat, 2000, alone, busy, tuple(before), tuple(during))


def test_gaps_while_a_prompt_is_read():
    runs = [
        stall(OFF),
        stall(OFF, 1, before=(0.1, 0.2, 0.3)),
        stall(AUTO, busy=9.0),
        stall(AUTO, 1, busy=9.0),
    ]
    gap, speed, gap_auto, speed_auto = figures_of(served(stall=runs, repeat=2))
    during = p99((0.2,) * 99 + (0.5,))
    assert 0.2 < during < 0.21  # the largest of a hundred is beyond it
    assert gap.summary.median == pytest.approx((during / 0.1 + during / 0.2) / 2)
    assert gap.goal == gap_auto.goal == Goal(3.0)
    assert speed.summary.median == pytest.approx(4 / 6)
    assert speed.met
    assert speed_auto.summary.median == pytest.approx(4 / 9)
    assert speed_auto.met is False


def test_goals_of_long_prompts_are_for_their_full_length():
    figures = figures_of(served(stall=[stall(OFF), stall(AUTO)], sizes=Sizes().fitted(512)))
    assert {figure.goal for figure in figures} == {None}


def test_host_time_is_compared_with_the_pass():
    slow = replace(PASSES, host_s=0.4)
    runs = [
        Steady(OFF, 0, 16, 3.0, PASSES),
        Steady(OFF, 0, 1, 6.0, PASSES),
        Steady(AUTO, 0, 16, 3.0, slow),
    ]
    off, auto, many = figures_of(served(host=runs))
    assert off.summary.median == pytest.approx(0.025)
    assert off.met
    assert auto.summary.median == pytest.approx(0.1)
    assert auto.met is False
    assert "25.0% of it" in auto.note
    assert many.summary.median == 2.0  # 10 tokens/s against 5
    assert many.goal is None


def test_known_prefix_is_compared_with_a_cold_one():
    runs = [Prefix(0, 1532, 1472, 4.0, 0.4), Prefix(1, 1532, 1472, 4.0, 0.8)]
    warm, texts = figures_of(served(prefix=runs, repeat=2))
    assert warm.summary.median == pytest.approx(0.15)
    assert warm.goal == Goal(0.15)
    assert "1472 of 1532 tokens reused" in warm.note
    assert texts.met


def test_other_texts_are_found_and_told():
    texts = Texts()
    texts.check(reply(ids=(1, 2, 3)), "alone")
    texts.check(reply(ids=(1, 2, 3)), "alone, auto")
    texts.check(reply(ids=(1, 9, 3)), "among others")
    texts.check(reply(ids=(1, 2)), "cut")
    texts.check(reply(label="json-b", ids=(7,)), "alone")
    assert texts.compared == 3
    assert texts.different == ["json-a, among others: from token 1 on", "json-a, cut: another length, 2"]
    (figure,) = figures_of(served(exact=True, texts={"exact": texts}))
    assert figure.summary.median == 2
    assert figure.met is False


RUN = Circumstances(
    model="m",
    command=["foredraft", "bench", "--serve", "-m", "m"],
    date="2026-12-01T00:00:00+00:00",
    commit=None,
    threads=2,
    machine=Machine("a CPU", 2, None, None, "Linux"),
    versions={},
    load_average=(0.1, 2.0),
    others_cores=0.5,
)


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [rounded(one) for one in value]
    return value


def test_what_is_printed_and_kept():
    texts = {"throughput": Texts(["json-a, 1 at once: from token 3 on"], 2, {"json-a": (1, 2)})}
    preempted = replace(PASSES, preempted=3)
    shown = Shown.of(served(throughput=[load(OFF), load(AUTO, passes=preempted)], texts=texts))
    text = as_text(shown, RUN)
    assert "auto ÷ off, output tokens/s, 1 at once" in text
    assert "no guess 50%" in text
    assert "The client used 0.05 cores" in text
    assert "A single repeat has no spread" in text
    assert "3 times a request gave its own" in text
    assert "Other programs were running" in text
    assert "ANSWERED DIFFERENTLY, which must never be: json-a, 1 at once: from token 3 on." in text
    answer, raw = as_json(shown, RUN), as_json(shown, RUN, raw=True)
    assert {key: value for key, value in raw.items() if key in answer} == answer
    assert set(raw) - set(answer) == {"samples", "answers"}
    assert answer["identical"] is False
    assert answer["missed"] == ["auto ÷ off, output tokens/s, 1 at once", "these requests' texts that differ"]
    assert json.loads(json.dumps(raw)) == rounded(raw)
    (first, _) = raw["samples"]["loads"]
    assert first["requests"][0]["tokens"] == 10
    assert first["passes"]["rows"] == 40
    assert raw["answers"] == {"throughput": {"json-a": (1, 2)}}
