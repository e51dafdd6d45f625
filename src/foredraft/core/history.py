"""What a sequence has seen, as the penalties need it: the prompt's tokens, and how often each token was
written since.

One history belongs to one sequence and grows by committed tokens only. A row of a draft is judged with its
own drafted path beside the history, never by changing it: so nothing has to be undone when a draft is
rejected.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from foredraft.core.nouns import Int32s


class History:
    """Counts per token; 0 for a token of the prompt that was not written yet."""

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._counts = Counter(dict.fromkeys(prompt, 0))
        self._arrays: tuple[Int32s, Int32s] | None = None

    def add(self, tokens: Iterable[int]) -> None:
        """Note tokens that were written."""
        self._counts.update(tokens)
        self._arrays = None

    def after(self, path: Sequence[int]) -> Mapping[int, int]:
        """The counts as they will be once the tokens of `path` are written too; a new mapping."""
        counts = self._counts.copy()
        counts.update(path)
        return counts

    def extended(self, path: Sequence[int]) -> "History":
        """A history of its own that has the tokens of `path` too."""
        result = History()
        result._counts = Counter(self.after(path))
        return result

    def arrays(self) -> tuple[Int32s, Int32s]:
        """Tokens and their counts, side by side; kept until the history grows."""
        if self._arrays is None:
            size = len(self._counts)
            tokens = np.fromiter(self._counts.keys(), np.int32, size)
            self._arrays = tokens, np.fromiter(self._counts.values(), np.int32, size)
        return self._arrays
