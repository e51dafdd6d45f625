"""One request being answered: its text so far, and how it came about. It knows neither who else is served nor
when its rounds are played (`engine/batch.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.core.history import History
from foredraft.core.nouns import COMMITTED, Draft, Floats
from foredraft.core.pick import likeliest, log_probabilities
from foredraft.core.round import Outcome, Turn
from foredraft.core.target import Cache
from foredraft.core.trace import RoundEvent
from foredraft.engine.completion import Burst, Completion, Figures, FinishReason, TokenLogprob
from foredraft.engine.drafting import SCRATCH_ROWS
from foredraft.engine.request import Request
from foredraft.engine.speculator import FEW, Moment, Speculator
from foredraft.errors import ContextError
from foredraft.models.stream import TextStream

SCORED = 64  # tokens of a prompt whose logits are held at once


@dataclass(frozen=True, eq=False)
class Played:
    """A round as it went for one request."""

    draft: Draft
    outcome: Outcome
    rows: int  # of the whole pass
    draft_s: float
    verify_s: float
    predicted_s: float
    ended: float  # when


class Answer:
    """`text` judges where it ends. Whoever plays its rounds closes the speculator when it is over."""

    def __init__(self, request: Request, text: TextStream, speculator: Speculator) -> None:
        self.request = request
        self.speculator = speculator
        self.ids = list(request.prompt)  # prompt and answer so far
        self.reason: FinishReason | None = None
        self.cached = 0  # tokens of the prompt that were there already
        self.queued_s = 0.0  # until its first pass
        self._text = text
        self._stopped_by: str | int | None = None
        self._history = History(request.prompt)
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob | None] = [None]
        self._rounds = self._drafted = self._accepted = self._depths = 0
        self._draft_s = self._verify_s = 0.0
        self._first = self._last = request.submitted

    @property
    def ended(self) -> bool:
        return self.reason is not None

    def interrupt(self) -> str:
        """End here, if it has not ended. Returns the text that was still held back."""
        if self.reason is not None:
            return ""
        self.reason = "interrupted"
        self._pieces.append(self._text.flush())
        return self._pieces[-1]

    @property
    def is_scored(self) -> bool:
        """Whether its prompt is still to be computed with all logits."""
        return self.request.prompt_logprobs is not None and not self._rounds

    def chunk(self, cache: Cache, most: int) -> int:
        """How many pending tokens to compute, in passes of so many at most, before a round can be played."""
        pending = len(self.ids) - cache.length
        if self.is_scored:
            return min(most, SCORED, pending - 1)  # a round tells nothing of the tokens it has pending
        return most if pending > most else 0

    def moment(self, cache: Cache, others: int) -> Moment:
        """Where it stands, in a pass with so many rows of others."""
        request, pending = self.request, len(self.ids) - cache.length
        left = request.most - (len(self.ids) - len(request.prompt))
        return Moment(
            text=self.ids,
            history=self._history,
            sampling=request.sampling,
            pending=pending + others,
            room=_room(cache, pending),
            depth=left - 1,  # the last token is the target's own
            drawn=request.rule != "match" and request.sampling.temperature > 0.0,
            constraint=request.constraint,
        )

    def turn(self, cache: Cache, draft: Draft) -> Turn:
        """Its part in a round."""
        request = self.request
        return Turn(
            cache,
            self.ids,
            self._history,
            request.sampling,
            draft,
            request.rule,
            constraint=request.constraint,
        )

    def lose_cache(self) -> None:
        """What was computed is gone; what was said stays."""
        if not self._rounds:
            self._prompt_logprobs = [None]

    def note_prompt(self, seconds: float, scored: Sequence[Floats] = ()) -> None:
        """A pass over a part of the prompt is over; `scored` is what the model says after each token of it,
        where that was asked for.
        """
        self._verify_s += seconds
        if self.request.prompt_logprobs is not None:
            start = len(self._prompt_logprobs)
            tokens = self.ids[start : start + len(scored)]
            self._prompt_logprobs += [
                _logprob(token, row, self.request.prompt_logprobs)
                for token, row in zip(tokens, scored, strict=True)
            ]

    def take(self, played: Played) -> tuple[Burst, RoundEvent]:
        """Add a round's burst to the answer, up to the token that ends it."""
        tokens = played.outcome.burst(played.draft)
        delta = self._text.feed(token for token, _ in tokens)
        ids = tuple(token for token, _ in tokens[: delta.taken])
        logprobs: tuple[TokenLogprob, ...] = ()
        if (count := self.request.logprobs) is not None:
            logprobs = tuple(_logprob(*pair, count) for pair in tokens[: delta.taken])
        if self.request.constraint is not None:
            self.request.constraint.advance(ids)
        self.ids += ids
        self._history.add(ids)
        self._pieces.append(delta.text)
        self._logprobs += logprobs
        self.reason, self._stopped_by = delta.finish, delta.stopped_by
        return Burst(delta.text, ids, logprobs), self._note(played, ids)

    @property
    def completion(self) -> Completion:
        """The answer so far; "interrupted" until it has ended by itself."""
        request = self.request
        prompt = len(request.prompt)
        return Completion(
            text="".join(self._pieces),
            ids=tuple(self.ids[prompt:]),
            prompt_tokens=prompt,
            finish_reason=self.reason or "interrupted",
            figures=self._figures(),
            seed=request.sampling.seed,
            logprobs=None if request.logprobs is None else tuple(self._logprobs),
            stopped_by=self._stopped_by,
            cached_tokens=self.cached,
            prompt_logprobs=None if request.prompt_logprobs is None else tuple(self._prompt_logprobs),
        )

    def _note(self, played: Played, ids: tuple[int, ...]) -> RoundEvent:
        """Count what was delivered: an accepted token after the answer's end was of no use."""
        draft, path = played.draft, played.outcome.verdict.path
        accepted = path[: len(ids)]
        went_on = (path[-1] if path else COMMITTED) in draft.parents
        self.speculator.learn(draft, accepted, played.outcome.verdict.burst(draft), played.rows)
        self._last = played.ended
        if self._rounds == 0:
            self._first = self._last
        event = self._event(played, ids, len(accepted))
        self._rounds += 1
        self._drafted += len(draft)
        self._accepted += len(accepted)
        self._depths += len(accepted) + (went_on and len(accepted) == len(path))
        self._draft_s += played.draft_s
        self._verify_s += played.verify_s
        return event

    def _event(self, played: Played, ids: tuple[int, ...], accepted: int) -> RoundEvent:
        draft = played.draft
        return RoundEvent(
            round=self._rounds,
            position=len(self.ids) - len(ids),
            drafted=draft.tokens,
            parents=draft.parents,
            drafters=draft.drafters,
            chances=draft.chances,
            picks=played.outcome.picks,
            accepted=accepted,
            tokens=ids,
            draft_s=played.draft_s,
            verify_s=played.verify_s,
            predicted_s=played.predicted_s,
            predicted_tokens=self.speculator.expected(draft),
            reason=self.speculator.reason,
        )

    def _figures(self) -> Figures:
        tokens, submitted = len(self.ids) - len(self.request.prompt), self.request.submitted
        return Figures(
            tokens=tokens,
            rounds=self._rounds,
            drafted=self._drafted,
            accepted=self._accepted,
            depths=self._depths,
            ttft_s=self._first - submitted if tokens else None,
            decode_s=self._last - self._first,
            total_s=self._last - submitted,
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            by_drafter=self.speculator.by_drafter,
            queued_s=self.queued_s,
        )


def _room(cache: Cache, pending: int) -> int:
    """Rows for a draft; none where other sequences hold the memory. It is settled before anything is
    drafted: to throw away a drawn draft for its length would bias the text.
    """
    room = SCRATCH_ROWS + 1 - pending
    if pending > FEW:
        return 0
    try:
        cache.reserve(pending + room)
    except ContextError:
        return 0
    return room


def _logprob(token: int, logits: Floats, num_likeliest: int) -> TokenLogprob:
    known = log_probabilities(logits)
    return TokenLogprob(token, float(known[token]), tuple(likeliest(known, num_likeliest)))
