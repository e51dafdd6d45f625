"""Read files with something changed, as if the file said so: for tests of what is made of a header."""

from collections.abc import Mapping
from dataclasses import replace

from foredraft.models.gguf import GGUFFile, TensorInfo, Value


def with_metadata(file: GGUFFile, changes: Mapping[str, Value | None]) -> GGUFFile:
    """Set keys; None takes a key away."""
    merged = {**file.metadata, **changes}
    return replace(file, metadata={key: value for key, value in merged.items() if value is not None})


def with_tensors(file: GGUFFile, changes: Mapping[str, TensorInfo | None]) -> GGUFFile:
    """Set tensors; None takes a tensor away."""
    merged = {**file.tensors, **changes}
    return replace(file, tensors={name: info for name, info in merged.items() if info is not None})
