"""Llama and what is built like it (SmolLM2, Mistral, TinyLlama …): files of the architecture `llama`.

The rows of q and k are stored so that rope turns neighbours. What Llama 3 does to its frequencies comes as
the tensor `rope_freqs.weight`.
"""

from dataclasses import asdict

from foredraft.models.families.header import Header
from foredraft.models.families.spec import LayerSpec, ModelSpec
from foredraft.models.families.tensors import Tensors


def describe(header: Header) -> ModelSpec:
    sizes, depth = header.sizes(), header.depth()
    header.refuse_windows(sizes.context)
    tensors = Tensors(header, sizes)
    tensors.take("rope_factors", "rope_freqs.weight", (sizes.head_dim // 2,), optional=True)
    for layer in range(depth):
        tensors.take_block(layer)
    layers = LayerSpec(0, header.positive("rope.freq_base", 10000.0), header.rope_scale())
    return ModelSpec(
        **asdict(sizes),
        activation="silu",
        rope_interleaved=True,
        embed_scale=1.0,
        attn_scale=sizes.head_dim**-0.5,
        layers=(layers,) * depth,
        tensors=tensors.finish("dense feed-forward layers, no biases"),
    )
