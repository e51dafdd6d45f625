"""A small vocabulary with tokens of every awkward kind, and what may follow a text by another's matcher.

`regex` matches partially, so it can say of any text whether it begins one of the language; it knows nothing
of tokens, and is asked about each of them.
"""

import numpy as np
import regex
from vocabularies import gpt2_metadata, in_letters

from foredraft.engine.grammar import GrammarCompiler, GrammarSpec
from foredraft.models.tokenizer import Tokenizer

WORDS = (
    *(
        b"ab",
        b"abc",
        b"bc",
        b"aab",
        b'{"',
        b'"}',
        b'":',
        b' "',
        b'","',
        b'":"',
        b"true",
        b"12",
        b"name",
        b"\n  ",
    ),
    *(b"\xc3\xa9a", b"a\xe2\x82", b"\x82\xac", b"\xac\xc3", b"}\n", b'": '),
)


def small_tokenizer():
    """Every byte, the words and all beginnings of them, two control tokens that end a text and one that does
    not. Text becomes words where it can.
    """
    words = list(dict.fromkeys(word[:size] for word in WORDS for size in range(2, len(word) + 1)))
    merges = [f"{in_letters(word[:-1])} {in_letters(word[-1:])}" for word in words]
    metadata = gpt2_metadata(words, control=["<|end|>", "<|stop|>", "<|other|>"], merges=merges)
    metadata["tokenizer.ggml.eos_token_id"] = 256 + len(words)
    metadata["tokenizer.ggml.eot_token_id"] = 257 + len(words)
    return Tokenizer.from_metadata(metadata)


TOKENIZER = small_tokenizer()
VOCAB = TOKENIZER.vocab_size + 5  # the model's, with padding
ENDS = set(TOKENIZER.eos_ids)
OTHER = max(TOKENIZER.special_ids)
BYTES = [TOKENIZER.token_bytes(token) for token in range(TOKENIZER.vocab_size)]
PLAIN = [token for token in range(TOKENIZER.vocab_size) if token not in TOKENIZER.special_ids]
COMPILER = GrammarCompiler(TOKENIZER, VOCAB)


def grammar(kind, source):
    """A fresh one."""
    return COMPILER.compile(GrammarSpec(kind, source))()


def left(grammar, path=(), vocab=VOCAB):
    """The tokens that it does not forbid."""
    row = np.zeros(vocab, np.float32)
    grammar.forbid(row, path)
    assert set(np.unique(row)) <= {0.0, -np.inf}
    return set(np.flatnonzero(row == 0.0).tolist())


class Language:
    """Given by a pattern; `chars` are the characters of it that are not ASCII."""

    def __init__(self, pattern, chars=""):
        self.pattern = regex.compile(pattern)
        self.chars = [char.encode() for char in chars]

    def begins(self, data):
        """Whether a text begins with these bytes."""
        cut = next((cut for cut in range(4) if is_utf8(data[: len(data) - cut])), None)
        if cut is None:
            return False
        whole, tail = data[: len(data) - cut], data[len(data) - cut :]
        ends = [char for char in self.chars if char.startswith(tail)] if tail else [b""]
        return any(self.pattern.fullmatch((whole + end).decode(), partial=True) for end in ends)

    def holds(self, data):
        return is_utf8(data) and self.pattern.fullmatch(data.decode()) is not None

    def follow(self, data):
        """The tokens that may follow."""
        return {token for token in PLAIN if self.begins(data + BYTES[token])} | (
            ENDS if self.holds(data) else set()
        )

    def forces(self, data, more):
        """Whether nothing but these bytes can follow."""
        for size in range(len(more)):
            before = data + more[:size]
            if self.holds(before) or any(
                self.begins(before + bytes([byte])) != (byte == more[size]) for byte in range(256)
            ):
                return False
        return True


def is_utf8(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
