"""The llama family's own."""

import pytest
from altered import with_metadata
from tiny import write_tiny

from foredraft.errors import UnsupportedModelError
from foredraft.models.families import LayerSpec, describe
from foredraft.models.gguf import read_gguf


def test_a_llama_turns_neighbours_and_has_no_windows(tmp_path):
    spec = describe(read_gguf(write_tiny(tmp_path / "a")))
    assert (spec.activation, spec.rope_interleaved, spec.embed_scale, spec.attn_scale) == (
        "silu",
        True,
        1.0,
        0.25,
    )
    assert set(spec.layers) == {LayerSpec(window=0, rope_base=10000.0, rope_scale=1.0)}
    assert "0.q_bias" not in spec.tensors
    assert "rope_factors" not in spec.tensors


def test_rope_factors_are_taken_where_they_are(tmp_path):
    spec = describe(read_gguf(write_tiny(tmp_path / "a", rope_factors=True)))
    assert spec.tensors["rope_factors"] == "rope_freqs.weight"


def test_the_rope_base_may_be_stated_or_not(tmp_path):
    file = read_gguf(write_tiny(tmp_path / "a"))
    assert describe(with_metadata(file, {"llama.rope.freq_base": 5e5})).layers[1].rope_base == 5e5
    assert describe(with_metadata(file, {"llama.rope.freq_base": None})).layers[1].rope_base == 1e4


def test_a_window_that_would_limit_is_refused(tmp_path):
    file = read_gguf(write_tiny(tmp_path / "a", context=512))
    assert describe(with_metadata(file, {"llama.attention.sliding_window": 512}))
    with pytest.raises(UnsupportedModelError, match="sliding windows of 511"):
        describe(with_metadata(file, {"llama.attention.sliding_window": 511}))
