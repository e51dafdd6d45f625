"""The exact law of a text that is written with drafting, on vocabularies so small that every draft and every
decision can be counted through. No sampling, no noise: what is left of an error is rounding.

The functions of a rule that are counted through here are those that `core/rules.py` throws its dice for.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foredraft.core.nouns import Doubles, Draft
from foredraft.core.rules import Odds

Text = tuple[int, ...]
Laws = dict[Text, float]
Model = Callable[[Text], Doubles]  # the law of the token after a text


@dataclass(frozen=True)
class Toy:
    """A target and a drafter over the same few tokens."""

    target: Model
    drafter: Model

    @classmethod
    def random(cls, seed: int, vocab: int) -> "Toy":
        """Laws that depend on everything before; the drafter's are like the target's, and some are 0."""

        def target(text: Text) -> Doubles:
            return _law(vocab, seed, 0, *text)

        def drafter(text: Text) -> Doubles:
            mixed = 0.5 * target(text) + 0.5 * _law(vocab, seed, 1, *text)
            mixed[(seed + len(text)) % vocab] *= seed % 2  # under even seeds a token is never drafted
            law: Doubles = mixed / mixed.sum()
            return law

        return cls(target, drafter)


def _law(vocab: int, *key: int) -> Doubles:
    law: Doubles = np.random.default_rng(key).dirichlet(np.full(vocab, 0.7))
    return law


def drafts(toy: Toy, text: Text, k: int) -> Iterator[tuple[Draft, float]]:
    """Every draft of k tokens that can follow the text, with its chance."""
    open_drafts = [(Draft.empty, 1.0)]
    for _ in range(k):
        open_drafts = [
            (_longer(draft, token, law), chance * float(law[token]))
            for draft, chance in open_drafts
            for law in (toy.drafter(text + draft.tokens),)
            for token in np.flatnonzero(law).tolist()
        ]
    return iter(open_drafts)


def _longer(draft: Draft, token: int, law: Doubles) -> Draft:
    return replace(Draft.chain([*draft.tokens, token]), laws=(*draft.laws, law))


def bursts(odds: Odds, draft: Draft, laws: Sequence[Doubles]) -> Iterator[tuple[Text, float]]:
    """What a round can add once this draft is made, with its chance; the same burst may come twice."""
    chances = odds.chances(draft, laws)
    for passed in itertools.product((True, False), repeat=len(draft)):
        chance = math.prod(p if passes else 1.0 - p for p, passes in zip(chances, passed, strict=True))
        if chance > 0.0:
            accepted = odds.reached(passed)
            law = odds.remainder(draft, laws, accepted)
            for token in np.flatnonzero(law).tolist():
                yield (*draft.tokens[:accepted], token), chance * float(law[token])


def round_law(odds: Odds, toy: Toy, text: Text, k: int) -> Laws:
    """The law of the tokens that one round adds after the text."""
    added: Laws = defaultdict(float)
    for draft, chance in drafts(toy, text, k):
        laws = [toy.target(text + draft.tokens[:depth]) for depth in range(k + 1)]
        for burst, share in bursts(odds, draft, laws):
            added[burst] += chance * share
    return dict(added)


def text_law(odds: Odds, toy: Toy, k: int, length: int) -> Laws:
    """The law of the first `length` tokens, written in rounds of k drafted tokens."""
    texts: Laws = defaultdict(float, {(): 1.0})
    for written in range(length):
        for text in [text for text in texts if len(text) == written]:
            chance = texts.pop(text)
            for burst, share in round_law(odds, toy, text, k).items():
                texts[(text + burst)[:length]] += chance * share
    return dict(texts)


def own_law(toy: Toy, length: int) -> Laws:
    """The law of the first `length` tokens as the target writes them by itself."""
    texts: Laws = {(): 1.0}
    for _ in range(length):
        texts = {
            (*text, token): chance * float(share)
            for text, chance in texts.items()
            for token, share in enumerate(toy.target(text))
        }
    return texts


def distance(one: Laws, other: Laws) -> float:
    """The largest difference of two probabilities of one text."""
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys())


def mean_length(law: Laws) -> float:
    """Expected tokens of a round."""
    return math.fsum(len(burst) * chance for burst, chance in law.items())
