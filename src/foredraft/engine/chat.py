"""A conversation: each turn is the whole conversation once more through the chat template, and what the cache
holds of it already is not computed again. So an answer is the same as without the cache.
"""

import time
import weakref
from collections.abc import Iterable, Sequence
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Self

from foredraft.core.sampling import Sampling
from foredraft.core.trace import Trace
from foredraft.engine.completion import GREEDY, Completion
from foredraft.engine.kv import KVPool, KVSequence, blocks_for
from foredraft.engine.prompt import empty_prompt
from foredraft.engine.stream import Stream
from foredraft.models.chat import Message

if TYPE_CHECKING:
    from foredraft.engine.llm import LLM


class Chat:
    """Made by `LLM.chat`. An answer that is cut short stays in the conversation as far as it came."""

    def __init__(self, llm: "LLM", system: str | None) -> None:
        self._llm = llm
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)
        self._answering: Stream | None = None
        self._cached: list[int] = []  # the tokens the cache holds
        self.cache = llm.pool.open()
        self.used_at = time.monotonic()
        self._release = weakref.finalize(self, self.cache.close)

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far. An answer still being written ends here."""
        self._settle()
        return tuple(self._messages)

    @property
    def is_idle(self) -> bool:
        return self._answering is None or self._answering.ended

    def stream(
        self,
        text: str,
        sampling: Sampling = GREEDY,
        *,
        logprobs: int | None = None,
        trace: Trace | None = None,
    ) -> Stream:
        """Say something, and get the answer in bursts. If this raises, nothing was said."""
        submitted = time.perf_counter()
        if not text:
            raise empty_prompt()
        self._settle()
        messages: list[Message] = [*self._messages, {"role": "user", "content": text}]
        ids = self._llm.prompter.encode(messages)
        request = self._llm.request(ids, sampling, submitted, logprobs, trace)
        self._rewind(ids)
        self._answering = self._llm.start(request, self.cache)
        self._messages = messages
        self.used_at = time.monotonic()
        return self._answering

    def send(self, text: str, sampling: Sampling = GREEDY, *, logprobs: int | None = None) -> Completion:
        """Say something, and get the whole answer."""
        with self.stream(text, sampling, logprobs=logprobs) as stream:
            for _ in stream:
                pass
        return stream.completion

    def reset(self) -> None:
        """Start anew, under the same system message."""
        self._settle()
        self._messages = list(self._opening)

    def forget(self) -> None:
        """Free the cache; the conversation stays, and is computed again when it goes on."""
        self._settle()
        self._cached.clear()
        self.cache.truncate(0)

    def close(self) -> None:
        """Free the cache for good."""
        self.forget()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self) -> None:
        """Take over the answer that was being written, and what of it is in the cache."""
        if self._answering is None:
            return
        stream, self._answering = self._answering, None
        stream.close()
        self._cached = list(stream.ids[: self.cache.length])
        self.cache.truncate(len(self._cached))
        completion = stream.completion
        if completion.ids:
            self._messages.append({"role": "assistant", "content": completion.text})
        else:
            self._messages.pop()

    def _rewind(self, ids: Sequence[int]) -> None:
        """Cut the cache back to what it shares with the new ids, the last of which is always computed."""
        pairs = zip(self._cached, ids, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.cache.truncate(min(same, len(ids) - 1))
        del self._cached[self.cache.length :]


def make_room(chats: Iterable[Chat], pool: KVPool, positions: int, cache: KVSequence | None) -> None:
    """For so many positions, in this cache if there is one already. Conversations that wait for their user
    give way, the longest idle first: they can be computed again.
    """
    needed = blocks_for(positions) - (0 if cache is None else len(cache.blocks))
    idle = [chat for chat in chats if chat.is_idle and chat.cache is not cache]
    for chat in sorted(idle, key=lambda chat: chat.used_at):
        if pool.num_free >= needed:
            return
        chat.forget()
