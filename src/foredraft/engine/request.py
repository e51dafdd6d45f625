"""What is asked of a model, checked and in tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.core.constraint import Both, Constraint, LeastLength
from foredraft.core.rules import Rule
from foredraft.core.sampling import Sampling
from foredraft.core.trace import Trace
from foredraft.engine.checks import check_count, check_ids, check_settings
from foredraft.errors import ContextError
from foredraft.models.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Request:
    """`Requests` makes it. A constraint has a state: it serves one request only."""

    prompt: Sequence[int]
    sampling: Sampling  # with its seed
    ends: frozenset[int]  # the tokens that end the answer
    most: int  # tokens the answer may have
    submitted: float  # by time.perf_counter
    logprobs: int | None = None  # how many of the likeliest tokens to report beside each one
    trace: Trace | None = None
    rule: Rule = "match"
    constraint: Constraint | None = None
    forced: Callable[[], Sequence[int]] | None = None  # tokens that a grammar leaves no choice about
    prompt_logprobs: int | None = None  # as `logprobs`, of the prompt's tokens; nothing of it is reused
    salt: str = ""  # what was computed for one request is reused for others of the same salt
    special: bool = False  # whether the text shows control tokens
    visible: frozenset[int] = frozenset()  # control tokens that it shows in any case


class Requests:
    """Makes requests for one model."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, ctx: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._ctx = ctx

    def __call__(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        submitted: float,
        logprobs: int | None = None,
        trace: Trace | None = None,
        *,
        constraint: Constraint | None = None,
        prompt_logprobs: int | None = None,
        salt: str = "",
        special: bool = False,
        visible: frozenset[int] = frozenset(),
    ) -> Request:
        """A request for the continuation of these ids, checked against the model and its context."""
        if len(ids) >= self._ctx:
            raise ContextError(
                f"the prompt has {len(ids)} tokens, but prompt and answer together may have {self._ctx}. "
                f"Shorten the prompt, or load the model with a longer context (ctx="
                f"{len(ids) + sampling.max_tokens}; on the command line --ctx)."
            )
        check_ids(ids, self._vocab)
        check_settings(sampling, self._vocab)
        check_count("logprobs", logprobs, self._vocab)
        check_count("prompt_logprobs", prompt_logprobs, self._vocab)
        forced = None if constraint is None else constraint.forced
        ends = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= self._tokenizer.eos_ids
        if sampling.min_tokens and ends:
            longer = LeastLength(sampling.min_tokens, ends)
            constraint = longer if constraint is None else Both(longer, constraint)
        return Request(
            prompt=ids,
            sampling=sampling.resolve(),
            ends=ends,
            most=min(sampling.max_tokens, self._ctx - len(ids)),
            submitted=submitted,
            logprobs=logprobs,
            trace=trace,
            constraint=constraint,
            forced=forced,
            prompt_logprobs=prompt_logprobs,
            salt=salt,
            special=special,
            visible=visible,
        )
