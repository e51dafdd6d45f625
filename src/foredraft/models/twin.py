"""The forward pass of every family in float64 NumPy: what the native engine computes, in its simplest form.

Made to be read and to be compared with: no cache, no batch, one sequence from its beginning. Weights come
under their canonical names (`families/spec.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from math import pi, sqrt

import numpy as np
import numpy.typing as npt

from foredraft.models.families.spec import LayerSpec, ModelSpec
from foredraft.models.gguf import GGUFFile
from foredraft.models.quants import dequantise

Reals = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]


def twin_weights(file: GGUFFile, spec: ModelSpec) -> dict[str, npt.NDArray[np.float32]]:
    """All weights, dequantised, by canonical name: four bytes a value, so for small models."""
    by_tensor = {}
    for name in set(spec.tensors.values()):
        info = file.tensors[name]
        by_tensor[name] = dequantise(file.read(name), info.type, info.shape)
    return {canonical: by_tensor[name] for canonical, name in spec.tensors.items()}


def twin_forward(spec: ModelSpec, weights: Weights, tokens: Sequence[int]) -> Reals:
    """Logits after every token, [n, vocab]."""
    last = twin_hidden(spec, weights, tokens)[-1]
    return _rms_norm(spec, last, weights["norm"]) @ weights["head"].astype(np.float64).T


def twin_hidden(spec: ModelSpec, weights: Weights, tokens: Sequence[int]) -> list[Reals]:
    """The residual stream after each layer, every entry [n, dim]."""
    x = weights["embed"][np.asarray(tokens)].astype(np.float64) * spec.embed_scale
    after = []
    for index, layer in enumerate(spec.layers):
        own = _layer_weights(weights, index)
        x = x + _post(spec, own.get("attn_post_norm"), _attention(spec, layer, own, x))
        x = x + _post(spec, own.get("ffn_post_norm"), _feed_forward(spec, own, x))
        after.append(x)
    return after


def _layer_weights(weights: Weights, index: int) -> dict[str, Reals]:
    """A layer's weights by the second part of their names, and the rope factors that all layers share."""
    own = {
        name.removeprefix(f"{index}."): weight.astype(np.float64)
        for name, weight in weights.items()
        if name.startswith(f"{index}.")
    }
    if "rope_factors" in weights:
        own["rope_factors"] = weights["rope_factors"].astype(np.float64)
    return own


def _rms_norm(spec: ModelSpec, x: Reals, weight: npt.NDArray[np.floating]) -> Reals:
    normed: Reals = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + spec.eps) * weight
    return normed


def _post(spec: ModelSpec, weight: Reals | None, x: Reals) -> Reals:
    return x if weight is None else _rms_norm(spec, x, weight)


def _attention(spec: ModelSpec, layer: LayerSpec, own: Mapping[str, Reals], x: Reals) -> Reals:
    n = len(x)
    normed = _rms_norm(spec, x, own["attn_norm"])
    q, k, v = (_heads(spec, own, normed, part) for part in "qkv")  # [heads or kv_heads, n, head_dim]
    q, k = _rope(spec, layer, own, q), _rope(spec, layer, own, k)
    group = spec.heads // spec.kv_heads
    k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    scores = q @ k.swapaxes(1, 2) * spec.attn_scale  # [heads, n, n]
    distance = np.arange(n)[:, None] - np.arange(n)  # how far the key lies back
    seen = (distance >= 0) & (distance < (layer.window or n))
    scores = np.where(seen, scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = (shares @ v).swapaxes(0, 1).reshape(n, -1)  # [n, heads * head_dim]
    out: Reals = mixed @ own["o"].T
    return out


def _heads(spec: ModelSpec, own: Mapping[str, Reals], x: Reals, part: str) -> Reals:
    projected = x @ own[part].T
    if f"{part}_bias" in own:
        projected = projected + own[f"{part}_bias"]
    heads = projected.reshape(len(x), -1, spec.head_dim).swapaxes(0, 1)
    norm = own.get(f"{part}_norm")
    return heads if norm is None else _rms_norm(spec, heads, norm)


def _rope(spec: ModelSpec, layer: LayerSpec, own: Mapping[str, Reals], x: Reals) -> Reals:
    """Turn each pair of values by position times the pair's frequency."""
    half = spec.head_dim // 2
    frequency = layer.rope_base ** (-np.arange(half) / half) / own.get("rope_factors", np.ones(half))
    angle = np.arange(x.shape[1])[:, None] * layer.rope_scale * frequency  # [n, half]
    turned = np.empty_like(x)
    even_and_odd, halves = (slice(0, None, 2), slice(1, None, 2)), (slice(half), slice(half, None))
    first, second = even_and_odd if spec.rope_interleaved else halves
    a, b = x[..., first], x[..., second]
    turned[..., first] = a * np.cos(angle) - b * np.sin(angle)
    turned[..., second] = a * np.sin(angle) + b * np.cos(angle)
    return turned


def _feed_forward(spec: ModelSpec, own: Mapping[str, Reals], x: Reals) -> Reals:
    activation = _ACTIVATIONS[spec.activation]
    normed = _rms_norm(spec, x, own["ffn_norm"])
    inner: Reals = activation(normed @ own["gate"].T) * (normed @ own["up"].T)
    out: Reals = inner @ own["down"].T
    return out


def _silu(x: Reals) -> Reals:
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))  # x / (1 + exp(-x)), without overflow


def _gelu(x: Reals) -> Reals:
    return 0.5 * x * (1.0 + np.tanh(sqrt(2.0 / pi) * (x + 0.044715 * x * x * x)))


_ACTIVATIONS: Mapping[str, Callable[[Reals], Reals]] = {"silu": _silu, "gelu": _gelu}
