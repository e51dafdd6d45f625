"""The vocabulary a GGUF file carries, checked: tokens, kinds, scores, merges, what begins and ends a text.

Metadata are not trusted: a wrong type, count or id raises `ModelFileError`. The rules for what ends a
generation and for defaults that files leave out are llama.cpp's, so that a file behaves as its users know
it. How text becomes ids is `tokenizer.py`'s affair.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from foredraft.errors import ModelFileError, UnsupportedModelError
from foredraft.models.gguf import Value

PREFIX = "tokenizer.ggml."
MODELS = ("gpt2", "llama")

# Texts whose token ends a generation, whatever kind the file gives it (conversions often get the kind wrong).
END_TEXTS = frozenset(
    (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    )
)
# This one only where the file calls it a control token: in Gemma's vocabulary it is an HTML tag.
END_TEXT_IF_CONTROL = "</s>"
# Padding, repository and file separators of fill-in-the-middle models end a generation too: the key that
# names the id, and the texts that stand for it where the key is missing.
FILL_IN_ENDS: Mapping[str, frozenset[str]] = {
    "fim_pad_token_id": frozenset(("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "fim_rep_token_id": frozenset(("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    "fim_sep_token_id": frozenset(("<|file_sep|>",)),
}


class Kind(IntEnum):
    """What a token is, in the file's own numbers."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Tokens keep bytes that are not UTF-8 as lone surrogates (`surrogateescape`)."""

    model: Literal["gpt2", "llama"]
    pre: str
    tokens: Sequence[str]
    kinds: npt.NDArray[np.int32]  # [n]
    scores: npt.NDArray[np.float32]  # [n], or empty for gpt2
    merges: Sequence[str]  # "left right", best first; empty for llama
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    space_prefix: bool

    def ids_of(self, *kinds: Kind) -> list[int]:
        """The ids of all tokens of these kinds, ascending."""
        return [int(index) for index in np.flatnonzero(np.isin(self.kinds, kinds))]


def read_vocabulary(metadata: Mapping[str, Value]) -> Vocabulary:
    """Check the metadata of a GGUF file and make its vocabulary."""
    fields = _Fields(metadata)
    model: Literal["gpt2", "llama"] = "llama" if _model(fields) == "llama" else "gpt2"
    tokens = _tokens(fields)
    kinds = fields.numbers("token_type", len(tokens), "iu", default=Kind.NORMAL).astype(np.int32)
    kinds[~np.isin(kinds, list(Kind))] = Kind.UNDEFINED
    pre = fields.text("pre", "default")
    bos_id = fields.token_id("bos_token_id", len(tokens), 1 if model == "llama" else None)
    eos_id = fields.token_id("eos_token_id", len(tokens), 2 if model == "llama" else None)
    end_ids = _end_ids(fields, tokens, kinds, eos_id)
    add_bos = fields.flag("add_bos_token", model == "llama" or pre in ("llama-bpe", "llama3", "llama-v3"))
    if add_bos and bos_id is None:
        raise ModelFileError(
            f"the model asks for a token at the beginning of every text ({PREFIX}add_bos_token), but "
            f"{PREFIX}bos_token_id is missing"
        )
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=_scores(fields, len(tokens)) if model == "llama" else np.empty(0, np.float32),
        merges=fields.strings("merges") if model == "gpt2" else (),
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=fields.token_id("unknown_token_id", len(tokens), 0 if model == "llama" else None),
        end_ids=end_ids,
        add_bos=add_bos,
        space_prefix=model == "llama" and fields.flag("add_space_prefix", True),
    )


class _Fields:
    """The `tokenizer.ggml.*` entries by their expected types."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self.metadata = metadata

    def _wrong(self, key: str, expected: str) -> ModelFileError:
        value = self.metadata.get(PREFIX + key)
        shown = "missing" if value is None else f"of type {type(value).__name__}"
        return ModelFileError(f"{PREFIX}{key} is {shown}; {expected} expected. Is the model file complete?")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.metadata.get(PREFIX + key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string is")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false is")
        return value

    def strings(self, key: str) -> Sequence[str]:
        value = self.metadata.get(PREFIX + key)
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            raise self._wrong(key, "a list of strings is")
        return value

    def numbers(
        self, key: str, count: int, dtypes: str, default: float | None = None
    ) -> npt.NDArray[np.generic]:
        value = self.metadata.get(PREFIX + key)
        if value is None and default is not None:
            return np.full(count, default)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in dtypes:
            raise self._wrong(key, "a list of numbers is")
        if value.shape != (count,):
            raise ModelFileError(
                f"{PREFIX}{key} has {value.size} entries for {count} tokens: the vocabulary does not fit "
                "together"
            )
        return value

    def token_id(self, key: str, count: int, default: int | None = None) -> int | None:
        """An id inside the vocabulary; a default that lies outside counts as none."""
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return default if default is not None and default < count else None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "a token id is")
        if not 0 <= value < count:
            raise ModelFileError(f"{PREFIX}{key} is {value}, but the vocabulary ends at {count - 1}")
        return value


def _model(fields: _Fields) -> str:
    model = fields.text("model")
    if model not in MODELS:
        raise UnsupportedModelError(
            f"the tokenizer model {model!r} ({PREFIX}model) is not supported; supported are "
            f"{', '.join(MODELS)}"
        )
    return model


def _tokens(fields: _Fields) -> Sequence[str]:
    tokens = fields.strings("tokens")
    if not tokens:
        raise ModelFileError(f"{PREFIX}tokens is empty: a model without a vocabulary cannot read text")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        twice = Counter(tokens).most_common(1)[0][0]
        raise ModelFileError(f"{PREFIX}tokens holds {twice!r} more than once: the vocabulary is corrupt")
    return tokens


def _scores(fields: _Fields, count: int) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused
        scores = fields.numbers("scores", count, "iuf").astype(np.float32)
    if not np.isfinite(scores).all():
        raise ModelFileError(f"{PREFIX}scores holds a value that is not finite: the vocabulary is corrupt")
    return scores


def _end_ids(
    fields: _Fields, tokens: Sequence[str], kinds: npt.NDArray[np.int32], eos_id: int | None
) -> frozenset[int]:
    """The ids that end a generation. Tokens known by their text become control tokens in `kinds`."""
    keys = ("eot_token_id", "eom_token_id")
    named = [eos_id, *(fields.token_id(key, len(tokens)) for key in keys)]
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    known = {ids[text] for text in END_TEXTS if text in ids}
    for key, texts in FILL_IN_ENDS.items():
        index = fields.token_id(key, len(tokens))
        named.append(index)
        if index is None:
            known.update(sorted(ids[text] for text in texts if text in ids)[:1])
    slashed = ids.get(END_TEXT_IF_CONTROL)
    if slashed is not None and kinds[slashed] == Kind.CONTROL:
        known.add(slashed)
    kinds[sorted(known)] = Kind.CONTROL
    return frozenset(known).union(index for index in named if index is not None)
