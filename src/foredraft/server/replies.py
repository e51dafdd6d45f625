"""The parts of replies that are alike for completions and chats: usage, speculation, timings, logprobs.

Usage counts every token of the answer, the one that ended it included, whatever the chunks. A figure that
does not exist is null.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from foredraft.engine.completion import Completion, Figures, TokenLogprob
from foredraft.engine.drafting import Drafting
from foredraft.models.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no infinities
PREDICTION = "prediction"  # a drafter's name
DECODER = codecs.getincrementaldecoder("utf-8")


def plain_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def usage(completions: Sequence[Completion], per_prompt: int, predicted: bool) -> dict[str, Any]:
    """Of all answers; a prompt counts once, however many answers it has. Accepted and rejected tokens are
    those of the client's prediction, if it sent one: what other drafters did stands elsewhere.
    """
    firsts = completions[::per_prompt]
    given = plain_usage(
        sum(first.prompt_tokens for first in firsts), sum(len(answer.ids) for answer in completions)
    )
    given["prompt_tokens_details"] = {"cached_tokens": sum(first.cached_tokens for first in firsts)}
    if predicted:
        parts = [answer.figures.by_drafter.get(PREDICTION) for answer in completions]
        accepted = sum(part.accepted for part in parts if part)
        rejected = sum(part.drafted - part.accepted for part in parts if part)
        given["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        }
    return given


def speculation(completions: Sequence[Completion], drafting: Drafting) -> dict[str, Any]:
    """How these answers were drafted for."""
    figures = [completion.figures for completion in completions]
    rounds, drafted = total(figures, "rounds"), total(figures, "drafted")
    accepted, tokens = total(figures, "accepted"), total(figures, "tokens")
    by_drafter: dict[str, dict[str, Any]] = {}
    for one in figures:
        for name, part in one.by_drafter.items():
            sums = by_drafter.setdefault(name, {"drafted": 0, "accepted": 0, "seconds": 0.0})
            sums["drafted"] += part.drafted
            sums["accepted"] += part.accepted
            sums["seconds"] += part.seconds
    return {
        "drafter": drafting.drafter,
        "k": drafting.k,
        "rule": drafting.rule,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": ratio(accepted, drafted),
        "tokens_per_round": ratio(tokens, rounds),
        "draft_s": total(figures, "draft_s"),
        "verify_s": total(figures, "verify_s"),
        "by_drafter": by_drafter,
    }


def timings(completions: Sequence[Completion]) -> dict[str, Any]:
    """By llama.cpp's names. Waiting for a turn is in none of the times; answers beside each other add up."""
    figures = [completion.figures for completion in completions]
    cached = sum(completion.cached_tokens for completion in completions)
    prompt = sum(completion.prompt_tokens for completion in completions) - cached
    prompt_s = sum(one.ttft_s - one.queued_s for one in figures if one.ttft_s is not None)
    decode_s, tokens = total(figures, "decode_s"), total(figures, "tokens")
    later = sum(max(0, one.tokens - 1) for one in figures)  # the first token comes with the prompt
    return {
        "prompt_n": prompt,
        "prompt_ms": prompt_s * 1e3,
        "prompt_per_second": ratio(prompt, prompt_s),
        "predicted_n": tokens,
        "predicted_ms": decode_s * 1e3,
        "predicted_per_second": ratio(later, decode_s) if later else None,
        "cache_n": cached,
        "draft_n": total(figures, "drafted"),
        "draft_n_accepted": total(figures, "accepted"),
    }


def total(figures: Iterable[Figures], name: str) -> Any:  # noqa: ANN401 - a sum of ints is one, of floats too
    return sum(getattr(one, name) for one in figures)


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


class TokenTexts:
    """Tokens as logprobs name them; each is worked out once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._chat: dict[int, tuple[str, list[int]]] = {}
        self._legacy: dict[int, str] = {}

    def chat(self, token: int) -> tuple[str, list[int]]:
        """Text and bytes."""
        known = self._chat.get(token)
        if known is None:
            data = self._tokenizer.token_bytes(token)
            known = self._chat[token] = (data.decode("utf-8", "replace"), list(data))
        return known

    def legacy(self, token: int) -> str:
        """One string, in which a part of a character is spelt out."""
        known = self._legacy.get(token)
        if known is None:
            data = self._tokenizer.token_bytes(token)
            try:
                known = data.decode()
            except UnicodeDecodeError:
                known = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            self._legacy[token] = known
        return known


def chat_logprobs(texts: TokenTexts, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """One entry for each token of the answer, the end token included."""

    def named(token: int, logprob: float) -> dict[str, Any]:
        text, data = texts.chat(token)
        return {"token": text, "bytes": data, "logprob": finite(logprob)}

    content = [
        {**named(one.id, one.logprob), "top_logprobs": [named(*pair) for pair in one.top]} for one in logprobs
    ]
    return {"content": content, "refusal": None}


class LegacyLogprobs:
    """Those of completions. Offsets count the characters of all the text that is given out."""

    def __init__(self, texts: TokenTexts, tokenizer: Tokenizer, special: bool) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._hidden = frozenset[int]() if special else tokenizer.special_ids
        self._decoder = DECODER("replace")
        self._offset = 0

    def echo(self, text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """Of the prompt, whose tokens may have a beginning that the text has not: its bos token, a space."""
        decoded = self._tokenizer.decode(ids)
        self._offset = len(text) - len(decoded)
        given = self._entries(list(zip(ids, logprobs, strict=True)), frozenset())
        given["text_offset"] = [max(0, offset) for offset in given["text_offset"]]
        self._offset = len(text)
        return given

    def feed(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Of further tokens of the answer."""
        return self._entries([(one.id, one) for one in logprobs], self._hidden)

    def _entries(
        self, pairs: Sequence[tuple[int, TokenLogprob | None]], hidden: frozenset[int]
    ) -> dict[str, Any]:
        offsets = [
            self._advance(b"" if id_ in hidden else self._tokenizer.token_bytes(id_)) for id_, _ in pairs
        ]
        return {
            "tokens": [self._texts.legacy(token) for token, _ in pairs],
            "token_logprobs": [None if one is None else finite(one.logprob) for _, one in pairs],
            "top_logprobs": [None if one is None else self._top(one) for _, one in pairs],
            "text_offset": offsets,
        }

    def _advance(self, data: bytes) -> int:
        """The offset of the character that a token begins with, or goes on with."""
        before = self._offset
        self._offset += len(self._decoder.decode(data))
        if not data or 0x80 <= data[0] < 0xC0:
            return before
        return self._offset - len(DECODER("replace").decode(data))

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """By text, so that of several tokens with one text the likeliest stays; the token itself is always
        there.
        """
        top: dict[str, float] = {}
        for token, logprob in (*one.top, (one.id, one.logprob)):
            top.setdefault(self._texts.legacy(token), finite(logprob))
        return top


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Legacy logprobs, one after the other."""
    return {name: [*values, *second[name]] for name, values in first.items()}
