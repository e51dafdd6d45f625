"""Rules with a planted bias, each one that somebody has shipped or could: whatever is to find that a law is
wrong must find these. And two that look alike and are right.
"""

from dataclasses import replace

import numpy as np

from foredraft.core.nouns import Draft
from foredraft.core.rules import Block, Ratio


class FullRemainder(Ratio):
    """After a rejection, draw from the whole of p instead of what is left over of it."""

    def remainder(self, draft, laws, accepted):
        return laws[accepted]


class OtherTemperature(Ratio):
    """Judge by distributions at a temperature that the tokens were not drawn at."""

    def claimed(self, draft):
        sharp = [law**1.4 for law in draft.laws]
        return replace(draft, laws=tuple(law / law.sum() for law in sharp))

    def chances(self, draft, laws):
        return super().chances(self.claimed(draft), laws)

    def remainder(self, draft, laws, accepted):
        return super().remainder(self.claimed(draft), laws, accepted)


class TokenwiseBlock(Block):
    """Block's chances, but stopping at the first token that fails."""

    def reached(self, passed):
        return Ratio().reached(passed)


class UnweightedBlock(Block):
    """Block's chances with ratio's remainder."""

    def remainder(self, draft, laws, accepted):
        return Ratio().remainder(draft, laws, accepted)


class OtherToken(Ratio):
    """Set the drafted token's probability against that of a token the target has just drawn for itself, and
    after a rejection draw from the whole of p.
    """

    def chances(self, draft, laws):
        return [
            sum(p * min(1.0, proposed[token] / p) for p in law.tolist() if p)
            for token, law, proposed in zip(draft.tokens, laws, draft.laws, strict=False)
        ]

    def remainder(self, draft, laws, accepted):
        return laws[accepted]


class Cut:
    """Judge only the first tokens of each draft, `kept(draft)` of them, as if no more had been drafted."""

    def __init__(self, odds, kept):
        self.odds, self.kept = odds, kept

    def short(self, draft):
        kept = self.kept(draft)
        return replace(Draft.chain(draft.tokens[:kept]), laws=draft.laws[:kept])

    def chances(self, draft, laws):
        short = self.short(draft)
        chances = self.odds.chances(short, laws[: len(short) + 1])
        return [*chances, *[0.0] * (len(draft) - len(short))]

    def reached(self, passed):
        return self.odds.reached(passed)

    def remainder(self, draft, laws, accepted):
        short = self.short(draft)
        return self.odds.remainder(short, laws[: len(short) + 1], accepted)


def own_chance(draft, index):
    return draft.laws[index][draft.tokens[index]]


def before_unlikely(draft):
    """Drops a token because of its own probability."""
    return next((i for i in range(len(draft)) if own_chance(draft, i) < 0.4), len(draft))


def after_unlikely(draft):
    """Keeps the unlikely token and drops what follows it: the dropped ones have no say."""
    return next((i + 1 for i in range(len(draft)) if own_chance(draft, i) < 0.4), len(draft))


def before_uncertain(draft):
    """Drops a token because of the distribution it was going to be drawn from, whatever it became."""
    return next((i for i in range(len(draft)) if draft.laws[i].max() < 0.6), len(draft))


def scheduler(draft):
    """The search of DSpark's appendix A without its stop: both tokens or none, by the first token."""
    return 2 if draft.tokens[0] == 0 else 0


BIASED = {
    "full remainder": FullRemainder(),
    "other temperature": OtherTemperature(),
    "other token": OtherToken(),
    "block, stopping early": TokenwiseBlock(),
    "block, unweighted": UnweightedBlock(),
    "ratio, own probability": Cut(Ratio(), before_unlikely),
    "block, own probability": Cut(Block(), before_unlikely),
}
RIGHT = {
    "ratio": Ratio(),
    "block": Block(),
    "ratio, cut after": Cut(Ratio(), after_unlikely),
    "block, cut after": Cut(Block(), after_unlikely),
    "ratio, cut by entropy": Cut(Ratio(), before_uncertain),
    "block, cut by entropy": Cut(Block(), before_uncertain),
}


def fixed(*law):
    """A model that always has the same law."""
    return lambda _text: np.array(law)
