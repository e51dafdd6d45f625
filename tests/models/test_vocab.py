import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import gpt2_metadata, llama_metadata

from foredraft.errors import ModelFileError, UnsupportedModelError
from foredraft.models.tokenizer import Tokenizer
from foredraft.models.vocab import Kind, read_vocabulary

TOKENS = "tokenizer.ggml.tokens"


@pytest.mark.parametrize(("key", "value"), [("model", "bert"), ("pre", "tekken")])
def test_unknown_tokenizers_are_refused_with_the_supported_ones(key, value):
    with pytest.raises(UnsupportedModelError, match=rf"{value}.*supported are .*(llama|qwen2)"):
        Tokenizer.from_metadata(gpt2_metadata() | {f"tokenizer.ggml.{key}": value})


WRONG = {
    "no tokens": (TOKENS, []),
    "tokens not a list": (TOKENS, "abc"),
    "tokens numbers": (TOKENS, np.arange(3)),
    "a token twice": (TOKENS, ["a", "b", "a"]),
    "too few kinds": ("tokenizer.ggml.token_type", np.zeros(3, np.int32)),
    "kinds as text": ("tokenizer.ggml.token_type", ["a"]),
    "model a number": ("tokenizer.ggml.model", 5),
    "pre a list": ("tokenizer.ggml.pre", ["qwen2"]),
    "bos beyond": ("tokenizer.ggml.bos_token_id", 256),
    "eos negative": ("tokenizer.ggml.eos_token_id", -1),
    "eos a truth value": ("tokenizer.ggml.eos_token_id", True),
    "eot a text": ("tokenizer.ggml.eot_token_id", "2"),
    "end of file separator beyond": ("tokenizer.ggml.fim_sep_token_id", 4_000_000_000),
    "add_bos a number": ("tokenizer.ggml.add_bos_token", 1),
    "bos asked for but missing": ("tokenizer.ggml.add_bos_token", True),
    "merges missing": ("tokenizer.ggml.merges", "a b"),
    "a merge of one token": ("tokenizer.ggml.merges", ["ab"]),
    "a merge of nothing": ("tokenizer.ggml.merges", [""]),
    "a merge to no token": ("tokenizer.ggml.merges", ["a b"]),
    "a merge of three": ("tokenizer.ggml.merges", ["a b c"]),
}


@pytest.mark.parametrize(("key", "value"), WRONG.values(), ids=WRONG)
def test_inconsistent_vocabularies_are_refused(key, value):
    with pytest.raises(ModelFileError):
        Tokenizer.from_metadata(gpt2_metadata() | {key: value})


WRONG_LLAMA = {
    "scores missing": ("tokenizer.ggml.scores", None),
    "too few scores": ("tokenizer.ggml.scores", np.zeros(2, np.float32)),
    "scores not finite": ("tokenizer.ggml.scores", np.full(260, np.nan, np.float32)),
    "a byte token of another form": (TOKENS, [f"<0x{index:04X}>" for index in range(260)]),
    "a space prefix that is a text": ("tokenizer.ggml.add_space_prefix", "yes"),
}


@pytest.mark.parametrize(("key", "value"), WRONG_LLAMA.values(), ids=WRONG_LLAMA)
def test_inconsistent_sentencepiece_vocabularies_are_refused(key, value):
    metadata = llama_metadata({"a": -1.0}) | {key: value}
    with pytest.raises(ModelFileError):
        Tokenizer.from_metadata({name: entry for name, entry in metadata.items() if entry is not None})


def test_absurdly_long_tokens_are_refused():
    with pytest.raises(ModelFileError, match="too long"):
        Tokenizer.from_metadata(llama_metadata({"a" * 40_000: -1.0}))


def test_a_sentencepiece_vocabulary_without_bytes_needs_an_unknown_token():
    metadata = {
        "tokenizer.ggml.model": "llama",
        TOKENS: ["a", "b"],
        "tokenizer.ggml.scores": np.zeros(2, np.float32),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
    }
    assert Tokenizer.from_metadata(metadata | {"tokenizer.ggml.add_space_prefix": False}).encode("ax") == [
        0,
        1,
    ]


def test_end_texts_become_control_tokens_whatever_the_file_calls_them():
    metadata = gpt2_metadata(user=["<|im_end|>", "</s>"])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.eos_ids == {256}, "an HTML tag is no end"
    assert tokenizer.special_ids == {256}
    assert metadata["tokenizer.ggml.token_type"][256] == Kind.USER_DEFINED, (
        "the file's values stay as they are"
    )
    control = Tokenizer.from_metadata(gpt2_metadata(control=["</s>"]))
    assert control.eos_ids == {256}


def test_an_empty_token_gets_a_name():
    metadata = gpt2_metadata()
    metadata[TOKENS] = [*metadata[TOKENS][:-1], ""]
    assert read_vocabulary(metadata).tokens[-1] == "[EMPTY_255]"


KEYS = [
    *("add_bos_token", "add_space_prefix", "bos_token_id", "eos_token_id", "eot_token_id"),
    *("eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id", "merges"),
    *("model", "pre", "scores", "token_type", "tokens"),
    *("unknown_token_id",),
]
ODD = [True, 0, -1, 2**63, 1e300, float("nan"), "", "gpt2", "llama", "a b", [], ["a"] * 3, ["<0x00>"] * 258]
ODD += [np.zeros(0), np.full(258, 9e99), np.full(258, np.nan), np.full(258, 6, np.uint64), np.arange(258.0)]
ODD += [np.zeros(258, np.bool_), ["\udcff", "a", ""], [str(number) for number in range(258)]]


@given(st.booleans(), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(ODD), min_size=1, max_size=3))
def test_odd_values_give_a_clear_error_or_a_working_tokenizer(llama, values):
    metadata = llama_metadata({}, user=[]) if llama else gpt2_metadata(user=["x", "y"][:2])
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
    except (ModelFileError, UnsupportedModelError):
        return
    tokenizer.encode("a\x00 é", special=True, bos=True)
    tokenizer.decode(range(tokenizer.vocab_size))
