"""What a grammar leaves no choice about: keys of an object, the frame of a tool's call. The target may pick
nothing else, so such a draft costs rows and no doubt.
"""

from collections.abc import Callable, Sequence

from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft

CHANCE = 1.0  # forced tokens are forced one by one: where one of them is due, all others are forbidden


class GrammarDrafter:
    """Proposes a chain. Deterministic; where nothing is forced it takes microseconds."""

    name = "grammar"

    def __init__(self, forced: Callable[[], Sequence[int]]) -> None:
        """`forced` gives the tokens that follow the text in any case. It must be at the end of what is asked
        about.
        """
        self._forced = forced

    def propose(self, ask: Ask) -> Draft:
        """The forced tokens, as many as there may be."""
        tokens = self._forced()[: max(0, min(ask.most, ask.depth))]
        return Draft.chain(tokens, [CHANCE] * len(tokens), self.name) if tokens else Draft.empty

    def close(self) -> None:
        """The grammar is the request's."""
