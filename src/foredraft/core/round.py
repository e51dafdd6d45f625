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
from foredraft.core.constraint import Constraint
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
    constraint: Constraint | None = None  # what tokens may follow

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


@dataclass(frozen=True, eq=False)
class Piece:
    """The next `count` pending tokens of a text, in a pass beside others' rounds. Nothing is picked after
    them.
    """

    cache: Cache
    text: Sequence[int]
    count: int


def prefill(target: Target, cache: Cache, text: Sequence[int], chunk: int) -> bool:
    """Commit one chunk of the pending text, unless what is left fits into a round: then False, and nothing is
    done.
    """
    if len(text) - cache.length <= chunk:
        return False
    play(target, (), [Piece(cache, text, chunk)])
    return True


def score(target: Target, cache: Cache, text: Sequence[int], count: int) -> Floats:
    """Commit the next `count` pending tokens, and tell what the model says after each: [count, vocab]."""
    rows = Rows.chain(text[cache.length : cache.length + count])
    logits = target.forward(rows, [cache], np.arange(count, dtype=np.int32)).logits
    target.keep(cache, range(count))
    return logits


def play(target: Target, turns: Sequence[Turn], pieces: Sequence[Piece] = ()) -> list[Outcome]:
    """Play one round for all sequences in one pass, with pieces of other texts beside. It changes the caches
    and nothing else; if it raises, nothing.
    """
    parts = [rows_of(turn, owner) for owner, turn in enumerate(turns)]
    for owner, piece in enumerate(pieces, len(turns)):
        start = piece.cache.length
        parts.append(Rows.chain(piece.text[start : start + piece.count], owner))
    caches = [turn.cache for turn in turns] + [piece.cache for piece in pieces]
    scores = target.forward(Rows.join(parts), caches, wanted_rows(turns))
    outcomes = _judge(target, turns, scores.logits)
    for turn, outcome in zip(turns, outcomes, strict=True):
        pending = turn.num_pending
        target.keep(turn.cache, [*range(pending), *(pending + index for index in outcome.verdict.path)])
    for piece in pieces:
        target.keep(piece.cache, range(piece.count))
    return outcomes


def _judge(target: Target, turns: Sequence[Turn], logits: Floats) -> list[Outcome]:
    own = _masked(turns, logits)
    outcomes = []
    start = 0
    for turn, picks, said in zip(turns, _picks(target, turns, logits), own, strict=True):
        stop = start + 1 + len(turn.draft)
        verdict = follow(turn.draft, picks) if picks else _draw(turn, logits[start:stop])
        outcomes.append(Outcome(verdict, picks, said))
        start = stop
    return outcomes


def _masked(turns: Sequence[Turn], logits: Floats) -> list[Floats]:
    """Forbid what constraints forbid, in place. Returns each turn's rows as the model gave them."""
    own = []
    start = 0
    for turn in turns:
        rows = logits[start : start + 1 + len(turn.draft)]
        start += len(rows)
        own.append(rows if turn.constraint is None else rows.copy())
        if turn.constraint is not None:
            for row, path in zip(rows, paths_of(turn.draft), strict=True):
                if not turn.is_drawn or turn.constraint.allowed(path) == len(path):  # else never reached
                    turn.constraint.forbid(row, path)
    return own


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
    start = turn.skipped + len(turn.text)
    return [
        Place(turn.sampling, start + len(path), turn.history, path, turn.stream)
        for path in paths_of(turn.draft)
    ]


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """The drafted tokens before each place that a token is picked for."""
    return [(), *(draft.branch(index) for index in range(len(draft)))]
