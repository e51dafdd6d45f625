"""Typed access to the metadata of one architecture, and the refusals that all families share.

A missing or senseless value raises `ModelFileError`; a sound one that asks for something the engine does not
do raises `UnsupportedModelError`: nothing that a file asks for is dropped.
"""

from foredraft.errors import ModelFileError, UnsupportedModelError
from foredraft.models.families.spec import Sizes
from foredraft.models.gguf import GGUFFile, Value

# Keys that change what is computed, with the values under which they change nothing.
_NEUTRAL: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("expert_count", "a mixture of experts", (0,)),
    ("attn_logit_softcapping", "soft-capped attention", (0,)),
    ("final_logit_softcapping", "soft-capped logits", (0,)),
    ("logit_scale", "scaled logits", (0, 1)),
    ("residual_scale", "scaled residuals", (0, 1)),
    ("embedding_scale", "a scale of embeddings", (0, 1)),
    ("attention.scale", "an attention scale of its own", (0,)),
    ("attention.clamp_kqv", "clamped attention", (0,)),
    ("attention.max_alibi_bias", "ALiBi", (0,)),
    ("attention.causal", "attention to later tokens", (1,)),
    ("pooling_type", "an embedding model", (0,)),
    ("rope.scaling.attn_factor", "attention scaled with rope", (0, 1)),
)
_LEAST, _MOST = 1e-30, 1e30  # what a sensible number lies between; both fit float32


class Header:
    """The metadata below `general.architecture`; keys are given without that prefix."""

    def __init__(self, file: GGUFFile, family: str) -> None:
        self.file = file
        self.family = family

    def corrupt(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {what}. The file is corrupt or badly converted.")

    def unsupported(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.file.path}: {what}")

    def value(self, key: str) -> Value | None:
        return self.file.metadata.get(f"{self.family}.{key}")

    def _shown(self, key: str) -> str:
        value = self.value(key)
        return f"{self.family}.{key} is {'missing' if value is None else repr(value)}"

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
            return value
        if value is None or isinstance(value, bool | int | float | str):
            raise self.corrupt(f"{self._shown(key)}; a whole number from 1 is expected")
        raise self.unsupported(f"{self.family}.{key} differs between layers; one value for all is supported")

    def number(self, key: str, default: float | None = None) -> float:
        """A number, not below zero."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or not 0 <= value <= _MOST:
            raise self.corrupt(f"{self._shown(key)}; a number from 0 is expected")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number that can be divided by."""
        number = self.number(key, default)
        if number < _LEAST:
            raise self.corrupt(f"{self.family}.{key} is {number}; a number from {_LEAST} is expected")
        return number

    def sizes(self) -> Sizes:
        """The sizes, after the refusals that hold for every family."""
        self._refuse_what_no_family_has()
        dim, heads = self.count("embedding_length"), self.count("attention.head_count")
        kv_heads = self.count("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise self.corrupt(f"{heads} heads cannot share {kv_heads} key-value heads")
        context = self.count("context_length")
        eps = self.positive("attention.layer_norm_rms_epsilon")
        head_dim, ff = self._head_dim(dim, heads), self.count("feed_forward_length")
        return Sizes(self.family, dim, heads, kv_heads, head_dim, ff, self._vocab(), context, eps)

    def depth(self) -> int:
        """The number of layers. Each has tensors, so the file's number of tensors bounds it."""
        depth = self.count("block_count")
        if depth > len(self.file.tensors):
            raise self.corrupt(f"{depth} layers in {len(self.file.tensors)} tensors")
        return depth

    def rope_scale(self) -> float:
        """What positions are multiplied by: linear scaling, or 1."""
        kind = self.value("rope.scaling.type")
        if kind is not None and not (isinstance(kind, str) and kind in ("none", "linear")):
            raise self.unsupported(f"rope scaling {kind!r}; 'none' and 'linear' are supported")
        key = "rope.scaling.factor" if self.value("rope.scaling.factor") is not None else "rope.scale_linear"
        unscaled = kind == "none" or not self.number(key, 0.0)
        return 1.0 if unscaled else 1.0 / self.positive(key)

    def refuse_windows(self, context: int) -> None:
        """For families whose layers all see everything: a stated window has to be no limit."""
        window = self.count("attention.sliding_window", context)
        if window < context:
            raise self.unsupported(
                f"sliding windows of {window} positions in a {self.family} model; only gemma3 has them here"
            )

    def _refuse_what_no_family_has(self) -> None:
        for key, meaning, neutral in _NEUTRAL:
            value = self.value(key)
            if value is None:
                continue
            if not isinstance(value, int | float) or value not in neutral:
                raise self.unsupported(f"{self.family}.{key} is {value!r}: {meaning} is not supported")

    def _head_dim(self, dim: int, heads: int) -> int:
        stated = self.value("attention.key_length")
        if stated is None and dim % heads:
            raise self.corrupt(f"{heads} heads do not divide the dimension {dim}")
        head_dim = self.count("attention.key_length", dim // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            other = self.count(key, head_dim)
            if other != head_dim:
                raise self.unsupported(
                    f"{self.family}.{key} is {other}, but heads have {head_dim}; equal sizes are supported"
                )
        if head_dim % 2:
            raise self.corrupt(f"heads of the odd size {head_dim} cannot be turned in pairs")
        return head_dim

    def _vocab(self) -> int:
        """Rows of the embedding table; more than the tokens, where it is padded."""
        table = self.file.tensors.get("token_embd.weight")
        if table is None:
            raise self.corrupt("the tensor 'token_embd.weight' is missing")
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list) and len(tokens) > table.shape[0]:
            raise self.corrupt(f"{len(tokens)} tokens, but an embedding table of {table.shape[0]} rows")
        return table.shape[0]
