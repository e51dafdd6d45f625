"""Qwen2 and Qwen2.5: Llama's block with biases on q, k and v, and rope that turns halves."""

from dataclasses import asdict

from foredraft.models.families.header import Header
from foredraft.models.families.spec import LayerSpec, ModelSpec
from foredraft.models.families.tensors import Tensors


def describe(header: Header) -> ModelSpec:
    sizes, depth = header.sizes(), header.depth()
    header.refuse_windows(sizes.context)
    tensors = Tensors(header, sizes)
    for layer in range(depth):
        tensors.take_block(layer)
        for part, heads in (("q", sizes.heads), ("k", sizes.kv_heads), ("v", sizes.kv_heads)):
            tensors.take_part(layer, f"{part}_bias", f"attn_{part}.bias", (heads * sizes.head_dim,))
    layers = LayerSpec(0, header.positive("rope.freq_base", 10000.0), header.rope_scale())
    return ModelSpec(
        **asdict(sizes),
        activation="silu",
        rope_interleaved=False,
        embed_scale=1.0,
        attn_scale=sizes.head_dim**-0.5,
        layers=(layers,) * depth,
        tensors=tensors.finish("dense feed-forward layers, biases on q, k and v only"),
    )
