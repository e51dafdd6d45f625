"""The weight formats of GGUF: how many values a block holds, in how many bytes, and what the values are.

`FORMATS` is the one place in Python that knows a format; adding one is adding an entry. The decoders are
the readable twin of the native conversion: NumPy in float32, one rounding per operation written here, so
that results can be compared bit for bit. They know nothing of files; the GGUF reader checks the sizes.
`requantise` is the twin of what becomes of a draft model's weights (native/requantise.cpp).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Format:
    """One weight format. `decode` takes whole blocks, [n, block_bytes], to values, [n, block_length]."""

    name: str
    code: int  # the number that stands for it in a GGUF file
    block_length: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]

    def nbytes(self, values: int) -> int:
        """Bytes of that many values, a multiple of the block length."""
        return values // self.block_length * self.block_bytes


def dequantise(raw: Bytes, name: str, shape: tuple[int, ...]) -> Floats:
    """The values of a tensor from its raw bytes; `shape` is in NumPy's order, rows first."""
    form = FORMATS[name]
    blocks = np.ascontiguousarray(raw).reshape(-1, form.block_bytes)
    return form.decode(blocks).reshape(shape)


def _halves(columns: Bytes) -> Floats:
    """Pairs of bytes as fp16 numbers, widened."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _fields(columns: Bytes, run: int, bits: int) -> Bytes:
    """Small integers in planes: each `run` bytes hold 8/bits times `run` values, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed = columns.reshape(len(columns), -1, 1, run)
    return ((packed >> shifts) & np.uint8(2**bits - 1)).reshape(len(columns), -1)


def _low_and_high(low: Bytes, high: Bytes) -> Floats:
    """Codes from their four low bits and what lies above them."""
    return (low | (high << np.uint8(4))).astype(np.float32)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return _halves(blocks)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    codes = _fields(blocks[:, 2:], 16, 4).astype(np.float32)
    return _halves(blocks[:, :2]) * (codes - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    codes = _fields(blocks[:, 4:], 16, 4).astype(np.float32)
    return _halves(blocks[:, :2]) * codes + _halves(blocks[:, 2:4])


def _five_bit_codes(high: Bytes, low: Bytes) -> Floats:
    return _low_and_high(_fields(low, 16, 4), np.unpackbits(high, axis=1, bitorder="little"))


def _q5_0(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * (_five_bit_codes(blocks[:, 2:6], blocks[:, 6:]) - np.float32(16))


def _q5_1(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * _five_bit_codes(blocks[:, 4:8], blocks[:, 8:]) + _halves(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _sub_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minimums from 12 bytes.

    The first four of each lie in the low six bits of bytes 0..3 and 4..7. The last four have their low bits
    in the nibbles of bytes 8..11 (scales below, minimums above) and their two high bits on top of bytes 0..3
    and 4..7.
    """
    scales, minimums, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    late_scales = (rest & 15) | ((scales >> 6) << 4)
    late_minimums = (rest >> 4) | ((minimums >> 6) << 4)
    return (
        np.concatenate([scales & 63, late_scales], axis=1).astype(np.float32),
        np.concatenate([minimums & 63, late_minimums], axis=1).astype(np.float32),
    )


def _super_block(blocks: Bytes, codes: Floats) -> Floats:
    """Q4_K and Q5_K: eight groups of 32, each with a 6-bit scale and minimum, under two fp16 super-scales."""
    scales, minimums = _sub_scales(blocks[:, 4:16])
    scale = (_halves(blocks[:, 0:2]) * scales)[:, :, None]  # [n, 8, 1]
    minimum = (_halves(blocks[:, 2:4]) * minimums)[:, :, None]
    return (scale * codes.reshape(-1, 8, 32) - minimum).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> Floats:
    return _super_block(blocks, _fields(blocks[:, 16:], 32, 4).astype(np.float32))


def _q5_k(blocks: Bytes) -> Floats:
    return _super_block(
        blocks, _low_and_high(_fields(blocks[:, 48:], 32, 4), _fields(blocks[:, 16:48], 32, 1))
    )


def _q6_k(blocks: Bytes) -> Floats:
    codes = _low_and_high(_fields(blocks[:, :128], 64, 4), _fields(blocks[:, 128:192], 32, 2)) - np.float32(
        32
    )
    scale = _halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)  # [n, 16]
    return (scale[:, :, None] * codes.reshape(-1, 16, 16)).reshape(-1, 256)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        form.name: form
        for form in (
            Format("F32", 0, 1, 4, _f32),
            Format("F16", 1, 1, 2, _f16),
            Format("BF16", 30, 1, 2, _bf16),
            Format("Q4_0", 2, 32, 18, _q4_0),
            Format("Q4_1", 3, 32, 20, _q4_1),
            Format("Q5_0", 6, 32, 22, _q5_0),
            Format("Q5_1", 7, 32, 24, _q5_1),
            Format("Q8_0", 8, 32, 34, _q8_0),
            Format("Q4_K", 12, 256, 144, _q4_k),
            Format("Q5_K", 13, 256, 176, _q5_k),
            Format("Q6_K", 14, 256, 210, _q6_k),
        )
    }
)

# Requantising: the weights of a draft model that is loaded with `quant="q4"`.

# What the greatest weight of a group is divided by for a first scale; plain rounding has -8 only.
SPANS = (-8.0, -8.4, -7.4, 7.0, 7.6)


def shrinks(name: str, columns: int) -> bool:
    """Whether a matrix gets smaller as Q4_0: its format costs more, and its rows are whole groups."""
    q4, form = FORMATS["Q4_0"], FORMATS[name]
    return columns % q4.block_length == 0 and form.nbytes(256) > q4.nbytes(256)


def requantise(values: Floats) -> Bytes:
    """Rows of weights, [rows, columns], as Q4_0: [rows, columns / 32 * 18].

    Of two scales the one that leaves less squared error, counted by the weights' magnitudes: plain
    rounding's, or the one that is best for the codes that one of the spans gives. A group that holds what is
    no number gets a scale that is none.
    """
    x = np.ascontiguousarray(values.reshape(-1, 32).T)  # [32, groups]: sums are chains over a group's inputs
    with np.errstate(all="ignore"):
        greatest = _greatest(x)
        plain = _through_half(greatest / np.float32(-8))
        fitted = _through_half(_fitted_scale(x, greatest))
        scale = np.where(_error(x, fitted) < _error(x, plain), fitted, plain)
        codes = (_codes(x, _inverse_of(scale)) + np.float32(8)).astype(np.uint8)
        halves = np.where(np.isnan(scale), np.float16(np.nan), scale.astype(np.float16))
    packed = codes[:16] | codes[16:] << np.uint8(4)
    blocks = np.concatenate([halves.astype("<f2").view(np.uint8).reshape(-1, 2), packed.T], axis=1)
    return blocks.reshape(len(values), -1)


def _through_half(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def _inverse_of(scale: Floats) -> Floats:
    return np.where(np.abs(scale) > 0, np.float32(1) / scale, np.float32(0))


def _greatest(x: Floats) -> Floats:
    """The first weight of greatest magnitude of each group; NaN where one is no number or infinite."""
    first: Floats = x[np.argmax(np.abs(x), axis=0), np.arange(x.shape[1])]
    return first + _chain(x * np.float32(0))


def _chain(terms: Floats) -> Floats:
    """The sum over a group's inputs in their order, rounded after each addition."""
    total: Floats = np.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total


def _codes(x: Floats, inverse: Floats) -> Floats:
    """Codes less 8, nearest even, -8 to 7; what is no number becomes 7."""
    nearest = np.rint(x * inverse)
    return np.maximum(np.where(nearest < 7, nearest, np.float32(7)), np.float32(-8))


def _fitted_scale(x: Floats, greatest: Floats) -> Floats:
    """For the codes of each span the best scale; of these the one by which the error falls most."""
    unit = np.float32(1) / greatest
    best, scale = np.full_like(greatest, -1), np.zeros_like(greatest)
    for span in SPANS:
        q = _codes(x, np.float32(span) * unit)
        share = np.abs(x) * q
        product, square = _chain(share * x), _chain(share * q)
        gain = product * product / square
        scale = np.where(best < gain, product / square, scale)
        best = np.where(best < gain, gain, best)
    return scale


def _error(x: Floats, scale: Floats) -> Floats:
    error = x - scale * _codes(x, _inverse_of(scale))
    return _chain(np.abs(x) * (error * error))


# Formats that exist but are not supported, by number, so that a refusal can name them.
UNSUPPORTED: Mapping[int, str] = MappingProxyType(
    {10: "Q2_K", 11: "Q3_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL"}
    | {21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
    | {29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}
)
