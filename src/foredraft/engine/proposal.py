"""What a drafter proposed, made sure that a target can take it. Drafters are others' code too."""

import logging
import operator

from foredraft.core.drafter import Drafter
from foredraft.core.nouns import Draft

log = logging.getLogger(__name__)
UNSAID = 0.5  # the chance of a token whose drafter does not say


def completed(draft: Draft, name: str, vocab: int, most: int) -> Draft:
    """The draft with chances and names, once it is sure that a target can take it."""
    for token in draft.tokens:
        if not 0 <= operator.index(token) < vocab:
            raise ValueError(f"drafted token {token}, but the vocabulary ends at {vocab - 1}")
    for chance in draft.chances:
        if not 0.0 <= chance <= 1.0:
            raise ValueError(f"gave a token the chance {chance}, but chances go from 0 to 1")
    if any(law.shape != (vocab,) for law in draft.laws):
        raise ValueError(f"gave distributions that are not of the target's {vocab} tokens")
    if len(draft.laws) > most:  # without distributions a draft may be cut
        raise ValueError(f"drew {len(draft)} tokens, but was asked for {most} at most")
    return Draft(
        tuple(map(operator.index, draft.tokens)),  # what is accepted becomes the text, so no foreign types
        tuple(map(operator.index, draft.parents)),
        tuple(map(float, draft.chances or (UNSAID,) * len(draft))),
        draft.drafters or (name,) * len(draft),
        draft.laws,
    )


def report(drafter: Drafter, error: Exception) -> None:
    """Once: it is not asked again."""
    what = f"{type(error).__name__}: {error}"
    log.warning("the drafter %s failed and is left out from here on (%s)", drafter.name, what, exc_info=error)
