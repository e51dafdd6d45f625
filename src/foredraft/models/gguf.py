"""Reading GGUF files: the header, checked; a tensor's raw bytes, on demand.

A file is not trusted. Every count, length and offset is compared with what the file has before anything
is allocated or read: a truncated, corrupt or hostile file raises `ModelFileError`, a sound one that is not
supported `UnsupportedModelError`, and nothing else happens. What the metadata mean is not known here (see
`families/`), nor what the bytes are worth (see `quants.py`).
"""

import mmap
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from foredraft.errors import ModelFileError, ModelNotFoundError
from foredraft.models.cursor import HEADER_LIMIT, Array, Cursor, Value
from foredraft.models.quants import FORMATS, UNSUPPORTED, Format

__all__ = ["HEADER_LIMIT", "Array", "GGUFFile", "TensorInfo", "Value", "read_gguf"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
ALIGNMENT_KEY = "general.alignment"
# The least bytes of an entry: of the metadata (key, type, value) and of the tensor table.
_PAIR_BYTES, _TENSOR_BYTES = 14, 33


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` has NumPy's order, rows first; `offset` is absolute in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A checked header. Strings that are not UTF-8 keep their bytes as surrogates (`surrogateescape`)."""

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """The raw bytes of a tensor. Read, not mapped: a mapped file that shrinks would end the process."""
        info = self.tensors[name]
        try:
            raw = np.fromfile(self.path, np.uint8, info.nbytes, offset=info.offset)
        except OSError as error:
            raise ModelFileError(f"{self.path}: cannot read tensor {name!r}: {error}") from error
        if raw.nbytes != info.nbytes:
            raise ModelFileError(
                f"{self.path}: only {raw.nbytes} of the {info.nbytes} bytes of tensor {name!r} could be "
                "read. The file has become shorter since it was opened: fetch it again."
            )
        return raw


def read_gguf(path: str | Path) -> GGUFFile:
    """Read and check the header of a GGUF file; no tensor data are touched."""
    path = Path(path)
    try:
        _check_regular(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            return _parse(Cursor(path, buffer))
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_regular(path: Path) -> None:
    """Before opening: to open a pipe is to wait, and an empty file cannot be mapped."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ModelFileError(f"{path}: not a regular file; a path to a .gguf file is expected")
    if not found.st_size:
        raise ModelFileError(f"{path}: the file is empty, as after an interrupted download: fetch it again")


def _parse(cursor: Cursor) -> GGUFFile:
    version = _version(cursor)
    tensor_count, pair_count = cursor.u64(), cursor.u64()
    cursor.check_count("metadata entries", pair_count, _PAIR_BYTES)
    metadata: dict[str, Value] = {}
    for _ in range(pair_count):
        key = cursor.name("metadata key")
        if key in metadata:
            cursor.corrupt(f"metadata key {key!r} occurs twice")
        metadata[key] = cursor.value(key)
    _refuse_splits(cursor, metadata)
    alignment = _alignment(cursor, metadata)
    cursor.check_count("tensors", tensor_count, _TENSOR_BYTES)
    described = [_tensor(cursor) for _ in range(tensor_count)]
    tensors = _place(cursor, described, alignment)
    return GGUFFile(cursor.path, version, MappingProxyType(metadata), MappingProxyType(tensors))


def _version(cursor: Cursor) -> int:
    magic = cursor.take(len(MAGIC), "the magic number")
    if magic != MAGIC:
        raise ModelFileError(
            f"{cursor.path}: not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}. It may be "
            "a saved web page, a Git LFS pointer or a model in another format: fetch the .gguf file itself."
        )
    version = cursor.u32()
    if version and not version & 0xFFFF:
        cursor.unsupported("a big-endian GGUF file; little-endian files are supported")
    if version not in VERSIONS:
        cursor.unsupported(f"GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are supported")
    return version


def _refuse_splits(cursor: Cursor, metadata: Mapping[str, Value]) -> None:
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        cursor.unsupported(
            f"one of the {parts} parts of a split model; single files are supported: merge the parts "
            "(llama-gguf-split --merge)"
        )


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get(ALIGNMENT_KEY, 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        cursor.corrupt(f"{ALIGNMENT_KEY} is {alignment!r}; a power of two, 8 or more, is expected")
    return alignment


def _tensor(cursor: Cursor) -> TensorInfo:
    """One entry of the tensor table. Its offset still counts from the beginning of the data."""
    name = cursor.name("tensor name")
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        cursor.corrupt(f"tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    form = _format(cursor, name, cursor.u32())
    if not all(shape):
        cursor.corrupt(f"tensor {name!r} is empty: its shape is {shape}")
    if shape[-1] % form.block_length:
        cursor.corrupt(
            f"tensor {name!r} has rows of {shape[-1]} values; {form.name} takes multiples of "
            f"{form.block_length}"
        )
    return TensorInfo(name, form.name, shape, cursor.u64(), form.nbytes(prod(shape)))


def _format(cursor: Cursor, name: str, code: int) -> Format:
    for form in FORMATS.values():
        if form.code == code:
            return form
    if code not in UNSUPPORTED:
        cursor.corrupt(f"tensor {name!r} has the unknown type {code}")
    return cursor.unsupported(
        f"tensor {name!r} is of type {UNSUPPORTED[code]}; supported are {', '.join(FORMATS)}. "
        "Choose another quantisation of the model."
    )


def _place(cursor: Cursor, described: Iterable[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """Make the offsets absolute; check that each tensor lies in the file, aligned, on bytes of its own."""
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in described:
        end = start + info.offset + info.nbytes
        if info.name in tensors:
            cursor.corrupt(f"tensor {info.name!r} occurs twice")
        if info.offset % alignment:
            cursor.corrupt(f"tensor {info.name!r} lies at {info.offset}, not a multiple of {alignment}")
        if end > cursor.size:
            cursor.corrupt(f"tensor {info.name!r} would end at byte {end}")
        tensors[info.name] = replace(info, offset=start + info.offset)
    for before, after in pairwise(sorted(tensors.values(), key=lambda info: info.offset)):
        if after.offset < before.offset + before.nbytes:
            cursor.corrupt(f"tensors {before.name!r} and {after.name!r} overlap")
    return tensors
