"""Counters and histograms of passes, of the load, of requests and of HTTP."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from foredraft.engine.observer import EndEvent, PassEvent

PREFIX = "foredraft:"
WINDOW_S = 30.0  # of passes, that the speed-up is of

SECONDS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1.0, 2.5, 5.0))
HTTP_SECONDS = (0.01, 0.1, 1.0, 10.0, 100.0)
TOKENS = tuple(digit * 10.0**power for power in range(5) for digit in (1.0, 2.0, 5.0))
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Maker:
    """Of what one registry holds."""

    registry: CollectorRegistry

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(PREFIX + name, meaning, registry=self.registry)

    def histogram(self, name: str, meaning: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(PREFIX + name, meaning, labels, registry=self.registry, buckets=buckets)


class Children(dict[str, Counter]):
    """A counter's children by the value of its label. Those known are there from the start."""

    def __init__(self, counter: Counter, known: Iterable[str]) -> None:
        self._counter = counter
        super().__init__((value, counter.labels(value)) for value in known)

    def __missing__(self, value: str) -> Counter:
        child = self[value] = self._counter.labels(value)
        return child


class PassMeters:
    def __init__(self, make: Maker) -> None:
        self._rows = make.histogram("rows_per_pass", "Rows of a pass. Its count is that of passes.", ROWS)
        self._prompt_rows = make.counter(
            "prompt_rows_total", "Rows of prompts, as far as no token was picked after them."
        )
        self._draft_s = make.counter("draft_seconds_total", "Time of rounds in drafting.")
        self._pass_s = make.counter("pass_seconds_total", "Time of rounds in passes and picks.")
        self._host_s = make.counter("host_seconds_total", "Time of rounds in all else.")
        self._plain_s = make.counter(
            "spec_decode_plain_seconds_total",
            "Time that the rounds' tokens would have taken without drafting, by the learned prices.",
        )
        self._spent_s = make.counter(
            "spec_decode_spent_seconds_total",
            "Time that the same rounds took as they were, by the same prices.",
        )
        self._speedup = make.gauge(
            "spec_decode_estimated_speedup",
            f"Plain seconds per spent one, lately ({WINDOW_S:g} s of passes). NaN before prices are known.",
        )
        self._speedup.set(math.nan)
        self._late_plain_s = self._late_spent_s = 0.0

    def add(self, event: PassEvent) -> None:
        self._rows.observe(event.rows)
        self._prompt_rows.inc(event.prompt_rows)
        # A time that is what others leave may be negative by a rounding, which a counter does not take.
        self._draft_s.inc(max(0.0, event.draft_s))
        self._pass_s.inc(max(0.0, event.pass_s))
        self._host_s.inc(max(0.0, event.host_s))
        if event.plain_s > 0.0 and event.spent_s > 0.0:
            self._compare(event.plain_s, event.spent_s)

    def _compare(self, plain_s: float, spent_s: float) -> None:
        self._plain_s.inc(plain_s)
        self._spent_s.inc(spent_s)
        keep = math.exp(-spent_s / WINDOW_S)
        self._late_plain_s = keep * self._late_plain_s + plain_s
        self._late_spent_s = keep * self._late_spent_s + spent_s
        self._speedup.set(self._late_plain_s / self._late_spent_s)


class Load(Protocol):
    """How busy an engine is. Its state says so, and every pass."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_used(self) -> int: ...
    @property
    def kv_blocks(self) -> int: ...


class LoadMeters:
    def __init__(self, make: Maker) -> None:
        self._running = make.gauge("num_requests_running", "Requests being answered.")
        self._waiting = make.gauge("num_requests_waiting", "Requests that wait for their turn.")
        self._kv_usage = make.gauge(
            "kv_cache_usage_perc", "Part of the key-value cache that requests hold, from 0 to 1."
        )

    def set(self, load: Load) -> None:
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._kv_usage.set(load.kv_used / load.kv_blocks if load.kv_blocks else 0.0)


class RequestMeters:
    """Latency and lengths are of requests that ended by themselves. Times in the queue, to the first token
    and per token are of all that have them: those times may be why a request was cancelled.
    """

    def __init__(self, make: Maker) -> None:
        self._prompt_tokens = make.counter(
            "prompt_tokens_total", "Prompt tokens, reused ones too, counted with the first token after them."
        )
        self._looked_up = make.counter(
            "prefix_cache_queries_total",
            "Prompt tokens that reuse was tried for, counted at a request's end.",
        )
        self._reused = make.counter("prefix_cache_hits_total", "Of these, the ones that were reused.")
        self._preempted = make.counter(
            "num_preemptions_total", "Times a request gave its memory to others, counted at its end."
        )
        succeeded = make.counter("request_success_total", "Requests ended by themselves.", "finished_reason")
        self._succeeded = Children(succeeded, ("stop", "length"))
        self._lost = {
            "cancelled": make.counter("request_cancelled_total", "Requests cancelled."),
            "failed": make.counter("request_failed_total", "Requests ended by an error."),
        }
        self._queued_s = make.histogram(
            "request_queue_time_seconds", "From submission to admission.", SECONDS
        )
        self._ttft_s = make.histogram(
            "time_to_first_token_seconds", "From submission to the first token.", SECONDS
        )
        self._token_s = make.histogram(
            "request_time_per_output_token_seconds",
            "From a request's first token to its last, per token after the first.",
            SECONDS,
        )
        self._total_s = make.histogram(
            "e2e_request_latency_seconds", "From submission to the last token.", SECONDS
        )
        self._prompts = make.histogram("request_prompt_tokens", "Tokens of a request's prompt.", TOKENS)
        self._answers = make.histogram("request_generation_tokens", "Tokens of a request's answer.", TOKENS)

    def add_prompts(self, tokens: int) -> None:
        self._prompt_tokens.inc(tokens)

    def add(self, event: EndEvent) -> None:
        completion, figures = event.completion, event.completion.figures
        succeeded = event.outcome not in self._lost
        if succeeded and not figures.rounds:  # only its prompt was asked for
            self._prompt_tokens.inc(completion.prompt_tokens)
        # With logprobs of the prompt none of it is reused.
        if (succeeded or figures.rounds) and completion.prompt_logprobs is None:
            self._looked_up.inc(completion.prompt_tokens)
            self._reused.inc(completion.cached_tokens)
        self._preempted.inc(event.preempted)
        self._queued_s.observe(event.queued_s)
        if figures.ttft_s is not None:
            self._ttft_s.observe(figures.ttft_s)
        if figures.tok_s is not None:
            self._token_s.observe(1.0 / figures.tok_s)
        if succeeded:
            self._succeed(event)
        else:
            self._lost[event.outcome].inc()

    def _succeed(self, event: EndEvent) -> None:
        self._succeeded[event.outcome].inc()
        self._total_s.observe(event.completion.figures.total_s)
        self._prompts.observe(event.completion.prompt_tokens)
        self._answers.observe(len(event.completion.ids))


class HttpMeters:
    def __init__(self, make: Maker) -> None:
        self._answered = make.counter("http_requests_total", "HTTP requests answered.", "route", "status")
        self._seconds = make.histogram(
            "http_request_duration_seconds",
            "From a request's arrival to its last byte.",
            HTTP_SECONDS,
            "route",
        )

    def add(self, route: str, status: int, seconds: float) -> None:
        self._answered.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
