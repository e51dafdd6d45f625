"""The weight formats in the native module: their values, and the sums that a row is multiplied with.

Products are recomputed in NumPy from the file's bytes, in float32, every rounding in the place where
docs/numerics.md says it is, and compared to the bit on every instruction set.
"""

from dataclasses import dataclass
from fractions import Fraction

import gguf
import numpy as np
import pytest
from bare_native import Native
from gguf import GGMLQuantizationType
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows
from foredraft.models.gguf import read_gguf
from foredraft.models.quants import FORMATS, dequantise

DIM = 512
VOCAB = 293  # not a multiple of the sixteen outputs of a panel
PLAIN = ("F32",) * 7  # the matrices of one layer
QUANTISED = [name for name in FORMATS if name not in ("F32", "F16", "BF16")]
# Where the fp16 scales of a block lie.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
EXTREMES = np.array(
    [0.0, -0.0, 2**-24, -(2**-24), 2**-14, 2**-15 + 2**-24, 65504, -65504, 1, -0.5], np.float16
)


def random_raw(name, rng, wild=False):
    """[VOCAB, row bytes] of random blocks; their scales are small or, if wild, whatever is finite."""
    form = FORMATS[name]
    blocks = rng.integers(0, 256, (VOCAB * DIM // form.block_length, form.block_bytes), dtype=np.uint8)
    if name in QUANTISED:
        for at in HALVES[name]:
            scales = rng.choice(EXTREMES, len(blocks)) if wild else rng.normal(0, 0.02, len(blocks))
            blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    else:
        values = rng.normal(0, 1, blocks.size // form.block_bytes).astype(np.float32)
        blocks = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    return blocks.reshape(VOCAB, -1)


def model_with(path, name, raw, **options):
    """A model of one layer, whose head has these bytes."""
    write_tiny(path, dim=DIM, layers=1, vocab=VOCAB, quant=("F32", name, *PLAIN), tied=False)
    info = read_gguf(path).tensors["output.weight"]
    assert (info.type, info.shape) == (name, (VOCAB, DIM))
    with path.open("r+b") as file:
        file.seek(info.offset)
        file.write(raw.tobytes())
    return Native(path, **options)


def assert_same_bits(ours, theirs):
    """Equal to the bit; of a NaN only that it is one, since its payload is the processor's affair."""
    assert ours.dtype == theirs.dtype == np.float32
    same = ours.view(np.int32) == theirs.view(np.int32)
    assert (same | (np.isnan(ours) & np.isnan(theirs))).all()


@pytest.mark.parametrize("kind", ["small scales", "extreme scales", "random bytes"])
@pytest.mark.parametrize("name", FORMATS)
def test_values_are_the_files(tmp_path, name, kind):
    rng = np.random.default_rng(1)
    raw = random_raw(name, rng, wild=kind == "extreme scales")
    if kind == "random bytes":
        raw = rng.integers(0, 256, raw.shape, dtype=np.uint8)
    native = model_with(tmp_path / "a", name, raw)
    found = native.model.dequantise("head")
    with np.errstate(all="ignore"):  # random scales may be infinite or no number
        twin = dequantise(raw, name, (VOCAB, DIM))
        theirs = gguf.dequantize(raw, GGMLQuantizationType[name]).astype(np.float32)
    assert_same_bits(found, twin)
    assert_same_bits(found, theirs)


def test_every_half_is_widened_exactly(tmp_path):
    """All 65,536 of them, as weights and as scales."""
    every = np.arange(2**16, dtype=np.uint16)
    raw = np.resize(every, (VOCAB, DIM)).view(np.uint8)
    found = model_with(tmp_path / "a", "F16", raw).model.dequantise("head").ravel()[: 2**16]
    with np.errstate(invalid="ignore"):
        assert_same_bits(found, every.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_embedding_is_the_files(tmp_path, name):
    path = write_tiny(tmp_path / "a", dim=256, layers=1, vocab=VOCAB, quant=(name, *PLAIN))
    file = read_gguf(path)
    info = file.tensors["token_embd.weight"]
    expected = dequantise(file.read(info.name), info.type, info.shape)
    assert_same_bits(Native(path).model.dequantise("embed"), expected)


# Products.


@dataclass(frozen=True)
class Weights:
    """A matrix in parts: each is `scale * code - minimum`, a group of 32 inputs has one of both."""

    codes: np.ndarray  # [outputs, groups, 32] int64
    scale: np.ndarray  # [outputs, groups] float32
    minimum: np.ndarray  # [outputs, groups] float32


def fma(a, b, c):
    """Float32 a * b + c, rounded once: the product is exact in float64, and the sum is rounded to odd there,
    so that rounding it again, to float32, rounds the exact sum.
    """
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)  # exactly what the addition lost
    even = total.view(np.int64) % 2 == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(even & (error != 0), np.nextafter(total, towards), total).astype(np.float32)


def joined(lanes):
    """Sixteen lanes joined by the one tree."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def rms_norm(x, weight, eps):
    squares = np.zeros((len(x), 16), np.float32)
    for at in range(0, x.shape[1], 16):
        squares = fma(x[:, at : at + 16], x[:, at : at + 16], squares)
    mean = joined(squares) / np.float32(x.shape[1])
    factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return x * factor[:, None] * weight


def quantised(x):
    """Codes [rows, groups, 32], scales [rows, groups] of activations."""
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(axis=2)
    codes = np.rint(groups * (np.float32(127) / largest)[:, :, None])
    return codes.astype(np.int64), largest / np.float32(127)


def decoded(raw, name, **changed):
    """The values of blocks in which some bytes have been changed: what is left is one part of them."""
    form = FORMATS[name]
    blocks = raw.reshape(-1, form.block_bytes).copy()
    for at, value in changed.values():
        blocks[:, at] = np.frombuffer(value, np.uint8)
    return dequantise(blocks, name, (VOCAB, DIM // 32, 32))


ONE, ZERO = np.float16(1).tobytes(), np.float16(0).tobytes()


def halves(raw, name, at, per_block):
    """A block's fp16 number at this byte, for each of its groups: [outputs, groups] float32."""
    blocks = raw.reshape(-1, FORMATS[name].block_bytes)
    numbers = np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)
    return np.repeat(numbers.reshape(VOCAB, -1), per_block, axis=1)


def parts_of(raw, name):
    scales = halves(raw, name, HALVES[name][0], FORMATS[name].block_length // 32)
    if name in ("Q4_0", "Q5_0", "Q8_0"):
        offset = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128}[name]
        codes = decoded(raw, name, scale=(slice(0, 2), ONE)) + offset
        return Weights(codes.astype(np.int64), scales, scales * np.float32(offset))
    minimums = halves(raw, name, HALVES[name][1], FORMATS[name].block_length // 32)
    if name in ("Q4_1", "Q5_1"):
        codes = decoded(raw, name, scale=(slice(0, 2), ONE), minimum=(slice(2, 4), ZERO))
        return Weights(codes.astype(np.int64), scales, -minimums)
    # Sub-scales of one and sub-minimums of zero leave the codes; codes of one leave the sub-scales.
    plain = bytes([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1])
    alone = {"scale": (slice(0, 2), ONE), "minimum": (slice(2, 4), ZERO)}
    low = slice(16, None) if name == "Q4_K" else slice(48, None)
    ones = {"codes": (low, b"\x11" * 128)} | ({} if name == "Q4_K" else {"high": (slice(16, 48), bytes(32))})
    codes = decoded(raw, name, **alone, sub=(slice(4, 16), plain))
    sub_scales = decoded(raw, name, **alone, **ones)[:, :, 0]
    only = {"scale": (slice(0, 2), ZERO), "minimum": (slice(2, 4), ONE)}
    sub_minimums = -decoded(raw, name, **only)[:, :, 0]
    return Weights(codes.astype(np.int64), scales * sub_scales, minimums * sub_minimums)


def product(raw, name, x):
    """The documented sums: an output is one chain of fused multiply-adds, group after group."""
    codes, scale = quantised(x)
    if name == "Q6_K":
        return product_of_q6_k(raw, codes, scale)
    weights = parts_of(raw, name)
    total = scale * codes.sum(axis=2).astype(np.float32)  # [rows, groups]
    out = np.zeros((len(x), VOCAB), np.float32)
    for g in range(codes.shape[1]):
        dot = (codes[:, g] @ weights.codes[:, g].T).astype(np.float32)
        out = fma(dot, scale[:, g, None] * weights.scale[:, g], out)
        out = fma(-weights.minimum[:, g], total[:, g, None], out)
    return out


def product_of_q6_k(raw, codes, scale):
    """Sub-scales are integers here, and join the dot product of each half of a group before it is rounded."""
    scales = halves(raw, "Q6_K", 208, 8)
    weights = decoded(raw, "Q6_K", scale=(slice(208, 210), ONE), sub=(slice(192, 208), b"\x01" * 16))
    subs = raw.reshape(-1, 210)[:, 192:208].view(np.int8).astype(np.int64).reshape(VOCAB, -1, 2)
    out = np.zeros((len(codes), VOCAB), np.float32)
    for g in range(codes.shape[1]):
        dot = sum(
            (codes[:, g, half] @ weights[:, g, half].astype(np.int64).T) * subs[:, g, place]
            for place, half in enumerate((slice(0, 16), slice(16, 32)))
        )
        out = fma(dot.astype(np.float32), scale[:, g, None] * scales[:, g], out)
    return out


def plain_product(raw, name, x):
    values = dequantise(raw, name, (VOCAB, DIM))
    out = np.zeros((len(x), VOCAB), np.float32)
    for k in range(DIM):
        out = fma(values[:, k], x[:, k, None], out)
    return out


@pytest.mark.parametrize("wild", [False, True], ids=["small scales", "extreme scales"])
@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", FORMATS)
def test_product_is_the_documented_sum(tmp_path, name, isa, wild):
    rng = np.random.default_rng(2)
    raw = random_raw(name, rng, wild)
    native = model_with(tmp_path / "a", name, raw, isa=isa)
    logits, hidden = native.run(Rows.chain(rng.integers(0, VOCAB, 11).tolist()), [0], [[0]])
    file = read_gguf(tmp_path / "a")
    weight = file.read("output_norm.weight").view(np.float32)
    x = rms_norm(hidden[-1], weight, native.spec.eps)
    expected = product(raw, name, x) if name in QUANTISED else plain_product(raw, name, x)
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    assert_same_bits(logits, expected)


def test_fused_multiply_add_of_these_tests_rounds_once():
    """Against exact rational arithmetic."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 3000)).astype(np.float32)
    nearly = (-a * b * (1 + rng.integers(-2, 3, 3000) * 2.0**-23)).astype(np.float32)
    c = np.where(rng.random(3000) < 0.5, nearly, rng.normal(size=3000) * 2.0 ** rng.integers(-40, 40, 3000))
    c = c.astype(np.float32)
    for x, y, z, found in zip(a.tolist(), b.tolist(), c.tolist(), fma(a, b, c), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        error = abs(Fraction(float(found)) - exact)
        for other in (np.nextafter(found, np.float32(np.inf)), np.nextafter(found, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(other)) - exact)
