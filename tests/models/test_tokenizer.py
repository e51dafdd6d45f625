import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from vocabularies import LARGER, SMALL, gpt2_metadata, llama_metadata, tokenizer_of

from foredraft.errors import TokenError, UsageError
from foredraft.models.tokenizer import PRE_TOKENIZERS, Tokenizer
from foredraft.models.vocab import Kind, read_vocabulary

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = [SMALL, *(pytest.param(name, marks=pytest.mark.models) for name in LARGER)]
# SmolLM2 has no token for these bytes.
UNREADABLE = bytes((4, 6, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2))
TOKENS = "tokenizer.ggml.tokens"

texts = st.text(st.characters(exclude_categories=["Cs"]))
tricky_texts = st.text(st.sampled_from("aA sStTlL'’é\u0301ſ日1٢²½ \t\n\r\u00a0\u2028.,!$+<|~_😀\x00\x85"))


def golden(name):
    return json.loads((GOLDEN / f"text-{name}.json").read_text())


# Real vocabularies


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_llama_cpp(name):
    tokenizer = tokenizer_of(name)
    for case in golden(name)["tokenize"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.decode_bytes(case["ids"]) == case["text"].encode()
    for case in golden(name)["tokenize_special"]:
        assert tokenizer.encode(case["text"], special=True, bos=True) == case["ids"], case["text"]


@pytest.mark.parametrize("name", MODELS)
def test_prompts_and_completions_are_those_of_llama_cpp(name):
    tokenizer = tokenizer_of(name)
    for case in golden(name)["completions"]:
        assert tokenizer.encode(case["prompt"], special=True, bos=True) == case["prompt_ids"]
        assert tokenizer.decode(case["ids"], special=False) == case["text"]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        (SMALL, {"<|im_end|>", "<|endoftext|>", "<reponame>"}),
        pytest.param("gemma3-270m", {"<eos>", "<end_of_turn>"}, marks=pytest.mark.models),
        pytest.param(
            "qwen2.5-coder-0.5b",
            {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
            marks=pytest.mark.models,
        ),
    ],
)
def test_end_tokens_are_those_that_llama_cpp_knows(name, ends):
    tokenizer = tokenizer_of(name)
    assert {tokenizer.token_bytes(token).decode() for token in tokenizer.eos_ids} == ends
    assert tokenizer.eos_ids <= tokenizer.special_ids


@given(texts)
@example("a\x04\x06b")
@example("\U00040000")
def test_the_bytes_of_the_ids_are_the_bytes_of_the_text(text):
    tokenizer = tokenizer_of(SMALL)
    readable = bytes(byte for byte in text.encode() if byte not in UNREADABLE)
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == readable


@pytest.mark.models
@pytest.mark.parametrize("name", LARGER[:2])
@given(text=texts)
@example(text="  \n\n\n </s> <div>\t\t\u2581x")
def test_the_bytes_of_the_ids_are_the_bytes_of_the_text_in_larger_models(name, text):
    tokenizer = tokenizer_of(name)
    # SentencePiece writes a space as U+2581, so that the character itself comes back as a space.
    expected = text.replace("\u2581", " ") if tokenizer.vocabulary.model == "llama" else text
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == expected.encode()


@pytest.mark.parametrize("name", MODELS)
def test_control_tokens_are_read_only_where_asked_for(name):
    tokenizer = tokenizer_of(name)
    for token in tokenizer.eos_ids:
        text = tokenizer.token_bytes(token).decode()
        assert tokenizer.encode(f"a{text}b", special=True).count(token) == 1
        plain = tokenizer.encode(f"a{text}b")
        assert not tokenizer.special_ids.intersection(plain)
        assert tokenizer.decode(plain) == f"a{text}b"


@pytest.mark.parametrize("text", ["x" * 200_000, " " * 200_000, "\n" * 50_000, "ab " * 50_000])
def test_long_texts_are_read(text):
    tokenizer = tokenizer_of(SMALL)
    assert tokenizer.decode(tokenizer.encode(text)) == text


# Pre-tokenizers, against the patterns of the models' own tokenizer.json

HUGGING_FACE_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bytes_of(*steps: PreTokenizer) -> PreTokenizer:
    return Steps([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])


REFERENCES = {
    "gpt-2": ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": Steps([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]),
    "qwen2": bytes_of(Split(Regex(HUGGING_FACE_WORDS % r"\p{N}"), "isolated")),
    "llama-bpe": bytes_of(Split(Regex(HUGGING_FACE_WORDS % r"\p{N}{1,3}"), "isolated")),
}


@pytest.mark.parametrize("pre", REFERENCES)
@given(text=texts | tricky_texts)
def test_pieces_are_those_of_the_reference(pre, text):
    text = text.replace("ſ", "")  # by folding case, the reference takes 'ſ for 's; llama.cpp does not
    ours = bytes_of(*(Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre]))
    assert ours.pre_tokenize_str(text) == REFERENCES[pre].pre_tokenize_str(text)


def test_the_default_pre_tokenizer_splits_punctuation_words_and_digits_by_three():
    words = [b" it", b"1234", b"123", b"()", b" x"]
    merges = ["Ġ i", "Ġi t", "1 2", "12 3", "123 4", "( )", "Ġ x"]
    tokenizer = Tokenizer.from_metadata(gpt2_metadata([*words, b" i", b"12"], merges=merges, pre="default"))
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode(" it x1234()")]
    assert pieces == [b" it", b" x", b"123", b"4", b"()"]


def test_a_missing_pre_tokenizer_is_the_default_one():
    metadata = gpt2_metadata()
    del metadata["tokenizer.ggml.pre"]
    assert read_vocabulary(metadata).pre == "default"


@pytest.mark.parametrize(("pre", "ids"), [("llama-bpe", [256]), ("qwen2", [97, 98, 99])])
def test_llama3_takes_a_piece_that_is_a_token_whole_even_if_no_merge_leads_to_it(pre, ids):
    metadata = gpt2_metadata([b"abc"], pre=pre) | {"tokenizer.ggml.add_bos_token": False}
    assert Tokenizer.from_metadata(metadata).encode("abc") == ids


# SentencePiece, against a slow merge by the definition


def slow_merge(text, scores):
    """Join the two neighbours whose join is the best-scored token, the leftmost ones of equals, until none
    is left.
    """
    symbols = list(text)
    while True:
        pairs = [left + right for left, right in pairwise(symbols)]
        joins = [index for index, pair in enumerate(pairs) if pair in scores]
        if not joins:
            return symbols
        best = max(joins, key=lambda index: (scores[pairs[index]], -index))
        symbols[best : best + 2] = [pairs[best]]


@given(
    st.lists(st.text("abé\u2581", min_size=1, max_size=5), unique=True, max_size=30),
    st.randoms(use_true_random=False),
    st.text("abé ", max_size=30),
)
def test_sentencepiece_merges_the_best_score_first(words, random, text):
    random.shuffle(words)
    scores = {word: -float(rank) for rank, word in enumerate(words)}
    tokenizer = Tokenizer.from_metadata(
        llama_metadata(scores, more={"tokenizer.ggml.add_space_prefix": False})
    )
    expected = []
    for symbol in slow_merge(text.replace(" ", "\u2581"), scores):
        index = 259 + words.index(symbol) if symbol in scores else None
        expected += [index] if index is not None else [3 + byte for byte in symbol.encode()]
    assert tokenizer.encode(text) == expected


@given(texts)
def test_sentencepiece_falls_back_to_bytes(text):
    tokenizer = Tokenizer.from_metadata(
        llama_metadata(
            {"\u2581": -1.0, "a": -2.0, "aa": -3.0}, more={"tokenizer.ggml.add_space_prefix": False}
        )
    )
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.replace("\u2581", " ").encode()


def test_sentencepiece_puts_a_space_before_a_text_and_after_a_special_token():
    tokenizer = Tokenizer.from_metadata(
        llama_metadata({"\u2581": -1.0, "a": -2.0, "\u2581a": -3.0}, user=["<x>"])
    )
    a, with_space, user = 260, 261, 262
    assert tokenizer.encode("aa") == [with_space, a]
    assert tokenizer.encode("a<x>a") == [with_space, user, with_space]
    assert tokenizer.encode("a</s>a", special=True, bos=True) == [1, with_space, 2, with_space]
    assert tokenizer.encode("") == []
    assert tokenizer.decode(tokenizer.encode("aa")) == " aa"


def test_user_defined_runs_are_found_longest_first():
    runs = ["\n", "\n\n", "\n\n\n", "  "]
    metadata = llama_metadata({"a": -1.0}, user=runs, more={"tokenizer.ggml.add_space_prefix": False})
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("\n" * 5 + "a" + " " * 3) == [262, 261, 259, 263, 3 + 0xE2, 3 + 0x96, 3 + 0x81]
    assert tokenizer.token_bytes(263) == b"  "


def test_a_users_words_do_not_merge_into_a_control_token():
    scores = {"<": -1.0, "/": -2.0, "s": -3.0, ">": -4.0, "</": -5.0, "</s": -6.0}
    tokenizer = Tokenizer.from_metadata(
        llama_metadata(scores, more={"tokenizer.ggml.add_space_prefix": False})
    )
    assert tokenizer.encode("</s>") == [264, 262]
    assert tokenizer.encode("</s>", special=True) == [2]


# The beginning token


def test_the_beginning_token_is_put_first_once_and_only_if_the_model_asks_for_it():
    plain = Tokenizer.from_metadata(gpt2_metadata(control=["<s>"]))
    assert plain.encode("a", bos=True) == [97]
    more = {"tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.add_bos_token": True}
    tokenizer = Tokenizer.from_metadata(gpt2_metadata(control=["<s>"]) | more)
    assert tokenizer.encode("a") == [97]
    assert tokenizer.encode("a", bos=True) == [256, 97]
    assert tokenizer.encode("", bos=True) == [256]
    assert tokenizer.encode("<s>a", special=True, bos=True) == [256, 97]
    assert tokenizer.encode("<s>", bos=True)[:2] == [256, ord("<")]


# Decoding


@pytest.mark.parametrize("token", [-1, 259, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token):
    tokenizer = Tokenizer.from_metadata(llama_metadata({}))
    with pytest.raises(TokenError, match="outside the vocabulary"):
        tokenizer.decode([token])


def test_unused_tokens_have_no_text_and_control_tokens_only_if_asked_for():
    metadata = gpt2_metadata([b"unused"], control=["<|im_end|>"])
    metadata["tokenizer.ggml.token_type"][256] = Kind.UNUSED
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode([0, 256, 257]) == "\x00<|im_end|>"
    assert tokenizer.decode([0, 256, 257], special=False) == "\x00"


def test_tokens_that_are_not_utf8_keep_their_bytes():
    odd = b"\xff\xfe".decode("utf-8", "surrogateescape")
    tokenizer = Tokenizer.from_metadata(llama_metadata({odd: -1.0, "a": -2.0}))
    assert tokenizer.token_bytes(259) == b"\xff\xfe"
    assert tokenizer.decode([259]) == "\ufffd\ufffd"


# Wrong input


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff"])
def test_lone_surrogates_are_refused_with_their_place(text):
    with pytest.raises(UsageError, match="lone surrogate"):
        tokenizer_of(SMALL).encode(text)


def test_bytes_are_refused():
    with pytest.raises(UsageError, match="bytes"):
        tokenizer_of(SMALL).encode(b"text")
