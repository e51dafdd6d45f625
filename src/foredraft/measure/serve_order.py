"""What `foredraft bench --serve` is to measure: how many requests at once, which prompts, in which order."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from foredraft.engine.kv import BLOCK
from foredraft.errors import UsageError
from foredraft.measure.prompts import Prompt
from foredraft.measure.serve_load import CHAT, TEXT, Ask
from foredraft.models.cores import physical_cores

OFF, AUTO = "off", "auto"
SIDES = (OFF, AUTO)
PARTS = ("exact", "throughput", "stall", "host", "prefix")
REQUESTS = (1, 2, 4, 8, 16, 32)
LEAST_KV = 16384  # positions
CHARS = 2.5  # of a token, at least
MEASURED = 1.25  # requests measured for each of those at once, at least


@dataclass(frozen=True)
class Sizes:
    """Of the parts other than throughput. The goals are stated for these."""

    crowd: int = 16  # requests at once
    exact: int = 64  # tokens of an answer whose text is compared
    streams: int = 8  # that run when a long prompt comes
    chunks: int = 32  # of every stream: what is called steady
    long: int = 2000  # tokens of the prompt that comes
    prefix: int = 1500  # tokens that come again
    tail: int = 32  # tokens after them, others each time

    def fitted(self, ctx: int) -> "Sizes":
        """The same, or with shorter prompts where the context has no room for them."""
        share = (ctx - BLOCK) / self.long
        if share >= 1:
            return self
        return replace(
            self,
            exact=min(self.exact, ctx // 8),
            long=int(self.long * share),
            prefix=int(self.prefix * share),
            tail=max(2, int(self.tail * share)),
        )


@dataclass(frozen=True)
class ServeOrder:
    """What is asked for. `threads` 0: one for each physical core."""

    model: str
    prompts: tuple[Prompt, ...]
    requests: tuple[int, ...] = REQUESTS
    parts: tuple[str, ...] = PARTS
    max_tokens: int = 256  # of an answer
    repeat: int = 5
    threads: int = 0

    def __post_init__(self) -> None:
        for name, least in (("repeat", 1), ("max_tokens", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}, but must be {least} or more")
        if not self.requests or min(self.requests) < 1 or len(set(self.requests)) < len(self.requests):
            raise UsageError(
                f"--requests {','.join(map(str, self.requests))}: different numbers of requests at once are "
                f"expected, each 1 or more, as in {','.join(map(str, REQUESTS))}"
            )
        for part in self.parts:
            if part not in PARTS:
                raise UsageError(f"--parts: there is no part {part!r}; there are: {', '.join(PARTS)}")
        if not self.prompts:
            raise UsageError("there are no prompts to measure with")
        object.__setattr__(self, "threads", self.threads or physical_cores())

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(prompt.kind for prompt in self.prompts))

    @property
    def kv_tokens(self) -> int:
        """Enough for all requests at once, and for what else the parts need."""
        chars = sum(len(prompt.text) for prompt in self.prompts) / len(self.prompts)
        return max(LEAST_KV, ceil(max(self.requests) * (chars / CHARS + self.max_tokens)))

    def mix(self, number: int) -> list[Prompt]:
        """One prompt of each kind: in every repeat, counted from 0, the next ones."""
        kinds = [[prompt for prompt in self.prompts if prompt.kind == kind] for kind in self.kinds]
        return [prompts[number % len(prompts)] for prompts in kinds]

    def measured(self, at_once: int, number: int) -> list[Prompt]:
        """Whole mixes, so that every number at once answers the same prompts in the same proportion."""
        mix = self.mix(number)
        return mix * ceil(MEASURED * at_once / len(mix)) if at_once > 1 else mix

    def every(self) -> list[Prompt]:
        """All prompts, kinds by turns."""
        most = max(sum(prompt.kind == kind for prompt in self.prompts) for kind in self.kinds)
        return list(dict.fromkeys(prompt for number in range(most) for prompt in self.mix(number)))

    def short(self) -> list[Prompt]:
        """The quarter that is soonest read, shortest first."""
        ordered = sorted(self.prompts, key=lambda prompt: len(prompt.text))
        return ordered[: ceil(len(ordered) / 4)]

    def turns(self, number: int, index: int) -> tuple[str, ...]:
        """Both sides. Which comes first changes from one number at once to the next, and with the repeat."""
        return SIDES if (number + index) % 2 == 0 else SIDES[::-1]


@dataclass(frozen=True)
class Pace:
    """Of the idle server, without drafting: from it can be foreseen, roughly, how long all will take."""

    token_s: float
    prompt_token_s: float
    prompt_tokens: float  # of a prompt

    def minutes(self, order: ServeOrder, sizes: Sizes) -> float:
        """As if drafting saved nothing."""
        crowd = sizes.crowd * self._answer_s(sizes.chunks, sizes.crowd)
        tested, crowds = 4 * len(order.kinds), 3
        seconds = {
            "throughput": sum(
                (len(order.measured(at_once, 0)) + (at_once if at_once > 1 else 0))
                * self._answer_s(order.max_tokens, at_once)
                for at_once in order.requests
            ),
            "stall": (3 * sizes.long + sizes.prefix) * self.prompt_token_s,
            "host": crowd,
            "prefix": sizes.prefix * self.prompt_token_s,
            "exact": tested * self._answer_s(sizes.exact, 1)
            + crowds * sizes.crowd * self._answer_s(sizes.exact, sizes.crowd),
        }
        times = {part: len(SIDES) * order.repeat for part in PARTS} | {"exact": 1}
        return sum(seconds[part] * times[part] for part in order.parts) / 60

    def _answer_s(self, tokens: int, at_once: int) -> float:
        """What one answer adds, of so many at once: a further row costs about a fifth of the first."""
        row = self.token_s * (1 + (at_once - 1) / 5) / at_once
        return self.prompt_tokens * self.prompt_token_s + tokens * row


class Asks:
    """Makes requests, each with a salt of its own: no prompt is found computed unless that is wanted."""

    def __init__(self, name: str, max_tokens: int) -> None:
        self._name = name
        self._max_tokens = max_tokens
        self._salts = (f"bench-{number}" for number in itertools.count())

    def chat(self, prompt: Prompt, side: str, **more: object) -> Ask:
        body = {"messages": [{"role": "user", "content": prompt.text}], **self._common(side), **more}
        return Ask(prompt.label, CHAT, body)

    def tokens(self, label: str, ids: Sequence[int], side: str, **more: object) -> Ask:
        return Ask(label, TEXT, {"prompt": list(ids), **self._common(side), **more})

    def endless(self, prompts: Sequence[Prompt], side: str, **more: object) -> Iterator[Ask]:
        return (self.chat(prompt, side, **more) for prompt in itertools.cycle(prompts))

    def _common(self, side: str) -> dict[str, object]:
        return {
            "model": self._name,
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "speculation": side,
            "cache_salt": next(self._salts),
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
