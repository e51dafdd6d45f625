"""Constraints that are plain to see through, and one that breaks."""

import numpy as np


class Successors:
    """After a token of the text may come what `follow` names for it, if it names anything; `first` are those
    that may begin it.
    """

    def __init__(self, follow, first):
        self.follow = follow
        self.first = first
        self.text = ()

    def may(self, path, token):
        before = (*self.text, *path)
        named = self.follow.get(before[-1]) if before else self.first
        return named is None or token in named

    def forbid(self, row, path):
        assert self.allowed(path) == len(path), "asked about a path that is not allowed"
        row[[token for token in range(len(row)) if not self.may(path, token)]] = -np.inf

    def allowed(self, path):
        return next((n for n, token in enumerate(path) if not self.may(path[:n], token)), len(path))

    def advance(self, tokens):
        assert self.allowed(tokens) == len(tokens), "the text went on with what was forbidden"
        self.text += tuple(tokens)

    def forced(self):
        """As far as a token names one successor only, eight at most."""
        tokens = ()
        while len(tokens) < 8 and (before := (*self.text, *tokens)):
            named = self.follow.get(before[-1])
            if named is None or len(named) > 1:
                break
            tokens += tuple(named)
        return tokens


class Broken(Successors):
    """Allows everything, until it raises in the method named, from text of so many tokens on."""

    def __init__(self, where, healthy):
        super().__init__({}, None)
        self.where = where
        self.healthy = healthy

    def forbid(self, row, path):
        self._may_break("forbid")

    def allowed(self, path):
        self._may_break("allowed")
        return super().allowed(path)

    def advance(self, tokens):
        self._may_break("advance")
        self.text += tuple(tokens)

    def _may_break(self, method):
        if method == self.where and len(self.text) >= self.healthy:
            raise RuntimeError(f"broken in {method}")
