"""Under `ratio` and `block` a text has the target's law: counted through exactly on toys, sampled with the
models' own distributions, and tied to the engine by single rounds.

A model's distributions are computed once; then many seeds go through the rule without a pass. That the engine
judges by just these distributions is what the single rounds check.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foredraft.core.nouns import Doubles, Draft
from foredraft.core.rules import DRAFT, DRAWN, Dice, Odds, Rule, decide
from foredraft.measure.chisquare import chi_square
from foredraft.measure.prove_parts import Claim, Say
from foredraft.measure.prove_toy import Text, Toy, distance, own_law, text_law

EXACT = 1e-12
TOYS = ((2, 3, 4), (3, 2, 3), (4, 2, 2))  # vocabulary, drafted tokens, tokens of the text
SEEDS = 4
LENGTH = 2  # tokens of a text whose law is sampled
Rules = Mapping[Rule, Odds]


@dataclass(frozen=True)
class Sampled:
    """How many seeds, and how often all tests together may raise a false alarm."""

    draws: int
    false_alarm: float


def exact_law(rules: Rules = DRAWN) -> Claim:
    """By enumeration on toys."""
    failures, checks = [], 0
    for name, odds in rules.items():
        for vocab, k, length in TOYS:
            for seed in range(SEEDS):
                toy = Toy.random(seed, vocab)
                checks += 1
                error = distance(text_law(odds, toy, k, length), own_law(toy, length))
                if error > EXACT:
                    failures.append(
                        f"{name}, {vocab} tokens, drafts of {k}: a text's probability is off by {error:.2g}"
                    )
    says = f"the law of ratio and block is the target's, counted through on toys (error below {EXACT:g})"
    return Claim("law, exact", says, checks, tuple(failures))


def sampled_law(pairs: Sequence[Toy], sampled: Sampled, say: Say, rules: Rules = DRAWN) -> Claim:
    """By chi-square on the first two tokens. The seeds are the same every time, and so is the verdict."""
    failures: list[str] = []
    tests = len(rules) * len(pairs)
    for name, odds in rules.items():
        for number, pair in enumerate(pairs):
            say(f"law of {name}, distributions {number + 1} of {len(pairs)}, {sampled.draws} seeds")
            law = own_law(pair, LENGTH)
            seen = Counter(sample(odds, pair, seed, LENGTH) for seed in range(sampled.draws))
            impossible = [text for text in seen if not law.get(text)]
            if impossible:
                failures.append(f"{name}, distributions {number + 1}: text {impossible[0]} cannot occur")
                continue
            likely = [text for text in law if law[text] > 0.0]
            expected = [sampled.draws * law[text] for text in likely]
            test = chi_square([seen[text] for text in likely], expected)
            if test.p_value < sampled.false_alarm / tests:
                failures.append(
                    f"{name}, distributions {number + 1}: chi-square {test.statistic:.1f} in {test.cells} "
                    f"cells, which a right law exceeds with a chance of {test.p_value:.2g}"
                )
    says = (
        "sampled by ratio and block from the models' own distributions, the first two tokens follow the "
        f"target's law (chi-square of {sampled.draws} seeds; false alarms of all {tests} tests together: "
        f"{sampled.false_alarm:g})"
    )
    return Claim("law, sampled", says, tests * sampled.draws, tuple(failures))


def sample(odds: Odds, pair: Toy, seed: int, length: int) -> Text:
    """A text in rounds with drafts of all tokens that are missing, with the dice that the engine throws."""
    text: Text = ()
    while len(text) < length:
        draft = drawn_chain(pair, text, length - len(text), Dice(seed, len(text)))
        laws = [pair.target(text + draft.tokens[:depth]) for depth in range(len(draft) + 1)]
        text += decide(odds, draft, laws, Dice(seed, len(text))).burst(draft)
    return text[:length]


def drawn_chain(pair: Toy, text: Text, k: int, dice: Dice) -> Draft:
    """k tokens, each drawn from the drafter's distribution after those before it."""
    tokens: list[int] = []
    laws: list[Doubles] = []
    for index in range(k):
        law = pair.drafter((*text, *tokens))
        tokens.append(dice.draw(law, index, DRAFT))
        laws.append(law)
    return replace(Draft.chain(tokens), laws=tuple(laws))


def narrowed(pair: Toy, length: int) -> Toy:
    """The same pair over the tokens that can occur within `length`, numbered anew, every distribution
    computed once. What follows after that is not looked at, and uniform.
    """
    wide: dict[Text, tuple[Doubles, Doubles]] = {(): (pair.target(()), pair.drafter(()))}
    texts: list[Text] = [()]
    for _ in range(length - 1):
        texts = [(*text, int(token)) for text in texts for token in np.flatnonzero(sum(wide[text]))]
        wide |= {text: (pair.target(text), pair.drafter(text)) for text in texts}
    known = np.flatnonzero(sum(law for laws in wide.values() for law in laws))
    number = {int(token): index for index, token in enumerate(known)}
    narrow = {
        tuple(number[token] for token in text): (target[known], drafter[known])
        for text, (target, drafter) in wide.items()
    }
    rest = np.full(len(known), 1.0 / len(known))
    return Toy(
        lambda text: narrow[text][0] if text in narrow else rest,
        lambda text: narrow[text][1] if text in narrow else rest,
    )
