"""What the proofs share: claims, prompts, and rows of logits computed one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.core.nouns import Floats, Rows, int32s
from foredraft.core.pick import Place, processed
from foredraft.core.target import Cache, Target

Say = Callable[[str], None]

PROMPTS = (
    "Name three rivers of Europe, and for each the sea it ends in.",
    "Write a Python function that returns the running maximum of a list, with two examples.",
    'Give this as a JSON list of objects with "name" and "age": Ada is 36, Max is 41, Tom is 29, Eva is 36.',
    "Repeat this sentence with the word red put in the place of blue: the blue boat and the blue kite met "
    "under a blue sky, and nobody saw which blue was which.",
    "Why does bread rise? Two sentences.",
    "Continue the tale: The lighthouse keeper counted the ships each night, until one night",
)


@dataclass(frozen=True)
class Claim:
    """One thing that is shown, or not. `checks`: how many comparisons were made."""

    name: str
    says: str
    checks: int
    failures: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.checks > 0 and not self.failures


def commit(target: Target, cache: Cache, tokens: Sequence[int]) -> None:
    """Compute these tokens and keep them."""
    target.forward(Rows.chain(tokens), [cache], int32s([]))
    target.keep(cache, range(len(tokens)))


def rows_alone(target: Target, cache: Cache, tokens: Sequence[int]) -> Floats:
    """Logits after each of the tokens, [n, V]: a pass for each, and each one kept."""
    logits = []
    for token in tokens:
        logits.append(target.forward(Rows.chain([token]), [cache], int32s([0])).logits[0])
        target.keep(cache, [0])
    return np.array(logits, np.float32)


def top_two_gap(logits: Floats, place: Place) -> float:
    """How far the greatest processed logit is ahead of the second."""
    row = processed(logits, place)
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)
