"""A recorded answer that is given once more, on a clock of its own: the whole engine runs, drafters and
controller included, while passes cost what a price list says. So the same decisions always take the same
time, and settings can be compared to the per mille.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.core.nouns import Floats, Int32s, Rows
from foredraft.core.pick import Place
from foredraft.core.target import NO_TAPS, Cache, Scores, Taps
from foredraft.measure.prices import Prices


@dataclass(frozen=True)
class Recording:
    """A prompt and what the target answered, as tokens."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


class VirtualClock:
    """Seconds that pass only when somebody says so; called like `time.perf_counter`."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class ReplayTarget:
    """A `Target` that says what the recording says wherever the text is that of the recording, and token 0
    or 1 elsewhere: whichever the recording does not have there. Logits are zeros, since the picks are known
    without.
    """

    def __init__(self, recording: Recording, prices: Prices, clock: VirtualClock, vocab: int) -> None:
        self._text = (*recording.prompt, *recording.output)
        self._prices = prices
        self._clock = clock
        self._vocab = vocab

    @property
    def vocab(self) -> int:
        return self._vocab

    def forward(
        self,
        rows: Rows,
        caches: Sequence[Cache],
        wanted: Int32s,
        taps: Taps = NO_TAPS,  # noqa: ARG002 - a recording has no hidden states
    ) -> Scores:
        for owner, cache in enumerate(caches):
            cache.reserve(int((rows.owners == owner).sum()))
        self._clock.advance(self._prices.seconds(len(rows)))
        # One zero in memory, however many logits it stands for.
        logits = np.broadcast_to(np.float32(0.0), (len(wanted), self._vocab))
        return Scores(logits, np.zeros((0, 0, 0), np.float32))

    def pick(self, logits: Floats, places: Sequence[Place]) -> list[int]:  # noqa: ARG002 - known without
        return [self._token(place) for place in places]

    def keep(self, cache: Cache, path: Sequence[int]) -> None:
        cache.keep(path)

    def _token(self, place: Place) -> int:
        start, at = place.position - len(place.path), place.position
        if at >= len(self._text):
            return 0
        followed = self._text[start:at] == place.path
        return self._text[at] if followed else int(self._text[at] == 0)
