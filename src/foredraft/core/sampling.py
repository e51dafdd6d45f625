"""How one request wants its tokens picked, and when it wants to stop. Checked at birth, never changed
afterwards.

What the settings do to a row of logits is `core/pick.py`. An option that cannot be honoured is refused here,
never dropped.
"""

import math
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, SupportsFloat, SupportsIndex

from foredraft.errors import UsageError

MAX_SEED = 2**64 - 1
_MAX_COUNT = 2**31 - 1
_MAX_FACTOR = 1e6  # beyond it, arithmetic on logits would leave the range of float32


@dataclass(frozen=True)
class Sampling:
    """The defaults pick the likeliest token every time."""

    temperature: float = 0.0  # 0 takes the likeliest token, whatever the filters
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # prompt and output; positive logits are divided by it, others multiplied
    presence_penalty: float = 0.0  # subtracted once from what was written already
    frequency_penalty: float = 0.0  # subtracted as often as it was written already
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)  # -inf forbids a token
    seed: int | None = None  # None: `resolve` draws one
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 256
    min_tokens: int = 0  # before so many tokens nothing ends the text but the limit
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_temperature()
        self._number("top_p", self.top_p, 0.0, 1.0, "above 0, up to 1 (1 = off)", above=True)
        self._number("min_p", self.min_p, 0.0, 1.0, "0 to 1 (0 = off)")
        self._number(
            "repetition_penalty", self.repetition_penalty, 1e-6, _MAX_FACTOR, "1e-06 to 1e+06 (1 = off)"
        )
        for name in ("presence_penalty", "frequency_penalty"):
            self._number(name, getattr(self, name), -_MAX_FACTOR, _MAX_FACTOR, "-1e+06 to 1e+06 (0 = off)")
        self._whole("top_k", self.top_k, 0, _MAX_COUNT, "a whole number of 0 or more (0 = off)")
        self._whole("max_tokens", self.max_tokens, 1, _MAX_COUNT, "a whole number of 1 or more")
        self._whole("min_tokens", self.min_tokens, 0, _MAX_COUNT, "a whole number of 0 or more (0 = off)")
        if self.seed is not None:
            self._whole("seed", self.seed, 0, MAX_SEED, f"a whole number from 0 to {MAX_SEED}, or none")
        if not isinstance(self.ignore_eos, bool):
            raise _refusal("ignore_eos", self.ignore_eos, "true or false")
        self._check_bias()
        self._check_stops()

    @property
    def penalises(self) -> bool:
        """Whether a pick depends on what the sequence holds."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def resolve(self) -> Self:
        """These settings with a seed: the one given, else one from the system, so that it can be reported."""
        if self.seed is not None:
            return self
        drawn = int.from_bytes(os.urandom(8), "little") >> 11  # 53 bits: JSON readers round what is longer
        return replace(self, seed=drawn)

    def _check_temperature(self) -> None:
        allowed = "0 (the likeliest token) or 1e-06 to 1e+06"
        self._number("temperature", self.temperature, 0.0, _MAX_FACTOR, allowed)
        if 0.0 < self.temperature < 1 / _MAX_FACTOR:
            raise _refusal("temperature", self.temperature, allowed)

    def _check_bias(self) -> None:
        allowed = (
            "a mapping of token ids (0 or more) to numbers from -1e+06 to 1e+06, or -inf to forbid the token"
        )
        if not isinstance(self.logit_bias, Mapping):
            raise _refusal("logit_bias", self.logit_bias, allowed)
        bias: dict[int, float] = {}
        for token, value in self.logit_bias.items():
            number = _float(value)
            if number is None or not (abs(number) <= _MAX_FACTOR or number == -math.inf):
                raise _refusal(f"logit_bias of token {token!r}", value, allowed)
            index = _index(token)
            if index is None or not 0 <= index <= _MAX_COUNT:
                raise _refusal("logit_bias for token", token, allowed)
            bias[index] = number
        object.__setattr__(self, "logit_bias", bias)

    def _check_stops(self) -> None:
        strings = (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop, "strings")
        for text in strings:
            if not isinstance(text, str) or not text:
                raise _refusal("stop", text, "strings of at least one character")
        object.__setattr__(self, "stop", strings)
        ids = tuple(_index(token) for token in _items("stop_token_ids", self.stop_token_ids, "token ids"))
        if any(token is None or not 0 <= token <= _MAX_COUNT for token in ids):
            raise _refusal("stop_token_ids", self.stop_token_ids, "token ids of 0 or more")
        object.__setattr__(self, "stop_token_ids", ids)

    def _number(
        self, name: str, value: object, low: float, high: float, allowed: str, above: bool = False
    ) -> None:
        number = _float(value)
        if number is None or not low <= number <= high or (above and number == low):
            raise _refusal(name, value, allowed)
        object.__setattr__(self, name, number)

    def _whole(self, name: str, value: object, low: int, high: int, allowed: str) -> None:
        number = _index(value)
        if number is None or not low <= number <= high:
            raise _refusal(name, value, allowed)
        object.__setattr__(self, name, number)


def _refusal(name: str, value: object, allowed: str) -> UsageError:
    return UsageError(f"{name} is {value!r}, but must be {allowed}")


def _float(value: object) -> float | None:
    """The number, or None for what is none: text that looks like one is a mistake of the caller."""
    if isinstance(value, bool | str | bytes) or not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _index(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _items(name: str, value: object, what: str) -> tuple[object, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _refusal(name, value, f"a sequence of {what}")
    return tuple(value)
