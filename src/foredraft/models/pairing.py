"""Whether one model can draft for another: a drafted token's id must mean the same to both."""

from itertools import zip_longest

from foredraft.errors import UsageError
from foredraft.models.tokenizer import Tokenizer
from foredraft.models.vocab import Kind, Vocabulary

PADDING = (Kind.UNUSED, Kind.UNDEFINED)
SHOWN = 3


def check_pair(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> None:
    """Compare the vocabularies token by token. Rows that only fill up a table may differ; a pair that differs
    in tokens which can occur is refused.
    """
    pairs = zip_longest(used(target.vocabulary), used(draft.vocabulary))
    different = [(token, ours, theirs) for token, (ours, theirs) in enumerate(pairs) if ours != theirs]
    if not different:
        return
    shown = "; ".join(
        f"token {token} is {_named(ours)} and {_named(theirs)}" for token, ours, theirs in different[:SHOWN]
    )
    raise UsageError(
        f"{draft_name} cannot draft for {target_name}: {len(different)} of their tokens differ ({shown}"
        f"{'; …' if len(different) > SHOWN else ''}). Give a draft model of the same family, with the same "
        "tokenizer."
    )


def used(vocabulary: Vocabulary) -> list[str | None]:
    """The tokens by id; None for one that cannot occur in a text."""
    tokens: list[str | None] = [
        None if kind in PADDING else token
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds.tolist(), strict=True)
    ]
    while tokens and tokens[-1] is None:
        tokens.pop()
    return tokens


def _named(token: str | None) -> str:
    return "missing" if token is None else repr(token)
