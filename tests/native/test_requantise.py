"""A model that is loaded to draft with: what becomes of its weights, against the NumPy twin, to the bit, and
that it is worth doing.
"""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.quants import FORMATS, dequantise, requantise, shrinks
from foredraft.models.target import config_of, tensor_list

DIM, VOCAB = 256, 293  # blocks hold up to 256 inputs; panels hold 16 outputs
MATRICES = ("q", "o", "gate", "up", "down")
KEPT = ("embed", "0.k", "0.v")
WILD = np.float32([np.nan, np.inf, -np.inf, 3e38, 6e5, 65504, 1e-7, -1e-40, 0.0, -0.0])


def load(path, quant="q4", threads=1, isa="", **options):
    file = read_gguf(path)
    spec = describe(file)
    place = (str(path), 2, "f16", threads, isa)
    return _native.Model(config_of(spec), tensor_list(file, spec), *place, quant=quant, **options)


def values_in(path, canonical):
    file = read_gguf(path)
    info = file.tensors[describe(file).tensors[canonical]]
    return dequantise(file.read(info.name), info.type, info.shape), info.type


def small(values, kind):
    """What the twin says of a matrix of this file type."""
    return dequantise(requantise(values), "Q4_0", values.shape) if shrinks(kind, values.shape[1]) else values


def assert_same_bits(ours, theirs):
    """Equal to the bit; of a NaN only that it is one, since its payload is the processor's affair."""
    assert ours.shape == theirs.shape
    same = ours.view(np.int32) == theirs.view(np.int32)
    assert (same | (np.isnan(ours) & np.isnan(theirs))).all()


def tiny(path, quant, **shape):
    return write_tiny(
        path, **{"dim": DIM, "ff": DIM, "heads": 16, "layers": 1, "vocab": VOCAB} | shape, quant=quant
    )


def with_values(path, canonical, values):
    """An F32 model whose matrix begins with these values."""
    info = read_gguf(path).tensors[describe(read_gguf(path)).tensors[canonical]]
    with path.open("r+b") as file:
        file.seek(info.offset)
        file.write(values.astype(np.float32).tobytes())
    return path


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", FORMATS)
def test_every_matrix_becomes_what_the_twin_says(tmp_path, name, isa):
    path = tiny(tmp_path / "a", name, tied=False)
    model = load(path, isa=isa, threads=3)
    for matrix in ("head", *(f"0.{matrix}" for matrix in MATRICES)):
        assert_same_bits(model.dequantise(matrix), small(*values_in(path, matrix)))
    for matrix in KEPT:
        assert_same_bits(model.dequantise(matrix), values_in(path, matrix)[0])


@pytest.mark.parametrize("isa", _native.isa_names())
def test_weights_of_every_magnitude_and_none_become_what_the_twin_says(tmp_path, isa):
    rng = np.random.default_rng(1)
    groups = rng.normal(size=(VOCAB * DIM // 32, 32)) * 2.0 ** rng.integers(-40, 24, (VOCAB * DIM // 32, 1))
    for value in WILD:
        groups[rng.random(groups.shape) < 0.001] = value
    groups[::7] = rng.choice([0.0, -0.0, 1.0, -1.0], groups[::7].shape)  # ties, and groups of one magnitude
    groups[::49] = -0.0
    path = with_values(tiny(tmp_path / "a", "F32", tied=False), "head", groups)
    found = load(path, isa=isa).dequantise("head")
    with np.errstate(invalid="ignore"):  # a scale that is no number
        expected = small(groups.reshape(VOCAB, DIM).astype(np.float32), "F32")
    assert_same_bits(found, expected)
    damaged = ~np.isfinite(groups.astype(np.float32)).all(axis=1)
    assert damaged.any()
    assert np.isnan(found.reshape(-1, 32)[damaged]).all()


def test_error_is_no_larger_than_plain_roundings():
    """Of no group where errors count by magnitude, which is what is minimised; nor of all where they count
    alike. Normal weights, and weights with a heavy tail.
    """
    rng = np.random.default_rng(2)
    for values in (rng.normal(size=(64, 512)), rng.standard_t(3, size=(64, 512))):
        values = values.astype(np.float32)
        raw = gguf.quants.quantize(values, GGMLQuantizationType.Q4_0)
        plain = gguf.dequantize(raw, GGMLQuantizationType.Q4_0)
        exact = values.astype(np.float64)
        ours, theirs = ((exact - given) ** 2 for given in (small(values, "F32"), plain))
        groups, others = ((np.abs(exact) * errors).reshape(-1, 32).sum(axis=1) for errors in (ours, theirs))
        assert (groups <= others * (1 + 1e-5)).all()
        assert ours.sum() < theirs.sum()


def test_tied_head_is_requantised_and_the_embedding_is_not(tmp_path):
    path = tiny(tmp_path / "a", "Q8_0")
    model = load(path)
    values, kind = values_in(path, "embed")
    assert_same_bits(model.dequantise("embed"), values)
    assert_same_bits(model.dequantise("head"), small(values, kind))


def test_tied_head_that_would_not_shrink_stays_the_embedding(tmp_path):
    model = load(tiny(tmp_path / "a", "Q4_K"))
    with pytest.raises(ValueError, match="no matrix 'head'"):
        model.dequantise("head")
    assert model.weight_bytes == load(tmp_path / "a", "").weight_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_bytes_are_those_that_a_token_reads(tmp_path, tied):
    path = tiny(tmp_path / "a", ("Q8_0", "Q4_K", "F32", "Q5_K"), tied=tied)
    file = read_gguf(path)
    names = describe(file).tensors
    expected = 0
    for canonical, name in names.items():
        info = file.tensors[name]
        requantised = len(info.shape) == 2 and canonical not in KEPT and info.type != "Q4_K"
        if canonical != "embed":
            expected += np.prod(info.shape) // 32 * 18 if requantised else info.nbytes
    model = load(path)
    assert model.weight_bytes == expected
    assert model.head_bytes == VOCAB * DIM * 9 // 16  # 4.5 bits a weight, requantised or Q4_K
    assert load(path, "").weight_bytes == sum(
        file.tensors[name].nbytes for canonical, name in names.items() if canonical != "embed"
    )


def written_out(path, other):
    """The model of `path` in a file that holds the requantised weights themselves."""
    tiny(other, ("F32", "Q4_0", "Q4_0", "Q6_K", "Q6_K", *["Q4_0"] * 4), tied=False)
    file, out = read_gguf(path), read_gguf(other)
    with other.open("r+b") as target:
        for canonical, name in describe(file).tensors.items():
            same = canonical in KEPT or len(file.tensors[name].shape) == 1
            target.seek(out.tensors[name].offset)
            target.write((file.read(name) if same else requantise(values_in(path, canonical)[0])).tobytes())
    return other


@pytest.mark.parametrize("isa", _native.isa_names())
def test_passes_are_those_of_a_file_of_such_weights(tmp_path, isa):
    path = tiny(tmp_path / "a", ("F32", *["Q6_K"] * 8), tied=False)
    rows = Rows.chain([5, 6, 7])
    arguments = (
        rows.tokens,
        rows.parents,
        rows.owners,
        int32s([0]),
        np.int32([[0]]),
        int32s([0, 2]),
        int32s([0]),
    )
    found = load(path, isa=isa).forward(*arguments, int32s([1]))
    expected = load(written_out(path, tmp_path / "b"), "", isa=isa).forward(*arguments, int32s([1]))
    for ours, theirs in zip(found, expected, strict=True):
        assert_same_bits(ours, theirs)


def test_progress_ends_with_everything_done(tmp_path):
    seen = []
    load(tiny(tmp_path / "a", "Q8_0"), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == max(done for done, _ in seen)


def test_other_words_are_refused(tmp_path):
    with pytest.raises(ValueError, match="quant must be q4 or empty, not 'q5'"):
        load(tiny(tmp_path / "a", "Q8_0"), "q5")
