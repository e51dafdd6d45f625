"""`LLM`: a model in this process, asked from Python. What requests hold is freed when they end.

with LLM("qwen2.5-coder-1.5b") as llm:
    for burst in llm.stream("Write a haiku about rivers."):
        print(burst.text, end="", flush=True)
"""

import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast, overload

from foredraft.core.sampling import Sampling
from foredraft.core.target import Target
from foredraft.core.trace import Trace
from foredraft.engine.chat import Chat, make_room
from foredraft.engine.checks import checked_context, checked_kv_tokens
from foredraft.engine.completion import GREEDY, Completion
from foredraft.engine.cost import PassCost
from foredraft.engine.draft_models import DraftModels, DraftOptions
from foredraft.engine.drafting import SCRATCH_ROWS, Drafting
from foredraft.engine.kv import BLOCK, KVPool, KVSequence, blocks_for
from foredraft.engine.prompt import Prompt, Prompter, Prompts, is_many
from foredraft.engine.request import Request, Requests
from foredraft.engine.roster import Roster, Task
from foredraft.engine.scheduler import Scheduler
from foredraft.engine.speculator import Speculator
from foredraft.engine.stream import Host, Stream
from foredraft.models.cache import find_model
from foredraft.models.chat import ChatTemplate
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.stream import TextStream
from foredraft.models.target import KVType, LoadOptions, NativeTarget, Progress, Quant, kv_block_bytes
from foredraft.models.tokenizer import Tokenizer

DRAFTING = Drafting()
SCRATCH = SCRATCH_ROWS + 1  # positions beyond the context, for the rows of a draft at its very end
MODEL_DRAFTED = 4  # of several requests at once: a draft model's passes pay for few


class LLM:
    """A model that is loaded once and answers many times.

    `ctx` is the most tokens that prompt and answer may have together (4096, or what the model was trained for
    if that is less), `kv_tokens` what all requests that are computed together may have (one's; "auto": a
    server's). `threads` 0 means one for each physical core. `kv` is the type of cached keys and values.

    `drafting` is how requests are drafted for that do not say so themselves; its draft models are loaded at
    once. `draft_quant` "q4" keeps draft models in 4 bits, "file" as their files are. `remember` lets the
    suffix drafter learn from one request's answer for the next: its tokens, so turn it off where requests
    must not show in each other's speed.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        ctx: int | None = None,
        kv_tokens: int | Literal["auto"] | None = None,
        threads: int = 0,
        kv: KVType = "f16",
        drafting: Drafting = DRAFTING,
        draft_quant: Quant = "q4",
        remember: bool = True,
        progress: Progress | None = None,
    ) -> None:
        path = find_model(model)
        started = time.perf_counter()
        file = read_gguf(path)
        spec = describe(file)
        context = checked_context(ctx, spec.context)
        kv_tokens = checked_kv_tokens(kv_tokens, context, kv_block_bytes(spec, kv) / BLOCK)
        blocks = blocks_for(kv_tokens + SCRATCH)
        options = LoadOptions(blocks, kv, threads, progress=progress)
        tokenizer = Tokenizer.from_gguf(file)
        template = ChatTemplate.from_gguf(file, tokenizer)
        target = NativeTarget.load(file, spec, options)
        cost = PassCost()
        contexts = 1 if kv_tokens == context else MODEL_DRAFTED
        draft_options = DraftOptions(context + SCRATCH, threads, draft_quant, contexts)
        models = DraftModels(target, tokenizer, str(model), cost, draft_options)
        roster = Roster(target, tokenizer, cost, models, remember)
        self._set_up(target, tokenizer, template, str(model), context, blocks, roster, drafting)
        self.load_s = time.perf_counter() - started

    @classmethod
    def of(
        cls,
        target: Target,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        ctx: int,
        kv_tokens: int | None = None,
        name: str = "model",
        drafting: Drafting = DRAFTING,
        remember: bool = True,
    ) -> Self:
        """An LLM around a target that is there already, without draft models. It must have room for
        `blocks_for(kv_tokens + SCRATCH)` blocks.
        """
        llm = cls.__new__(cls)
        roster = Roster(target, tokenizer, PassCost(), None, remember)
        blocks = blocks_for(checked_kv_tokens(kv_tokens, ctx) + SCRATCH)
        llm._set_up(target, tokenizer, template, name, ctx, blocks, roster, drafting)
        llm.load_s = 0.0
        return llm

    def _set_up(
        self,
        target: Target,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        name: str,
        context: int,
        blocks: int,
        roster: Roster,
        drafting: Drafting,
    ) -> None:
        roster.names(drafting)  # loads draft models, or says what is wrong with them
        self.target = target
        self.tokenizer = tokenizer
        self.name = name
        self.ctx = context
        self.drafting = drafting
        self.roster = roster
        self.pool = KVPool(blocks)
        self.template = template
        self.prompter = Prompter(tokenizer, template, target.vocab)
        self.request = Requests(tokenizer, target.vocab, context)
        self._lock = threading.RLock()
        self._chats: weakref.WeakSet[Chat] = weakref.WeakSet()

    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling = ...,
        *,
        raw: bool = ...,
        logprobs: int | None = ...,
        drafting: Drafting | None = ...,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        sampling: Sampling = ...,
        *,
        raw: bool = ...,
        logprobs: int | None = ...,
        drafting: Drafting | None = ...,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        sampling: Sampling = GREEDY,
        *,
        raw: bool = False,
        logprobs: int | None = None,
        drafting: Drafting | None = None,
    ) -> Completion | list[Completion]:
        """The whole answer to a prompt, or the list of answers to a list of prompts.

        A prompt is a text, a list of messages or a list of token ids. A text is put to the model as a user's
        message in its chat template; `raw`, or a model without a template, continues it instead. `logprobs`
        reports the probability of each token, and of that many of the likeliest ones beside it. `drafting`
        says who drafts, if not as for other requests; the text is the same.
        """
        if is_many(prompt):
            return self._complete_all(prompt, sampling, raw, logprobs, drafting)
        with self.stream(
            cast(Prompt, prompt), sampling, raw=raw, logprobs=logprobs, drafting=drafting
        ) as stream:
            for _ in stream:
                pass
        return stream.completion

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        *,
        raw: bool = False,
        logprobs: int | None = None,
        trace: Trace | None = None,
        drafting: Drafting | None = None,
    ) -> Stream:
        """The same answer in bursts, as they come. `trace` is called once a round."""
        submitted = time.perf_counter()
        ids = self.prompter.encode(prompt, raw)
        return self.start(self.request(ids, sampling, submitted, logprobs, trace), drafting=drafting)

    def chat(self, system: str | None = None) -> Chat:
        """A conversation that remembers what was said, and keeps it computed as long as there is room."""
        chat = Chat(self, system)
        self._chats.add(chat)
        return chat

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """The ids of a text. `special` reads control tokens written out in it; `bos` adds the beginning token
        where the model asks for one.
        """
        return self.tokenizer.encode(text, special=special, bos=bos)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; `special` spells out control tokens."""
        return self.tokenizer.decode(ids, special=special)

    def start(
        self,
        request: Request,
        cache: KVSequence | None = None,
        drafting: Drafting | None = None,
        speculator: Speculator | None = None,
    ) -> Stream:
        """Begin to answer; without a cache of the caller's, in one that lives as long as the answer. A
        `speculator` of the caller's, with drafters of its own, stands in for the one that `drafting` names.
        """
        wishes = self.drafting if drafting is None else drafting
        if speculator is None:
            speculator = self.speculator(request, wishes)
        self._make_room(request, cache)
        if cache is None:
            cache = self.pool.open()
            release = cache.close
        else:
            release = _nothing
        host = Host(self.target, cache, self._lock, release)
        return Stream(host, replace(request, rule=wishes.rule), self.text(request), speculator)

    def speculator(self, request: Request, drafting: Drafting) -> Speculator:
        """Drafting for a request."""
        return self.roster.speculator(drafting, Task(request.prompt, request.ends, request.forced))

    def text(self, request: Request) -> TextStream:
        """What makes text of a request's tokens, and finds its end."""
        return TextStream(
            self.tokenizer,
            stops=request.sampling.stop,
            end_ids=request.ends,
            max_tokens=request.most,
            min_tokens=request.sampling.min_tokens,
            special=request.special,
            visible=request.visible,
        )

    def close(self) -> None:
        """Free what conversations hold. The model's memory goes when nothing refers to it any more."""
        for chat in list(self._chats):
            chat.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complete_all(
        self,
        prompts: Prompts,
        sampling: Sampling,
        raw: bool,
        logprobs: int | None,
        drafting: Drafting | None,
    ) -> list[Completion]:
        """All in shared passes, as many at once as memory allows."""
        submitted = time.perf_counter()
        encoded = [self.prompter.encode(prompt, raw) for prompt in prompts]
        requests = [self.request(ids, sampling, submitted, logprobs) for ids in encoded]
        wishes = self.drafting if drafting is None else drafting
        scheduler = Scheduler(self, len(requests))
        with self._lock:
            for request in requests:
                self._make_room(request, None)
            jobs = [scheduler.add(number, request, wishes) for number, request in enumerate(requests)]
            try:
                while scheduler.has_work:
                    for _, error in scheduler.step().failed:
                        raise error
            finally:
                for job in jobs:
                    scheduler.remove(job)
        return [job.answer.completion for job in jobs]

    def _make_room(self, request: Request, cache: KVSequence | None) -> None:
        make_room(self._chats, self.pool, len(request.prompt) + request.most + SCRATCH, cache)


def _nothing() -> None:
    """What is to be released of a cache that somebody else holds."""
