"""A model of a text by its contexts: what followed its last 20, 8, 5, 3, 2 and 1 tokens, and how often.

The longest context that is known speaks first and leaves to shorter ones the probability that something
follows which it hasn't seen, as in prediction by partial matching (Cleary & Witten 1984); what it has seen is
not counted again below (exclusion). From these chances the likeliest tree of continuations is grown.

This is the specification of native/context.cpp, which equals it to the bit: all arithmetic is in float64 and
in the order written here. Only there might two contexts share a 64-bit hash, and with it their counts.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

Tree = tuple[
    list[int], list[int], list[float]
]  # tokens, parents (an index or -1), chances where those are right


@dataclass(frozen=True)
class Doubt:
    """The odds of a token that the context has not seen against one that it has. `one` is for a context seen
    once, `many` per kind of token for one that several kinds followed; both fall as kinds are seen again.
    """

    one: float
    many: float


# Length of a context -> doubt. Measured on 371 greedy answers of qwen2.5-coder-1.5b, of eight sorts; lengths
# between these, and longer ones, gain nothing.
OWN = {
    20: Doubt(0.01, 0.5),
    8: Doubt(0.1, 0.5),
    5: Doubt(0.2, 0.5),
    3: Doubt(0.4, 0.8),
    2: Doubt(0.85, 0.9),
    1: Doubt(2.0, 1.2),
}
REMEMBERED = {3: Doubt(1.6, 1.2), 2: Doubt(3.2, 2.5), 1: Doubt(5.0, 6.0)}
LONGEST = max(OWN)

KINDS = 8  # tokens a context counts; more of them are next to impossible each
CHILDREN = 8  # tokens a tree may have after one token
LEAST = 0.01  # probability left below which shorter contexts are not asked

Context = tuple[int, ...]


@dataclass
class Followers:
    """What followed a context: at most KINDS tokens, the most frequent first, of equal ones the latest."""

    total: int = 0  # times the context was followed, by tokens now forgotten too
    counts: list[tuple[int, int]] = field(default_factory=list)  # (token, times)

    def count(self, token: int) -> None:
        """One more time. Where there is no room for a new token, the last one is forgotten."""
        self.total += 1
        times = 1
        for index, (seen, before) in enumerate(self.counts):
            if seen == token:
                times += before
                del self.counts[index]
                break
        else:
            del self.counts[KINDS - 1 :]
        place = 0
        while place < len(self.counts) and self.counts[place][1] > times:
            place += 1
        self.counts.insert(place, (token, times))

    def escape(self, doubt: Doubt) -> float:
        """The probability that another token follows than those counted."""
        kinds = len(self.counts)
        kept = sum(times for _, times in self.counts)
        again = 1 + kept - kinds
        forgotten = self.total - kept
        one = kinds == 1 and forgotten == 0
        odds = (doubt.one if one else doubt.many * kinds + forgotten) / again
        return odds / (1.0 + odds)


class Contexts(Protocol):
    """A context model, this one or its native form."""

    def add(self, tokens: Sequence[int], /) -> None:
        """Append to the text."""

    def tree(self, tail: Sequence[int], most: int, depth: int, floor: float, /) -> Tree:
        """What may come after the text and `tail`."""


class Shared(Protocol):
    """A memory, this one or its native form."""

    def add(self, tokens: Sequence[int], /) -> None:
        """Remember an output."""

    def open(self) -> Contexts:
        """A model of a new text that knows this memory."""


class Memory:
    """What earlier outputs of the process held, in contexts of up to three tokens.

    Two generations of at most `contexts` each: when the young one is full it becomes the old one, and the old
    one is dropped, except for what is seen again in time. Safe to use from several threads.
    """

    def __init__(self, contexts: int = 1 << 19) -> None:
        if contexts < 1:
            raise ValueError(f"a memory of {contexts} contexts; it needs one at least")
        self._limit = contexts
        self._young: dict[Context, Followers] = {}
        self._old: dict[Context, Followers] = {}
        self._lock = threading.Lock()

    def add(self, tokens: Sequence[int]) -> None:
        """Remember an output. A negative token raises ValueError."""
        _check(tokens)
        with self._lock:
            for end, token in enumerate(tokens):
                for length in REMEMBERED:
                    if length <= end:
                        self._of(tuple(tokens[end - length : end])).count(token)

    def open(self) -> "ContextModel":
        """A model of a new text that knows this memory."""
        return ContextModel(self)

    def look(self, context: Context) -> Followers | None:
        """What has followed a context so far."""
        with self._lock:
            seen = self._young.get(context) or self._old.get(context)
            return seen and Followers(seen.total, list(seen.counts))

    def _of(self, context: Context) -> Followers:
        followers = self._young.get(context)
        if followers is None:
            if len(self._young) >= self._limit:
                self._young, self._old = {}, self._young
            followers = self._young[context] = self._old.get(context, Followers())
        return followers


class ContextModel:
    """The contexts of one text, and those of a memory that other texts share.

    Contexts of the memory speak after those of the text with the same length.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self._last: list[int] = []  # of the text
        self._seen: dict[Context, Followers] = {}

    def add(self, tokens: Sequence[int]) -> None:
        """Append to the text. A negative token raises ValueError."""
        _check(tokens)
        for token in tokens:
            for length in OWN:
                if length <= len(self._last):
                    self._seen.setdefault(tuple(self._last[-length:]), Followers()).count(token)
            self._last = [*self._last, token][-LONGEST:]

    def tree(self, tail: Sequence[int], most: int, depth: int, floor: float) -> Tree:
        """What may come after the text and `tail`: the likeliest path next, whatever branch it is on, until
        there are `most` tokens or no path of at most `depth` tokens has a probability of `floor`.

        Of equally likely paths the one found first is taken. A token's chance is conditional on its parent.
        """
        _check(tail)
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        found = 0
        waiting: list[tuple[float, int, _Path]] = []
        here = _Path(-1, -1, 1.0, 1.0, 0, [*self._last, *tail][-LONGEST:])
        while len(tokens) < most:
            for token, chance in self.after(here.last)[:CHILDREN] if here.depth < depth else ():
                path = here.path * chance
                if path >= floor:
                    last = [*here.last, token][-LONGEST:]
                    child = _Path(len(tokens) - 1, token, chance, path, here.depth + 1, last)
                    heappush(waiting, (-path, found, child))
                    found += 1
            if not waiting:
                break
            here = heappop(waiting)[2]
            tokens.append(here.token)
            parents.append(here.parent)
            chances.append(here.chance)
        return tokens, parents, chances

    def after(self, last: Sequence[int]) -> list[tuple[int, float]]:
        """Tokens and their chances after the last tokens of a text, the likeliest first, and of equal ones
        that of the longest context.
        """
        chances: dict[int, float] = {}
        left = 1.0
        for followers, doubt in self._followers(last):
            counts = [(token, times) for token, times in followers.counts if token not in chances]
            if not counts:
                continue
            escape = followers.escape(doubt)
            total = sum(times for _, times in counts)
            share = left * (1.0 - escape)
            for token, times in counts:
                chances[token] = share * times / total
            left *= escape
            if left < LEAST:
                break
        return sorted(chances.items(), key=lambda item: -item[1])

    def _followers(self, last: Sequence[int]) -> Iterable[tuple[Followers, Doubt]]:
        for length, doubt in OWN.items():
            if length > len(last):
                continue
            context = tuple(last[-length:])
            if followers := self._seen.get(context):
                yield followers, doubt
            if self._memory and length in REMEMBERED and (followers := self._memory.look(context)):
                yield followers, REMEMBERED[length]


@dataclass(frozen=True)
class _Path:
    """A path that may become part of a tree, by its last token."""

    parent: int
    token: int
    chance: float
    path: float  # the probability of the whole path
    depth: int
    last: list[int]  # tokens of the text with this path


def _check(tokens: Sequence[int]) -> None:
    if any(token < 0 for token in tokens):
        raise ValueError(f"token {min(tokens)} is negative; ids of tokens count from 0")
