"""One round: what is not computed yet and what is drafted go through the target together, the target picks
its own token after every row, and the draft is followed as far as it agrees.

With an empty draft this is plain decoding, and with a whole prompt pending it is the prompt's last chunk:
there is no other path. What a round may not know: who drafted, and why. It reads no clock; whoever calls may.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.core.history import History
from foredraft.core.nouns import COMMITTED, Draft, Floats, Int32s, Rows, Verdict, int32s
from foredraft.core.pick import Place
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

    @property
    def num_pending(self) -> int:
        return len(self.text) - self.cache.length


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round did for one sequence."""

    verdict: Verdict
    picks: tuple[int, ...]  # after the text, and after every drafted token
    logits: Floats  # [picks, vocab]: what each was picked from

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
    picks = target.pick(scores.logits, [place for turn in turns for place in places_of(turn)])
    outcomes = []
    start = 0
    for turn in turns:
        stop = start + 1 + len(turn.draft)
        own = tuple(picks[start:stop])
        verdict = follow(turn.draft, own)
        outcomes.append(Outcome(verdict, own, scores.logits[start:stop]))
        pending = turn.num_pending
        target.keep(turn.cache, [*range(pending), *(pending + index for index in verdict.path)])
        start = stop
    return outcomes


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
    return [Place(turn.sampling, len(turn.text) + len(path), turn.history, path) for path in paths]


def follow(draft: Draft, picks: Sequence[int]) -> Verdict:
    """Descend while a drafted token equals the target's pick. `picks[0]` comes after the text, `picks[i + 1]`
    after drafted token i.
    """
    path: list[int] = []
    here = COMMITTED
    for index, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent == here and token == picks[here + 1]:
            path.append(index)
            here = index
    return Verdict(tuple(path), picks[here + 1])
