"""The same ids with drafting on and off: through the whole engine with the drafter that is asked for, and in
rounds with planted drafts, trees that mix the truth with errors, for several sequences in one pass.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foredraft.core.history import History
from foredraft.core.nouns import COMMITTED, Draft
from foredraft.core.pick import Place
from foredraft.core.round import Turn, play
from foredraft.core.sampling import Sampling
from foredraft.engine.drafting import OFF, Drafting
from foredraft.engine.kv import KVSequence
from foredraft.engine.llm import LLM
from foredraft.measure.prove_parts import Claim, Say, commit, rows_alone, top_two_gap
from foredraft.models.target import NativeTarget

DEPTHS = 4  # of a planted tree
TRUE, SIBLINGS = 0.75, 2  # how often a planted token is the true one; wrong ones beside it


@dataclass(frozen=True)
class Case:
    """A prompt, how its answer is picked, and the answer without drafting."""

    prompt: tuple[int, ...]
    sampling: Sampling
    truth: tuple[int, ...]


def cases_of(llm: LLM, prompts: Sequence[str], tokens: int, say: Say) -> list[Case]:
    """Each prompt greedily, and with a seed."""
    greedy = Sampling(max_tokens=tokens, ignore_eos=True)
    seeded = replace(greedy, temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=7)
    cases = []
    for number, prompt in enumerate(prompts):
        say(f"prompt {number + 1} of {len(prompts)} without drafting")
        ids = tuple(llm.prompter.encode(prompt, False))
        for sampling in (greedy, replace(seeded, seed=7 + number)):
            cases.append(Case(ids, sampling, llm.generate(list(ids), sampling, drafting=OFF).ids))
    return cases


def drafted_ids(llm: LLM, cases: Sequence[Case], draftings: Sequence[Drafting], say: Say) -> Claim:
    """The engine, as it is used."""
    failures, checks, drafted = [], 0, 0
    for drafting in draftings:
        how = f"{drafting.drafter}, k {'auto' if drafting.k is None else drafting.k}, rule {drafting.rule}"
        say(f"ids with {how}")
        for case in cases:
            if drafting.rule != "match" and case.sampling.temperature > 0.0:
                continue  # there a seed gives another text: the law is what stays
            checks += 1
            answer = llm.generate(list(case.prompt), case.sampling, drafting=drafting)
            drafted += answer.figures.drafted
            if answer.ids != case.truth:
                failures.append(f"{how}: {difference(llm, case, answer.ids)}")
    if not drafted:
        failures.append("nothing was drafted, so nothing is shown; see the warnings above")
    says = f"greedy and seeded answers have the same ids with drafting ({drafted} tokens drafted) as without"
    return Claim("ids", says, checks, tuple(failures))


def planted_ids(
    llm: LLM, cases: Sequence[Case], batches: Sequence[int], threads: Sequence[int], say: Say
) -> Claim:
    """Trees in batches, under several numbers of threads."""
    assert isinstance(llm.target, NativeTarget)
    failures, checks, before = [], 0, llm.target.model.threads
    try:
        for count in threads:
            llm.target.model.threads = count
            for batch in batches:
                say(f"ids of {batch} at a time, planted trees, {count} threads")
                for start in range(0, len(cases), batch):
                    part = cases[start : start + batch]
                    for case, ids in zip(part, written_together(llm, part, seed=start), strict=True):
                        checks += 1
                        if ids != case.truth:
                            how = f"planted trees, {len(part)} at a time, {count} threads"
                            failures.append(f"{how}: {difference(llm, case, ids)}")
    finally:
        llm.target.model.threads = before
    says = "so have answers written several at a time, along trees that are partly wrong, by any threads"
    return Claim("ids together", says, checks, tuple(failures))


def written_together(llm: LLM, cases: Sequence[Case], seed: int) -> list[tuple[int, ...]]:
    """The answers of all cases, every pass one round of each that is not done."""
    rng = random.Random(seed)
    caches = [llm.pool.open() for _ in cases]
    try:
        for case, cache in zip(cases, caches, strict=True):
            if len(case.prompt) > 1:
                commit(llm.target, cache, case.prompt[:-1])
        texts = [list(case.prompt) for case in cases]
        while turns := list(_turns(cases, texts, caches, rng, llm.target.vocab)):
            outcomes = play(llm.target, [turn for _, turn in turns])
            for (index, turn), outcome in zip(turns, outcomes, strict=True):
                texts[index] += outcome.verdict.burst(turn.draft)
    finally:
        for cache in caches:
            cache.close()
    return [
        tuple(text[len(case.prompt) :][: len(case.truth)]) for case, text in zip(cases, texts, strict=True)
    ]


def _turns(
    cases: Sequence[Case],
    texts: Sequence[list[int]],
    caches: Sequence[KVSequence],
    rng: random.Random,
    vocab: int,
) -> Iterator[tuple[int, Turn]]:
    for index, (case, text, cache) in enumerate(zip(cases, texts, caches, strict=True)):
        written = text[len(case.prompt) :]
        if len(written) < len(case.truth):
            history = History(case.prompt)
            history.add(written)
            draft = planted_tree(case.truth[len(written) :], rng, vocab)
            yield index, Turn(cache, text, history, case.sampling, draft)


def planted_tree(truth: Sequence[int], rng: random.Random, vocab: int) -> Draft:
    """At every depth some tokens, among them mostly the true one; one of them has the next ones below it."""
    tokens: list[int] = []
    parents: list[int] = []
    parent = COMMITTED
    for true in truth[: rng.randint(0, DEPTHS)]:
        level = [rng.randrange(vocab) for _ in range(rng.randint(0, SIBLINGS))]
        if rng.random() < TRUE or not level:
            level.insert(rng.randint(0, len(level)), true)
        first = len(tokens)
        tokens += level
        parents += [parent] * len(level)
        parent = first + (level.index(true) if true in level else 0)
    return Draft(tuple(tokens), tuple(parents))


def difference(llm: LLM, case: Case, ids: Sequence[int]) -> str:
    """Where the ids part, and how close the decision was there."""
    pairs = zip(case.truth, ids, strict=False)
    at = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(ids), len(case.truth)))
    if at >= min(len(ids), len(case.truth)):
        return f"{len(case.truth)} tokens without drafting, {len(ids)} with it"
    with llm.pool.open() as cache:
        *before, last = (*case.prompt, *case.truth[:at])
        if before:
            commit(llm.target, cache, before)
        (logits,) = rows_alone(llm.target, cache, [last])
    history = History(case.prompt)
    history.add(case.truth[:at])
    gap = top_two_gap(logits, Place(case.sampling, len(before) + 1, history))
    return (
        f"token {at} of the answer is {case.truth[at]} without drafting, {ids[at]} with it "
        f"(temperature {case.sampling.temperature:g}; the two greatest logits are {gap:.3g} apart)"
    )
