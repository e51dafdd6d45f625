"""Seeded noise, equal to the bit in NumPy and in C++ (`native/noise.hpp`); this page is the specification.

Noise is a pure function of (seed, stream, position, token): nothing is stored, nothing is drawn "next". So a
token's noise is the same whether its position is computed alone, among forty rows, or twice. It does not know
what it is added to (`core/pick.py`).

Bits: Philox4x32-10 (Salmon et al., SC 2011) under the key (seed mod 2^32, seed div 2^32). Block (token div 4,
position, stream, 0) holds the leading 32 bits of four neighbouring tokens and block (token div 4, position,
stream, 1) their trailing bits, which are needed only for a token that the leading bits do not rule out. `log`
and `exp` are our own: +, -, *, / and operations on bits, each of which IEEE 754 defines exactly, while the C
library's differ from machine to machine.
"""

import math

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

PICKS = 0  # the stream that decides the target's own tokens

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

# ln 2 in two parts: the first has 33 bits, so that its product with an exponent is exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_ROUND = float.fromhex("0x1.8p+52")  # adding it rounds to the nearest whole number, ties to even
_ATANH = tuple(2.0 / (2 * i + 1) for i in range(1, 11))  # 2 atanh(s) = 2s + s (2/3 s^2 + 2/5 s^4 + ...)
_EXP = tuple(1.0 / math.factorial(i) for i in range(14))
EXP_CUT = -708.0  # below it `exp` is exactly 0


def philox(
    seed: int, counter: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
) -> list[Words]:
    """The four 32-bit words (held in 64) of each block; the counter's four words broadcast."""
    a, b, c, d = (np.asarray(word, dtype=np.uint64) for word in counter)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(_ROUNDS):
        first, second = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b = (second >> _HALF) ^ b ^ np.uint64(key[0]), second & _LOW
        c, d = (first >> _HALF) ^ d ^ np.uint64(key[1]), first & _LOW
        key = [(word + step) & 0xFFFFFFFF for word, step in zip(key, _KEY_STEPS, strict=True)]
    return [np.asarray(word, dtype=np.uint64) for word in (a, b, c, d)]


def uniform(seed: int, position: int, tokens: npt.ArrayLike, stream: int = PICKS) -> Doubles:
    """One number in (0, 1) per token: an odd multiple of 2^-53, so exact, and neither 0 nor 1."""
    ids = np.atleast_1d(np.asarray(tokens, dtype=np.uint64))
    lane = (ids & np.uint64(3)).astype(np.intp)
    leading, trailing = (
        np.choose(lane, np.broadcast_arrays(*philox(seed, (ids >> np.uint64(2), position, stream, half))))
        for half in (0, 1)
    )
    bits = (
        (leading << np.uint64(21)) | (trailing >> np.uint64(11)) | np.uint64(1)
    )  # 53 bits, the last one set
    return np.asarray(bits.astype(np.float64) * 2.0**-53, dtype=np.float64)


def gumbel(seed: int, position: int, tokens: npt.ArrayLike, stream: int = PICKS) -> Doubles:
    """Standard Gumbel noise per token, -log(-log(u)): between -3.61 and 36.74."""
    return -log(-log(uniform(seed, position, tokens, stream)))


def log(x: npt.ArrayLike) -> Doubles:
    """Natural logarithm of finite positive doubles; its error is below 1 unit in the last place.

    x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = 2 atanh(s) where s = f / (2 + f).
    """
    value = np.atleast_1d(np.asarray(x, dtype=np.float64))
    small = value < 2.0**-1022
    bits = (value * np.where(small, 2.0**54, 1.0)).view(np.int64)
    exponent = (bits >> 52) - 1022 - np.where(small, 54, 0)
    fraction = ((bits & 0xFFFFFFFFFFFFF) | (1022 << 52)).view(np.float64)  # [1/2, 1)
    low = fraction < _SQRT_HALF
    f = np.where(low, fraction + fraction, fraction) - 1.0
    k = (exponent - low).astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    series = z * _polynomial(_ATANH, z)
    return k * _LN2_HIGH - ((s * (f - series) - k * _LN2_LOW) - f)


def exp(x: npt.ArrayLike) -> Doubles:
    """e^x for x <= 0, its error below 1.1 units in the last place.

    x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its power series to the 13th degree. Below `EXP_CUT`, as for
    minus infinity, it is exactly 0.
    """
    value = np.atleast_1d(np.asarray(x, dtype=np.float64))
    cut = value < EXP_CUT
    bounded = np.where(cut, EXP_CUT, value)
    shifted = bounded * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (bounded - k * _LN2_HIGH) - k * _LN2_LOW
    power = ((shifted.view(np.int64) + 1023) << 52).view(np.float64)  # 2^k: the last bits of `shifted` are k
    return np.where(cut, 0.0, _polynomial(_EXP, r) * power)


def _polynomial(coefficients: tuple[float, ...], x: Doubles) -> Doubles:
    """Horner's rule: from the last coefficient, times x, plus the one before."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result
