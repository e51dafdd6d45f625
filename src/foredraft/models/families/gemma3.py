"""Gemma 3 (text): sliding windows in five layers of six, norms on q and k, norms after each half of a block.

Files rarely state the pattern of the windows or the rope base of the local layers; the defaults here are the
released models'. The norms' weights have their one added already.
"""

from dataclasses import asdict

import numpy as np

from foredraft.models.families.header import Header
from foredraft.models.families.spec import LayerSpec, ModelSpec, Sizes
from foredraft.models.families.tensors import Tensors

PERIOD = 6  # every sixth layer sees everything
LOCAL_ROPE_BASE = 10000.0
DEPTH_OF_27B = 62


def describe(header: Header) -> ModelSpec:
    sizes, depth = header.sizes(), header.depth()
    tensors = Tensors(header, sizes)
    for layer in range(depth):
        tensors.take_block(layer)
        tensors.take_part(layer, "q_norm", "attn_q_norm.weight", (sizes.head_dim,))
        tensors.take_part(layer, "k_norm", "attn_k_norm.weight", (sizes.head_dim,))
        tensors.take_part(layer, "attn_post_norm", "post_attention_norm.weight", (sizes.dim,))
        tensors.take_part(layer, "ffn_post_norm", "post_ffw_norm.weight", (sizes.dim,))
    return ModelSpec(
        **asdict(sizes),
        activation="gelu",
        rope_interleaved=False,
        embed_scale=float(
            np.sqrt(np.float32(sizes.dim))
        ),  # a float32 number, as the scale is applied in float32
        attn_scale=_attn_scale(sizes, depth),
        layers=_layers(header, depth),
        tensors=tensors.finish("the text model, without biases"),
    )


def _attn_scale(sizes: Sizes, depth: int) -> float:
    """The 27B alone scales by the share of a head in the dimension, and no key says so."""
    return float((sizes.dim / sizes.heads if depth == DEPTH_OF_27B else sizes.head_dim) ** -0.5)


def _layers(header: Header, depth: int) -> tuple[LayerSpec, ...]:
    """Linear scaling, where there is any, is for the layers that see everything."""
    local = LayerSpec(
        header.count("attention.sliding_window"), header.positive("rope.freq_base_swa", LOCAL_ROPE_BASE), 1.0
    )
    everything = LayerSpec(0, header.positive("rope.freq_base"), header.rope_scale())
    return tuple(local if is_local else everything for is_local in _pattern(header, depth))


def _pattern(header: Header, depth: int) -> list[bool]:
    """Which layers are local: by a period, or layer by layer."""
    stated = header.value("attention.sliding_window_pattern")
    if isinstance(stated, np.ndarray):
        if len(stated) != depth:
            raise header.corrupt(f"a pattern of {len(stated)} windows for {depth} layers")
        return [bool(is_local) for is_local in stated]
    period = header.count("attention.sliding_window_pattern", PERIOD)
    return [(layer + 1) % period != 0 for layer in range(depth)]
