"""A running server that is measured, and the texts it gives."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from foredraft.errors import MeasurementError
from foredraft.measure.serve_counts import Counts
from foredraft.measure.serve_http import Http
from foredraft.measure.serve_load import Reply
from foredraft.measure.serve_order import Asks, ServeOrder, Sizes

IDLE_S = 60.0  # that requests nobody reads may go on


@dataclass
class Texts:
    """What every request was answered first; the same request must never be answered otherwise."""

    different: list[str] = field(default_factory=list)
    compared: int = 0
    first: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def check(self, reply: Reply, where: str) -> None:
        if reply.label not in self.first:
            self.first[reply.label] = reply.ids
            return
        self.compared += 1
        expected = self.first[reply.label]
        if reply.ids != expected:
            pairs = zip(reply.ids, expected, strict=False)
            same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            place = f"another length, {len(reply.ids)}" if same is None else f"from token {same} on"
            self.different.append(f"{reply.label}, {where}: {place}")


@dataclass(frozen=True)
class Session:
    """One server; `vocabulary` are the ids of real text, of which long prompts are made."""

    http: Http
    order: ServeOrder
    sizes: Sizes
    asks: Asks
    ctx: int
    vocabulary: Sequence[int]

    @classmethod
    async def open(cls, http: Http, order: ServeOrder) -> "Session":
        await _ready(http)
        status, text = await http.get("/v1/models")
        model = json.loads(text)["data"][0] if status == 200 else {}
        if "max_model_len" not in model:
            raise http.trouble(f"/v1/models does not say how long the context is: {text[:300]!r}")
        texts = "\n\n".join(prompt.text for prompt in order.prompts)
        answer = await http.post("/tokenize", {"model": model["id"], "prompt": texts})
        ids = answer.get("tokens")
        if not isinstance(ids, list) or not ids:
            raise http.trouble(f"/tokenize did not answer with tokens: {str(answer)[:300]}")
        ctx = int(model["max_model_len"])
        return cls(http, order, Sizes().fitted(ctx), Asks(model["id"], order.max_tokens), ctx, ids)

    def ids(self, count: int, turn: int) -> list[int]:
        """So many of the vocabulary, starting elsewhere each turn."""
        start = turn * len(self.vocabulary) // max(1, self.order.repeat)
        return [self.vocabulary[(start + index) % len(self.vocabulary)] for index in range(count)]

    async def counts(self) -> Counts:
        status, text = await self.http.get("/metrics")
        if status != 200:
            raise self.http.trouble(f"/metrics was answered with {status}")
        return Counts.parse(text.decode())

    async def idle(self) -> None:
        """Until nothing is being answered any more."""
        until = time.monotonic() + IDLE_S
        while True:
            counts = await self.counts()
            if not counts.total("num_requests_running") + counts.total("num_requests_waiting"):
                return
            if time.monotonic() > until:
                raise self.http.trouble(f"requests that nobody reads go on for {IDLE_S:.0f} s")
            await asyncio.sleep(0.05)


async def _ready(http: Http) -> None:
    """It may listen before it can answer."""
    for _ in range(600):
        try:
            status, _ = await http.get("/health")
        except MeasurementError:
            status = 0
        if status == 200:
            return
        await asyncio.sleep(0.1)
    raise http.trouble("the server did not become ready within a minute")
