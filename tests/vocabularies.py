"""Small vocabularies as the metadata of a GGUF file, and the models in the cache."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytest

from foredraft.models.cache import model_path
from foredraft.models.gguf import Value, read_gguf
from foredraft.models.tokenizer import Tokenizer
from foredraft.models.vocab import Kind

SMALL = "smollm2-135m"
LARGER = ("gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")


def byte_letters() -> list[str]:
    """How gpt2-style vocabularies write the bytes 0 to 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def in_letters(data: bytes) -> str:
    letters = byte_letters()
    return "".join(letters[byte] for byte in data)


def gpt2_metadata(
    words: Sequence[bytes] = (),
    control: Sequence[str] = (),
    user: Sequence[str] = (),
    merges: Sequence[str] = (),
    pre: str = "gpt-2",
) -> dict[str, Value]:
    """Every byte is a token; then come the words, the control tokens and the user-defined ones."""
    tokens = [*byte_letters(), *map(in_letters, words), *control, *user]
    kinds = [Kind.NORMAL] * (256 + len(words)) + [Kind.CONTROL] * len(control)
    kinds += [Kind.USER_DEFINED] * len(user)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(merges),
    }


def llama_metadata(
    scores: Mapping[str, float], user: Sequence[str] = (), more: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """<unk>, <s>, </s>, the 256 byte tokens, then the scored ones and the user-defined ones."""
    control = ["<unk>", "<s>", "</s>"]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *scores, *user]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL] + [Kind.BYTE] * 256
    kinds += [Kind.NORMAL] * len(scores) + [Kind.USER_DEFINED] * len(user)
    values = [0.0] * 259 + list(scores.values()) + [0.0] * len(user)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(values, np.float32),
        **(more or {}),
    }


@cache
def metadata_of(name: str) -> Mapping[str, Value]:
    """The metadata of a model in the cache; a larger model that is not there skips the test."""
    if name in LARGER and not model_path(name).is_file():
        pytest.skip(f"{name} is not in the cache: make test-models fetches it")
    return read_gguf(model_path(name)).metadata


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(metadata_of(name))
