"""What may be asked of a model, checked before anything is computed."""

from foredraft.core.sampling import Sampling
from foredraft.errors import TokenError, UsageError

DEFAULT_CONTEXT = 4096


def checked_context(asked: int | None, trained: int) -> int:
    """The context to provide for: what is asked, if the model was trained for it."""
    if asked is None:
        return min(DEFAULT_CONTEXT, trained)
    if not 2 <= asked <= trained:
        raise UsageError(
            f"ctx is {asked}, but must be between 2 and {trained}, which this model was trained for"
        )
    return asked


def check_settings(sampling: Sampling, logprobs: int | None, vocab: int) -> None:
    """Refuse token ids that the model does not have, and more of the likeliest than it has."""
    if logprobs is not None and not 0 <= logprobs <= vocab:
        raise UsageError(f"logprobs is {logprobs}, but must be between 0 and {vocab}, or None")
    for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        for token in ids:
            if token >= vocab:
                raise TokenError(f"{name} names token {token}, but the vocabulary ends at {vocab - 1}")
