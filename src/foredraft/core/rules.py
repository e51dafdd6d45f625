"""How a draft is judged once the target has spoken. Three rules; each leaves the law of the text untouched.

`match` (the default): the target picks its own token after every row; a drafted token is accepted while it
equals the pick. The text is the one that the target alone writes with this seed, whatever was drafted.
`ratio` (Leviathan et al. 2023, Chen et al. 2023) and `block` (Sun et al. 2024) judge a chain by the
distributions it was drawn from: the text follows the target's law, but a seed gives another text for another
draft. A draft that was not drawn from distributions has probability one on its own tokens: there, drawing
from the target and descending while a child equals the draw is what both rules come to, so `match` is used.

In what follows the drafted tokens are x_1 to x_n, q_i is the distribution that x_i was drawn from, p_i the
target's own after x_1 to x_{i-1}, and p_{n+1} the one after the whole draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, get_args

import numpy as np

from foredraft.core import noise
from foredraft.core.nouns import COMMITTED, Doubles, Draft, Verdict
from foredraft.core.pick import lane_sum
from foredraft.errors import UsageError

Rule = Literal["match", "ratio", "block"]
RULES: tuple[Rule, ...] = get_args(Rule)

DRAFT, ACCEPT, RESIDUAL = 1, 2, 3  # kinds of noise beside `noise.PICKS`
KINDS = 4
MAX_ANCHOR = 2**30 - 1  # a stream has 32 bits


def follow(draft: Draft, picks: Sequence[int]) -> Verdict:
    """`match`: descend while a drafted token equals the target's pick. `picks[0]` comes after the text,
    `picks[i + 1]` after drafted token i.
    """
    path: list[int] = []
    here = COMMITTED
    for index, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent == here and token == picks[here + 1]:
            path.append(index)
            here = index
    return Verdict(tuple(path), picks[here + 1])


@dataclass(frozen=True)
class Dice:
    """The randomness of one round of `ratio` or `block`: a pure function of the seed, the anchor, the kind of
    noise, and the place in the draft.

    Each kind of noise has its own stream, and so has each round. How many tokens are kept depends on the
    noise of those that are thrown away, under `block` also of those behind the first that fails; a later
    round that met the same noise at their positions would be biased by it. The anchor keeps it fresh.
    """

    seed: int
    anchor: int  # length of the text before the round: no two rounds of a request have the same

    def __post_init__(self) -> None:
        if not 0 <= self.anchor <= MAX_ANCHOR:
            raise UsageError(f"the text has {self.anchor} tokens, but noise has room for {MAX_ANCHOR}")

    def stream(self, kind: int) -> int:
        """The stream of `DRAFT`, `ACCEPT` or `RESIDUAL` in this round; drafters draw from the first."""
        return kind + KINDS * self.anchor

    def passes(self, chances: Sequence[float]) -> list[bool]:
        """For each drafted token whether its chance comes true. A chance of 0 never does, one of 1 always."""
        indexes = np.arange(len(chances))  # in the place of tokens: each has a number of its own
        uniforms = noise.uniform(self.seed, self.anchor, indexes, self.stream(ACCEPT))
        return [bool(uniform < chance) for uniform, chance in zip(uniforms, chances, strict=True)]

    def draw(self, law: Doubles, index: int, kind: int = RESIDUAL) -> int:
        """A token by this law ([V], positive where possible; need not add up to 1), to follow `index` drafted
        ones.
        """
        possible = np.flatnonzero(law > 0.0)
        noises = noise.gumbel(self.seed, self.anchor + index, possible, self.stream(kind))
        return int(possible[np.argmax(noise.log(law[possible]) + noises)])


class Odds(Protocol):
    """A rule for drawn chains, apart from its randomness: pure functions, so that its law can be enumerated.
    `laws` [1 + drafted] are p_1 to p_{n+1}.
    """

    def chances(self, draft: Draft, laws: Sequence[Doubles]) -> Sequence[float]:
        """For each drafted token the chance, 0 to 1, that it passes; they come true independently."""

    def reached(self, passed: Sequence[bool]) -> int:
        """How many tokens are accepted."""

    def remainder(self, draft: Draft, laws: Sequence[Doubles], accepted: int) -> Doubles:
        """The law of the token that follows so many accepted ones; it sums to 1."""


class Ratio:
    """Accept x_i with the chance min(1, p_i(x_i) / q_i(x_i)), up to the first that fails. The token in its
    place has a law in proportion to max(p_i - q_i, 0): what the accepted ones leave over of p_i.
    """

    def chances(self, draft: Draft, laws: Sequence[Doubles]) -> list[float]:
        return [min(1.0, ratio) for ratio in _ratios(draft, laws)]

    def reached(self, passed: Sequence[bool]) -> int:
        return next((index for index, passes in enumerate(passed) if not passes), len(passed))

    def remainder(self, draft: Draft, laws: Sequence[Doubles], accepted: int) -> Doubles:
        if accepted == len(draft):
            return laws[accepted]
        return _scaled(_excess(laws[accepted], draft.laws[accepted]), laws[accepted])


class Block:
    """Judge the draft as a whole: never fewer accepted tokens on average than `ratio`.

    The weight w_0 = 1, w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)) says how much of the drafts that begin with
    x_1 to x_i the target has room for. With R_i = Σ max(w_i p_{i+1} - q_{i+1}, 0), x_i passes with the chance
    R_i / (R_i + 1 - w_i), and x_n with w_n. All up to the *last* that passes are accepted, whatever failed
    before it; the next token has a law in proportion to max(w_i p_{i+1} - q_{i+1}, 0).
    """

    def chances(self, draft: Draft, laws: Sequence[Doubles]) -> list[float]:
        weights = _weights(draft, laws)[1:]
        return [
            _share(lane_sum(_excess(law, proposed, weight)), 1.0 - weight)
            for weight, law, proposed in zip(weights, laws[1:], draft.laws[1:], strict=False)
        ] + weights[-1:]

    def reached(self, passed: Sequence[bool]) -> int:
        return max((index + 1 for index, passes in enumerate(passed) if passes), default=0)

    def remainder(self, draft: Draft, laws: Sequence[Doubles], accepted: int) -> Doubles:
        if accepted == len(draft):
            return laws[accepted]
        weight = _weights(draft, laws)[accepted]
        return _scaled(_excess(laws[accepted], draft.laws[accepted], weight), laws[accepted])


DRAWN: Mapping[Rule, Odds] = MappingProxyType({"ratio": Ratio(), "block": Block()})


def judge(rule: Rule, draft: Draft, laws: Sequence[Doubles], dice: Dice) -> Verdict:
    """By `ratio` or `block`. `laws` [1 + drafted] are the target's own, after the text and every drafted
    token.
    """
    return decide(DRAWN[rule], draft, laws, dice)


def decide(odds: Odds, draft: Draft, laws: Sequence[Doubles], dice: Dice) -> Verdict:
    """What the dice make of a rule's odds."""
    accepted = odds.reached(dice.passes(odds.chances(draft, laws)))
    return Verdict(tuple(range(accepted)), dice.draw(odds.remainder(draft, laws, accepted), accepted))


def _ratios(draft: Draft, laws: Sequence[Doubles]) -> list[float]:
    """p_i(x_i) / q_i(x_i). A token that its own law does not have was not drawn from it: 0, and so it is
    never accepted.
    """
    return [
        float(law[token] / proposed[token]) if proposed[token] > 0.0 else 0.0
        for token, law, proposed in zip(draft.tokens, laws, draft.laws, strict=False)
    ]


def _weights(draft: Draft, laws: Sequence[Doubles]) -> list[float]:
    """w_0 to w_n."""
    weights = [1.0]
    for ratio in _ratios(draft, laws):
        weights.append(min(1.0, weights[-1] * ratio))
    return weights


def _excess(law: Doubles, proposed: Doubles, weight: float = 1.0) -> Doubles:
    """max(weight * law - proposed, 0), over the target's vocabulary: a drafter's may be padded otherwise."""
    excess = weight * law
    shared = min(len(law), len(proposed))
    excess[:shared] -= proposed[:shared]
    return np.maximum(excess, 0.0)


def _scaled(excess: Doubles, law: Doubles) -> Doubles:
    """The excess as a law. Nothing is left over where both laws are equal, and then nothing is ever drawn
    from it, except that rounding may have it so: the target's own law is right to rounding there.
    """
    total = lane_sum(excess)
    return excess / total if total > 0.0 else law


def _share(part: float, rest: float) -> float:
    """part / (part + rest), 1 where both are 0: all later laws agree, and the last token passes as well."""
    return part / (part + rest) if rest > 0.0 else 1.0
