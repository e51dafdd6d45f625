"""A loaded model to draft with: it computes only the part of its head that is likely to be needed, and picks
approximately, since a draft may be wrong.

The head is cut to the first 32,000 tokens (byte-pair vocabularies are sorted by how early a merge was
learned, so these are the frequent ones), the special tokens and those of the prompt.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from foredraft.core import noise
from foredraft.core import pick as picking
from foredraft.core.drafter import Guess
from foredraft.core.nouns import Floats, Int32s, Rows, int32s
from foredraft.core.pick import Drawn, Place
from foredraft.core.target import NO_TAPS, Cache, Scores, Taps
from foredraft.models.target import PANEL, NativeTarget

FREQUENT = 32_000
SHORT = 64  # tokens that noise may choose from
NAMED = 3  # tokens of a guess


class NativeDraftTarget:
    """Of one request. `vocab` is the target's: logits beyond it, or outside the cut head, count as minus
    infinity.
    """

    def __init__(self, native: NativeTarget, vocab: int, wanted: Iterable[int]) -> None:
        """`wanted`: tokens that the head must have beside the frequent ones."""
        self._native = native
        self.vocab = vocab
        self.panels = panels_of(min(native.vocab, vocab), wanted)
        ids = (self.panels[:, np.newaxis] * PANEL + np.arange(PANEL, dtype=np.int32)).ravel()
        self._known = ids < min(native.vocab, vocab)
        self._ids = int32s(ids[self._known])
        self._whole = bool(self._known.all())
        self.said: Sequence[Guess | Drawn] = ()

    def forward(self, rows: Rows, caches: Sequence[Cache], wanted: Int32s, taps: Taps = NO_TAPS) -> Scores:
        """Logits [wanted, known tokens]."""
        scores = self._native.forward(rows, caches, wanted, taps, panels=self.panels)
        return scores if self._whole else Scores(scores.logits[:, self._known], scores.hidden)

    def pick(self, logits: Floats, places: Sequence[Place]) -> list[int]:
        self.said = [self._say(row, place) for row, place in zip(logits, places, strict=True)]
        return [said.token if isinstance(said, Drawn) else said.tokens[0] for said in self.said]

    def keep(self, cache: Cache, path: Sequence[int]) -> None:
        self._native.keep(cache, path)

    def _say(self, row: Floats, place: Place) -> Guess | Drawn:
        """Where the distribution matters, drawn over the whole vocabulary exactly as `core/pick.py` draws."""
        if place.stream != noise.PICKS:
            return picking.draw(self._spread(row), place)
        return self._guess(row, place)

    def _guess(self, row: Floats, place: Place) -> Guess:
        sampling = place.sampling
        ids = self._ids
        if sampling.penalises or sampling.logit_bias:
            row, ids = picking.processed(self._spread(row), place), np.arange(self.vocab, dtype=np.int32)
        if sampling.temperature == 0.0:
            best, scores = _best(row, NAMED)
            return _guess_of(ids[best], scores)
        short = np.sort(np.argpartition(row, -min(SHORT, len(row)))[-min(SHORT, len(row)) :])
        kept, lag = picking.survivors(row[short], sampling)
        tokens = ids[short[kept]]
        score = (lag + noise.gumbel(place.seed, place.position, tokens)) * sampling.temperature
        best, scores = _best(score, NAMED)
        return _guess_of(tokens[best], scores)

    def _spread(self, row: Floats) -> Floats:
        """A row over the whole vocabulary."""
        full = np.full(self.vocab, -np.inf, np.float32)
        full[self._ids] = row
        return full


def panels_of(vocab: int, wanted: Iterable[int]) -> Int32s:
    """The panels of a head cut to the frequent tokens and these."""
    last = -(-min(FREQUENT, vocab) // PANEL)
    rare = {token // PANEL for token in wanted if last * PANEL <= token < vocab}
    return int32s([*range(last), *sorted(rare)])


def _best(row: "np.ndarray[tuple[int], np.dtype[np.floating]]", count: int) -> tuple[list[int], list[float]]:
    """Indexes and values of the greatest few, greatest first, of equal ones the first."""
    rest = row.copy()
    indexes: list[int] = []
    scores: list[float] = []
    for _ in range(min(count, len(rest))):
        index = int(np.argmax(rest))
        if rest[index] == -np.inf:
            break
        indexes.append(index)
        scores.append(float(rest[index]))
        rest[index] = -np.inf
    return indexes, scores


def _guess_of(tokens: "np.ndarray[tuple[int], np.dtype[np.integer]]", scores: list[float]) -> Guess:
    lead = scores[0] - scores[1] if len(scores) > 1 else np.inf
    return Guess(tuple(int(token) for token in tokens), float(lead))
