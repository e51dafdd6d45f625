"""Which tensor of the file plays which part: each is taken by name and shape, and none may be left over.

A tensor that nobody takes stands for a computation that would be left out, so it is refused.
"""

from collections.abc import Mapping

from foredraft.models.families.header import Header
from foredraft.models.families.spec import Sizes

GROUP = 32  # inputs of a matrix that the engine multiplies at once


class Tensors:
    """Collects canonical names. The frame (embedding, head, last norm) is taken at the start."""

    def __init__(self, header: Header, sizes: Sizes) -> None:
        self._header = header
        self._sizes = sizes
        self._names: dict[str, str] = {}
        self.take("embed", "token_embd.weight", (sizes.vocab, sizes.dim))
        self.take("norm", "output_norm.weight", (sizes.dim,))
        if not self.take("head", "output.weight", (sizes.vocab, sizes.dim), optional=True):
            self._names["head"] = self._names["embed"]

    def take(self, canonical: str, name: str, shape: tuple[int, ...], *, optional: bool = False) -> bool:
        """Note the tensor under its canonical name; whether it is there."""
        info = self._header.file.tensors.get(name)
        if info is None:
            if optional:
                return False
            raise self._header.corrupt(f"the tensor {name!r} is missing")
        if info.shape != shape:
            raise self._header.corrupt(f"the tensor {name!r} has the shape {info.shape}; {shape} is expected")
        if len(shape) == 1 and info.type != "F32":
            raise self._header.unsupported(f"the vector {name!r} is {info.type}; F32 is supported")
        if len(shape) == 2 and shape[1] % GROUP:
            raise self._header.unsupported(
                f"the matrix {name!r} has {shape[1]} columns; multiples of {GROUP} are supported"
            )
        self._names[canonical] = name
        return True

    def take_block(self, layer: int) -> None:
        """The tensors that a block has in every family."""
        sizes = self._sizes
        q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        for part, name, shape in (
            ("attn_norm", "attn_norm", (sizes.dim,)),
            ("q", "attn_q", (q_rows, sizes.dim)),
            ("k", "attn_k", (kv_rows, sizes.dim)),
            ("v", "attn_v", (kv_rows, sizes.dim)),
            ("o", "attn_output", (sizes.dim, q_rows)),
            ("ffn_norm", "ffn_norm", (sizes.dim,)),
            ("gate", "ffn_gate", (sizes.ff, sizes.dim)),
            ("up", "ffn_up", (sizes.ff, sizes.dim)),
            ("down", "ffn_down", (sizes.dim, sizes.ff)),
        ):
            self.take_part(layer, part, f"{name}.weight", shape)

    def take_part(self, layer: int, part: str, name: str, shape: tuple[int, ...]) -> None:
        self.take(f"{layer}.{part}", f"blk.{layer}.{name}", shape)

    def finish(self, supported: str) -> Mapping[str, str]:
        """All names, if nothing is left over. `supported` says what this family may have."""
        left = self._header.file.tensors.keys() - self._names.values()
        if left:
            raise self._header.unsupported(
                f"the tensor {min(left)!r} has no place in a {self._header.family} model as supported here: "
                f"{supported}"
            )
        return self._names
