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
from foredraft.core.nouns import Floats
from foredraft.core.sampling import Sampling
from foredraft.errors import NumericsError, TokenError, UsageError

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

MAX_VOCAB = 2**20  # so that a sum of weights fits into 63 bits
WEIGHT_BITS = 42
LANES = 16


@dataclass(frozen=True, eq=False)
class Place:
    """What a row of logits is picked for: the position of the token to come, and all it may depend on.

    Settings with a temperature must have a seed (`Sampling.resolve`).
    """

    sampling: Sampling
    position: int  # of the token to be picked, counted from the first of the prompt
    history: History = field(default_factory=History)
    path: tuple[int, ...] = ()  # drafted tokens between the history and this position

    def __post_init__(self) -> None:
        if not 0 <= self.position < 2**32:
            raise UsageError(f"position is {self.position}, but must be 0 to {2**32 - 1}")
        if self.sampling.temperature > 0.0 and self.sampling.seed is None:
            raise UsageError("seed is None at a temperature above 0; draw one with Sampling.resolve()")

    @property
    def seed(self) -> int:
        """The key of the noise; of no effect at temperature 0."""
        return self.sampling.seed or 0


def pick(logits: Floats, place: Place) -> int:
    """The token of this place. logits: [V] float32, as the model gave them."""
    row = processed(logits, place)
    if place.sampling.temperature == 0.0:
        return int(np.argmax(row))
    kept, lag = survivors(row, place.sampling)
    score = lag + noise.gumbel(place.seed, place.position, kept)
    return int(kept[np.argmax(score)])


def probabilities(logits: Floats, place: Place) -> Doubles:
    """The law of `pick` over seeds: [V], 0 where filtered away, sums to 1."""
    row = processed(logits, place)
    law = np.zeros(len(row))
    if place.sampling.temperature == 0.0:
        law[np.argmax(row)] = 1.0
        return law
    kept, lag = survivors(row, place.sampling)
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
    ranked = np.argsort(-row, kind="stable")
    ranked = ranked[row[ranked] > -np.inf]
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1.0:
        weight = weights(lag[ranked])
        needed = max(1, int(sampling.top_p * float(weight.sum())))
        ranked = ranked[np.cumsum(weight) - weight < needed]
    if sampling.min_p:
        ranked = ranked[lag[ranked] >= noise.log(sampling.min_p)]
    kept = np.sort(ranked)
    return kept, lag[kept]


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
