"""The gemma3 family's own."""

import numpy as np
import pytest
from altered import with_metadata
from tiny import write_tiny

from foredraft.errors import ModelFileError
from foredraft.models.families import LayerSpec, describe
from foredraft.models.gguf import read_gguf

LOCAL = LayerSpec(window=16, rope_base=10000.0, rope_scale=1.0)
EVERYTHING = LayerSpec(window=0, rope_base=1e6, rope_scale=1.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Thirteen layers, and the pattern not stated."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return read_gguf(write_tiny(path, "gemma3", layers=13, period=None))


def test_every_sixth_layer_sees_everything(tiny):
    assert describe(tiny).layers == (*[LOCAL] * 5, EVERYTHING, *[LOCAL] * 5, EVERYTHING, LOCAL)


def test_scales_activation_and_norms_are_gemmas(tiny):
    spec = describe(tiny)
    assert (spec.activation, spec.rope_interleaved, spec.embed_scale, spec.attn_scale) == (
        "gelu",
        False,
        8.0,
        0.25,
    )
    assert spec.tensors["12.attn_post_norm"] == "blk.12.post_attention_norm.weight"
    assert spec.tensors["12.ffn_post_norm"] == "blk.12.post_ffw_norm.weight"
    assert {"12.q_norm", "12.k_norm"} <= spec.tensors.keys()


def test_the_embedding_scale_is_a_float32_number(tmp_path):
    spec = describe(read_gguf(write_tiny(tmp_path / "a", "gemma3", dim=96, quant="F16")))
    assert spec.embed_scale == np.sqrt(np.float32(96)) != np.sqrt(96)


def test_a_period_may_be_stated(tiny):
    layers = describe(with_metadata(tiny, {"gemma3.attention.sliding_window_pattern": 4})).layers
    assert [index for index, layer in enumerate(layers) if layer == EVERYTHING] == [3, 7, 11]


def test_a_pattern_may_be_stated_layer_by_layer(tiny):
    key, pattern = "gemma3.attention.sliding_window_pattern", np.arange(13) % 3 > 0
    layers = describe(with_metadata(tiny, {key: pattern})).layers
    assert [layer == LOCAL for layer in layers] == pattern.tolist()
    with pytest.raises(ModelFileError, match="a pattern of 12 windows for 13 layers"):
        describe(with_metadata(tiny, {key: pattern[:12]}))


def test_linear_scaling_is_for_the_layers_that_see_everything(tiny):
    scaling = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    layers = describe(with_metadata(tiny, scaling)).layers
    assert {(layer.window, layer.rope_scale) for layer in layers} == {(16, 1.0), (0, 0.125)}


def test_the_local_rope_base_may_be_stated(tiny):
    layers = describe(with_metadata(tiny, {"gemma3.rope.freq_base_swa": 2e4})).layers
    assert {(layer.window, layer.rope_base) for layer in layers} == {(16, 2e4), (0, 1e6)}


@pytest.mark.parametrize("key", ["attention.sliding_window", "rope.freq_base"])
def test_window_and_rope_base_must_be_stated(tiny, key):
    with pytest.raises(ModelFileError, match=f"gemma3.{key} is missing"):
        describe(with_metadata(tiny, {f"gemma3.{key}": None}))


def test_the_27b_scales_attention_by_its_dimension(tmp_path):
    path = write_tiny(tmp_path / "a", "gemma3", layers=62, dim=128, heads=4, head_dim=16, period=None)
    assert describe(read_gguf(path)).attn_scale == 32**-0.5
