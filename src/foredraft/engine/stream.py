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
from foredraft.core.nouns import Draft, Floats
from foredraft.core.pick import likeliest, log_probabilities
from foredraft.core.round import Outcome, Turn, play, prefill
from foredraft.core.sampling import Sampling
from foredraft.core.target import Cache, Target
from foredraft.core.trace import RoundEvent, Trace
from foredraft.engine.completion import Burst, Completion, Figures, FinishReason, TokenLogprob
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


@dataclass(frozen=True, eq=False)
class Host:
    """Where a request is computed. The lock is held to use target or cache; `release` is called once."""

    target: Target
    cache: Cache
    lock: threading.RLock
    release: Callable[[], None]


class Stream(Iterator[Burst]):
    """Iterate for the bursts; `completion` says at any time how far it has come. Closing it early, or
    forgetting it, frees its memory.
    """

    def __init__(self, host: Host, request: Request, text: TextStream) -> None:
        self._host = host
        self._request = request
        self._text = text
        self._ids = list(request.prompt)
        self._history = History(request.prompt)
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason: FinishReason | None = None
        self._rounds = 0
        self._verify_s = 0.0
        self._first = self._last = request.submitted
        self._release = weakref.finalize(self, host.release)

    def __next__(self) -> Burst:
        if self._reason is not None:
            raise StopIteration
        with self._host.lock:
            turn, outcome, verify_s = self._play()
        burst = self._take(outcome, turn.draft)
        self._note(turn, outcome, burst, verify_s)
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

    def _play(self) -> tuple[Turn, Outcome, float]:
        host, started = self._host, time.perf_counter()
        while prefill(host.target, host.cache, self._ids, CHUNK):
            pass
        turn = Turn(host.cache, self._ids, self._history, self._request.sampling)
        (outcome,) = play(host.target, [turn])
        return turn, outcome, time.perf_counter() - started

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

    def _note(self, turn: Turn, outcome: Outcome, burst: Burst, verify_s: float) -> None:
        self._last = time.perf_counter()
        if self._rounds == 0:
            self._first = self._last
        event = RoundEvent(
            round=self._rounds,
            position=len(self._ids) - len(burst.ids),
            drafted=turn.draft.tokens,
            parents=turn.draft.parents,
            picks=outcome.picks,
            accepted=len(outcome.verdict.path),
            tokens=burst.ids,
            draft_s=0.0,
            verify_s=verify_s,
        )
        self._rounds += 1
        self._verify_s += verify_s
        if self._request.trace is not None:
            self._request.trace(event)

    def _figures(self) -> Figures:
        tokens = len(self._ids) - len(self._request.prompt)
        return Figures(
            tokens=tokens,
            rounds=self._rounds,
            drafted=0,
            accepted=0,
            depths=0,
            ttft_s=self._first - self._request.submitted if tokens else None,
            decode_s=self._last - self._first,
            total_s=self._last - self._request.submitted,
            draft_s=0.0,
            verify_s=self._verify_s,
        )


def _logprob(token: int, logits: Floats, num_likeliest: int) -> TokenLogprob:
    known = log_probabilities(logits)
    return TokenLogprob(token, float(known[token]), tuple(likeliest(known, num_likeliest)))
