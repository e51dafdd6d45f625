"""What a request gives back: bursts while it runs, a completion when it has ended, and the figures of how it
went.

Times are seconds. A figure that does not exist (a rate over no time, the acceptance of no drafts) is None,
never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from foredraft.core.sampling import Sampling

GREEDY = Sampling()  # what is asked for by who asks for nothing

FinishReason = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True)
class TokenLogprob:
    """The natural logarithm of the probability the model itself gave a token, before any sampling setting,
    beside the likeliest ones.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (id, logprob), likeliest first


@dataclass(frozen=True)
class Burst:
    """What one round added. The text may lag behind the ids: it waits for whole characters, and for what may
    become a stop string.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class DrafterFigures:
    """What one drafter contributed."""

    drafted: int
    accepted: int
    seconds: float

    @property
    def accepted_per_draft_s(self) -> float | None:
        return self.accepted / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class Figures:
    """How a request went. `verify_s` is the time in passes and picks, the prompt's included."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int
    depths: int  # of drafts, as far as they were reached: the accepted ones, and the first rejected one
    ttft_s: float | None  # from submission to the first token
    decode_s: float  # from the first token to the last
    total_s: float  # from submission to the last token
    draft_s: float
    verify_s: float
    by_drafter: Mapping[str, DrafterFigures] = field(default_factory=dict)
    queued_s: float = 0.0  # from submission to the first pass

    @property
    def tok_s(self) -> float | None:
        return (self.tokens - 1) / self.decode_s if self.tokens > 1 and self.decode_s > 0 else None

    @property
    def acceptance(self) -> float | None:
        """Accepted tokens per drafted one."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def alpha(self) -> float | None:
        """Accepted tokens per depth reached: the chance that a draft goes on being right."""
        return self.accepted / self.depths if self.depths else None

    @property
    def tokens_per_round(self) -> float | None:
        """The target's own token after every draft counts."""
        return self.tokens / self.rounds if self.rounds else None


@dataclass(frozen=True)
class Completion:
    """A finished request. `ids` end with the end token or with the token that completed a stop string; `text`
    ends before either.
    """

    text: str
    ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    figures: Figures
    seed: int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    stopped_by: str | int | None = None  # the stop string or the end token
    cached_tokens: int = 0  # of the prompt, computed for earlier requests
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # the first token has none
