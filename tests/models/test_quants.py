"""The decoders against the gguf package's, bit for bit."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny import random_blocks

from foredraft.models.quants import FORMATS, UNSUPPORTED, dequantise, requantise, shrinks


def assert_same_bits(ours, theirs):
    """Equal to the bit; of a NaN only that it is one, since its payload is the processor's affair."""
    assert ours.dtype == np.float32
    same = ours.view(np.uint32) == theirs.astype(np.float32).view(np.uint32)
    assert (same | (np.isnan(ours) & np.isnan(theirs))).all()


@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes_have_the_values_that_the_gguf_package_gives_them(name):
    form = FORMATS[name]
    raw = np.random.default_rng(1).integers(0, 256, (64, 8 * form.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random scales may be infinite or no number
        ours = dequantise(raw, name, (64, 8 * form.block_length))
        theirs = gguf.dequantize(raw, GGMLQuantizationType[name])
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_with_sensible_scales_have_the_same_values(name):
    raw = random_blocks(np.random.default_rng(2), name, (16, 1024), 0.1)
    ours = dequantise(raw, name, (16, 1024))
    assert_same_bits(ours, gguf.dequantize(raw, GGMLQuantizationType[name]))
    assert abs(ours.mean()) < 0.01
    assert 0.05 < ours.std() < 0.2


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantised_values_come_back_close(name):
    values = np.random.default_rng(3).normal(size=(8, 256)).astype(np.float32)
    raw = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    back = dequantise(raw, name, values.shape)
    assert_same_bits(back, gguf.dequantize(raw, GGMLQuantizationType[name]))
    assert np.abs(back - values).max() < 0.5


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_number_is_widened_exactly(name):
    raw = np.arange(65536, dtype=np.uint16).view(np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantise(raw, name, (65536,))
        theirs = gguf.dequantize(raw.reshape(1, -1), GGMLQuantizationType[name]).ravel()
    assert_same_bits(ours, theirs)


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_agrees_with_the_gguf_package(name):
    form, kind = FORMATS[name], GGMLQuantizationType[name]
    assert form.code == kind.value
    assert (form.block_length, form.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert form.nbytes(4 * form.block_length) == 4 * form.block_bytes


def test_formats_that_are_refused_have_their_right_names():
    for code, name in UNSUPPORTED.items():
        assert GGMLQuantizationType[name].value == code
    assert not UNSUPPORTED.keys() & {form.code for form in FORMATS.values()}


# Requantising. The native module agrees with it to the bit: tests/native/test_requantise.py.


def test_formats_that_cost_more_than_four_and_a_half_bits_shrink():
    stay = {name for name in FORMATS if not shrinks(name, 256)}
    assert stay == {name for name, form in FORMATS.items() if form.block_bytes * 8 / form.block_length <= 4.5}
    assert stay == {"Q4_0", "Q4_K"}
    assert shrinks("F16", 96)
    assert not shrinks("F16", 48)


def test_weights_that_four_bits_can_hold_stay_as_they_are():
    codes = np.random.default_rng(4).integers(-8, 8, (8, 128)).astype(np.float32)
    codes[:, ::32] = -8
    scales = np.repeat(np.float32([0.5, 2**-10, -3, 1000]), 32)
    values = codes * scales
    raw = requantise(values)
    assert raw.shape == (8, 4 * FORMATS["Q4_0"].block_bytes)
    assert (dequantise(raw, "Q4_0", values.shape) == values).all()


def best_error(x):
    """The least sum of |x| (x - scale q)^2 that any scale among many gives, in float64."""
    scales = np.abs(x).max() / np.concatenate([np.arange(-16, -6, 0.02), np.arange(6, 16, 0.02)])
    codes = np.clip(np.rint(x / scales[:, None]), -8, 7)
    return (np.abs(x) * (x - scales[:, None] * codes) ** 2).sum(axis=1).min()


def test_scales_are_nearly_the_best_there_are():
    values = np.random.default_rng(5).standard_t(5, (32, 64)).astype(np.float32)
    back = dequantise(requantise(values), "Q4_0", values.shape)
    exact = values.astype(np.float64)
    ours = (np.abs(exact) * (exact - back) ** 2).sum()
    assert ours < 1.1 * sum(best_error(group) for group in exact.reshape(-1, 32))


def test_group_without_weights_is_zero_and_one_with_no_number_is_none():
    values = np.ones((1, 128), np.float32)
    values[0, :32] = 0
    values[0, 40], values[0, 70] = np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        back = dequantise(requantise(values), "Q4_0", (4, 32))
    assert (back[0] == 0).all()
    assert np.isnan(back[1:3]).all()
    assert back[3] == pytest.approx(1, rel=1e-3)
