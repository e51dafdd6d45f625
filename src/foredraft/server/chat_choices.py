"""The choices of `/v1/chat/completions`."""

from collections.abc import Sequence
from typing import Any

from foredraft.engine.completion import Burst, Completion
from foredraft.server.chat_body import ChatBody
from foredraft.server.messages import ChatPrompt
from foredraft.server.replies import TokenTexts, chat_logprobs
from foredraft.server.tools.stream import ToolDelta, ToolStream


class ChatChoices:
    """`prompt` is what the messages were rendered to."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, body: ChatBody, prompt: ChatPrompt, texts: TokenTexts) -> None:
        self._body = body
        self._prompt = prompt
        self._texts = texts
        self._tools: dict[int, ToolStream] = {}
        self._begun: set[int] = set()

    def whole(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        return [self._choice(index, completion) for index, completion in enumerate(completions)]

    def parts(self, place: int, burst: Burst, completion: Completion | None) -> list[dict[str, Any]]:
        """The end has a chunk of its own, as OpenAI's has: for its client, a call whose last piece comes with
        the end is never finished.
        """
        delta = self._delta(self._reader(place), burst.text, completion is not None)
        shows = bool(burst.ids) and bool(self._body.return_token_ids or self._body.logprobs)
        is_first = place not in self._begun and (bool(delta) or shows or completion is not None)
        if is_first:
            self._begun.add(place)
            delta = {"role": "assistant", "content": "", **delta}
        parts = [self._part(place, delta, burst)] if delta or shows else []
        if completion is not None:
            end = self._part(place, {}, Burst("", ()))
            end["finish_reason"] = self._finish(self._reader(place), completion)
            end["stop_reason"] = completion.stopped_by
            parts.append(end)
        return parts

    def _part(self, place: int, delta: dict[str, Any], burst: Burst) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}
        if self._body.logprobs:
            choice["logprobs"] = chat_logprobs(self._texts, burst.logprobs)
        if self._body.return_token_ids:
            choice["token_ids"] = burst.ids
        return choice

    def extra(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._prompt.ids} if self._body.return_token_ids else {}

    def _reader(self, place: int) -> ToolStream | None:
        """What finds tool calls in this choice."""
        if self._prompt.parser is None:
            return None
        if place not in self._tools:
            self._tools[place] = self._prompt.parser.new()
        return self._tools[place]

    def _delta(self, reader: ToolStream | None, text: str, is_last: bool) -> dict[str, Any]:
        if reader is None:
            return {"content": text} if text else {}
        parts = [reader.feed(text), *([reader.finish()] if is_last else [])]
        delta: dict[str, Any] = {}
        if content := "".join(part.content for part in parts):
            delta["content"] = content
        if calls := [call for part in parts for call in _calls(part)]:
            delta["tool_calls"] = calls
        return delta

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        reader = self._reader(index)
        delta = self._delta(reader, completion.text, is_last=True)
        message: dict[str, Any] = {"role": "assistant", "content": delta.get("content", ""), "refusal": None}
        if "tool_calls" in delta:
            message["content"] = delta.get("content")
            message["tool_calls"] = _complete(delta["tool_calls"])
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish(reader, completion),
            "stop_reason": completion.stopped_by,
        }
        if completion.logprobs is not None:
            choice["logprobs"] = chat_logprobs(self._texts, completion.logprobs)
        if self._body.return_token_ids:
            choice["token_ids"] = completion.ids
        return choice

    def _finish(self, reader: ToolStream | None, completion: Completion) -> str:
        called = reader is not None and reader.called and completion.finish_reason == "stop"
        return "tool_calls" if called else completion.finish_reason


def _calls(part: ToolDelta) -> list[dict[str, Any]]:
    """Calls as a chunk has them: what is new of each."""
    calls = []
    for call in part.calls:
        function = {"arguments": call.arguments}
        entry: dict[str, Any] = {"index": call.index, "function": function}
        if call.id is not None:
            entry |= {"id": call.id, "type": "function"}
        if call.name is not None:
            entry["function"] = {"name": call.name, **function}
        calls.append(entry)
    return calls


def _complete(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls as a reply has them, from what chunks would have."""
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        call = calls.setdefault(
            part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.get("id", call["id"])
        call["function"]["name"] += part["function"].get("name", "")
        call["function"]["arguments"] += part["function"]["arguments"]
    return list(calls.values())
