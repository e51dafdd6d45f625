"""Every tensor has its place, and every place its tensor."""

from dataclasses import replace

import pytest
from altered import with_tensors
from tiny import write_tiny

from foredraft.errors import ModelFileError, UnsupportedModelError
from foredraft.models.families import FAMILIES, describe
from foredraft.models.gguf import TensorInfo, read_gguf


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tmp_path_factory):
    return read_gguf(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", request.param))


def test_each_tensor_is_needed(tiny):
    for name in tiny.tensors:
        with pytest.raises(ModelFileError, match=f"{name!r} is missing"):
            describe(with_tensors(tiny, {name: None}))


def test_each_tensor_must_have_its_shape(tiny):
    for name, info in tiny.tensors.items():
        wrong = replace(info, shape=(*info.shape[:-1], info.shape[-1] + 32))
        with pytest.raises(ModelFileError, match=f"{name!r} has the shape"):
            describe(with_tensors(tiny, {name: wrong}))


def test_vectors_must_be_f32(tiny):
    info = tiny.tensors["output_norm.weight"]
    with pytest.raises(UnsupportedModelError, match="F16; F32 is supported"):
        describe(with_tensors(tiny, {info.name: replace(info, type="F16")}))


@pytest.mark.parametrize("name", ["blk.0.attn_output.bias", "blk.0.ffn_gate_inp.weight", "output.bias", "x"])
def test_a_tensor_without_a_place_is_refused(tiny, name):
    with pytest.raises(UnsupportedModelError, match=f"{name!r} has no place in a"):
        describe(with_tensors(tiny, {name: TensorInfo(name, "F32", (64,), 0, 256)}))


def test_matrices_whose_columns_are_no_whole_groups_are_refused(tmp_path):
    file = read_gguf(write_tiny(tmp_path / "a", dim=48, quant="F16", heads=2, kv_heads=1, head_dim=32))
    with pytest.raises(UnsupportedModelError, match="48 columns; multiples of 32"):
        describe(file)
