"""The same bits of logits: rows computed one by one, against the same rows as a chain, beside the branches of
a tree, and among other sequences' rows.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from foredraft.core.nouns import COMMITTED, Floats, Rows, int32s
from foredraft.engine.llm import LLM
from foredraft.measure.prove_ids import Case
from foredraft.measure.prove_parts import Claim, Say, commit, rows_alone
from foredraft.models.target import NativeTarget

ROWS = 12
Way = Callable[[LLM, Case], Floats]


def same_bits(llm: LLM, cases: Sequence[Case], threads: Sequence[int], say: Say) -> Claim:
    """Every way, with every number of threads, against one row a pass."""
    assert isinstance(llm.target, NativeTarget)
    failures, checks, before = [], 0, llm.target.model.threads
    try:
        for number, case in enumerate(cases):
            say(f"bits of logits, text {number + 1} of {len(cases)}")
            llm.target.model.threads = before
            alone = one_by_one(llm, case)
            for count in threads:
                llm.target.model.threads = count
                for name, way in WAYS.items():
                    together = way(llm, case)
                    checks += alone.size
                    if different := unequal(alone, together):
                        failures.append(f"{name}, {count} threads: {different}")
    finally:
        llm.target.model.threads = before
    says = "a row's logits have the same bits alone, in a chain, in a tree and among other sequences"
    return Claim("bits", says, checks, tuple(failures))


def unequal(alone: Floats, together: Floats) -> str:
    """What differs, or nothing."""
    wrong = alone.view(np.uint32) != together.view(np.uint32)
    if not wrong.any():
        return ""
    distance = float(np.abs(alone - together).max())
    return f"{int(wrong.sum())} of {wrong.size} logits differ, by {distance:.3g} at most"


def tail_of(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The text before the rows to compare, and their tokens."""
    whole = case.prompt + case.truth[:ROWS]
    return whole[:-ROWS], whole[-ROWS:]


def one_by_one(llm: LLM, case: Case) -> Floats:
    before, tokens = tail_of(case)
    with llm.pool.open() as cache:
        commit(llm.target, cache, before)
        return rows_alone(llm.target, cache, tokens)


def chain(llm: LLM, case: Case) -> Floats:
    before, tokens = tail_of(case)
    with llm.pool.open() as cache:
        commit(llm.target, cache, before)
        return llm.target.forward(Rows.chain(tokens), [cache], int32s(range(len(tokens)))).logits


def tree(llm: LLM, case: Case) -> Floats:
    """Beside every token a wrong one, computed before it; both follow the right one."""
    before, tokens = tail_of(case)
    mixed, parents = [], []
    for index, token in enumerate(tokens):
        mixed += [(token + 1) % llm.target.vocab, token]
        parents += [2 * index - 1 if index else COMMITTED] * 2
    with llm.pool.open() as cache:
        commit(llm.target, cache, before)
        rows = Rows(int32s(mixed), int32s(parents), int32s([0] * len(mixed)))
        return llm.target.forward(rows, [cache], int32s(range(1, len(mixed), 2))).logits


def batch(llm: LLM, case: Case) -> Floats:
    """Between two other sequences, one of which has hardly begun."""
    before, tokens = tail_of(case)
    others = [case.prompt[:1], before[: len(before) // 2 + 1]]
    with llm.pool.open() as short, llm.pool.open() as cache, llm.pool.open() as long:
        for text, one in zip((others[0], before, others[1]), (short, cache, long), strict=True):
            commit(llm.target, one, text)
        parts = [Rows.chain(tokens[:3], 0), Rows.chain(tokens, 1), Rows.chain(tokens[::-1], 2)]
        wanted = int32s(range(3, 3 + len(tokens)))
        return llm.target.forward(Rows.join(parts), [short, cache, long], wanted).logits


WAYS: Mapping[str, Way] = MappingProxyType({"chain": chain, "tree": tree, "batch": batch})
