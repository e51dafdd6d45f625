"""One round: what is not computed yet and what is drafted go through the target together, the target picks
its own token after every row, and the draft is followed as far as it agrees.

With an empty draft this is plain decoding, and with a whole prompt pending it is the prompt's last chunk:
there is no other path. What a round may not know: who drafted, and why. It reads no clock; whoever calls may.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from foredraft.core import rules
from foredraft.core.history import History
from foredraft.core.noise import PICKS
from foredraft.core.nouns import COMMITTED, Draft, Floats, Int32s, Rows, Verdict, int32s
from foredraft.core.pick import Place, probabilities
from foredraft.core.rules import Dice, Rule, follow
from foredraft.core.sampling import Sampling
from foredraft.core.target import Cache, Target


@dataclass(frozen=True, eq=False)
class Turn:
    """One sequence's part in a round. The last tokens of `text` are pending, one at least: the cache does not
    hold them yet.
    """

    cache: Cache
    text: Sequence[int]
    history: History
    sampling: Sampling
    draft: Draft = Draft.empty
    rule: Rule = "match"
    skipped: int = 0  # tokens before `text` that the cache leaves out; noise is keyed by true positions
    stream: int = PICKS  # of the noise that tokens are picked with

    @property
    def num_pending(self) -> int:
        return len(self.text) - self.cache.length

    @property
    def is_drawn(self) -> bool:
        """Whether the draft is judged by the distributions it was drawn from. A draft that was not drawn, or
        a temperature of 0, leaves `match` as what every rule comes to.
        """
        return self.rule != "match" and bool(self.draft.laws) and self.sampling.temperature > 0.0


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round did for one sequence."""

    verdict: Verdict
    picks: tuple[int, ...]  # after the text, and after every drafted token; none where a rule drew instead
    logits: Floats  # [1 + drafted, vocab]: what the model says after the text, and after every drafted token

    def burst(self, draft: Draft) -> list[tuple[int, Floats]]:
        """The tokens this round adds, each with the row of logits it was picked from."""
        rows = (0, *(1 + index for index in self.verdict.path))
        return [(token, self.logits[row]) for token, row in zip(self.verdict.burst(draft), rows, strict=True)]


def prefill(target: Target, cache: Cache, text: Sequence[int], chunk: int) -> bool:
    """Commit one chunk of the pending text, unless what is left fits into a round: then False, and nothing is
    done.
    """
    start = cache.length
    if len(text) - start <= chunk:
        return False
    target.forward(Rows.chain(text[start : start + chunk]), [cache], int32s([]))
    target.keep(cache, range(chunk))
    return True


def play(target: Target, turns: Sequence[Turn]) -> list[Outcome]:
    """Play one round for all sequences in one pass. It changes the caches and nothing else."""
    rows = Rows.join([rows_of(turn, owner) for owner, turn in enumerate(turns)])
    scores = target.forward(rows, [turn.cache for turn in turns], wanted_rows(turns))
    outcomes = []
    start = 0
    for turn, picks in zip(turns, _picks(target, turns, scores.logits), strict=True):
        logits = scores.logits[start : start + 1 + len(turn.draft)]
        verdict = follow(turn.draft, picks) if picks else _draw(turn, logits)
        outcomes.append(Outcome(verdict, picks, logits))
        pending = turn.num_pending
        target.keep(turn.cache, [*range(pending), *(pending + index for index in verdict.path)])
        start += len(logits)
    return outcomes


def _picks(target: Target, turns: Sequence[Turn], logits: Floats) -> list[tuple[int, ...]]:
    """The target's own tokens for each turn's rows, all in one call; none for a draft that was drawn."""
    sizes = [1 + len(turn.draft) for turn in turns]
    owners = [owner for owner, turn in enumerate(turns) if not turn.is_drawn]
    if len(owners) < len(turns):
        logits = logits[np.repeat([not turn.is_drawn for turn in turns], sizes)]
    picks = iter(target.pick(logits, [place for owner in owners for place in places_of(turns[owner])]))
    return [
        () if turn.is_drawn else tuple(islice(picks, size)) for turn, size in zip(turns, sizes, strict=True)
    ]


def _draw(turn: Turn, logits: Floats) -> Verdict:
    """Judge a drawn chain by the turn's rule."""
    laws = [probabilities(row, place) for row, place in zip(logits, places_of(turn), strict=True)]
    return rules.judge(turn.rule, turn.draft, laws, Dice(turn.sampling.seed or 0, len(turn.text)))


def rows_of(turn: Turn, owner: int) -> Rows:
    """The pending tokens as a chain, and the draft below the last of them."""
    pending = list(turn.text[turn.cache.length :])
    last = len(pending) - 1
    parents = list(range(-1, last))
    parents += [last if parent == COMMITTED else last + 1 + parent for parent in turn.draft.parents]
    return Rows(int32s([*pending, *turn.draft.tokens]), int32s(parents), int32s([owner] * len(parents)))


def wanted_rows(turns: Sequence[Turn]) -> Int32s:
    """The rows after which a token is picked: of every sequence the last pending one, and its draft."""
    wanted: list[int] = []
    start = 0
    for turn in turns:
        stop = start + turn.num_pending + len(turn.draft)
        wanted += range(stop - len(turn.draft) - 1, stop)
        start = stop
    return int32s(wanted)


def places_of(turn: Turn) -> list[Place]:
    """One for each wanted row, in the same order."""
    paths = [(), *(turn.draft.branch(index) for index in range(len(turn.draft)))]
    start = turn.skipped + len(turn.text)
    return [Place(turn.sampling, start + len(path), turn.history, path, turn.stream) for path in paths]
