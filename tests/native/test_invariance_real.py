"""A row is a row on a real model too, with its own sizes and types: see `test_invariance.py`."""

import numpy as np
import pytest
from bare_native import Native, assert_same, keep, path_to
from real import real_model

from foredraft import _native
from foredraft.core.nouns import Rows, int32s


@pytest.fixture(scope="module")
def smollm2():
    path = real_model("smollm2-135m")
    tokens = [int(number) for number in np.random.default_rng(7).integers(0, 49152, 72)]
    return path, tokens, Native(path, blocks=4).prefill(tokens, [0, 1], chunk=1)


@pytest.mark.parametrize(("chunk", "threads"), [(7, 2), (512, 1), (512, 2)])
def test_real_models_rows_are_the_same_in_chunks(smollm2, chunk, threads):
    path, tokens, expected = smollm2
    assert_same(Native(path, blocks=4, threads=threads).prefill(tokens, [3, 1], chunk=chunk), expected)


def test_real_models_rows_are_the_same_in_a_tree(smollm2):
    path, tokens, expected = smollm2
    subject = Native(path, blocks=4, threads=2)
    subject.prefill(tokens[:60], [2])
    # The text's own next eight tokens as a branch, siblings beside each, and another sequence's first tokens.
    branch = tokens[60:68]
    parents = int32s([-1, -1, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13])
    tree = Rows(int32s([token for own in branch for token in (own + 1, own)]), parents, int32s([0] * 16))
    rows = Rows.join([tree, Rows.chain(tokens[:24], owner=1)])
    found = subject.bits(rows, [60, 0], [[2, 0], [3]])
    assert_same(found[1:16:2], expected[60:68])
    assert_same(found[16:], expected[:24])
    length = keep(subject, [2, 0], 60, path_to(parents, 15))
    assert_same(subject.bits(Rows.chain(tokens[68:]), [length], [[2, 0]]), expected[68:])


@pytest.mark.parametrize("isa", _native.isa_names()[1:])
def test_real_models_rows_are_the_same_on_every_instruction_set(smollm2, isa):
    path, tokens, expected = smollm2
    assert_same(Native(path, blocks=1, isa=isa, threads=2).prefill(tokens[:4], [0]), expected[:4])
