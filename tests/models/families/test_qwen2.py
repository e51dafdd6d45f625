"""The qwen2 family's own."""

from tiny import write_tiny

from foredraft.models.families import LayerSpec, describe
from foredraft.models.gguf import read_gguf


def test_a_qwen2_turns_halves_and_has_biases(tmp_path):
    spec = describe(read_gguf(write_tiny(tmp_path / "a", "qwen2")))
    assert (spec.activation, spec.rope_interleaved, spec.embed_scale, spec.attn_scale) == (
        "silu",
        False,
        1.0,
        0.25,
    )
    assert set(spec.layers) == {LayerSpec(window=0, rope_base=10000.0, rope_scale=1.0)}
    assert [spec.tensors[f"1.{part}_bias"] for part in "qkv"] == [f"blk.1.attn_{part}.bias" for part in "qkv"]
