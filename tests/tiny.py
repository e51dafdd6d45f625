"""Tiny models with random weights and a working vocabulary, for tests that need a model, not its wits.

    path = write_tiny(tmp_path / "tiny.gguf", "gemma3", seed=3, quant=("Q4_K", "Q8_0"), dim=256, ff=256)

The `gguf` package writes them, so that what reads them is tested against another's idea of the format.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6
CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other dog, the one that the fox had not seen, "
    "runs after the fox until there is nothing left to see but the trees and the wind in the trees. "
    "what is drafted here is checked there; what is checked there was written by the target itself."
)
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# For types that the gguf package cannot write: where scale and minimum lie in a block, the middle of the
# codes (the minimum is that times the scale, so that values centre on zero), the spread under a scale of one.
RANDOM_BLOCKS = {"Q4_K": (0, 2, 7.5, 258.0), "Q5_K": (0, 2, 15.5, 527.0), "Q6_K": (208, None, 0.0, 1357.0)}


def write_tiny(
    path: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ff: int = 128,
    vocab: int = 300,
    quant: str | Sequence[str] = "Q4_0",
    tied: bool = True,
    window: int = 16,
    period: int | None = 2,
    rope_factors: bool = False,
    context: int = 512,
) -> Path:
    """Write a model of the family and return its path.

    Several types in `quant` take turns among the matrices, the embedding first. `window` and `period` are
    gemma3's (one layer of so many sees everything; None: not stated), `rope_factors` llama's. Llama and qwen2
    files have a byte-level BPE vocabulary with ChatML's tokens and template, gemma3 files a SentencePiece one
    without. Scales are such that greedy text wanders instead of repeating one token.
    """
    shape = _Shape(family, dim, layers, heads, kv_heads, head_dim, ff, vocab, tied, rope_factors)
    writer = GGUFWriter(path, family)
    _write_sizes(writer, shape, context)
    if family == "gemma3":
        writer.add_sliding_window(window)
        if period is not None:
            writer.add_sliding_window_pattern(period)
        _write_sentencepiece(writer, vocab)
    else:
        _write_bpe(writer, vocab, "llama-bpe" if family == "llama" else "qwen2")
    rng = np.random.default_rng(seed)
    types = cycle([quant] if isinstance(quant, str) else quant)
    for name, size, centre, spread in _tensors(shape):
        if len(size) == 1:
            writer.add_tensor(name, rng.normal(centre, spread, size).astype(np.float32))
        else:
            kind = GGMLQuantizationType[next(types)]
            writer.add_tensor(name, _matrix(rng, kind, size, spread), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True)
class _Shape:
    family: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    tied: bool
    rope_factors: bool


def _write_sizes(writer: GGUFWriter, shape: _Shape, context: int) -> None:
    writer.add_context_length(context)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6 if shape.family == "gemma3" else 1e4)


# Weights


def _tensors(shape: _Shape) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """Name, shape, centre and spread of every tensor, in the file's order."""
    small = 0.8 / shape.dim**0.5
    share = 0.25 if shape.family == "gemma3" and shape.tied else 1.0
    yield "token_embd.weight", (shape.vocab, shape.dim), 0.0, small * share
    yield "output_norm.weight", (shape.dim,), 4.0 / share, 0.1
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.dim), 0.0, small
    if shape.rope_factors:
        yield "rope_freqs.weight", (shape.head_dim // 2,), 2.0, 0.5
    for layer in range(shape.layers):
        for name, size, centre, spread in _block(shape):
            yield f"blk.{layer}.{name}", size, centre, spread


def _block(shape: _Shape) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, rows, columns in (
        ("attn_q", q, shape.dim),
        ("attn_k", kv, shape.dim),
        ("attn_v", kv, shape.dim),
        ("attn_output", shape.dim, q),
        ("ffn_gate", shape.ff, shape.dim),
        ("ffn_up", shape.ff, shape.dim),
        ("ffn_down", shape.dim, shape.ff),
    ):
        yield f"{name}.weight", (rows, columns), 0.0, 1.5 * columns**-0.5
    yield "attn_norm.weight", (shape.dim,), 1.0, 0.1
    yield "ffn_norm.weight", (shape.dim,), 1.0, 0.1
    if shape.family == "qwen2":
        for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
            yield f"{name}.bias", (rows,), 0.0, 0.5
    if shape.family == "gemma3":
        for name, length in (("attn_q_norm", shape.head_dim), ("attn_k_norm", shape.head_dim)):
            yield f"{name}.weight", (length,), 1.0, 0.1
        for name in ("post_attention_norm", "post_ffw_norm"):
            yield f"{name}.weight", (shape.dim,), 1.0, 0.1


def _matrix(
    rng: np.random.Generator, kind: GGMLQuantizationType, size: tuple[int, ...], spread: float
) -> np.ndarray:
    """Raw rows of a random matrix: quantised by the gguf package, or random blocks where it cannot."""
    if kind.name in RANDOM_BLOCKS:
        return random_blocks(rng, kind.name, size, spread)
    values = rng.normal(0.0, spread, size).astype(np.float32)
    return gguf.quants.quantize(values, kind)


def random_blocks(rng: np.random.Generator, name: str, size: tuple[int, ...], spread: float) -> np.ndarray:
    """Rows of blocks with random codes and scales such that the values centre on zero."""
    scale_at, minimum_at, middle, unit = RANDOM_BLOCKS[name]
    length, nbytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert size[1] % length == 0, f"{name} needs columns in multiples of {length}, got {size[1]}"
    blocks = rng.integers(0, 256, (size[0] * size[1] // length, nbytes), dtype=np.uint8)
    scale = (rng.uniform(0.5, 1.5, (len(blocks), 1)) * spread / unit).astype(np.float16)
    blocks[:, scale_at : scale_at + 2] = scale.view(np.uint8)
    if minimum_at is not None:
        blocks[:, minimum_at : minimum_at + 2] = (scale * np.float16(middle)).view(np.uint8)
    return blocks.reshape(size[0], -1)


# Vocabularies


def _write_bpe(writer: GGUFWriter, vocab: int, pre: str) -> None:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = list(byte_letters().values())
    merges = train_merges(CORPUS.replace(" ", byte_letters()[32]), vocab - len(letters) - len(special))
    tokens = [*letters, *("".join(pair) for pair in merges)]
    kinds = [NORMAL] * len(tokens)
    tokens, kinds = _fill(tokens, kinds, vocab - len(special))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *special])
    writer.add_token_types([*kinds, *[CONTROL] * len(special)])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(vocab - 3)
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(pre == "llama-bpe")
    writer.add_chat_template(CHATML)


def _write_sentencepiece(writer: GGUFWriter, vocab: int) -> None:
    text = CORPUS.replace(" ", "\u2581")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(set(text))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(set(text))]
    pieces = ["".join(pair) for pair in train_merges(text, vocab - len(tokens))]
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(pieces))]
    tokens, kinds = _fill(tokens + pieces, kinds + [NORMAL] * len(pieces), vocab)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores + [-1000.0] * (vocab - len(scores)))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _fill(tokens: list[str], kinds: list[int], count: int) -> tuple[list[str], list[int]]:
    assert len(tokens) <= count, f"a vocabulary of {count} has no room for {len(tokens)} tokens"
    missing = count - len(tokens)
    return tokens + [f"[UNUSED_{i}]" for i in range(missing)], kinds + [UNUSED] * missing


def byte_letters() -> dict[int, str]:
    """The letters in which gpt2-style vocabularies write bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def train_merges(text: str, count: int) -> list[tuple[str, str]]:
    """At most `count` merges of neighbours, the most frequent pair first; none joins what a space begins."""
    space = text[text.index("e") + 1]
    words = [list(space + word) for word in text.split(space)]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = [pair for word in words for pair in pairwise(word)]
        if not pairs:
            break
        best = max(sorted(set(pairs)), key=pairs.count)
        merges.append(best)
        words = [_merge(word, best) for word in words]
    return merges


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in word:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
