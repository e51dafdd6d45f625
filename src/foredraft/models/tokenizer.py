"""Text to token ids and back, from the vocabulary inside a GGUF file.

`encode` gives llama.cpp's ids: the same pre-tokenizers, the same handling of special tokens, no Unicode
normalisation. The merging is done by the `tokenizers` library. Decoding is byte-exact: the bytes of a
text's tokens, joined, are the bytes of the text (where the vocabulary puts a space before it, with that
space). Incomplete characters and stop strings are `stream.py`'s affair.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from foredraft.errors import ModelFileError, TokenError, UnsupportedModelError, UsageError
from foredraft.models.gguf import GGUFFile, Value
from foredraft.models.vocab import Kind, Vocabulary, read_vocabulary

SPACE = "\u2581"  # SentencePiece's visible space
LONG = 1 << 14  # characters that take long enough to let others work

# Contractions are spelt out rather than matched with (?i:...): case folding would let 's match the long s.
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (_WORDS % r"\p{N}{1,3}",)
_QWEN2 = (_WORDS % r"\p{N}",)
_DIGITS = (r"\p{N}", _GPT2)

# Each pattern splits what the one before has left; matches and the text between them both become pieces.
PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
# A piece that is a token as a whole is taken as that token, whether or not the merges lead to it.
IGNORE_MERGES = frozenset(("llama-bpe", "llama3", "llama-v3"))

# The splits of all tokens are looked up when a SentencePiece vocabulary is loaded; real ones need 2 % of
# this many characters.
SPLIT_LIMIT = 1 << 30


class Tokenizer:
    """Immutable, and safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, chat_template: str | None = None) -> None:
        self.vocabulary = vocabulary
        self.chat_template = chat_template
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.end_ids
        self.add_bos = vocabulary.add_bos
        self.space_prefix = vocabulary.space_prefix
        self.special_ids = frozenset(vocabulary.ids_of(Kind.CONTROL, Kind.UNKNOWN))
        user_defined = vocabulary.ids_of(Kind.USER_DEFINED)
        self._plain = _Literals({vocabulary.tokens[i]: i for i in user_defined})
        self._special = _Literals({vocabulary.tokens[i]: i for i in [*user_defined, *self.special_ids]})
        self._bytes = _byte_alphabet()
        self._kinds = vocabulary.kinds.astype(np.uint8).tobytes()  # indexing an array is slow
        byte_ids = {_byte_of(vocabulary.tokens[i]): i for i in vocabulary.ids_of(Kind.BYTE)}
        self._loose: dict[int, list[int]] = {}
        self._engine = self._build_llama(byte_ids) if vocabulary.model == "llama" else _build_gpt2(vocabulary)

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> "Tokenizer":
        return cls.from_metadata(gguf.metadata)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Value]) -> "Tokenizer":
        template = metadata.get("tokenizer.chat_template")
        return cls(read_vocabulary(metadata), template if isinstance(template, str) else None)

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """The ids of a text.

        `special` reads control tokens written out in the text as such; without it they are plain text, as
        the words of a user must be. `bos` puts the beginning token first where the model asks for one and
        the text does not begin with it already. A byte for which the vocabulary has no token at all is left
        out, as llama.cpp and Transformers do.
        """
        _check_text(text)
        ids: list[int] = []
        after_special = True
        for part in (self._special if special else self._plain).split(text):
            if isinstance(part, int):
                ids.append(part)
            elif self.vocabulary.model == "llama":
                ids += self._encode_llama(" " + part if self.space_prefix and after_special else part)
            else:
                ids += self._ids(part)
            after_special = isinstance(part, int)
        if bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for: a control token for its name, an unused one for nothing."""
        if not 0 <= token < self.vocab_size:
            raise TokenError(
                f"token {token} is outside the vocabulary, which ends at {self.vocab_size - 1}. Do the "
                "ids come from another model?"
            )
        text, kind = self.vocabulary.tokens[token], self._kinds[token]
        if kind in (Kind.UNUSED, Kind.UNDEFINED):
            return b""
        if kind == Kind.BYTE:
            return bytes((_byte_of(text),))
        if kind == Kind.NORMAL and self.vocabulary.model == "llama":
            text = text.replace(SPACE, " ")
        elif kind == Kind.NORMAL and all(char in self._bytes for char in text):
            return bytes(self._bytes[char] for char in text)
        return text.encode("utf-8", "surrogateescape")

    def decode_bytes(self, ids: Iterable[int], *, special: bool = True) -> bytes:
        """The joined bytes of the tokens, without control tokens if not `special`."""
        return b"".join(self.token_bytes(token) for token in ids if special or token not in self.special_ids)

    def decode(self, ids: Iterable[int], *, special: bool = True) -> str:
        """The joined text; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def _ids(self, text: str) -> list[int]:
        if len(text) < LONG:
            ids: list[int] = self._engine.encode(text, add_special_tokens=False).ids
        else:  # as a batch: only then other threads can go on meanwhile
            ids = self._engine.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _encode_llama(self, text: str) -> Iterable[int]:
        ids = self._ids(text.replace(" ", SPACE))
        if not self._loose:
            return ids
        return (part for token in ids for part in self._loose.get(token, (token,)))

    def _build_llama(self, byte_ids: Mapping[int, int]) -> Engine:
        """Merges from scores: any two neighbours whose join is a token may merge, the best-scored first.

        A character that occurs in tokens only together with others takes part in merges too. It gets an id
        beyond the vocabulary, and becomes bytes where it is left over.
        """
        vocabulary = self.vocabulary
        vocab = _encodable(vocabulary.tokens)
        mergeable = _mergeable(vocabulary)
        loose = sorted(set("".join(mergeable)) - vocab.keys())
        for char, id_ in zip(loose, range(self.vocab_size, self.vocab_size + len(loose)), strict=True):
            vocab[char] = id_
            self._loose[id_] = [byte_ids[byte] for byte in char.encode() if byte in byte_ids]
        unknown = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
        if len(byte_ids) < 256 and unknown not in vocab:
            raise ModelFileError(
                f"the vocabulary has {len(byte_ids)} of the 256 byte tokens and no unknown token: it "
                "cannot read every text"
            )
        return Engine(BPE(vocab, _merges(mergeable, vocab), unk_token=unknown, byte_fallback=True))


class _Literals:
    """Finds fixed texts in a text: leftmost first, and the longest of those that begin at one place."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = ids
        self.lengths: dict[str, list[int]] = {}  # by the first two characters, longest first
        for text in sorted(ids, key=len, reverse=True):
            lengths = self.lengths.setdefault(text[:2], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        seconds: dict[str, str] = {}
        for start in self.lengths:
            seconds[start[0]] = seconds.get(start[0], "") + start[1:]
        starts = (
            re.escape(first) + ("" if first in self.lengths else f"(?=[{re.escape(rest)}])")
            for first, rest in seconds.items()
        )
        self.start = re.compile("|".join(starts) if seconds else r"(?!)")

    def split(self, text: str) -> Iterator[int | str]:
        """The text as ids of what was found and the pieces between, in order; no piece is empty."""
        done = 0
        for match in self.start.finditer(text):
            position = match.start()
            length = self._longest_at(text, position) if position >= done else 0
            if not length:
                continue
            if position > done:
                yield text[done:position]
            done = position + length
            yield self.ids[text[position:done]]
        if done < len(text):
            yield text[done:]

    def _longest_at(self, text: str, position: int) -> int:
        for key in (text[position : position + 2], text[position]):
            for length in self.lengths.get(key, ()):
                if text[position : position + length] in self.ids:
                    return length
        return 0


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"a text is expected, not {type(text).__name__}; decode bytes as UTF-8 first")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text holds a lone surrogate, U+{ord(text[error.start]):04X}, at position {error.start}: "
            "it was not valid UTF-8 "
            "where it came from"
        ) from None


def _build_gpt2(vocabulary: Vocabulary) -> Engine:
    if vocabulary.pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"the pre-tokenizer {vocabulary.pre!r} (tokenizer.ggml.pre) is not supported; supported are "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    vocab = _encodable(vocabulary.tokens)
    merges: list[tuple[str, str]] = []
    for number, merge in enumerate(vocabulary.merges):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelFileError(
                f"merge {number}, {merge!r}, is not two tokens of the vocabulary that make a third"
            )
        merges.append((left, right))
    engine = Engine(BPE(vocab, merges, ignore_merges=vocabulary.pre in IGNORE_MERGES))
    splits: list[PreTokenizer] = [Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[vocabulary.pre]]
    engine.pre_tokenizer = Steps([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    return engine


def _encodable(tokens: Sequence[str]) -> dict[str, int]:
    """Ids by token, without the tokens that are not UTF-8: no text leads to them."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if not _is_utf8("".join(tokens)):
        ids = {token: index for token, index in ids.items() if _is_utf8(token)}
    return ids


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mergeable(vocabulary: Vocabulary) -> list[str]:
    """The tokens that merging may lead to, best score first.

    Control tokens are none: a user's words must not become one. Nor is a token with a space in it, for the
    text has `SPACE` there.
    """
    ids = np.asarray(vocabulary.ids_of(Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED), np.int64)
    ordered = ids[np.argsort(-vocabulary.scores[ids], kind="stable")]
    tokens = [token for index in ordered.tolist() if len(token := vocabulary.tokens[index]) > 1]
    if sum(len(token) ** 2 for token in tokens) > SPLIT_LIMIT:
        raise ModelFileError(
            f"the vocabulary's tokens are too long to be real ({max(map(len, tokens))} characters): the "
            "file is corrupt"
        )
    return [token for token in tokens if " " not in token and (token.isascii() or _is_utf8(token))]


def _merges(tokens: Iterable[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make each token from two others, in the order of the tokens."""
    return [
        (left, token[cut:])
        for token in tokens
        for cut, left in enumerate(accumulate(token[:-1]), 1)  # `left` is token[:cut]
        if left in vocab and token[cut:] in vocab
    ]


def _byte_of(token: str) -> int:
    """The value of a byte token, written <0xAB>."""
    if not re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
        raise ModelFileError(f"the byte token {token!r} is not of the form <0xAB>: the vocabulary is corrupt")
    return int(token[3:5], 16)


def _byte_alphabet() -> dict[str, int]:
    """The letters gpt2-style vocabularies write bytes with: printable Latin-1 is itself, then from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}
