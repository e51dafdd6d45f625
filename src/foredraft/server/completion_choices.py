"""The choices of `/v1/completions`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.engine.completion import Burst, Completion
from foredraft.models.tokenizer import Tokenizer
from foredraft.server.completion_body import CompletionBody
from foredraft.server.replies import LegacyLogprobs, TokenTexts, joined


@dataclass(frozen=True)
class TextPrompt:
    """A prompt as it was given, or what its ids come to, and its ids."""

    text: str
    ids: list[int]


class CompletionChoices:
    """Each of the prompts has `per_prompt` answers, of which the body's `n` are given: the likeliest."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        body: CompletionBody,
        prompts: Sequence[TextPrompt],
        per_prompt: int,
        texts: TokenTexts,
        tokenizer: Tokenizer,
    ) -> None:
        self._body = body
        self._prompts = prompts
        self._per_prompt = per_prompt
        self._texts = texts
        self._tokenizer = tokenizer
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def whole(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        chosen: list[dict[str, Any]] = []
        for start in range(0, len(completions), self._per_prompt):
            answers = completions[start : start + self._per_prompt]
            ranked = sorted(answers, key=likelihood, reverse=True) if self._picks else answers
            for answer in ranked[: self._body.n or 1]:
                burst = Burst(answer.text, answer.ids, answer.logprobs or ())
                chosen.append(self._choice(len(chosen), start, burst, answer))
        return chosen

    def parts(self, place: int, burst: Burst, completion: Completion | None) -> list[dict[str, Any]]:
        shows = bool(burst.ids) and (self._body.return_token_ids or self._body.likeliest is not None)
        is_first = place not in self._begun
        if not (burst.text or shows or completion is not None or (is_first and self._body.echo)):
            return []
        return [self._choice(place, place, burst, completion)]

    def extra(self) -> dict[str, Any]:
        return {}

    @property
    def _picks(self) -> bool:
        return self._per_prompt > (self._body.n or 1)

    def _choice(self, index: int, place: int, burst: Burst, end: Completion | None) -> dict[str, Any]:
        """`end` if it is complete."""
        prompt = self._prompts[place // self._per_prompt]
        is_first = index not in self._begun
        self._begun.add(index)
        echoes = is_first and self._body.echo
        choice: dict[str, Any] = {
            "index": index,
            "text": prompt.text + burst.text if echoes else burst.text,
            "logprobs": None,
            "finish_reason": None if end is None else end.finish_reason,
        }
        if end is not None:
            choice["stop_reason"] = end.stopped_by
        if self._body.likeliest is not None:
            choice["logprobs"] = self._named(index, burst, prompt if echoes else None, end)
        if self._body.return_token_ids:
            choice["token_ids"] = burst.ids
            if is_first:
                choice["prompt_token_ids"] = prompt.ids
        return choice

    def _named(
        self, index: int, burst: Burst, echoed: TextPrompt | None, end: Completion | None
    ) -> dict[str, Any]:
        if index not in self._logprobs:
            special = self._body.skip_special_tokens is False
            self._logprobs[index] = LegacyLogprobs(self._texts, self._tokenizer, special)
        legacy = self._logprobs[index]
        if echoed is None:
            return legacy.feed(burst.logprobs)
        assert end is not None and end.prompt_logprobs is not None, "echo with logprobs waits for the end"
        return joined(legacy.echo(echoed.text, echoed.ids, end.prompt_logprobs), legacy.feed(burst.logprobs))


def likelihood(completion: Completion) -> float:
    """The mean of its logprobs."""
    logprobs = [one.logprob for one in completion.logprobs or ()]
    return sum(logprobs) / max(1, len(logprobs))
