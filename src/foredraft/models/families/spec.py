"""What a model is, once its file has been understood: its sizes, its layers, and which tensor is which.

A `ModelSpec` is all that the engine and its float64 twin know of a model family. It describes one block:

    x += attn_post_norm(attention(attn_norm(x)))
    x += ffn_post_norm(down(activation(gate(n)) * up(n)))    where n = ffn_norm(x)

with post norms, q/k norms and biases where `tensors` has them. Norms are RMS norms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LayerSpec:
    """What may differ between layers. A row sees its last `window` positions, its own included; 0: all."""

    window: int
    rope_base: float
    rope_scale: float  # positions are multiplied by it


@dataclass(frozen=True)
class Sizes:
    """The numbers every family states."""

    family: str
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    context: int  # positions it was trained for
    eps: float


@dataclass(frozen=True)
class ModelSpec(Sizes):
    """A model, described. `tensors` maps canonical names to the file's.

    Canonical are `embed`, `head` (the same tensor as `embed` where they are tied), `norm`, and for layer i
    `i.attn_norm`, `i.q`, `i.k`, `i.v`, `i.o`, `i.ffn_norm`, `i.gate`, `i.up`, `i.down`. Optional are
    `rope_factors` (they divide the frequencies, one per pair), `i.q_bias`, `i.k_bias`, `i.v_bias`,
    `i.q_norm`, `i.k_norm` (over each head, before rope), `i.attn_post_norm`, `i.ffn_post_norm`.
    """

    activation: Literal["silu", "gelu"]  # gelu in its tanh form
    rope_interleaved: bool  # rope turns the pairs (2i, 2i + 1); otherwise (i, i + head_dim / 2)
    embed_scale: float
    attn_scale: float
    layers: tuple[LayerSpec, ...]
    tensors: Mapping[str, str]
