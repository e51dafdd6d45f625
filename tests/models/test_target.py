"""The native engine behind the `Target` seam, against the float64 twin. Weights are F32 here, so that the two
differ by rounding only; what quantised weights cost is measured elsewhere.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from tiny import write_tiny

from foredraft import LLM, OutOfMemoryError, TokenError, UsageError
from foredraft.core.nouns import Rows, int32s
from foredraft.core.target import Taps
from foredraft.engine.kv import BLOCK, KVPool
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import PANEL, LoadOptions, NativeTarget, held_bytes, kv_block_bytes, tables_of
from foredraft.models.twin import twin_forward, twin_hidden, twin_weights

BLOCKS = 12


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def loaded(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("target") / "tiny.gguf"
    file = read_gguf(write_tiny(path, request.param, quant="F32", window=16))
    spec = describe(file)
    target = NativeTarget.load(file, spec, LoadOptions(BLOCKS, kv="f32", threads=2))
    weights = twin_weights(file, spec)
    return (
        target,
        lambda tokens: twin_forward(spec, weights, tokens),
        lambda tokens: twin_hidden(spec, weights, tokens),
    )


def everything(rows):
    return int32s(range(len(rows)))


def test_chain_beside_a_tree_gives_the_twins_logits(loaded):
    target, twin, _ = loaded
    pool = KVPool(BLOCKS)
    first, second = pool.open(), pool.open()
    start, other = list(range(30, 100)), [7, 8, 9]
    target.forward(Rows.chain(start), [first], int32s([]))
    target.keep(first, range(len(start)))
    tree = Rows(int32s([1, 2, 3, 4, 5]), int32s([-1, 0, 0, 2, 1]), int32s([0] * 5))
    rows = Rows.join([tree, Rows.chain(other, owner=1)])
    logits = target.forward(rows, [first, second], everything(rows)).logits
    paths = [(1,), (1, 2), (1, 3), (1, 3, 4), (1, 2, 5)]
    for row, path in enumerate(paths):
        assert logits[row] == pytest.approx(twin([*start, *path])[-1], abs=1e-3)
    assert logits[5:] == pytest.approx(twin(other), abs=1e-3)


def test_kept_branch_goes_on_like_a_chain(loaded):
    target, _, _ = loaded
    pool = KVPool(BLOCKS)
    branched, plain = pool.open(), pool.open()
    start = list(range(30, 30 + BLOCK - 2))
    for cache in (branched, plain):
        target.forward(Rows.chain(start), [cache], int32s([]))
        target.keep(cache, range(len(start)))
    tree = Rows(int32s([1, 2, 3, 4, 5, 6]), int32s([-1, 0, 0, 2, 1, 3]), int32s([0] * 6))
    target.forward(tree, [branched], everything(tree))
    target.keep(branched, [0, 2, 3, 5])
    target.forward(Rows.chain([1, 3, 4, 6]), [plain], int32s([3]))
    target.keep(plain, range(4))
    both = Rows.join([Rows.chain([9], owner=0), Rows.chain([9], owner=1)])
    after = target.forward(both, [branched, plain], everything(both)).logits
    assert (after[0] == after[1]).all()
    pool.check([branched, plain])


def test_taps_give_the_residual_stream_after_a_layer(loaded):
    target, _, hidden = loaded
    tokens = [5, 6, 7, 8]
    scores = target.forward(Rows.chain(tokens), [KVPool(BLOCKS).open()], int32s([]), Taps((1, 0), (3, 1)))
    expected = hidden(tokens)
    assert scores.logits.shape == (0, target.vocab)
    assert scores.hidden.shape == (2, 2, target.spec.dim)
    assert scores.hidden[0] == pytest.approx(expected[1][[3, 1]], abs=1e-3)
    assert scores.hidden[1] == pytest.approx(expected[0][[3, 1]], abs=1e-3)


def test_chosen_panels_give_their_part_of_the_logits(loaded):
    target, _, _ = loaded
    rows = Rows.chain([5, 6, 7])
    full = target.forward(rows, [KVPool(BLOCKS).open()], everything(rows)).logits
    cut = target.forward(rows, [KVPool(BLOCKS).open()], everything(rows), panels=int32s([2, 18])).logits
    assert cut.shape == (3, 2 * PANEL)
    assert np.array_equal(cut[:, :PANEL], full[:, 2 * PANEL : 3 * PANEL])
    assert np.array_equal(cut[:, PANEL : PANEL + 12], full[:, 18 * PANEL :])  # a vocabulary of 300
    assert (cut[:, PANEL + 12 :] == -np.inf).all()


def test_bytes_read_shrink_with_the_head(loaded):
    target, _, _ = loaded
    row = 4 * target.spec.dim
    assert target.read_bytes() == target.model.weight_bytes
    assert target.read_bytes(19) == target.read_bytes()
    assert target.read_bytes(18) == target.read_bytes() - 12 * row
    assert target.read_bytes(0) == target.read_bytes() - 300 * row


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quant", ["file", "q4"])
def test_weights_held_are_those_read_and_the_embedding(tmp_path, quant, tied):
    """As far as they differ: a row of it is read, and a tied head that was not requantised is the same."""
    file = read_gguf(write_tiny(tmp_path / "a", quant=("Q8_0", "Q5_0", "F16"), tied=tied))
    spec = describe(file)
    target = NativeTarget.load(file, spec, LoadOptions(1, quant=quant))
    apart = not tied or quant == "q4"
    embedding = file.tensors[spec.tensors["embed"]].nbytes
    assert held_bytes(file, spec, quant) == target.read_bytes() + (embedding if apart else 0)


def test_requantised_model_stays_near_the_files(tmp_path):
    file = read_gguf(write_tiny(tmp_path / "a", quant="F16"))
    rows = Rows.chain(range(30, 60))
    full, small = (
        NativeTarget.load(file, describe(file), LoadOptions(1, quant=quant))
        .forward(rows, [KVPool(1).open()], everything(rows))
        .logits
        for quant in ("file", "q4")
    )
    error = np.sqrt(np.mean((small - full) ** 2)) / full.std()
    assert 0.01 < error < 0.4  # a matrix loses some 8 %; there are a dozen, one after another


def test_token_outside_the_vocabulary_is_refused(loaded):
    target, _, _ = loaded
    with pytest.raises(TokenError, match="token 300"):
        target.forward(Rows.chain([1, 300]), [KVPool(1).open()], int32s([]))


def test_tables_are_padded():
    pool = KVPool(4)
    first, second = pool.open(), pool.open()
    first.reserve(2 * BLOCK)
    second.reserve(1)
    assert tables_of([first, second]).tolist() == [[0, 1], [2, 0]]
    assert tables_of([]).shape == (0, 0)


def test_cache_size_is_what_the_module_takes(loaded):
    target, _, _ = loaded
    assert kv_block_bytes(target.spec, "f32") == target.model.kv_bytes_per_block


def test_memory_is_foreseen(tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf", context=2**31 - 1)
    with pytest.raises(OutOfMemoryError, match=r"A context of \d+ tokens would fit"):
        LLM(path, ctx=2**31 - 1)


@pytest.mark.parametrize(
    "options", [{"kv": "f8"}, {"threads": -1}, {"threads": 1025}, {"isa": "sse9"}, {"quant": "q5"}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="but"):
        LoadOptions(1, **options)


def test_unknown_instruction_set_is_told(tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf")
    command = [sys.executable, "-m", "foredraft", "run", "-m", str(path), "x"]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "FOREDRAFT_ISA": "sse9"})
    assert ended.returncode == 2
    assert b"FOREDRAFT_ISA is 'sse9'" in ended.stderr


def test_progress_ends_with_everything_done(tmp_path):
    seen = []
    path = write_tiny(tmp_path / "tiny.gguf")
    LLM(path, progress=lambda done, total: seen.append((done, total))).close()
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_equal_bits_whatever_the_sampling_of_rows(loaded):
    target, _, _ = loaded
    tokens = list(range(40, 60))
    whole = target.forward(Rows.chain(tokens), [KVPool(BLOCKS).open()], int32s(range(20))).logits
    cache = KVPool(BLOCKS).open()
    for index, token in enumerate(tokens):
        single = target.forward(Rows.chain([token]), [cache], int32s([0])).logits
        target.keep(cache, [0])
        assert np.array_equal(single[0], whole[index])
