"""The token a row of logits gives: the slow twin and specification of `native/pick.cpp`, equal to the bit.

The pick is a pure function of (logits, settings, seed, position, what the sequence holds so far). It does not
know that drafting exists. In this order, in float64 except where said:

1. Penalties and bias. Per token seen: l / r if l > 0 else l * r (repetition, prompt and output); then l -
   frequency * count, then l - presence (output only); then l + bias. Rounded once to float32: the *processed*
   logits. Minus infinity forbids a token.
2. Temperature 0: the greatest processed logit; of equal ones the lowest id. Nothing below applies.
3. Lag of a token: (l - greatest l) * (1 / T), at most 0. Tokens are ranked by falling logit, equal ones by
   rising id.
4. top-k keeps the first k of the ranking: never more, also where logits are equal.
5. top-p ranks what is left, weighs each token by `weights(lag)`, a whole number of 2^-42ths, and keeps a
   token while the weight before it is less than max(1, floor(top_p * total)). Whole numbers add up alike in
   any order: so native code needs no sort to be exact.
6. min-p keeps what has a lag of at least log(min_p): a probability of min_p times the likeliest token's.
   The first token of the ranking survives 4, 5 and 6 always.
7. The greatest lag + gumbel(seed, position, token) wins; of equal ones the lowest id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from foredraft.core import noise
from foredraft.core.history import History
from foredraft.core.nouns import Doubles, Floats
from foredraft.core.sampling import Sampling
from foredraft.errors import NumericsError, TokenError, UsageError

Ids = npt.NDArray[np.intp]

MAX_VOCAB = 2**20  # so that a sum of weights fits into 63 bits
WEIGHT_BITS = 42
LANES = 16
LOOK = 64  # tokens of the ranking that are looked at first for top-p, and by how much more each time


@dataclass(frozen=True, eq=False)
class Place:
    """What a row of logits is picked for: the position of the token to come, and all it may depend on.

    Settings with a temperature must have a seed (`Sampling.resolve`).
    """

    sampling: Sampling
    position: int  # of the token to be picked, counted from the first of the prompt
    history: History = field(default_factory=History)
    path: tuple[int, ...] = ()  # drafted tokens between the history and this position
    stream: int = noise.PICKS  # of noise; drafts that are drawn for `ratio` and `block` have their own

    def __post_init__(self) -> None:
        if not 0 <= self.position < 2**32:
            raise UsageError(f"position is {self.position}, but must be 0 to {2**32 - 1}")
        if self.sampling.temperature > 0.0 and self.sampling.seed is None:
            raise UsageError("seed is None at a temperature above 0; draw one with Sampling.resolve()")

    @property
    def seed(self) -> int:
        """The key of the noise; of no effect at temperature 0."""
        return self.sampling.seed or 0


@dataclass(frozen=True, eq=False)
class Drawn:
    """A token, and the distribution it was drawn from."""

    token: int
    law: Doubles  # [V], 0 where filtered away, sums to 1


def pick(logits: Floats, place: Place) -> int:
    """The token of this place. logits: [V] float32, as the model gave them."""
    return _winner(place, *candidates(logits, place))


def probabilities(logits: Floats, place: Place) -> Doubles:
    """The law of `pick` over seeds: [V], 0 where filtered away, sums to 1."""
    return _law(len(logits), *candidates(logits, place))


def draw(logits: Floats, place: Place) -> Drawn:
    """`pick` and `probabilities` at once. Drafts for `ratio` and `block` are drawn by it, so that what a
    token was drawn from and what is said of it cannot differ.
    """
    kept, lag = candidates(logits, place)
    return Drawn(_winner(place, kept, lag), _law(len(logits), kept, lag))


def candidates(logits: Floats, place: Place) -> tuple[Ids, Doubles]:
    """Steps 1 to 6: ids in rising order and their lags. At temperature 0 there is one."""
    row = processed(logits, place)
    if place.sampling.temperature == 0.0:
        return np.array([np.argmax(row)]), np.zeros(1)
    return survivors(row, place.sampling)


def _winner(place: Place, kept: Ids, lag: Doubles) -> int:
    """Step 7."""
    if len(kept) == 1:
        return int(kept[0])
    score = lag + noise.gumbel(place.seed, place.position, kept, place.stream)
    return int(kept[np.argmax(score)])


def _law(vocab: int, kept: Ids, lag: Doubles) -> Doubles:
    law = np.zeros(vocab)
    law[kept] = noise.exp(lag)
    return law / lane_sum(law)


def processed(logits: Floats, place: Place) -> Floats:
    """Step 1: [V] float32 after penalties and bias, checked. The input is left alone."""
    _check_shape(logits)
    row = logits.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is refused below
        if place.sampling.penalises:
            _penalise(row, place.sampling, place.history.after(place.path))
        _bias(row, place.sampling.logit_bias)
        rounded = row.astype(np.float32) + np.float32(0.0)  # no negative zero
    check_row(rounded)
    return rounded


def survivors(row: Floats, sampling: Sampling) -> tuple[Ids, Doubles]:
    """Steps 3 to 6: ids in rising order and their lags; `row` holds processed logits."""
    lag = (row.astype(np.float64) - np.float64(row.max())) * (1.0 / sampling.temperature)
    kept = np.flatnonzero(row > -np.inf)
    if 0 < sampling.top_k < len(kept):
        kept = np.sort(_leaders(row, kept, sampling.top_k))
    if sampling.top_p < 1.0:
        kept = np.sort(_nucleus(row, lag, kept, sampling.top_p))
    if sampling.min_p:
        kept = kept[lag[kept] >= noise.log(sampling.min_p)]
    return kept, lag[kept]


def _nucleus(row: Floats, lag: Doubles, ids: Ids, top_p: float) -> Ids:
    """Step 5. Few tokens make up most of the weight: so ever more of the ranking is looked at, not all."""
    needed = max(1, int(top_p * float(weights(lag[ids]).sum())))
    count = LOOK
    while True:
        ranked = _leaders(row, ids, count)
        weight = weights(lag[ranked])
        before = np.cumsum(weight) - weight
        if len(ranked) == len(ids) or before[-1] >= needed:
            return ranked[before < needed]
        count *= LOOK


def _leaders(row: Floats, ids: Ids, count: int) -> Ids:
    """The first `count` of the ranking, in its order; `ids` rise. Sorts no more than it must."""
    if count < len(ids):
        last = len(ids) - count
        ids = ids[row[ids] >= np.partition(row[ids], last)[last]]
    return ids[np.argsort(-row[ids], kind="stable")][:count]


def weights(lag: Doubles) -> npt.NDArray[np.int64]:
    """exp(lag) in whole 2^-42ths, the nearest, ties to even: 2^42 at lag 0, 0 from about -29.8 down."""
    # Adding 1.5 * 2^10 leaves exactly 42 binary places in a double.
    anchor = np.array(1.5 * 2.0 ** (52 - WEIGHT_BITS))
    return np.asarray((noise.exp(lag) + anchor).view(np.int64) - anchor.view(np.int64), dtype=np.int64)


def log_probabilities(logits: Floats) -> Doubles:
    """[V] natural logarithms of the model's own probabilities, before any setting of the request."""
    _check_shape(logits)
    row = logits + np.float32(0.0)
    check_row(row)
    lag = row.astype(np.float64) - np.float64(row.max())
    return np.asarray(lag - noise.log(lane_sum(noise.exp(lag))), dtype=np.float64)


def likeliest(log_probs: Doubles, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest tokens with their log-probabilities, likeliest first, equal ones by id."""
    ranked = np.argsort(-log_probs, kind="stable")[:count]
    return [(int(token), float(log_probs[token])) for token in ranked]


def lane_sum(values: Doubles) -> float:
    """A sum of one fixed order: 16 lanes by index mod 16, then joined 8 + 8, 4 + 4, 2 + 2, 1 + 1."""
    padded = np.zeros((-(-len(values) // LANES), LANES))
    padded.ravel()[: len(values)] = values
    lanes = np.add.accumulate(padded, axis=0)[-1]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])


def check_row(row: Floats) -> None:
    """Raise NumericsError for a row nobody could pick from."""
    if np.isnan(row).any() or row.max() == np.inf:
        token = int(np.argmax(np.isnan(row) | (row == np.inf)))
        raise NumericsError(
            f"the logit of token {token} is {row[token]}: the model computed no number there. "
            "The likely cause is a damaged model file; pull the model again."
        )
    if row.max() == -np.inf:
        raise NumericsError(
            "every token is forbidden: all logits are minus infinity. The likely cause is a logit_bias of "
            "-inf on all of them; allow at least one."
        )


def _check_shape(logits: Floats) -> None:
    if logits.ndim != 1 or not 1 <= len(logits) <= MAX_VOCAB or logits.dtype != np.float32:
        raise UsageError(
            f"expected one row of 1 to {MAX_VOCAB} float32 logits, got {logits.dtype} of shape {logits.shape}"
        )


def _penalise(row: Doubles, sampling: Sampling, counts: Mapping[int, int]) -> None:
    for token, count in counts.items():
        if not 0 <= token < len(row):
            raise TokenError(f"token {token} in the text is outside the vocabulary of {len(row)}")
        value = row[token]
        value = value / sampling.repetition_penalty if value > 0.0 else value * sampling.repetition_penalty
        if count:
            value = value - sampling.frequency_penalty * count
            value = value - sampling.presence_penalty
        row[token] = value


def _bias(row: Doubles, bias: Mapping[int, float]) -> None:
    for token, value in bias.items():
        if token >= len(row):
            raise UsageError(f"logit_bias names token {token}, but the vocabulary ends at {len(row) - 1}")
        row[token] += value
