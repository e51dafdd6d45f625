"""What an engine and its server have done, for Prometheus.

Names that vLLM has too mean what they mean there, so that a dashboard needs another prefix only. llama.cpp
shares those of speculation and `prompt_tokens_total`; what it alone calls otherwise is not there twice.

Tokens are counted as they are delivered, whatever the chunks they are sent in: rounds when they are over, a
request's times when it ends. What is rendered is of one moment.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric

from foredraft.engine.observer import EndEvent, PassEvent
from foredraft.server.meters import HttpMeters, Load, LoadMeters, Maker, PassMeters, RequestMeters
from foredraft.server.round_meters import RoundMeters, Tally


class Metrics:
    """An observer of an engine. All methods may be called from any thread. The drafters named are there, with
    zeros, from the start; others when they are first met.
    """

    def __init__(self, model_name: str, drafters: Sequence[str] = ()) -> None:
        self._model_name = model_name
        self._registry = CollectorRegistry()
        make = Maker(self._registry)
        self._rounds = RoundMeters(make, drafters)
        self._passes = PassMeters(make)
        self._load = LoadMeters(make)
        self._requests = RequestMeters(make)
        self._http = HttpMeters(make)
        self._lock = Lock()
        self._tally = Tally()  # since it was last rendered
        self._latest: Load | None = None
        self._state: Callable[[], Load] | None = None

    def watch(self, state: Callable[[], Load]) -> None:
        """Ask this for the load whenever it is rendered. Without it the load is that of the last pass, also
        long after it.
        """
        self._state = state

    def passed(self, event: PassEvent) -> None:
        with self._lock:
            self._latest = event
            self._passes.add(event)
            self._tally.add(round_event for _, round_event in event.rounds)

    def ended(self, event: EndEvent) -> None:
        with self._lock:
            self._requests.add(event)
            self._rounds.add_ended(event)

    def observe_http(self, route: str, status: int, seconds: float) -> None:
        """A request was answered, to the end. The route is its pattern: paths are what clients invent."""
        with self._lock:
            self._http.add(route, status, seconds)

    def render(self) -> tuple[bytes, str]:
        """The text for Prometheus, and its content type."""
        # Not under the lock: an engine may hold its own while it calls `passed`.
        load = self._latest if self._state is None else self._state()
        with self._lock:
            if load is not None:
                self._load.set(load)
            self._rounds.add(self._tally)
            self._requests.add_prompts(self._tally.prompt_tokens)
            self._tally = Tally()
            families = list(self._registry.collect())
        return generate_latest(Snapshot(families, self._model_name)), CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True)
class Snapshot:
    """What was collected, each sample with the model's name. When a counter began is left out: it doubles the
    text, and nobody asks.
    """

    families: Sequence[Metric]
    model_name: str

    def collect(self) -> Iterable[Metric]:
        for family in self.families:
            family.samples = [
                sample._replace(labels={"model_name": self.model_name, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family
