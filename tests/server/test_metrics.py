"""What is rendered, read with Prometheus' own parser, against events counted by hand or by plain loops."""

import math
import random
import threading
import time
from collections import Counter

import pytest
from drafters_for_tests import Garbage, Truth, answer
from prometheus_client.parser import text_string_to_metric_families
from tiny import write_tiny
from twin_target import twin_llm

from foredraft.core.sampling import Sampling
from foredraft.core.trace import RoundEvent
from foredraft.engine.completion import Completion, DrafterFigures, Figures
from foredraft.engine.drafting import Drafting
from foredraft.engine.engine import Engine
from foredraft.engine.observer import EndEvent, PassEvent
from foredraft.server.meters import WINDOW_S
from foredraft.server.metrics import Metrics

NAMES = {
    "spec_decode_num_rounds_total": "counter",
    "spec_decode_num_drafts_total": "counter",
    "spec_decode_num_draft_tokens_total": "counter",
    "spec_decode_num_accepted_tokens_total": "counter",
    "spec_decode_num_draft_tokens_per_pos_total": "counter",
    "spec_decode_num_accepted_tokens_per_pos_total": "counter",
    "spec_decode_num_rounds_without_draft_total": "counter",
    "spec_decode_drafter_draft_tokens_total": "counter",
    "spec_decode_drafter_accepted_tokens_total": "counter",
    "spec_decode_drafter_seconds_total": "counter",
    "spec_decode_plain_seconds_total": "counter",
    "spec_decode_spent_seconds_total": "counter",
    "spec_decode_estimated_speedup": "gauge",
    "draft_seconds_total": "counter",
    "pass_seconds_total": "counter",
    "host_seconds_total": "counter",
    "rows_per_pass": "histogram",
    "prompt_rows_total": "counter",
    "prompt_tokens_total": "counter",
    "generation_tokens_total": "counter",
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries_total": "counter",
    "prefix_cache_hits_total": "counter",
    "num_preemptions_total": "counter",
    "request_success_total": "counter",
    "request_cancelled_total": "counter",
    "request_failed_total": "counter",
    "time_to_first_token_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "http_requests_total": "counter",
    "http_request_duration_seconds": "histogram",
}
REASONS = (
    "off",
    "measuring the pass",
    "no room",
    "no guess",
    "not worth its price",
    "rows too dear",
    "other",
)


def families(metrics):
    return {family.name: family for family in text_string_to_metric_families(metrics.render()[0].decode())}


def read(metrics):
    """The value of each sample, by its name and the values of its labels."""
    values = {}
    for family in families(metrics).values():
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            values[sample.name.removeprefix("foredraft:"), *labels.values()] = sample.value
    return values


def played(drafted=(), parents=(), accepted=0, tokens=(1,), *, drafters=(), reason="", number=1, position=9):
    return RoundEvent(
        round=number,
        position=position,
        drafted=tuple(drafted),
        parents=tuple(parents),
        drafters=tuple(drafters) or ("suffix",) * len(drafted),
        chances=(0.5,) * len(drafted),
        picks=(),
        accepted=accepted,
        tokens=tuple(tokens),
        draft_s=0.0,
        verify_s=0.0,
        predicted_s=0.0,
        predicted_tokens=0.0,
        reason=reason,
    )


def passed(*rounds, rows=4, prompt_rows=0, load=(0, 0, 0, 8), seconds=(0.0, 0.0, 0.0), prices=(0.0, 0.0)):
    running, waiting, kv_used, kv_blocks = load
    draft_s, pass_s, host_s = seconds
    return PassEvent(
        rows=rows,
        prompt_rows=prompt_rows,
        decoding=len(rounds),
        running=running,
        waiting=waiting,
        kv_used=kv_used,
        kv_blocks=kv_blocks,
        draft_s=draft_s,
        pass_s=pass_s,
        host_s=host_s,
        plain_s=prices[0],
        spent_s=prices[1],
        rounds=list(enumerate(rounds)),
    )


def ended(outcome="stop", tokens=5, rounds=3, **changes):
    figures = Figures(
        tokens=tokens,
        rounds=rounds,
        drafted=0,
        accepted=0,
        depths=0,
        ttft_s=changes.get("ttft_s", 0.3 if tokens else None),
        decode_s=changes.get("decode_s", 2.0),
        total_s=2.3,
        draft_s=0.0,
        verify_s=0.0,
        by_drafter=changes.get("by_drafter", {}),
    )
    completion = Completion(
        text="secret",
        ids=(7,) * tokens,
        prompt_tokens=changes.get("prompt_tokens", 100),
        finish_reason="interrupted" if outcome in ("cancelled", "failed") else outcome,
        figures=figures,
        cached_tokens=changes.get("cached_tokens", 64),
        prompt_logprobs=changes.get("prompt_logprobs"),
    )
    error = RuntimeError("broken") if outcome == "failed" else None
    return EndEvent(1, completion, outcome, error, changes.get("queued_s", 0.1), changes.get("preempted", 0))


def test_all_is_there_from_the_start():
    metrics = Metrics("tiny", ["suffix", "model:draft"])
    kinds = {}
    for family in families(metrics).values():
        kinds[family.name + "_total" * (family.type == "counter")] = family.type
    assert kinds == {f"foredraft:{name}": kind for name, kind in NAMES.items()}

    values = read(metrics)
    assert math.isnan(values.pop(("spec_decode_estimated_speedup",)))
    assert set(values.values()) == {0.0}
    for position in range(16):
        assert ("spec_decode_num_accepted_tokens_per_pos_total", str(position)) in values
        assert ("spec_decode_num_draft_tokens_per_pos_total", str(position)) in values
    for reason in REASONS:
        assert ("spec_decode_num_rounds_without_draft_total", reason) in values
    for kind in ("draft_tokens", "accepted_tokens", "seconds"):
        for drafter in ("suffix", "model:draft"):
            assert (f"spec_decode_drafter_{kind}_total", drafter) in values
    for reason in ("stop", "length"):
        assert ("request_success_total", reason) in values


def test_the_text_is_prometheus_text():
    text, kind = Metrics("tiny").render()
    assert kind.startswith("text/plain; version=0.0.4")
    assert b"_created" not in text
    assert text.endswith(b"\n")


def test_rounds_of_one_pass():
    metrics = Metrics("tiny")
    chain = played((5, 6, 7), (-1, 0, 1), 2, (5, 6, 9), drafters=("suffix", "suffix", "ngram"))
    # 5 or 6 first; after 6 come 5 or 7; after 7 comes 8.
    tree = played(
        (5, 6, 5, 7, 8), (-1, -1, 1, 1, 3), 2, (6, 7, 1), drafters=("suffix", "ngram", "suffix", "ngram", "x")
    )
    whole = played((4,), (-1,), 1, (4,))  # the accepted token ended the answer
    wrong = played((4, 5), (-1, 0), 0, (3,))
    idle = [played(reason="no guess"), played(reason="no guess"), played(reason="weather"), played()]
    metrics.passed(passed(chain, tree, whole, wrong, *idle, rows=15, prompt_rows=4, seconds=(0.5, 2.0, 0.25)))
    values = read(metrics)

    def of(name, *labels):
        return values.get((name, *labels))

    assert of("spec_decode_num_rounds_total") == 8
    assert of("spec_decode_num_drafts_total") == 4
    assert of("spec_decode_num_draft_tokens_total") == 3 + 5 + 1 + 2
    assert of("spec_decode_num_accepted_tokens_total") == 2 + 2 + 1 + 0
    assert of("generation_tokens_total") == 3 + 3 + 1 + 1 + 4
    reached = [of("spec_decode_num_draft_tokens_per_pos_total", str(position)) for position in range(4)]
    assert reached == [4, 3, 2, 0]
    accepted = [of("spec_decode_num_accepted_tokens_per_pos_total", str(position)) for position in range(4)]
    assert accepted == [3, 2, 0, 0]
    names = ("suffix", "ngram", "x")
    assert [of("spec_decode_drafter_draft_tokens_total", name) for name in names] == [2 + 2 + 1 + 2, 1 + 2, 1]
    assert [of("spec_decode_drafter_accepted_tokens_total", name) for name in names] == [2 + 1, 2, None]
    without = [of("spec_decode_num_rounds_without_draft_total", reason) for reason in (*REASONS, "weather")]
    assert without == [0, 0, 0, 2, 0, 0, 1, 1]
    assert [of("draft_seconds_total"), of("pass_seconds_total"), of("host_seconds_total")] == [0.5, 2.0, 0.25]
    assert of("prompt_rows_total") == 4
    assert [of("rows_per_pass_bucket", edge) for edge in ("12.0", "16.0", "+Inf")] == [0, 1, 1]
    assert [of("rows_per_pass_count"), of("rows_per_pass_sum")] == [1, 15]


def test_a_pass_without_rounds_counts_as_a_pass_only():
    metrics = Metrics("tiny")
    metrics.passed(passed(rows=512, prompt_rows=512, seconds=(0.0, 1.0, -1e-18)))
    moved = {name: value for name, value in read(metrics).items() if value and not math.isnan(value)}
    assert moved.pop(("rows_per_pass_bucket", "512.0")) == moved.pop(("rows_per_pass_bucket", "1024.0")) == 1
    assert moved == {
        ("rows_per_pass_bucket", "+Inf"): 1,
        ("rows_per_pass_count",): 1,
        ("rows_per_pass_sum",): 512,
        ("prompt_rows_total",): 512,
        ("pass_seconds_total",): 1,
    }


def random_round(dice):
    """A tree with a path through it that was accepted, some of it: the event, its depth, that path."""
    paths, parents, straight = [], [], dice.choice([0.5, 0.9, 1.0])
    for index in range(dice.randint(1, 40)):
        parent = index - 1 if dice.random() < straight else dice.randint(-1, index - 1)
        paths.append([*(paths[parent] if parent >= 0 else ()), index])
        parents.append(parent)
    seen = Counter()
    tokens = []
    for parent in parents:  # children of one parent are all different
        seen[parent] += 1
        tokens.append(seen[parent])
    path = dice.choice([[], *paths])
    added = [tokens[index] for index in path] + [99] * dice.randint(0 if path else 1, 1)
    drafters = [dice.choice("abc") for _ in tokens]
    event = played(tokens, parents, len(path), added, drafters=drafters, position=dice.randint(1, 99))
    return event, max(map(len, paths)), path


def test_sums_over_random_trees():
    dice, metrics = random.Random(4), Metrics("tiny")
    wanted = Counter()
    for _ in range(60):
        rounds = [random_round(dice) for _ in range(dice.randint(1, 8))]
        for event, depth, path in rounds:
            for position in range(depth):
                wanted["spec_decode_num_draft_tokens_per_pos_total", str(position)] += 1
            for position, index in enumerate(path):
                wanted["spec_decode_num_accepted_tokens_per_pos_total", str(position)] += 1
                wanted["spec_decode_drafter_accepted_tokens_total", event.drafters[index]] += 1
            for drafter in event.drafters:
                wanted["spec_decode_drafter_draft_tokens_total", drafter] += 1
            wanted["spec_decode_num_draft_tokens_total",] += len(event.drafted)
            wanted["spec_decode_num_accepted_tokens_total",] += len(path)
            wanted["generation_tokens_total",] += len(event.tokens)
        metrics.passed(passed(*(event for event, _, _ in rounds)))
        if dice.random() < 0.3:
            metrics.render()  # whenever it is looked at, nothing is lost or counted twice
    values = read(metrics)
    assert {key: values[key] for key in wanted} == wanted
    assert max(int(key[1]) for key in wanted if "per_pos" in key[0]) > 16


def test_speedup_is_of_passes_with_known_prices():
    metrics = Metrics("tiny")
    for prices in [(3.0, 1.5), (0.0, 0.0), (0.0, 5.0), (5.0, 0.0), (1.0, 2.0)]:
        metrics.passed(passed(played(), prices=prices))
    values = read(metrics)
    assert values["spec_decode_plain_seconds_total",] == 4.0
    assert values["spec_decode_spent_seconds_total",] == 3.5
    keep = math.exp(-2.0 / WINDOW_S)  # the first of them is that long ago
    assert values["spec_decode_estimated_speedup",] == pytest.approx((3 * keep + 1) / (1.5 * keep + 2))


def test_speedup_forgets():
    metrics = Metrics("tiny")
    for _ in range(100):
        metrics.passed(passed(played(), prices=(3.0, 1.0)))
    assert read(metrics)["spec_decode_estimated_speedup",] == pytest.approx(3.0)
    for _ in range(round(10 * WINDOW_S)):
        metrics.passed(passed(played(), prices=(1.0, 1.0)))
    assert read(metrics)["spec_decode_estimated_speedup",] == pytest.approx(1.0, abs=1e-3)


def load_of(values):
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return [values[name,] for name in names]


def test_load_is_that_of_the_last_pass_or_of_who_is_asked():
    metrics = Metrics("tiny")
    metrics.passed(passed(load=(5, 3, 2, 8)))
    metrics.passed(passed(load=(4, 7, 6, 8)))
    assert load_of(read(metrics)) == [4, 7, 0.75]
    states = iter([passed(load=(1, 0, 8, 8)), passed(load=(0, 0, 0, 0))])
    metrics.watch(lambda: next(states))
    assert load_of(read(metrics)) == [1, 0, 1.0]
    assert load_of(read(metrics)) == [0, 0, 0.0]


def test_requests_that_ended():
    metrics = Metrics("tiny")
    seconds = {"suffix": DrafterFigures(9, 4, 0.5), "x": DrafterFigures(0, 0, 0.25)}
    metrics.ended(ended("stop", 5, preempted=2, by_drafter=seconds))
    metrics.ended(ended("length", 1, decode_s=0.0, prompt_logprobs=(), cached_tokens=0))
    metrics.ended(ended("cancelled", 3, by_drafter=seconds))
    metrics.ended(ended("cancelled", 0, rounds=0, queued_s=4.0, cached_tokens=0))
    metrics.ended(ended("failed", 2, preempted=1))
    values = read(metrics)
    assert values["request_success_total", "stop"] == values["request_success_total", "length"] == 1
    assert values["request_cancelled_total",] == 2
    assert values["request_failed_total",] == 1
    assert values["num_preemptions_total",] == 3
    assert values["spec_decode_drafter_seconds_total", "suffix"] == 1.0
    assert values["spec_decode_drafter_seconds_total", "x"] == 0.5
    # Neither the one that never began nor the one whose prompt has logprobs was looked up.
    assert values["prefix_cache_queries_total",] == 3 * 100
    assert values["prefix_cache_hits_total",] == 3 * 64

    def histogram(name):
        return values[f"{name}_count",], pytest.approx(values[f"{name}_sum",])

    assert histogram("request_queue_time_seconds") == (5, 4 * 0.1 + 4.0)
    assert histogram("time_to_first_token_seconds") == (4, 4 * 0.3)
    assert histogram("request_time_per_output_token_seconds") == (3, 2 / 4 + 2 / 2 + 2 / 1)
    assert histogram("e2e_request_latency_seconds") == (2, 2 * 2.3)
    assert histogram("request_prompt_tokens") == (2, 200)
    assert histogram("request_generation_tokens") == (2, 6)
    assert values["request_generation_tokens_bucket", "1.0"] == 1
    assert values["request_generation_tokens_bucket", "5.0"] == 2


def test_prompts_count_once_with_their_first_token():
    metrics = Metrics("tiny")
    metrics.passed(passed(played(number=0, position=100), played(number=7, position=50)))
    assert read(metrics)["prompt_tokens_total",] == 100
    metrics.ended(ended("stop", prompt_tokens=100))
    metrics.ended(ended("length", 0, rounds=0, prompt_tokens=30))  # none was asked for after it
    metrics.ended(ended("failed", 0, rounds=0, prompt_tokens=9))
    assert read(metrics)["prompt_tokens_total",] == 130


def test_http_requests():
    metrics = Metrics("tiny")
    metrics.observe_http("/v1/models", 200, 0.005)
    metrics.observe_http("/v1/chat/completions", 200, 3.0)
    metrics.observe_http("/v1/chat/completions", 400, 0.05)
    values = read(metrics)
    assert values["http_requests_total", "/v1/models", "200"] == 1
    assert values["http_requests_total", "/v1/chat/completions", "400"] == 1
    assert values["http_request_duration_seconds_count", "/v1/chat/completions"] == 2
    assert values["http_request_duration_seconds_sum", "/v1/chat/completions"] == pytest.approx(3.05)
    assert values["http_request_duration_seconds_bucket", "0.1", "/v1/chat/completions"] == 1


def test_any_name_can_be_a_label():
    name = 'model:/a "b"\\c\nd'
    metrics = Metrics("tiny", [name])
    metrics.passed(passed(played((1,), (-1,), 1, (1, 2), drafters=(name,))))
    assert read(metrics)["spec_decode_drafter_accepted_tokens_total", name] == 1


def test_counters_add_up_to_real_completions(tmp_path):
    llm = twin_llm(write_tiny(tmp_path / "tiny.gguf", "qwen2", seed=5))
    metrics, completions = Metrics("tiny"), []

    def observe(event):
        metrics.passed(passed(event))

    for number, prompt in enumerate(["the quick brown fox", "the lazy dog and", "what is"]):
        ids = llm.tokenize(prompt)
        sampling = Sampling(max_tokens=16, ignore_eos=True)
        text = (*ids, *llm.generate(ids, sampling).ids)
        drafters = [Truth(text[: len(text) - 5]), Garbage(llm.target.vocab, number, text)]
        completions.append(answer(llm, ids, sampling, drafters, k=(3, 12, 0)[number], trace=observe))
        metrics.ended(EndEvent(number, completions[-1], "length", None, 0.0, 0))
    figures = [completion.figures for completion in completions]
    values = read(metrics)
    assert values["generation_tokens_total",] == sum(figure.tokens for figure in figures) == 48
    assert values["prompt_tokens_total",] == sum(completion.prompt_tokens for completion in completions)
    assert values["spec_decode_num_rounds_total",] == sum(figure.rounds for figure in figures)
    assert values["spec_decode_num_draft_tokens_total",] == sum(figure.drafted for figure in figures) > 20
    assert values["spec_decode_num_accepted_tokens_total",] == sum(figure.accepted for figure in figures) > 9
    for drafter in ("truth", "garbage"):
        parts = [figure.by_drafter[drafter] for figure in figures if drafter in figure.by_drafter]
        drafted = values["spec_decode_drafter_draft_tokens_total", drafter]
        assert drafted == sum(part.drafted for part in parts) > 0
        accepted = values["spec_decode_drafter_accepted_tokens_total", drafter]
        assert accepted == sum(part.accepted for part in parts) > 0
        spent = values["spec_decode_drafter_seconds_total", drafter]
        assert spent == pytest.approx(sum(part.seconds for part in parts))


def test_counters_add_up_to_what_an_engine_delivers(tmp_path):
    llm = twin_llm(write_tiny(tmp_path / "tiny.gguf", "qwen2", seed=5), drafting=Drafting("suffix", k=4))
    metrics, delivered, over = Metrics("tiny", ["suffix"]), [], threading.Semaphore(0)

    def deliver(updates):
        for _, update in updates:
            delivered.append(update)
            if update.completion is not None or update.error is not None:
                over.release()

    engine = Engine(llm, deliver, observer=metrics)
    metrics.watch(lambda: engine.state)
    engine.start()
    prompt = llm.tokenize("the trees and the wind in the trees and the wind in the trees ")
    for number in range(4):
        sampling = Sampling(max_tokens=6 + number, ignore_eos=True)
        engine.submit(llm.request(prompt[number:], sampling, time.perf_counter()))
    for _ in range(4):
        assert over.acquire(timeout=60)
    engine.close()
    completions = [update.completion for update in delivered if update.completion is not None]
    figures = [completion.figures for completion in completions]
    values = read(metrics)
    assert values["generation_tokens_total",] == sum(len(update.burst.ids) for update in delivered) == 30
    assert values["request_generation_tokens_sum",] == 30
    assert values["prompt_tokens_total",] == sum(completion.prompt_tokens for completion in completions)
    assert values["prefix_cache_hits_total",] == sum(completion.cached_tokens for completion in completions)
    assert values["spec_decode_num_rounds_total",] == sum(figure.rounds for figure in figures)
    assert values["spec_decode_num_draft_tokens_total",] == sum(figure.drafted for figure in figures) > 0
    assert values["spec_decode_num_accepted_tokens_total",] == sum(figure.accepted for figure in figures)
    assert values["request_success_total", "length"] == len(completions) == 4
    assert values["rows_per_pass_count",] == len(llm.target.passes)
    assert values["rows_per_pass_sum",] == sum(llm.target.passes)
    assert load_of(values)[:2] == [0, 0]


def test_what_is_rendered_is_of_one_moment():
    metrics = Metrics("tiny", ["suffix"])
    event = passed(*[played((1, 2), (-1, 0), 1, (1, 7))] * 3)
    seen = []

    def feed():
        for _ in range(2000):
            metrics.passed(event)

    threads = [threading.Thread(target=feed) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.append(read(metrics))
    for thread in threads:
        thread.join()
    seen.append(read(metrics))
    assert seen[-1]["rows_per_pass_count",] == 4000
    for values in seen:
        drafts = 3 * values["rows_per_pass_count",]
        assert values["spec_decode_num_drafts_total",] == values["spec_decode_num_rounds_total",] == drafts
        assert values["spec_decode_num_draft_tokens_per_pos_total", "1"] == drafts
        assert values["spec_decode_drafter_accepted_tokens_total", "suffix"] == drafts
        assert values["generation_tokens_total",] == 2 * drafts


def test_an_engine_may_hold_its_own_lock_while_it_is_watched():
    metrics, engine, asked = Metrics("tiny"), threading.Lock(), threading.Event()

    def state():
        asked.set()
        with engine:
            return passed(load=(1, 1, 1, 8))

    metrics.watch(state)
    with engine:
        render = threading.Thread(target=metrics.render, daemon=True)
        render.start()
        assert asked.wait(10)
        step = threading.Thread(target=metrics.passed, args=(passed(),), daemon=True)
        step.start()
        step.join(10)
        assert not step.is_alive(), "rendering waits for the engine, and the engine for rendering"
    render.join(10)
    assert not render.is_alive()
