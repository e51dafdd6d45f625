"""Tokens to text while they arrive, in bursts of any size.

What comes out does not depend on how the tokens are grouped: each one is judged by itself, first as an end
token, then for the stop strings it completes, then against the limit. Text is held back only while it could
still become a stop string, bytes only while they could still become a character. A leading space stays, as
in llama.cpp: a completion continues a text.
"""

import codecs
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from foredraft.errors import UsageError
from foredraft.models.tokenizer import Tokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Delta:
    """What a burst added.

    `taken` counts the burst's tokens that belong to the generation: all of them, or those up to and
    including the one that ended it. That one is the end token, which has no text; the token that completed
    a stop string; or the last one allowed.
    """

    text: str
    taken: int
    finish: Finish | None = None
    stopped_by: str | int | None = None  # the stop string or the end token


class TextDecoder:
    """Bytes of tokens to text: whole characters only, and in all what decoding everything at once gives."""

    def __init__(
        self, tokenizer: Tokenizer, *, special: bool = False, visible: Set[int] = frozenset()
    ) -> None:
        self.tokenizer = tokenizer
        self.hidden = frozenset[int]() if special else tokenizer.special_ids - visible
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these tokens complete. Control tokens have none, unless `special`."""
        data = b"".join(self.tokenizer.token_bytes(token) for token in ids if token not in self.hidden)
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD where a character has begun and nothing follows, else nothing."""
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Finds the stop string that is complete first; where two are at the same character, the longer one."""

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise UsageError(
                    f"the stop string {stop!r} is not a non-empty string: it would match everywhere or never"
                )
        self.stops = tuple(sorted(set(stops), key=len, reverse=True))
        self.held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that can be given out now.

        If a stop string is complete, `found` says which, and the text ends before it.
        """
        # Held text alone holds no stop string, so that whatever matches ends in the new text.
        text = self.held + text
        ends = [(at + len(stop), stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            end, self.found = min(ends, key=lambda match: match[0])  # the first of equals: the longest
            self.held = ""
            return text[: end - len(self.found)]
        keep = self._beginning_at_end(text)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back: no stop string will come of it any more."""
        text, self.held = self.held, ""
        return text

    def _beginning_at_end(self, text: str) -> int:
        """How many of the last characters are the beginning of a stop string."""
        longest = min(len(text), len(self.stops[0]) - 1) if self.stops else 0
        sizes = range(longest, 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self.stops)), 0)


class TextStream:
    """The text of one generation: end tokens, stop strings and the limit, each at its exact token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        end_ids: Iterable[int] | None = None,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        special: bool = False,
        visible: Set[int] = frozenset(),
    ) -> None:
        """`end_ids` defaults to the model's own; an empty one ends at no token. Stop strings are looked for
        from token number `min_tokens` on.

        `special` shows control tokens as text, otherwise only those that are `visible`.
        """
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"max_tokens is {max_tokens}; at least 1 is expected")
        self.end_ids = tokenizer.eos_ids if end_ids is None else frozenset(end_ids)
        self.max_tokens = max_tokens
        self.min_tokens = min_tokens
        self.tokens = 0
        self.finish: Finish | None = None
        self._decoder = TextDecoder(tokenizer, special=special, visible=visible)
        self._scanner = StopScanner(stops)

    def feed(self, burst: Iterable[int]) -> Delta:
        """Take the tokens of a burst up to the end of the generation. A finished stream takes none."""
        texts: list[str] = []
        taken = 0
        stopped_by: str | int | None = None
        for token in burst:
            if self.finish is not None:
                break
            taken += 1
            text, stopped_by = self._step(token)
            texts.append(text)
        return Delta("".join(texts), taken, self.finish if taken else None, stopped_by)

    def flush(self) -> str:
        """The text still held, for a generation that ends for a reason the stream does not know."""
        return self._scanner.flush() + self._decoder.flush()

    def _step(self, token: int) -> tuple[str, str | int | None]:
        """One token: the text that is now certain, and what ended the generation if it was this token."""
        self.tokens += 1
        if token in self.end_ids:
            self.finish = "stop"
            return self.flush(), token
        text = self._decoder.feed((token,))
        if self.tokens >= self.min_tokens:
            text = self._scanner.feed(text)
        if self._scanner.found is not None:
            self.finish = "stop"
            return text, self._scanner.found
        if self.tokens == self.max_tokens:
            self.finish = "length"
            text += self.flush()
        return text, None
