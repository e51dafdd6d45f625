"""A row is a row: what is computed for one depends on its own path and nothing else. Bits are compared, of
logits and of hidden states after every layer.

Expected values are a row's own when it is computed alone: its path from the first token on, one row a pass,
one thread, blocks in order, the best instruction set.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from bare_native import Native, assert_same, keep, path_to
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows, int32s
from foredraft.models.gguf import read_gguf
from foredraft.models.target import BLOCK

BLOCKS = 48
K_TYPES = {"dim": 256, "ff": 256, "heads": 16, "kv_heads": 2}  # their blocks hold 256 inputs
MODELS = {
    "llama": {"quant": ("Q4_0", "Q8_0", "Q5_1", "F16", "Q5_0", "Q4_1", "BF16"), "vocab": 299},
    "llama K": K_TYPES | {"quant": ("Q6_K", "Q4_K", "Q5_K", "Q4_K", "Q8_0"), "rope_factors": True},
    "qwen2": {"quant": ("Q8_0", "Q5_0", "Q4_0", "F32"), "tied": False, "kv_heads": 4},
    "qwen2 K": K_TYPES | {"quant": ("Q4_K", "Q6_K"), "tied": False, "layers": 3, "vocab": 307},
    "gemma3": {"quant": ("Q8_0", "Q4_0", "Q5_1"), "layers": 3, "period": 3, "window": 20, "kv_heads": 1},
    "gemma3 K": K_TYPES | {"quant": ("Q5_K", "Q6_K", "F16"), "head_dim": 32, "heads": 8, "window": 70},
}


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """`native(model, ...)`: the model loaded so, once. What earlier passes left in its cache is there."""
    folder, loaded = tmp_path_factory.mktemp("invariance"), {}

    def load(model, kv="f16", isa="", threads=1, role="subject"):
        key = (model, kv, isa, threads, role)
        if key not in loaded:
            path = folder / f"{model}.gguf"
            if not path.exists():
                write_tiny(path, model.split()[0], seed=len(model), **MODELS[model])
            loaded[key] = Native(path, blocks=BLOCKS, kv=kv, isa=isa, threads=threads)
        return loaded[key]

    return load


class Alone:
    """Rows computed alone."""

    def __init__(self, native, prompt):
        self.native = native
        self.prompt = list(prompt)
        self.rows = native.prefill(self.prompt, range(BLOCKS), chunk=1)

    def after(self, tokens):
        """The rows of these tokens after the prompt, which is still in the cache."""
        return self.native.prefill([*self.prompt, *tokens], range(BLOCKS), chunk=1, start=len(self.prompt))

    def tree(self, rows):
        """Every row of a tree after the prompt, each as the end of its own chain."""
        paths = [path_to(rows.parents, row) for row in range(len(rows))]
        return np.stack([self.after([int(rows.tokens[row]) for row in path])[-1] for path in paths])


def random_tokens(rng, native, count):
    return rng.integers(0, native.spec.vocab, count).tolist()


def interleaved(parts, rng):
    """The rows of several sequences in random order, each sequence's own order kept; and for every row, which
    of the rows joined it is.
    """
    joined = Rows.join(parts)
    origin = np.empty(len(joined), np.int32)
    owners = rng.permutation(joined.owners)
    for owner in range(len(parts)):
        origin[owners == owner] = np.flatnonzero(joined.owners == owner)
    place = np.argsort(origin)
    parents = joined.parents[origin]
    return Rows(joined.tokens[origin], np.where(parents < 0, parents, place[parents]), owners), origin


# Cases that hypothesis draws.


@dataclass(frozen=True)
class Case:
    model: str
    kv: str
    isa: str
    threads: int
    chunk: int
    prompts: tuple[int, ...]  # tokens of each sequence
    shared: int  # blocks of the second sequence that are the first one's
    trees: tuple[tuple[int, ...], ...]  # parents, for each sequence
    last: int  # rows of each sequence's last chain
    seed: int


@st.composite
def cases(draw):
    isa = draw(st.sampled_from(_native.isa_names()))
    most = 70 if isa == "scalar" else 150
    borders = [n for n in (0, 1, 15, 16, 17, 62, 63, 64, 65, 127, 128, 129) if n <= most]
    prompt = st.one_of(st.sampled_from(borders), st.integers(0, most))
    prompts = draw(st.lists(prompt, min_size=1, max_size=4))
    shared = draw(st.integers(0, min(prompts[:2]) // BLOCK)) if len(prompts) > 1 else 0
    return Case(
        draw(st.sampled_from(list(MODELS))),
        draw(st.sampled_from(["f16", "f32"])),
        isa,
        draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([1, 7, 512])),
        tuple(prompts),
        shared,
        tuple(draw(trees()) for _ in prompts),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2**32 - 1)),
    )


@st.composite
def trees(draw):
    """Parents of 1 to 10 rows: chains, branches, several roots."""
    rows = draw(st.integers(1, 10))
    if draw(st.booleans()):
        return tuple(range(-1, rows - 1))
    return tuple(draw(st.integers(-1, row - 1)) for row in range(rows))


@given(cases())
@settings(max_examples=120, deadline=None, derandomize=True, database=None)
def test_row_depends_on_its_own_path_alone(native, case):
    rng = np.random.default_rng(case.seed)
    subject = native(case.model, case.kv, case.isa, case.threads)
    prompts = [random_tokens(rng, subject, count) for count in case.prompts]
    tables = rng.permutation(BLOCKS).reshape(-1, 3)[: len(prompts)].tolist()
    if case.shared:
        prompts[1][: case.shared * BLOCK] = prompts[0][: case.shared * BLOCK]
        tables[1][: case.shared] = tables[0][: case.shared]
    for index, (prompt, table) in enumerate(zip(prompts, tables, strict=True)):
        start = case.shared * BLOCK if index == 1 else 0
        found = subject.prefill(prompt, table, chunk=case.chunk, start=start)
        reference = Alone(native(case.model, case.kv, role="alone"), prompt)
        assert_same(found, reference.rows[start:])
    drawn = [
        Rows(
            int32s(random_tokens(rng, subject, len(parents))), int32s(parents), int32s([owner] * len(parents))
        )
        for owner, parents in enumerate(case.trees)
    ]
    check_trees_kept_and_continued(
        subject, native(case.model, case.kv, role="alone"), prompts, tables, drawn, case.last, rng
    )


def check_trees_kept_and_continued(subject, single, prompts, tables, drawn, last, rng):
    """A pass over all trees, a random path of each kept, a pass over a chain after each."""
    paths = [path_to(tree.parents, rng.integers(len(tree))) for tree in drawn]
    kept = [tree.tokens[path].tolist() for tree, path in zip(drawn, paths, strict=True)]
    chains = [random_tokens(rng, subject, last) for _ in drawn]
    trees_alone, chains_alone = [], []
    for prompt, tree, tokens, chain in zip(prompts, drawn, kept, chains, strict=True):
        reference = Alone(single, prompt)
        trees_alone.append(reference.tree(tree))
        chains_alone.append(reference.after([*tokens, *chain])[-last:])
    lengths = [len(prompt) for prompt in prompts]
    check_pass(subject, drawn, lengths, tables, np.concatenate(trees_alone), rng)
    for index, (path, table) in enumerate(zip(paths, tables, strict=True)):
        lengths[index] = keep(subject, table, lengths[index], path)
    after = [Rows.chain(chain, owner) for owner, chain in enumerate(chains)]
    check_pass(subject, after, lengths, tables, np.concatenate(chains_alone), rng)


def check_pass(subject, parts, lengths, tables, expected, rng):
    rows, origin = interleaved(parts, rng)
    wanted = rng.permutation(len(rows))
    assert_same(subject.bits(rows, lengths, tables, wanted), expected[origin[wanted]])


# Cases that must not be left to chance.


@pytest.mark.parametrize("kv", ["f16", "f32"])
@pytest.mark.parametrize("model", MODELS)
def test_instruction_sets_give_the_same_bits(native, model, kv):
    rng = np.random.default_rng(1)
    subject = native(model, kv)
    prompt = random_tokens(rng, subject, 90)
    expected = subject.prefill(prompt, [5, 2])
    assert np.isfinite(expected.view(np.float32)).all()
    assert expected.view(np.float32)[:, : subject.spec.vocab].std() > 0.1  # bits that say something
    for isa in _native.isa_names():
        assert_same(native(model, kv, isa, role="other set").prefill(prompt, [9, 1]), expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", ["llama", "gemma3 K"])
def test_row_among_any_number_of_others_is_the_same(native, model, threads):
    """Every number of rows to 41, and so every way of cutting them into tiles and groups of queries."""
    rng = np.random.default_rng(2)
    subject = native(model, threads=threads)
    prompt = random_tokens(rng, subject, BLOCK + 1)
    expected = Alone(native(model, role="alone"), prompt).rows
    subject.prefill(prompt, [3, 4])
    for count in range(1, 42):
        start = len(prompt) - count
        found = subject.bits(Rows.chain(prompt[start:]), [start], [[3, 4]])
        assert_same(found, expected[start:])
        # As many sequences as rows: they share the first block, and each writes to one of its own.
        same = Rows(int32s(prompt[-1:] * count), int32s([-1] * count), int32s(range(count)))
        found = subject.bits(same, [BLOCK] * count, [[3, 4 + index] for index in range(count)])
        assert_same(found, np.repeat(expected[-1:], count, axis=0))


def test_many_queries_of_one_kv_head_are_the_same(tmp_path):
    """More query heads than are handled together share one head of keys."""
    path = write_tiny(tmp_path / "a", "llama", heads=52, kv_heads=1, quant="Q8_0")
    tokens = random_tokens(np.random.default_rng(3), Native(path), 70)
    expected = Native(path).prefill(tokens, [0, 1], chunk=1)
    for isa in _native.isa_names():
        assert_same(Native(path, isa=isa, threads=2).prefill(tokens, [4, 2]), expected)


def test_wide_tree_across_a_window_and_a_block_border_is_the_same(native):
    """Forty rows, more than a window of 20 holds, of two binary trees side by side."""
    rng = np.random.default_rng(4)
    for length in (0, 3, 50, 63, 64, 100):
        subject = native("gemma3", "f16", "", 2)
        prompt = random_tokens(rng, subject, length)
        reference = Alone(native("gemma3", role="alone"), prompt)
        parents = [-1, -1, *((row - 2) // 2 for row in range(2, 40))]
        tree = Rows(int32s(random_tokens(rng, subject, 40)), int32s(parents), int32s([0] * 40))
        table = [7, 4, 11]
        subject.prefill(prompt, table)
        assert_same(subject.bits(tree, [length], [table]), reference.tree(tree))


def test_row_of_no_numbers_stays_alone(tmp_path):
    """A NaN embedding spoils its own sequence: not its neighbours, not those who get its blocks later."""
    path = write_tiny(tmp_path / "a", "gemma3", quant=("F32", "Q8_0"))
    spoil_embedding(path, token=9)
    tokens = random_tokens(np.random.default_rng(8), Native(path), 70)
    tokens = [token if token != 9 else 8 for token in tokens]
    expected = Alone(Native(path, blocks=BLOCKS), tokens).rows
    for isa in _native.isa_names():
        subject = Native(path, isa=isa)
        rows, _ = interleaved(
            [Rows.chain([9] * 65), Rows.chain(tokens[:40], owner=1)], np.random.default_rng(9)
        )
        logits, _ = subject.run(rows, [0, 0], [[1, 2], [3]])
        assert (np.isnan(logits).all(axis=1) == (rows.owners == 0)).all()
        assert_same(subject.bits(rows, [0, 0], [[1, 2], [3]])[rows.owners == 1], expected[:40])
        assert_same(subject.prefill(tokens, [2, 1]), expected)


def spoil_embedding(path, token):
    """Make the embedding of a token NaN in the file; it must be F32."""
    info = read_gguf(path).tensors["token_embd.weight"]
    assert info.type == "F32"
    with path.open("r+b") as file:
        file.seek(info.offset + token * 4 * info.shape[1])
        file.write(np.full(info.shape[1], np.nan, "<f4").tobytes())


def test_branch_longer_than_a_window_is_the_same(native):
    """A branch that lies out of place over more positions than a row of a sliding layer sees."""
    rng = np.random.default_rng(5)
    subject = native("gemma3")
    prompt = random_tokens(rng, subject, 30)
    parents = int32s([-1, -1, *range(1, 49)])
    tree = Rows(int32s(random_tokens(rng, subject, 50)), parents, int32s([0] * 50))
    subject.prefill(prompt, [2, 9])
    reference = Alone(native("gemma3", role="alone"), prompt)
    expected = reference.after(tree.tokens[1:].tolist())
    assert_same(subject.bits(tree, [30], [[2, 9]])[1:], expected)
    length = keep(subject, [2, 9], 30, path_to(parents, 49))
    after = reference.after([*tree.tokens[1:].tolist(), 7])[-1:]
    assert_same(subject.bits(Rows.chain([7]), [length], [[2, 9]]), after)


def test_kept_twice_in_a_row_is_the_same(native):
    """Tree after tree, without a chain between them."""
    rng = np.random.default_rng(6)
    subject = native("qwen2", "f32")
    prompt, table = random_tokens(rng, subject, 61), [6, 0]
    subject.prefill(prompt, table)
    tokens, length = list(prompt), len(prompt)
    for parents, row in (((-1, 0, 0, 2, -1, 4, 5), 6), ((-1, -1, 1, 1, 3), 4), ((-1, -1, 0), 1)):
        tree = Rows(
            int32s(random_tokens(rng, subject, len(parents))), int32s(parents), int32s([0] * len(parents))
        )
        reference = Alone(native("qwen2", "f32", role="alone"), tokens)
        assert_same(subject.bits(tree, [length], [table]), reference.tree(tree))
        path = path_to(parents, row)
        length = keep(subject, table, length, path)
        tokens += tree.tokens[path].tolist()
