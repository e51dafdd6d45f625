"""What may be asked of a model, checked before anything is computed."""

from collections.abc import Sequence

from foredraft.core.sampling import Sampling
from foredraft.errors import TokenError, UsageError
from foredraft.models.memory import available_bytes

DEFAULT_CONTEXT = 4096
SERVED = 16  # whole contexts that a server has memory for
FREE_PART = 0.4  # of the memory that is free


def checked_context(asked: int | None, trained: int) -> int:
    """The context to provide for: what is asked, if the model was trained for it."""
    if asked is None:
        return min(DEFAULT_CONTEXT, trained)
    if not 2 <= asked <= trained:
        raise UsageError(
            f"ctx is {asked}, but must be between 2 and {trained}, which this model was trained for"
        )
    return asked


def checked_kv_tokens(asked: int | str | None, context: int, token_bytes: float = 0.0) -> int:
    """The tokens to have memory for: one whole context at least. "auto": for as many requests as a server may
    have at once, if they take no more than a part of the memory that is free.
    """
    if asked is None:
        return context
    if isinstance(asked, str):
        free = available_bytes()
        most = SERVED if free is None else int(FREE_PART * free / (token_bytes * context))
        return context * max(1, min(most, SERVED))
    if asked < context:
        raise UsageError(
            f"kv_tokens is {asked}, but one request may have {context} tokens; give as many at least, or a "
            "shorter context"
        )
    return asked


def check_ids(ids: Sequence[int], vocab: int) -> None:
    """Refuse an empty prompt, and tokens that the model does not have."""
    if not len(ids):
        raise UsageError("the prompt is empty; give at least one token id")
    worst = min(ids) if min(ids) < 0 else max(ids)
    if not 0 <= worst < vocab:
        raise TokenError(f"the prompt has token {worst}, but the vocabulary ends at {vocab - 1}")


def check_count(name: str, count: int | None, vocab: int) -> None:
    """Refuse to report more of the likeliest tokens than the model has."""
    if count is not None and not 0 <= count <= vocab:
        raise UsageError(f"{name} is {count}, but must be between 0 and {vocab}, or None")


def check_settings(sampling: Sampling, vocab: int) -> None:
    """Refuse token ids that the model does not have."""
    for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        for token in ids:
            if token >= vocab:
                raise TokenError(f"{name} names token {token}, but the vocabulary ends at {vocab - 1}")
