"""A loaded target and its drafter as distributions after a text, and single rounds of the engine that show
whether it judges by these distributions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foredraft.core.history import History
from foredraft.core.nouns import Doubles, Draft
from foredraft.core.pick import Place, probabilities
from foredraft.core.round import Turn, play
from foredraft.core.rules import DRAFT, DRAWN, Dice, judge
from foredraft.core.sampling import Sampling
from foredraft.engine.drafting import Drafting
from foredraft.engine.llm import LLM
from foredraft.engine.roster import Task
from foredraft.engine.speculator import Moment, Speculator
from foredraft.measure.prove_law import drawn_chain
from foredraft.measure.prove_parts import Claim, Say, commit, rows_alone
from foredraft.measure.prove_toy import Text, Toy

# Few tokens, so that two of them can be counted, and none too rare.
SAMPLING = Sampling(temperature=1.5, top_k=10, seed=0)
HOT = 1.7  # times as high a temperature, where the target has to draft for itself
K = 3  # drafted tokens of a single round


@dataclass(frozen=True, eq=False)
class Pair:
    """The target after one prompt, and a drafter: the named model, or the target at a higher temperature."""

    llm: LLM
    prompt: tuple[int, ...]
    drafter: str | None  # model:NAME
    sampling: Sampling = SAMPLING

    def toy(self) -> Toy:
        return Toy(self.target, self.proposed)

    def target(self, text: Text) -> Doubles:
        """The target's law after prompt and text."""
        return self._law(text, self.sampling)

    def proposed(self, text: Text) -> Doubles:
        """What the drafter draws from after prompt and text: [V of the target]."""
        if self.drafter is None:
            return self._law(text, replace(self.sampling, temperature=HOT * self.sampling.temperature))
        return self.engine_draft(text, 1, self.sampling).laws[0]

    def engine_draft(self, text: Text, k: int, sampling: Sampling) -> Draft:
        """A drawn chain, as the engine asks for it."""
        assert self.drafter is not None
        speculator = self._speculator(k)
        try:
            return speculator.draft(self._moment(text, k, sampling))
        finally:
            speculator.close()

    def draft(self, text: Text, k: int, sampling: Sampling) -> Draft:
        if self.drafter is not None:
            return self.engine_draft(text, k, sampling)
        return drawn_chain(self.toy(), text, k, Dice(sampling.seed or 0, len(self.prompt) + len(text)))

    def _speculator(self, k: int) -> Speculator:
        drafting = Drafting(self.drafter or "", k, "ratio")
        return self.llm.roster.speculator(drafting, Task(self.prompt, frozenset()))

    def _moment(self, text: Text, k: int, sampling: Sampling) -> Moment:
        whole = [*self.prompt, *text]
        return Moment(whole, self.history(text), sampling, pending=1, room=k, depth=k, drawn=True)

    def history(self, text: Text) -> History:
        history = History(self.prompt)
        history.add(text)
        return history

    def _law(self, text: Text, sampling: Sampling) -> Doubles:
        *before, last = (*self.prompt, *text)
        with self.llm.pool.open() as cache:
            if before:
                commit(self.llm.target, cache, before)
            (logits,) = rows_alone(self.llm.target, cache, [last])
        return probabilities(logits, Place(sampling, len(before) + 1, self.history(text)))


def engine_rounds(pairs: Sequence[Pair], seeds: int, say: Say) -> Claim:
    """Rounds of the engine, each against the same decision from distributions computed row by row. And the
    drafter's tokens must be draws of the distributions it gives.
    """
    failures, checks = [], 0
    for number, pair in enumerate(pairs):
        say(f"rounds of the engine, prompt {number + 1} of {len(pairs)}")
        for seed in range(seeds):
            sampling = replace(pair.sampling, seed=seed)
            draft, dice = pair.draft((), K, sampling), Dice(seed, len(pair.prompt))
            stated = tuple(dice.draw(law, index, DRAFT) for index, law in enumerate(draft.laws))
            if stated != draft.tokens:
                failures.append(f"seed {seed}: drafted {draft.tokens}, but its distributions give {stated}")
            laws = [pair.target(draft.tokens[:depth]) for depth in range(len(draft) + 1)]
            for rule in DRAWN:
                checks += 1
                expected = judge(rule, draft, laws, dice)
                with pair.llm.pool.open() as cache:
                    turn = Turn(cache, pair.prompt, pair.history(()), sampling, draft, rule)
                    (outcome,) = play(pair.llm.target, [turn])
                if outcome.verdict != expected:
                    failures.append(f"{rule}, seed {seed}: {outcome.verdict}, expected {expected}")
    says = "the engine draws and judges by these distributions: its rounds end as they say"
    return Claim("law, engine", says, checks, tuple(failures))
