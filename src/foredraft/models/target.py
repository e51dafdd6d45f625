"""The native engine as a `Target`: what it takes to load a model, and the step from the engine's nouns to the
native module's arrays.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal

import numpy as np

from foredraft._native import Model, isa_names
from foredraft.core.nouns import Floats, Int32s, Rows, int32s
from foredraft.core.pick import Place
from foredraft.core.target import NO_TAPS, Cache, Scores, Taps
from foredraft.errors import OutOfMemoryError, TokenError, UnsupportedModelError, UsageError
from foredraft.models.cores import physical_cores
from foredraft.models.families import ModelSpec
from foredraft.models.gguf import GGUFFile
from foredraft.models.memory import available_bytes, check_fits
from foredraft.models.native_pick import NativePicker
from foredraft.models.quants import FORMATS, shrinks

BLOCK = 64  # positions in a block of the native module's KV memory
PANEL = 16  # outputs of a matrix that lie together: the least of a head that can be computed
MAX_THREADS = 1024
KVType = Literal["f16", "f32"]
Quant = Literal["file", "q4"]
QUANTS: Mapping[str, str] = MappingProxyType({"file": "", "q4": "q4"})  # in the native module's words
KEPT = frozenset({"embed", "k", "v"})  # matrices that "q4" leaves alone
ALL_PANELS = int32s([])
KV_BYTES: Mapping[str, int] = MappingProxyType({"f16": 2, "f32": 4})
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class LoadOptions:
    """How a model is to be held in memory. `threads` 0: one for each physical core; `isa` "": the best there
    is; `quant` "q4", to draft with: matrices that take more are brought to 4.5 bits a weight, save for
    the embedding, keys' and values'.
    """

    blocks: int
    kv: KVType = "f16"
    threads: int = 0
    isa: str = ""
    progress: Progress | None = None
    quant: Quant = "file"

    def __post_init__(self) -> None:
        if self.quant not in QUANTS:
            raise UsageError(f"quant is {self.quant!r}, but must be one of {', '.join(QUANTS)}")
        if self.kv not in KV_BYTES:
            raise UsageError(f"kv is {self.kv!r}, but must be one of {', '.join(KV_BYTES)}")
        if not 0 <= self.threads <= MAX_THREADS:
            raise UsageError(
                f"threads is {self.threads}, but must be 0 (one for each physical core) to {MAX_THREADS}"
            )
        isa = self.isa or os.environ.get("FOREDRAFT_ISA", "")
        if isa and isa not in isa_names():
            raise UsageError(f"FOREDRAFT_ISA is {isa!r}, but this machine has {', '.join(isa_names())}")


class NativeTarget:
    """One loaded model. Passes run one at a time; the interpreter is free meanwhile."""

    def __init__(self, spec: ModelSpec, model: Model) -> None:
        self.spec = spec
        self.model = model
        self._picker = NativePicker(model.threads)
        self._picking = threading.Lock()

    @classmethod
    def load(cls, file: GGUFFile, spec: ModelSpec, options: LoadOptions) -> "NativeTarget":
        """Foresee the memory, then map the file and convert it."""
        weights = held_bytes(file, spec, options.quant)
        block_bytes = kv_block_bytes(spec, options.kv)
        check_fits(file.path.stem, weights, block_bytes, options.blocks, BLOCK, available_bytes())
        try:
            model = Model(
                config_of(spec),
                tensor_list(file, spec),
                str(file.path),
                options.blocks,
                options.kv,
                options.threads or physical_cores(),
                options.isa,
                progress=options.progress or _unwatched,
                quant=QUANTS[options.quant],
            )
        except MemoryError:
            raise OutOfMemoryError(
                f"{file.path}: the system refused the memory for weights and cache; end other programs, or "
                "give a shorter context"
            ) from None
        except ValueError as error:
            raise UnsupportedModelError(f"{file.path}: {error}") from error
        return cls(spec, model)

    @property
    def vocab(self) -> int:
        return self.spec.vocab

    def read_bytes(self, panels: int | None = None) -> int:
        """Bytes of weights that a pass of one row reads, with so many panels of the head; None: all."""
        head = self.model.head_bytes
        outputs = self.vocab if panels is None else min(panels * PANEL, self.vocab)
        return self.model.weight_bytes - head + head // self.vocab * outputs

    def forward(
        self,
        rows: Rows,
        caches: Sequence[Cache],
        wanted: Int32s,
        taps: Taps = NO_TAPS,
        panels: Int32s = ALL_PANELS,
    ) -> Scores:
        """As `Target.forward`. With `panels` of the head, rising: logits [wanted, 16 * panels], of tokens
        16 * p to 16 * p + 15 for each panel p, and minus infinity beyond the vocabulary.
        """
        if len(rows) and int(rows.tokens.max()) >= self.vocab:
            raise TokenError(
                f"token {rows.tokens.max()} is outside the vocabulary, which ends at {self.vocab - 1}"
            )
        for cache, count in zip(caches, rows_each(rows, len(caches)), strict=True):
            cache.reserve(count)
        logits, hidden = self.model.forward(
            rows.tokens,
            rows.parents,
            rows.owners,
            int32s(cache.length for cache in caches),
            tables_of(caches),
            wanted,
            int32s(taps.layers),
            int32s(taps.rows),
            panels,
        )
        return Scores(logits, hidden)

    def pick(self, logits: Floats, places: Sequence[Place]) -> list[int]:
        with self._picking:
            return self._picker.pick(logits, places)

    def keep(self, cache: Cache, path: Sequence[int]) -> None:
        moves = cache.keep(path)
        if len(moves.source):
            self.model.move(moves.source, moves.target)


def _unwatched(done: int, total: int) -> None:
    """Nobody watches, but a moment in Python lets Ctrl-C end the loading."""


def rows_each(rows: Rows, owners: int) -> list[int]:
    """How many rows each owner has."""
    return [len(rows)] if owners == 1 else np.bincount(rows.owners, minlength=owners).tolist()


def tables_of(caches: Sequence[Cache]) -> Int32s:
    """[caches, most blocks]; what a shorter one lacks is 0 and never read."""
    if len(caches) == 1:
        return int32s(caches[0].blocks)[np.newaxis]
    tables = np.zeros((len(caches), max((len(cache.blocks) for cache in caches), default=0)), np.int32)
    for table, cache in zip(tables, caches, strict=True):
        table[: len(cache.blocks)] = cache.blocks
    return tables


def held_bytes(file: GGUFFile, spec: ModelSpec, quant: Quant = "file") -> int:
    """Bytes of all weights, as many as a file of the types they are held in would have."""
    total = 0
    for canonical, name in spec.tensors.items():
        info = file.tensors[name]
        matrix = len(info.shape) == 2 and canonical.split(".")[-1] not in KEPT
        if quant == "q4" and matrix and shrinks(info.type, info.shape[1]):
            total += FORMATS["Q4_0"].nbytes(int(np.prod(info.shape, dtype=np.int64)))
        elif canonical != "head" or name != spec.tensors["embed"]:
            total += info.nbytes
    return total


def kv_block_bytes(spec: ModelSpec, kv: KVType) -> int:
    """Bytes of one block: keys and values of all layers."""
    return 2 * len(spec.layers) * spec.kv_heads * spec.head_dim * BLOCK * KV_BYTES[kv]


def config_of(spec: ModelSpec) -> dict[str, object]:
    """What the native module has to know of a family."""
    config: dict[str, object] = {field.name: getattr(spec, field.name) for field in fields(spec)}
    del config["tensors"], config["family"]
    return config | {"layers": [(layer.window, layer.rope_base, layer.rope_scale) for layer in spec.layers]}


def tensor_list(file: GGUFFile, spec: ModelSpec) -> list[tuple[str, str, int, int, int]]:
    """(canonical name, type, rows, columns, offset in the file); a vector has one row."""
    found = []
    for canonical, name in spec.tensors.items():
        if canonical == "head" and name == spec.tensors["embed"]:
            continue  # tied: the module takes the embedding
        info = file.tensors[name]
        *rows, columns = info.shape
        found.append((canonical, info.type, int(np.prod(rows, dtype=np.int64)), columns, info.offset))
    return found
