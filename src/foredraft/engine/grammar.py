"""Text that follows a grammar: which tokens may come next, after the text and after every path of a draft.

The grammars are llguidance's (extra `serve`), over the bytes of this model's own tokens. Where a grammar
leaves no choice, only the usual tokens of the forced text are allowed and not, say, its single letters: the
model is then where it was trained to be, and a draft of them is always right.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from foredraft.core.nouns import Floats
from foredraft.engine.grammar_source import Kind, llguidance_source
from foredraft.engine.grammar_vocabulary import Vocabulary
from foredraft.errors import UsageError
from foredraft.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Of llguidance's work, in its own units. Its defaults let a grammar take seconds for a mask, and everybody
# waits: with 4,000 items the worst known takes 25 ms. An object with 300 optional properties needs 2,000.
MOST_SYMBOLS, MOST_STATES, MOST_ITEMS = 30_000, 20_000, 4_000
SHOWN = 400  # characters of its messages, which quote the grammar

# A byte of a mask has a bit for each of eight tokens: what is to be added to their logits.
_ADDED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf
)
ADDED: Floats = _ADDED.astype(np.float32)


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar as it was given, and by which field of the request."""

    kind: Kind
    source: str  # `llguidance_source` says of which sort
    field: str = "grammar"


class Grammar:
    """A `Constraint`, of one request. It never raises into a round: where the grammar fails (it may be too
    much for llguidance at some place), end tokens are all that is allowed, and `advance` says what is wrong.

    An end token may follow where the grammar is complete, and only end tokens may follow where it can't go
    on, and after one: with `ignore_eos` the answer is then filled up with them. Something must be allowed: if
    all that the grammar allows is forbidden already (`min_tokens` forbids end tokens), it is allowed again.
    """

    def __init__(self, compiled: "_Compiled", ends: Collection[int]) -> None:
        self._compiled = compiled
        self._matcher = compiled.copy()  # it has consumed the text and the path
        self._ends = ends
        self._text: list[int] = []
        self._path: list[int] = []
        self._over = False  # the text has an end token
        self._trouble = ""

    def forbid(self, row: Floats, path: Sequence[int]) -> None:
        """Set to minus infinity, in place, what cannot follow the text and this path, which is allowed."""
        words = self._words(path)
        may_go_on = self._follow(words, strictly=False) == len(path) and not self._over
        mask = self._mask() if may_go_on else None
        if mask is None:
            mask = self._end_mask(len(row))
        row += ADDED.take(mask, axis=0).reshape(-1)[: len(row)]
        if row.max() == -np.inf:
            row[np.unpackbits(mask, count=len(row), bitorder="little") == 1] = 0.0

    def allowed(self, path: Sequence[int]) -> int:
        """How many of the path's tokens are allowed, from the first one on."""
        words = self._words(path)
        count = self._follow(words, strictly=True)
        if count < len(words) or count == len(path) or not self._may_end(path[count]):
            return count
        return count + sum(1 for _ in takewhile(self._ends.__contains__, path[count:]))

    def advance(self, tokens: Sequence[int]) -> None:
        """The text went on with these tokens. Raises `UsageError` if it may not: it is not the grammar's
        any more.
        """
        words = self._words(tokens)
        count = self._follow(words, strictly=False)
        if count < len(words) or (count < len(tokens) and not self._may_end(tokens[count])):
            reason = self._trouble or f"token {tokens[count]} cannot follow {len(self._text) + count} others"
            raise UsageError(f"the text can't go on as its grammar wants it ({reason}); simplify the grammar")
        self._over = self._over or len(words) < len(tokens)
        self._text += words
        self._path = []

    def forced(self) -> list[int]:
        """The tokens that follow the text in any case."""
        self._follow((), strictly=False)
        return [] if self._over or self._has_failed() else self._matcher.compute_ff_tokens()

    def _follow(self, path: Sequence[int], strictly: bool) -> int:
        """Have the matcher consume the path, as far as the grammar allows, and say how far that is.
        `strictly`: of forced text only the usual tokens.
        """
        count = self._consume(path, strictly)
        if self._has_failed():
            count = self._consume(path, strictly)
        return 0 if self._has_failed() else count

    def _consume(self, path: Sequence[int], strictly: bool) -> int:
        """The rows of a draft share beginnings, so what was consumed before stays if it can."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, self._path, strict=False)))
        if same < len(self._path):
            self._matcher.rollback(len(self._path) - same)
            del self._path[same:]
        for token in path[same:]:
            if strictly and (forced := self._matcher.compute_ff_tokens()) and forced[0] != token:
                break
            if self._matcher.try_consume_tokens([token]) != 1:
                break
            self._path.append(token)
        return len(self._path)

    def _mask(self) -> npt.NDArray[np.uint8] | None:
        """A bit for each token that may follow; None where the grammar fails."""
        path = list(self._path)
        mask = self._matcher.compute_bitmask()
        if self._has_failed():
            self._follow(path, strictly=False)
            mask = self._matcher.compute_bitmask()
        return None if self._has_failed() else np.frombuffer(mask, np.uint8)

    def _end_mask(self, vocab: int) -> npt.NDArray[np.uint8]:
        bits = np.zeros(vocab, np.uint8)
        bits[list(self._ends)] = 1
        return np.packbits(bits, bitorder="little")

    def _may_end(self, token: int) -> bool:
        if self._over:
            return token in self._ends
        mask = self._mask()
        return mask is not None and bool(mask[token >> 3] >> (token & 7) & 1)

    def _words(self, path: Sequence[int]) -> list[int]:
        """What comes before the first end token."""
        return [] if self._over else list(takewhile(lambda token: token not in self._ends, path))

    def _has_failed(self) -> bool:
        """Whether llguidance has given up, which it does for good. Then another matcher has taken up the
        text: what was only drafted leaves no trace.
        """
        if not self._matcher.is_error():
            return False
        self._trouble = shown(self._matcher.get_error())
        self._compiled.renew()
        self._matcher = self._compiled.copy()
        self._matcher.consume_tokens(self._text)
        self._path = []
        return True


class _Compiled:
    """A grammar's matcher at its beginning. Copies share the states of the lexer, which makes the next
    request faster, and which are limited: they are begun anew when they are used up.
    """

    def __init__(self, tokens: "LLTokenizer", source: str) -> None:
        self._tokens = tokens
        self._source = source
        self.renew()

    def renew(self) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_grammar_size=MOST_SYMBOLS,
            max_lexer_states=MOST_STATES,
            step_max_items=MOST_ITEMS,
            verbose_errors=False,
        )
        self._matcher = LLMatcher(self._tokens, self._source, log_level=0, limits=limits)

    def copy(self) -> "LLMatcher":
        return self._matcher.deep_copy()

    def check(self, ends: Collection[int]) -> None:
        """Try a first token, and whether it can be taken back: then most of what can go wrong has."""
        trial = self.copy()
        _check(trial)
        mask = np.frombuffer(trial.compute_bitmask(), np.uint8)
        if trial.get_error().startswith("NoExtension"):
            raise UsageError("no text of this model's tokens follows it")
        _check(trial)
        first = np.flatnonzero(np.unpackbits(mask, bitorder="little"))[:1].tolist()
        if first[0] in ends:
            return
        trial.consume_tokens(first)
        _check(trial)
        if not trial.rollback(1):
            raise UsageError(
                "it has max_tokens, stop or temperature, which drafts cannot follow; leave them out"
            )


class GrammarCompiler:
    """Of one model. Safe to use from several threads: what costs time once is done by the first that asks."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self.build_s = 0.0  # that reading the vocabulary took

    def compile(self, spec: GrammarSpec) -> Callable[[], Grammar]:
        """Makes the grammar of one request after another. `UsageError` says what is wrong with it."""
        ends = self._tokenizer.eos_ids
        try:
            compiled = _Compiled(self._read_vocabulary(), llguidance_source(spec.kind, spec.source))
            compiled.check(ends)
        except (UsageError, ValueError) as error:
            raise UsageError(f"{spec.field} cannot be used as a grammar: {error}") from None
        except ImportError:
            raise _missing() from None
        return lambda: Grammar(compiled, ends)

    def _read_vocabulary(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokens is None:
                if not self._tokenizer.eos_ids:
                    raise UsageError(
                        "the model has no end token, so nothing could end a text that is complete"
                    )
                started = time.perf_counter()
                self._tokens = LLTokenizer(
                    Vocabulary(self._tokenizer, self._vocab),  # type: ignore[arg-type]
                    n_vocab=self._vocab,
                    eos_token=sorted(self._tokenizer.eos_ids),
                )
                self.build_s = time.perf_counter() - started
            return self._tokens


def shown(message: str) -> str:
    """A message of llguidance's: its first part, on one line."""
    message = message.replace("<non-verbose/>", "").replace(
        "Enable 'coerce_one_of' option to approx", "Approx"
    )
    words = " ".join(message.split())
    return words if len(words) <= SHOWN else words[:SHOWN] + "…"


def _check(matcher: "LLMatcher") -> None:
    if matcher.is_error():
        raise UsageError(shown(matcher.get_error()))


def _missing() -> UsageError:
    return UsageError(
        "grammars need the package llguidance, which is not installed: pip install 'foredraft[serve]'"
    )
