"""The native forward against the float64 twin, on tiny models of every family: chains and trees, logits and
hidden states.

With F32 weights and an f32 cache only float32's rounding is between them. Quantised weights cost nothing (the
twin has the same values), but the activations they are multiplied with are rounded to 8 bits. Of 32 normally
distributed activations the largest is near 2.2 standard deviations, so a step is 2.2/127 of one, and rounding
to steps leaves an error of 0.29 steps: 0.5 % of the activations, and of each product. A block has four such
products in a row, and their independent errors add up as squares: after two blocks and the head to 0.5 %
times the root of 9, 1.5 % of the deviation of the logits, and about twice that, since a softmax amplifies and
since products of gate and up have larger maximums. The bound is 4 % over all values and 8 % in the worst row;
a wrong sign, scale or angle gives some 100 %.
"""

from itertools import pairwise

import numpy as np
import pytest
from bare_native import Native, keep, path_to
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.quants import FORMATS
from foredraft.models.twin import twin_hidden, twin_weights

LENGTH = 83  # five sliding windows of 16, and a border between blocks
EXACT, HALF_CACHE, QUANTISED = 2e-5, 5e-3, 0.04  # root mean square, in deviations
K_TYPES = {"dim": 256, "ff": 256, "heads": 16, "kv_heads": 2}
SHAPES = {
    "llama": {},
    "llama, one kv head": {"heads": 6, "kv_heads": 1, "head_dim": 32},
    "llama with rope factors": {"rope_factors": True, "tied": False},
    "qwen2": {"vocab": 299},
    "qwen2 untied": {"tied": False, "layers": 3, "heads": 4, "kv_heads": 4},
    "gemma3": {"layers": 4, "head_dim": 32},
    "gemma3 untied": {"tied": False, "layers": 3, "period": 3, "window": 24},
}


def family_of(name):
    return name.replace(",", " ").split()[0]


class Twin:
    """The float64 forward of the model in a file, for single sequences."""

    def __init__(self, path):
        file = read_gguf(path)
        self.spec = describe(file)
        self.weights = twin_weights(file, self.spec)

    def run(self, tokens):
        """Logits [n, vocab] and hidden states [layers, n, dim], as the native module gives them."""
        hidden = twin_hidden(self.spec, self.weights, tokens)
        x = hidden[-1]
        normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.spec.eps) * self.weights["norm"]
        return normed @ self.weights["head"].astype(np.float64).T, np.stack(hidden)


def distances(found, expected):
    """The root mean square error of all values and of the worst row's, in deviations of those expected."""
    rows = np.mean((found - expected) ** 2, axis=-1)
    return np.sqrt(rows.mean()) / expected.std(), np.sqrt(rows.max()) / expected.std()


def assert_near(found, expected, bound):
    """Logits and hidden states; a single row may be twice as far off."""
    for own, other in zip(found, expected, strict=True):
        assert own.shape == other.shape
        overall, worst = distances(own, other)
        assert overall < bound
        assert worst < 2 * bound


def tokens_for(spec, count, seed=1):
    return np.random.default_rng(seed).integers(0, spec.vocab, count).tolist()


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", SHAPES)
def test_chain_of_plain_weights_agrees(tmp_path, name, isa):
    path = write_tiny(tmp_path / "a", family_of(name), seed=2, quant="F32", **SHAPES[name])
    twin, native = Twin(path), Native(path, kv="f32", threads=2, isa=isa)
    tokens = tokens_for(twin.spec, LENGTH)
    found = native.run(Rows.chain(tokens), [0], [[3, 1]])
    expected = twin.run(tokens)
    assert expected[0].std() > 1  # logits that differ, so that agreement says something
    assert_near(found, expected, EXACT)


@pytest.mark.parametrize("name", SHAPES)
def test_half_cache_costs_little(tmp_path, name):
    """Keys and values have 11 bits in it: a relative error of 2^-12 each, which some norms amplify."""
    path = write_tiny(tmp_path / "a", family_of(name), seed=3, quant="F32", **SHAPES[name])
    twin, native = Twin(path), Native(path, kv="f16")
    tokens = tokens_for(twin.spec, LENGTH)
    found, expected = native.run(Rows.chain(tokens), [0], [[0, 1]]), twin.run(tokens)
    assert_near(found, expected, HALF_CACHE)
    assert distances(found[0], expected[0])[0] > EXACT  # it is another cache, not the same one


@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_quantised_weights_agree_within_the_activations_rounding(tmp_path, family, quant):
    path = write_tiny(tmp_path / "a", family, seed=4, quant=quant, **K_TYPES)
    twin, native = Twin(path), Native(path, threads=2)
    tokens = tokens_for(twin.spec, LENGTH)
    found, expected = native.run(Rows.chain(tokens), [0], [[2, 0]]), twin.run(tokens)
    bound = HALF_CACHE if quant in ("F32", "F16", "BF16") else QUANTISED
    assert_near(found, expected, bound)


@pytest.mark.parametrize("name", SHAPES)
def test_trees_agree_row_by_row(tmp_path, name):
    """Two sequences: a tree of three roots across a block's border, and a chain; then a branch is kept."""
    path = write_tiny(tmp_path / "a", family_of(name), seed=5, quant="F32", **SHAPES[name])
    twin, native = Twin(path), Native(path, kv="f32", threads=2)
    prompt, other = tokens_for(twin.spec, 60, seed=6), tokens_for(twin.spec, 9, seed=7)
    parents = int32s([-1, -1, 0, 1, 3, 3, -1, 5, 7, 8, 4, 9])
    tree = Rows(int32s(tokens_for(twin.spec, 12, seed=8)), parents, int32s([0] * 12))
    tables = [[5, 2], [7]]
    native.prefill(prompt, tables[0])
    logits, hidden = native.run(Rows.join([tree, Rows.chain(other, owner=1)]), [60, 0], tables)
    branches = [[int(tree.tokens[row]) for row in path_to(parents, last)] for last in range(12)]
    for row, branch in enumerate(branches):
        expected = [values[..., -1, :] for values in twin.run([*prompt, *branch])]
        assert_near((logits[row], hidden[:, row]), expected, EXACT)
    assert_near((logits[12:], hidden[:, 12:]), twin.run(other), EXACT)
    length = keep(native, tables[0], 60, path_to(parents, 11))
    found = native.run(Rows.chain([3, 4]), [length], tables[:1])
    expected = [values[..., -2:, :] for values in twin.run([*prompt, *branches[11], 3, 4])]
    assert_near(found, expected, EXACT)


def test_long_context_agrees(tmp_path):
    """Large angles of rope, sums over many keys, windows that have long moved on."""
    path = write_tiny(tmp_path / "a", "gemma3", seed=9, quant="F32", layers=3, period=3, window=100)
    twin, native = Twin(path), Native(path, kv="f32", threads=2, blocks=24)
    tokens = tokens_for(twin.spec, 1500)
    table = np.random.default_rng(10).permutation(24)
    for start, end in pairwise((0, 700, 1401, 1500)):
        logits, hidden = native.run(Rows.chain(tokens[start:end]), [start], [table])
    expected = [values[..., 1401:, :] for values in twin.run(tokens)]
    assert_near((logits, hidden), expected, EXACT)


def test_only_what_is_wanted_comes_back_in_the_order_wanted(tmp_path):
    path = write_tiny(tmp_path / "a", "qwen2", layers=3)
    native = Native(path)
    rows = Rows.chain(tokens_for(native.spec, 20))
    logits, hidden = native.run(rows, [0], [[0]])
    wanted, layers, taps = [7, 3, 7, 19], [2, 0, 2], [5, 1]
    some, states = native.forward(rows, [0], [[0]], wanted, layers, taps)
    assert (some == logits[wanted]).all()
    assert (states == hidden[layers][:, taps]).all()
    nothing, none = native.forward(rows, [0], [[0]], [], [], [])
    assert nothing.shape == (0, native.spec.vocab)
    assert none.shape == (0, 0, native.spec.dim)


def test_several_models_live_side_by_side(tmp_path):
    paths = [write_tiny(tmp_path / family, family) for family in ("llama", "qwen2", "gemma3")]
    alone = [Native(path).prefill([1, 2, 3], [0]) for path in paths]
    together = [Native(path, threads=2) for path in paths]
    for token in range(3):
        for native, expected in zip(together, alone, strict=True):
            found = native.bits(Rows.chain([token + 1]), [token], [[0]])
            assert (found == expected[token]).all()
