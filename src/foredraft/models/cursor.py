"""A cursor over a mapped GGUF header: reads numbers, strings and metadata values, if they are there.

Lengths and counts come from an untrusted file. Before anything is read or allocated they are compared
with the bytes that are left; what does not fit raises `ModelFileError`. What the values are for is
known in `gguf.py`.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from foredraft.errors import ModelFileError, UnsupportedModelError

Array = npt.NDArray[np.generic]
Value = bool | int | float | str | list[str] | Array

# Metadata and tensor table must end within this: it bounds time and memory for any file. The largest
# vocabularies in use need about 15 MiB.
HEADER_LIMIT = 64 << 20
KEY_LIMIT = 65535  # bytes, from the format's definition

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Mapping[int, str] = MappingProxyType(
    {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"}
    | {_BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8"}
)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Cursor:
    """Reads forward from the beginning. Text that is not UTF-8 keeps its bytes (`surrogateescape`)."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.end = min(self.size, HEADER_LIMIT)
        self.position = 0

    def corrupt(self, what: str) -> NoReturn:
        raise ModelFileError(
            f"{self.path}: {what} (read up to byte {self.position} of {self.size}). "
            "The file is truncated or corrupt: fetch it again."
        )

    def unsupported(self, what: str) -> NoReturn:
        raise UnsupportedModelError(f"{self.path}: {what}")

    def check_count(self, what: str, count: int, least_bytes: int) -> None:
        """Refuse a count of things, each of at least so many bytes, for which the file has no room."""
        if count > (self.end - self.position) // least_bytes:
            self.corrupt(f"{count} {what} cannot fit into the rest of the header")

    def take(self, count: int, what: str) -> bytes:
        start = self.position
        if count > self.end - start:
            limit = (
                f" within the limit of {HEADER_LIMIT >> 20} MiB for a header" if self.size > self.end else ""
            )
            self.corrupt(f"{what} takes {count} bytes, {self.end - start} are left{limit}")
        self.position = start + count
        return self.buffer[start : self.position]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4, "a 32-bit number"))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8, "a 64-bit number"))[0])

    def name(self, what: str) -> str:
        """A metadata key or a tensor's name: not empty, not long, without NUL, valid UTF-8."""
        length = self.u64()
        if not 0 < length <= KEY_LIMIT:
            self.corrupt(f"a {what} of {length} bytes; 1 to {KEY_LIMIT} are allowed")
        raw = self.take(length, f"a {what}")
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.corrupt(f"the {what} {raw[:80]!r} is not valid UTF-8")
        if "\0" in name:
            self.corrupt(f"the {what} {raw[:80]!r} contains a NUL byte")
        return name

    def value(self, key: str) -> Value:
        """One metadata value, its type before it."""
        kind = self.u32()
        if kind == _STRING:
            return self.take(self.u64(), f"the text of {key!r}").decode("utf-8", "surrogateescape")
        if kind == _ARRAY:
            return self._array(key)
        number: bool | int | float = self._numbers(key, kind, 1)[0].item()
        return number

    def _array(self, key: str) -> list[str] | Array:
        kind, count = self.u32(), self.u64()
        if kind == _ARRAY:
            self.unsupported(f"{key!r} is an array of arrays; arrays of numbers and of strings are supported")
        if kind == _STRING:
            self.check_count(f"strings in {key!r}", count, 8)
            return self._strings(key, count)
        return self._numbers(key, kind, count)

    def _numbers(self, key: str, kind: int, count: int) -> Array:
        if kind not in _NUMBERS:
            self.corrupt(f"{key!r} has the unknown value type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        values = np.frombuffer(self.take(count * dtype.itemsize, f"the value of {key!r}"), dtype)
        if kind != _BOOL:
            return values
        if count and values.max() > 1:
            self.corrupt(f"{key!r} has a truth value of {values.max()} instead of 0 or 1")
        return values.astype(np.bool_)

    def _strings(self, key: str, count: int) -> list[str]:
        """The loop that takes the time, hence without calls to `take`; the checks are the same."""
        buffer, end, position, length_at = self.buffer, self.end, self.position, _U64.unpack_from
        strings: list[str] = []
        for _ in range(count):
            start = position + 8
            stop = start + length_at(buffer, position)[0] if start <= end else start
            if stop > end:
                self.position = position
                self.corrupt(f"string {len(strings)} of {count} in {key!r} passes the end of the header")
            strings.append(buffer[start:stop].decode("utf-8", "surrogateescape"))
            position = stop
        self.position = position
        return strings
