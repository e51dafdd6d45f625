"""One request being answered: rounds are played when their bursts are asked for, and each burst is cut where
the answer ends. It does not know what the prompt meant or who else is being served.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from foredraft.core.history import History
from foredraft.core.nouns import COMMITTED, Draft, Floats
from foredraft.core.pick import likeliest, log_probabilities
from foredraft.core.round import Outcome, Turn, play, prefill
from foredraft.core.rules import Rule
from foredraft.core.sampling import Sampling
from foredraft.core.target import Cache, Target
from foredraft.core.trace import RoundEvent, Trace
from foredraft.engine.completion import Burst, Completion, Figures, FinishReason, TokenLogprob
from foredraft.engine.drafting import SCRATCH_ROWS
from foredraft.engine.speculator import FEW, Moment, Speculator
from foredraft.errors import ContextError
from foredraft.models.stream import TextStream

CHUNK = 512  # rows of a prompt in one pass: enough to read the weights seldom, few enough to stop soon


@dataclass(frozen=True, eq=False)
class Request:
    """What is asked for."""

    prompt: Sequence[int]
    sampling: Sampling  # with its seed
    ends: frozenset[int]  # the tokens that end the answer
    most: int  # tokens the answer may have
    submitted: float  # by time.perf_counter
    logprobs: int | None = None  # how many of the likeliest tokens to report beside each one
    trace: Trace | None = None
    rule: Rule = "match"


@dataclass(frozen=True, eq=False)
class Host:
    """Where a request is computed. The lock is held to use target or cache; `release` is called once. The
    clock times rounds, and with that decides how much is drafted.
    """

    target: Target
    cache: Cache
    lock: threading.RLock
    release: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, eq=False)
class Played:
    """A round as it went."""

    turn: Turn
    outcome: Outcome
    rows: int
    draft_s: float
    verify_s: float
    predicted_s: float


class Stream(Iterator[Burst]):
    """Iterate for the bursts; `completion` says at any time how far it has come. Closing it early, or
    forgetting it, frees its memory.
    """

    def __init__(self, host: Host, request: Request, text: TextStream, speculator: Speculator) -> None:
        self._host = host
        self._speculator = speculator
        self._request = request
        self._text = text
        self._ids = list(request.prompt)
        self._history = History(request.prompt)
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason: FinishReason | None = None
        self._rounds = self._drafted = self._accepted = self._depths = 0
        self._draft_s = self._verify_s = 0.0
        self._first = self._last = request.submitted
        self._release = weakref.finalize(self, _release, speculator, host.release)

    def __next__(self) -> Burst:
        if self._reason is not None:
            raise StopIteration
        with self._host.lock:
            played = self._play()
            burst = self._take(played.outcome, played.turn.draft)
            event = self._note(played, burst)
        if self._request.trace is not None:
            self._request.trace(event)
        if self._reason is not None:
            self._release()
        return burst

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the answer here, if it has not ended."""
        with self._host.lock:  # not while another thread computes in what is given back
            if self._reason is None:
                self._reason = "interrupted"
                self._pieces.append(self._text.flush())
            self._release()

    @property
    def ids(self) -> Sequence[int]:
        """Prompt and answer so far."""
        return self._ids

    @property
    def ended(self) -> bool:
        return self._reason is not None

    @property
    def completion(self) -> Completion:
        """The answer so far; "interrupted" until it has ended by itself."""
        logprobs = None if self._request.logprobs is None else tuple(self._logprobs)
        prompt = len(self._request.prompt)
        return Completion(
            text="".join(self._pieces),
            ids=tuple(self._ids[prompt:]),
            prompt_tokens=prompt,
            finish_reason=self._reason or "interrupted",
            figures=self._figures(),
            seed=self._request.sampling.seed,
            logprobs=logprobs,
        )

    def _play(self) -> Played:
        """One round: draft, pass, picks. The prompt's chunks before the first one count as its pass."""
        host, speculator = self._host, self._speculator
        controller = speculator.controller
        started = host.clock()
        while prefill(host.target, host.cache, self._ids, CHUNK):
            pass
        prepared = host.clock()
        draft = speculator.draft(self._moment())
        drafted = host.clock()
        turn = Turn(host.cache, self._ids, self._history, self._request.sampling, draft, self._request.rule)
        rows = turn.num_pending + len(draft)
        predicted_s = controller.seconds(rows)
        (outcome,) = play(host.target, [turn])
        ended = host.clock()
        controller.note_pass(rows, ended - drafted)
        verify_s = prepared - started + ended - drafted
        return Played(turn, outcome, rows, drafted - prepared, verify_s, predicted_s)

    def _moment(self) -> Moment:
        sampling, pending = self._request.sampling, len(self._ids) - self._host.cache.length
        left = self._request.most - (len(self._ids) - len(self._request.prompt))
        return Moment(
            text=self._ids,
            history=self._history,
            sampling=sampling,
            pending=pending,
            room=self._room(pending),
            depth=left - 1,  # the last token is the target's own
            drawn=self._request.rule != "match" and sampling.temperature > 0.0,
        )

    def _room(self, pending: int) -> int:
        """Rows for a draft; none where other sequences hold the memory. It is settled before anything is
        drafted: to throw away a drawn draft for its length would bias the text.
        """
        room = SCRATCH_ROWS + 1 - pending
        if pending > FEW:
            return 0
        try:
            self._host.cache.reserve(pending + room)
        except ContextError:
            return 0
        return room

    def _take(self, outcome: Outcome, draft: Draft) -> Burst:
        """Add the burst to the answer, up to the token that ends it."""
        tokens = outcome.burst(draft)
        delta = self._text.feed(token for token, _ in tokens)
        ids = tuple(token for token, _ in tokens[: delta.taken])
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._request.logprobs is not None:
            logprobs = tuple(_logprob(*pair, self._request.logprobs) for pair in tokens[: delta.taken])
        self._ids += ids
        self._history.add(ids)
        self._pieces.append(delta.text)
        self._logprobs += logprobs
        self._reason = delta.finish
        return Burst(delta.text, ids, logprobs)

    def _note(self, played: Played, burst: Burst) -> RoundEvent:
        """Count what was delivered: an accepted token after the answer's end was of no use."""
        draft, path = played.turn.draft, played.outcome.verdict.path
        accepted = path[: len(burst.ids)]
        went_on = (path[-1] if path else COMMITTED) in draft.parents
        self._speculator.learn(draft, accepted, played.outcome.verdict.burst(draft), played.rows)
        self._last = self._host.clock()
        if self._rounds == 0:
            self._first = self._last
        event = self._event(played, burst, len(accepted))
        self._rounds += 1
        self._drafted += len(draft)
        self._accepted += len(accepted)
        self._depths += len(accepted) + (went_on and len(accepted) == len(path))
        self._draft_s += played.draft_s
        self._verify_s += played.verify_s
        return event

    def _event(self, played: Played, burst: Burst, accepted: int) -> RoundEvent:
        draft = played.turn.draft
        return RoundEvent(
            round=self._rounds,
            position=len(self._ids) - len(burst.ids),
            drafted=draft.tokens,
            parents=draft.parents,
            drafters=draft.drafters,
            chances=draft.chances,
            picks=played.outcome.picks,
            accepted=accepted,
            tokens=burst.ids,
            draft_s=played.draft_s,
            verify_s=played.verify_s,
            predicted_s=played.predicted_s,
            predicted_tokens=self._speculator.expected(draft),
            reason=self._speculator.reason,
        )

    def _figures(self) -> Figures:
        tokens = len(self._ids) - len(self._request.prompt)
        return Figures(
            tokens=tokens,
            rounds=self._rounds,
            drafted=self._drafted,
            accepted=self._accepted,
            depths=self._depths,
            ttft_s=self._first - self._request.submitted if tokens else None,
            decode_s=self._last - self._first,
            total_s=self._last - self._request.submitted,
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            by_drafter=self._speculator.by_drafter,
        )


def _release(speculator: Speculator, release: Callable[[], None]) -> None:
    speculator.close()
    release()


def _logprob(token: int, logits: Floats, num_likeliest: int) -> TokenLogprob:
    known = log_probabilities(logits)
    return TokenLogprob(token, float(known[token]), tuple(likeliest(known, num_likeliest)))
