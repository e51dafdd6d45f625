import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from foredraft.core.trace import RoundEvent
from foredraft.engine.observer import PassEvent
from foredraft.measure.serve_counts import Counts, Passes
from foredraft.server.metrics import Metrics


def exposed(registry):
    return Counts.parse(generate_latest(registry).decode())


def test_counters_as_prometheus_writes_them():
    registry = CollectorRegistry()
    odd = 'a "quoted\\ name", with\na line'
    reasons = Counter("foredraft:rounds_total", "By reason.", ("model", "reason"), registry=registry)
    rows = Histogram("foredraft:rows", "Rows.", registry=registry, buckets=(1, 10))
    reasons.labels(odd, "off").inc(3)
    reasons.labels(odd, "no room").inc(2.5)
    reasons.labels(odd, "never").inc(0)
    before = exposed(registry)
    assert before.total("rounds_total") == 5.5
    assert before.by("rounds_total", "reason") == {"off": 3, "no room": 2.5}
    rows.observe(4)
    rows.observe(40)
    reasons.labels(odd, "off").inc()
    reasons.labels(odd, "new").inc(7)
    since = exposed(registry).since(before)
    assert since.by("rounds_total", "reason") == {"off": 1, "new": 7}
    assert (since.total("rows_count"), since.total("rows_sum")) == (2, 44)


def test_counter_that_is_not_there_is_a_mistake():
    with pytest.raises(KeyError):
        Counts.parse("other:a_total 1\n").total("a_total")


def round_event(drafted, parents, drafters, accepted, tokens, reason=""):
    return RoundEvent(
        round=1,
        position=9,
        drafted=drafted,
        parents=parents,
        drafters=drafters,
        chances=(0.5,) * len(drafted),
        picks=(),
        accepted=accepted,
        tokens=tokens,
        draft_s=0.0,
        verify_s=0.0,
        predicted_s=0.0,
        predicted_tokens=0.0,
        reason=reason,
    )


def test_what_the_server_counts_in_a_pass():
    metrics = Metrics("a model", ["suffix"])
    before = Counts.parse(metrics.render()[0].decode())
    drafting = round_event((5, 6), (-1, 0), ("suffix", "ngram"), 1, (5, 8))
    plain = round_event((), (), (), 0, (4,), "off")
    metrics.passed(
        PassEvent(
            rows=20,
            prompt_rows=16,
            decoding=2,
            running=3,
            waiting=1,
            kv_used=4,
            kv_blocks=9,
            draft_s=0.25,
            pass_s=2.0,
            host_s=0.125,
            plain_s=0.0,
            spent_s=0.0,
            rounds=[(0, drafting), (1, plain)],
        )
    )
    counts = Counts.parse(metrics.render()[0].decode())
    assert counts.total("num_requests_running") + counts.total("num_requests_waiting") == 4
    assert Passes.of(counts.since(before)) == Passes(
        passes=1,
        rows=20,
        prompt_rows=16,
        rounds=2,
        tokens=3,
        drafts=1,
        drafted=2,
        accepted=1,
        preempted=0,
        pass_s=2.0,
        draft_s=0.25,
        host_s=0.125,
        reasons={"off": 1},
        by_drafter={"suffix": (1, 1), "ngram": (1, 0)},
    )
