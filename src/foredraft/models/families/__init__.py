"""Model families: from a GGUF header to a `ModelSpec`, or a refusal that says what is supported.

A family is one small file and one entry in `FAMILIES` (docs/add-a-family.md).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from foredraft.errors import ModelFileError, UnsupportedModelError
from foredraft.models.families import gemma3, llama, qwen2
from foredraft.models.families.header import Header
from foredraft.models.families.spec import LayerSpec, ModelSpec
from foredraft.models.gguf import GGUFFile

__all__ = ["FAMILIES", "LayerSpec", "ModelSpec", "describe"]

# By the value of general.architecture.
FAMILIES: Mapping[str, Callable[[Header], ModelSpec]] = MappingProxyType(
    {"llama": llama.describe, "qwen2": qwen2.describe, "gemma3": gemma3.describe}
)


def describe(file: GGUFFile) -> ModelSpec:
    """The model in the file: every tensor present, of the right shape, and none that would be left out."""
    family = file.metadata.get("general.architecture")
    if not isinstance(family, str):
        raise ModelFileError(
            f"{file.path}: general.architecture is {family!r}; the name of a family is expected"
        )
    if family not in FAMILIES:
        raise UnsupportedModelError(
            f"{file.path}: a model of the family {family!r}; supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[family](Header(file, family))
