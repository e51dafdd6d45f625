"""A loaded model and what can be timed on it. Every method that times something takes one sample, so that the
caller can interleave them; passes are timed at the seam that rounds use (`NativeTarget.forward`).

Samples are kept by a key: `pass_s 8@512` is the seconds of a pass of 8 rows after 512 positions.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import mean
from typing import cast

import numpy as np

from foredraft._native import Model
from foredraft.core.history import History
from foredraft.core.nouns import Rows, int32s
from foredraft.core.pick import Place
from foredraft.core.sampling import Sampling
from foredraft.engine.kv import KVPool, KVSequence
from foredraft.engine.request import Request
from foredraft.engine.speculator import idle
from foredraft.engine.stream import Host, Stream
from foredraft.measure.busy import BusyCore
from foredraft.measure.ceiling import Bandwidth, fill, pass_s
from foredraft.measure.native_clock import Clocked, NativeClock
from foredraft.measure.peer import LlamaBench, Load
from foredraft.measure.settings import PICKING, Settings
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.stream import TextStream
from foredraft.models.target import LoadOptions, NativeTarget
from foredraft.models.tokenizer import Tokenizer

TEXT = "The first thing to know about a river is where its water comes from. Most of it"


class Workbench:
    """Memory for the bandwidth and positions before the rows are there when they are first needed."""

    def __init__(self, path: Path, threads: int, settings: Settings, peer: LlamaBench | None = None) -> None:
        file = read_gguf(path)
        spec = describe(file)
        self.settings = settings.fitted(spec.context)
        self.target = NativeTarget.load(file, spec, LoadOptions(self.settings.blocks, threads=threads))
        self.samples: defaultdict[str, list[float]] = defaultdict(list)
        self._tokenizer = Tokenizer.from_gguf(file)
        self._pool = KVPool(self.settings.blocks)
        self._peer = peer
        self._caches: dict[int, KVSequence] = {}
        self._bandwidth: Bandwidth | None = None
        self._text: list[int] = []

    def sweep(self) -> None:
        if self._bandwidth is None:
            self._bandwidth = Bandwidth(self.settings.sweep_bytes)
        self.samples["bandwidth_gb_s"].append(self._bandwidth.best_gb_s(self.target, 1))

    def one_pass(self, rows: int, context: int) -> None:
        self.samples[pass_key(rows, context)].append(pass_s(self.target, self._cache(context), rows))

    def pick(self) -> None:
        """Right after the pass that wrote the logits, as in a round; on text that the model wrote itself,
        since what a filter costs depends on how sure the model is.
        """
        if not self._text:
            self._text = self._written(PICKING, 3 * self.settings.picked)
        before = len(self._text) - self.settings.picked
        history = History(self._text[:before])
        with self._pool.open() as cache:
            scores = self.target.forward(
                Rows.chain(self._text), [cache], int32s(range(before, len(self._text)))
            )
        start = before * (1 + len(self.samples["pick_s"]))  # other positions, so other noise each time
        places = [
            Place(PICKING, start + row, history, tuple(self._text[before : before + row]))
            for row in range(self.settings.picked)
        ]
        started = time.perf_counter()
        self.target.pick(scores.logits, places)
        self.samples["pick_s"].append(time.perf_counter() - started)

    def disturbed(self, core: BusyCore) -> None:
        """A few passes of one row undisturbed, and as many while a core is taken."""
        cache = self._cache(self.settings.middle)
        for key, state in (("free_s", nullcontext()), ("taken_s", core.taken())):
            with state:
                times = [pass_s(self.target, cache, 1) for _ in range(self.settings.passes)]
            self.samples[key].append(mean(times))

    def generate(self) -> None:
        """Tokens per second after the short context, and per token the time that was not the native pass."""
        clock = NativeClock()
        target = NativeTarget(self.target.spec, cast(Model, Clocked(self.target.model, clock)))
        times = [time.perf_counter()]
        native = [0.0]
        for _ in self._stream(target, self._prompt(self.settings.short), Sampling(), self.settings.generated):
            times.append(time.perf_counter())
            native.append(clock.seconds)
        # The first burst holds the prompt.
        self.samples["tok_s"].append((len(times) - 2) / (times[-1] - times[1]))
        binding_s = self._binding_s()
        self.samples["overhead_s"] += list(np.diff(times)[1:] - np.diff(native)[1:] + binding_s)

    def prompt(self) -> None:
        """A whole prompt in one pass, logits for its last token."""
        tokens = Rows.chain(self._prompt(self.settings.prompt))
        with self._pool.open() as cache:
            started = time.perf_counter()
            self.target.forward(tokens, [cache], int32s([len(tokens) - 1]))
            ended = time.perf_counter()
        self.samples["prompt_tok_s"].append(len(tokens) / (ended - started))

    def peer_generate(self) -> None:
        assert self._peer is not None
        load = Load(generated=self.settings.generated, depth=self.settings.short)
        self.samples["peer_tok_s"].append(self._peer.tok_s(load))

    def peer_prompt(self) -> None:
        assert self._peer is not None
        self.samples["peer_prompt_tok_s"].append(self._peer.tok_s(Load(prompt=self.settings.prompt)))

    def passes(self, core: BusyCore) -> dict[str, Callable[[], None]]:
        """What is quick enough to be done in every round."""
        s = self.settings
        places = [(1, s.short), *((rows, s.middle) for rows in s.rows), (1, s.long), (s.picked, s.long)]
        return {
            "sweep": self.sweep,
            **{pass_key(*place): partial(self.one_pass, *place) for place in places},
            "pick": self.pick,
            "disturbed": partial(self.disturbed, core),
        }

    def runs(self) -> dict[str, Callable[[], None]]:
        """What takes seconds each time; ours and the peer's by turns."""
        ours = {"generate": self.generate, "prompt": self.prompt}
        if self._peer is None:
            return ours
        theirs = {"generate": self.peer_generate, "prompt": self.peer_prompt}
        return {
            name: action for key in ours for name, action in ((key, ours[key]), (f"peer_{key}", theirs[key]))
        }

    def _cache(self, context: int) -> KVSequence:
        if context not in self._caches:
            self._caches[context] = self._pool.open()
            fill(self.target, self._caches[context], context)
        return self._caches[context]

    def _prompt(self, length: int) -> list[int]:
        """Which tokens it has does not change how long it takes."""
        return [index % self.target.vocab for index in range(length)]

    def _written(self, sampling: Sampling, count: int) -> list[int]:
        stream = self._stream(self.target, self._tokenizer.encode(TEXT), sampling, count)
        for _ in stream:
            pass
        return list(stream.ids)

    def _stream(self, target: NativeTarget, prompt: list[int], sampling: Sampling, most: int) -> Stream:
        """The engine's own way to answer; no token ends it early."""
        cache = self._pool.open()
        request = Request(prompt, sampling, frozenset(), most, time.perf_counter())
        text = TextStream(self._tokenizer, end_ids=(), max_tokens=most)
        host = Host(target, cache, threading.RLock(), cache.close)
        return Stream(host, request, text, idle(target.vocab))

    def _binding_s(self) -> float:
        """Of a native call: one without rows does nothing but take its arrays over and give arrays back."""
        none, length, table = int32s([]), int32s([0]), np.zeros((1, 4), np.int32)
        started = time.perf_counter()
        for _ in range(100):
            self.target.model.forward(none, none, none, length, table, none, none, none)
        return (time.perf_counter() - started) / 100


def pass_key(rows: int, context: int) -> str:
    return f"pass_s {rows}@{context}"
