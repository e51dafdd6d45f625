"""Answers on their way out: as one reply, or as a stream of chunks. What completions and chats do alike."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft.engine.completion import Burst, Completion
from foredraft.engine.drafting import Drafting
from foredraft.engine.engine import Update
from foredraft.server.bridge import Flow, GoneError
from foredraft.server.errors import GONE, JSON, ApiError, failure
from foredraft.server.fields import Shared
from foredraft.server.replies import plain_usage, speculation, timings, usage
from foredraft.server.sse import DONE, EventStream, Frame, encode, event


@dataclass(frozen=True, eq=False)
class Asked:
    """What a reply is made for."""

    id: str
    created: int
    body: Shared
    fingerprint: str
    prompt_tokens: int  # of all prompts, each once
    per_prompt: int  # answers
    drafting: Drafting

    def header(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
            "system_fingerprint": self.fingerprint,
        }


class Choices(Protocol):
    """What is special about completions, and about chats. A choice without its end has `completion` None."""

    kind: str  # of reply
    chunk_kind: str

    def whole(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        """The choices of a reply."""

    def parts(self, place: int, burst: Burst, completion: Completion | None) -> list[dict[str, Any]]:
        """The choices of the next chunks, one each; none if there is nothing to say yet. The last one has the
        end.
        """

    def extra(self) -> dict[str, Any]:
        """Members of a reply, or of a stream's first chunk, beside the usual ones."""


class Writer:
    """Of one reply. `drops_all`: no answer was asked for, but one token had to be computed."""

    def __init__(self, asked: Asked, choices: Choices, drops_all: bool = False) -> None:
        options = asked.body.stream_options
        self._asked = asked
        self._choices = choices
        self._drops_all = drops_all
        self._frame = Frame(asked.header(choices.chunk_kind))
        self._continuous = options is not None and bool(options.continuous_usage_stats)
        self._includes = options is not None and bool(options.include_usage)
        self._tokens = 0
        self._whole: dict[int, Completion] = {}
        self._begun = False

    def reply(self, completions: Sequence[Completion]) -> dict[str, Any]:
        completions = [self._shortened(completion) for completion in completions]
        return {
            **self._asked.header(self._choices.kind),
            "choices": self._choices.whole(completions),
            "usage": self._usage(completions),
            **self._choices.extra(),
            **self._figures(completions),
        }

    def chunks(self, place: int, update: Update) -> bytes:
        """What an update comes to; nothing if there is nothing to say yet."""
        burst, completion = update.burst, update.completion
        if self._drops_all:
            burst = Burst("", ())
        if completion is not None:
            completion = self._whole[place] = self._shortened(completion)
        self._tokens += len(burst.ids)
        parts = self._choices.parts(place, burst, completion)
        return b"".join(self._chunk(part, completion if part is parts[-1] else None) for part in parts)

    def _chunk(self, part: dict[str, Any], completion: Completion | None) -> bytes:
        rest = ""
        if not self._begun:
            self._begun = True
            rest += members(self._choices.extra())
        if self._continuous:
            rest += members({"usage": plain_usage(self._asked.prompt_tokens, self._tokens)})
        elif self._includes:
            rest += ',"usage":null'
        if completion is not None:
            rest += members(self._figures([completion]))
        return self._frame.chunk(part, rest)

    def end(self) -> bytes:
        """What follows the last choice's end."""
        if not self._includes:
            return DONE
        whole = [self._whole[place] for place in sorted(self._whole)]
        return self._frame.chunk(None, members({"usage": self._usage(whole)})) + DONE

    def _shortened(self, completion: Completion) -> Completion:
        if not self._drops_all:
            return completion
        logprobs = None if completion.logprobs is None else ()
        return replace(
            completion, text="", ids=(), finish_reason="length", logprobs=logprobs, stopped_by=None
        )

    def _usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        predicted = self._asked.body.prediction is not None
        return usage(completions, self._asked.per_prompt, predicted)

    def _figures(self, completions: Sequence[Completion]) -> dict[str, Any]:
        return {
            "speculation": speculation(completions, self._asked.drafting),
            "timings": timings(completions),
        }


def members(values: dict[str, Any]) -> str:
    """As they follow others in an object."""
    return "," + encode(values)[1:-1] if values else ""


async def answer(
    http: HttpRequest, flow: Flow, writer: Writer, streams: bool, whole: bool = False
) -> Response:
    """The reply, as soon as its status is certain: a stream begins with its first tokens, or if `whole`, when
    it is complete.
    """
    flow.watch(http.receive)
    try:
        fresh = await (flow.take() if streams and not whole else flow.rest())
        if streams:
            return EventStream(events(fresh, flow, writer), flow.close)
        completions = [update.completion for _, update in fresh if update.completion is not None]
        response = JSON(writer.reply(completions))
        flow.close()
        return response
    except GoneError:
        flow.close()
        return Response(status_code=GONE)
    except ApiError:
        flow.close()
        raise
    except Exception as error:
        flow.close()
        raise failure(error) from error
    except BaseException:
        flow.close()
        raise


async def events(fresh: Sequence[tuple[int, Update]], flow: Flow, writer: Writer) -> AsyncIterator[bytes]:
    """The chunks of a stream. An error ends it, as its last event."""
    try:
        while True:
            if data := b"".join([writer.chunks(place, update) for place, update in fresh]):
                yield data
            if flow.ended:
                break
            fresh = await flow.take()
        yield writer.end()
    except GoneError:
        return
    except Exception as error:  # noqa: BLE001 - the status was sent long ago
        yield event(failure(error).body)
