"""Who can draft for an `LLM`, and what is known of them from earlier requests: prices of passes, what chances
are worth, what was written.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.core.drafter import Drafter
from foredraft.core.target import Target
from foredraft.drafters.grammar import GrammarDrafter
from foredraft.drafters.ngram import NGram
from foredraft.drafters.prediction import Prediction
from foredraft.drafters.suffix import Memory, Suffix
from foredraft.engine.acceptance import Acceptance
from foredraft.engine.controller import Controller
from foredraft.engine.cost import PassCost
from foredraft.engine.draft_models import DraftModel, DraftModels
from foredraft.engine.drafting import MODEL, MODEL_FREE, Drafting
from foredraft.engine.speculator import Limits, Speculator
from foredraft.errors import UsageError
from foredraft.models.tokenizer import Tokenizer

PREDICTED = 1 << 16  # characters of a prediction that are read: all other requests wait for it
Clock = Callable[[], float]


@dataclass(frozen=True, eq=False)
class Task:
    """What drafters must know of a request."""

    prompt: Sequence[int]
    ends: frozenset[int]
    forced: Callable[[], Sequence[int]] | None = None  # tokens that a grammar leaves no choice about


class Roster:
    """Of one target. `models` is None for a target that no draft model is loaded for."""

    def __init__(
        self, target: Target, tokenizer: Tokenizer, cost: PassCost, models: DraftModels | None, remember: bool
    ) -> None:
        self._target = target
        self._tokenizer = tokenizer
        self._models = models
        self._memory = Memory() if remember else None
        self.cost = cost
        self._acceptance = Acceptance()

    def names(self, drafting: Drafting) -> list[str]:
        """The drafters of a request with these wishes, in the order they are asked. Models are loaded."""
        names: list[str] = []
        if drafting.is_off:
            return names
        for name in drafting.names:
            names += self._auto(drafting) if name == "auto" else [name]
        for name in names:
            if name.startswith(MODEL):
                self.model(name)
        cheap = [name for name in names if not name.startswith(MODEL)]
        return list(dict.fromkeys([*cheap, *names]))

    def speculator(self, drafting: Drafting, task: Task, clock: Clock = time.perf_counter) -> Speculator:
        """Drafting for one request."""
        names = self.names(drafting)
        suffix = Suffix(self._memory, len(task.prompt))
        drafters = [self._drafter(name, drafting, task, suffix, clock) for name in names]
        if task.forced is not None and "auto" in drafting.names and not drafting.is_off:
            models = sum(name.startswith(MODEL) for name in names)  # they are asked last
            drafters.insert(len(drafters) - models, GrammarDrafter(task.forced))
        limits = Limits(self._target.vocab, task.ends, drafting.k)
        return Speculator(drafters, Controller(self.cost, self._acceptance), limits, clock)

    def _auto(self, drafting: Drafting) -> list[str]:
        names = ["prediction"] if drafting.prediction is not None else []
        names += MODEL_FREE
        model = None if self._models is None else self._models.get_default()
        return names if model is None else [*names, MODEL + model.name]

    def _drafter(self, name: str, drafting: Drafting, task: Task, suffix: Suffix, clock: Clock) -> Drafter:
        if name == "ngram":
            return NGram()
        if name == "suffix":
            return suffix
        if name == "prediction":
            text = (drafting.prediction or "")[:PREDICTED]
            return Prediction(self._tokenizer.encode(text), len(task.prompt))
        return self.model(name).drafter(self._target, task.prompt, suffix, clock)

    def model(self, name: str) -> DraftModel:
        if self._models is None:
            raise UsageError(f"{name}: this target has no draft models; give ngram, suffix or prediction")
        return self._models.get(name.removeprefix(MODEL))
