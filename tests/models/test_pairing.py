import numpy as np
import pytest
from vocabularies import gpt2_metadata, tokenizer_of

from foredraft import UsageError
from foredraft.models.pairing import check_pair
from foredraft.models.tokenizer import Tokenizer
from foredraft.models.vocab import Kind

WORDS, CONTROL = [b"the", b"fox"], ["<|end|>"]


def tokenizer(words=WORDS, control=CONTROL, padding=()):
    """`padding`: rows at the end that fill up the table, each with a name of its own."""
    metadata = gpt2_metadata(words, control)
    metadata["tokenizer.ggml.tokens"] += padding
    kinds = [*metadata["tokenizer.ggml.token_type"].tolist(), *[Kind.UNUSED] * len(padding)]
    metadata["tokenizer.ggml.token_type"] = np.array(kinds, np.int32)
    return Tokenizer.from_metadata(metadata)


def test_equal_vocabularies_are_a_pair():
    check_pair(tokenizer(), tokenizer(), "big", "small")


@pytest.mark.parametrize(
    ("ours", "theirs"), [((), ("[PAD0]", "[PAD1]")), (("[PAD0]",), ()), (("[PAD0]",), ("<other>",))]
)
def test_rows_that_only_fill_up_may_differ(ours, theirs):
    check_pair(tokenizer(padding=ours), tokenizer(padding=theirs), "big", "small")


def test_padding_of_one_that_the_other_uses_is_a_difference():
    with pytest.raises(UsageError, match=r"1 of their tokens differ \(token 259 is missing and 'dog'\)"):
        check_pair(tokenizer(padding=("dog",)), tokenizer(control=[*CONTROL, "dog"]), "big", "small")


def test_refusal_names_the_first_tokens_that_differ_and_what_to_do():
    with pytest.raises(UsageError) as caught:
        check_pair(tokenizer(), tokenizer([b"fox", b"the"]), "big", "small")
    assert str(caught.value) == (
        "small cannot draft for big: 2 of their tokens differ (token 256 is 'the' and 'fox'; "
        "token 257 is 'fox' and 'the'). Give a draft model of the same family, with the same tokenizer."
    )


def test_a_long_list_of_differences_is_cut():
    with pytest.raises(UsageError) as caught:
        check_pair(tokenizer([b"a1", b"b1", b"c1", b"d1"]), tokenizer([b"a2", b"b2", b"c2", b"d2"]), "x", "y")
    assert "4 of their tokens differ" in str(caught.value)
    assert "token 258 is" in str(caught.value)
    assert "token 259" not in str(caught.value)
    assert "…" in str(caught.value)


@pytest.mark.models
def test_the_registrys_drafter_fits_its_target():
    names = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
    big, small = map(tokenizer_of, names)
    check_pair(big, small, *names)
    check_pair(small, big, *reversed(names))


@pytest.mark.models
def test_another_family_is_refused():
    names = ("qwen2.5-coder-0.5b", "smollm2-135m")
    big, small = map(tokenizer_of, names)
    with pytest.raises(UsageError, match=r"smollm2-135m cannot draft for .* \(token 0 is '!' and '<\|endof"):
        check_pair(big, small, *names)
