"""`foredraft prove`: that drafting leaves the text unchanged, shown on the models at hand.

Every claim is checked against something that does not draft: ids against answers without drafting, logits
against rows computed one by one, laws against the target's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from foredraft.engine.drafting import MODEL, Drafting
from foredraft.engine.llm import LLM
from foredraft.measure.prove_bits import same_bits
from foredraft.measure.prove_ids import cases_of, drafted_ids, planted_ids
from foredraft.measure.prove_law import LENGTH, Sampled, exact_law, narrowed, sampled_law
from foredraft.measure.prove_pair import Pair, engine_rounds
from foredraft.measure.prove_parts import PROMPTS, Claim, Say
from foredraft.models.target import NativeTarget


@dataclass(frozen=True)
class Effort:
    """How much is checked."""

    prompts: int
    tokens: int  # of an answer
    lengths: tuple[int | None, ...]  # of drafts; None: the controller decides
    batches: tuple[int, ...]
    law_prompts: int
    rounds: int  # of the engine, for each prompt of the law
    sampled: Sampled


FULL = Effort(
    prompts=len(PROMPTS),
    tokens=48,
    lengths=(None, 1, 2, 3, 5, 8, 16),
    batches=(1, 3, 6),
    law_prompts=2,
    rounds=6,
    sampled=Sampled(6000, 1e-3),
)
QUICK = Effort(
    prompts=2,
    tokens=20,
    lengths=(None, 2, 8),
    batches=(4,),
    law_prompts=1,
    rounds=2,
    sampled=Sampled(500, 1e-3),
)


def prove(llm: LLM, drafter: str, effort: Effort, say: Say) -> Iterator[Claim]:
    """One claim after the other, as they are shown. The LLM must not remember earlier answers: else the
    later ones are drafted from them.
    """
    cases = cases_of(llm, PROMPTS[: effort.prompts], effort.tokens, say)
    assert isinstance(llm.target, NativeTarget)
    threads = sorted({1, 2, llm.target.model.threads})
    draftings = [Drafting(drafter, k) for k in effort.lengths]
    draftings += [Drafting(drafter, 4, rule) for rule in ("ratio", "block")]
    yield drafted_ids(llm, cases, draftings, say)
    yield planted_ids(llm, cases, effort.batches, threads, say)
    yield same_bits(llm, cases[::2], threads, say)
    yield exact_law()
    model = next((name for name in llm.roster.names(Drafting(drafter)) if name.startswith(MODEL)), None)
    prompts = [tuple(llm.prompter.encode(prompt, False)) for prompt in PROMPTS[-effort.law_prompts :]]
    pairs = [Pair(llm, prompt, model) for prompt in prompts]
    yield engine_rounds(pairs, effort.rounds, say)
    say("the models' distributions after every first token")
    yield sampled_law([narrowed(pair.toy(), LENGTH) for pair in pairs], effort.sampled, say)
