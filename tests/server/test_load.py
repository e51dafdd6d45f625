"""Two hundred requests of all sorts at a small memory, some of whose clients read slowly or go away: what
comes is what each would have got alone, nothing is left at the end, and the counters add up.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from serving import NAME, serving
from tiny import CORPUS, write_tiny

from foredraft import LLM, Sampling
from foredraft.engine.drafting import OFF

COUNT = 200
AT_ONCE = 24
CTX, KV_TOKENS = 256, 576  # for a dozen requests at once: not enough
SEED = 20_4
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
PATIENCE_S = 60.0
SPECULATION = ("auto", "auto", "off", {"drafter": "ngram+suffix", "k": 3}, {"drafter": "suffix", "k": 12})
WORDS = CORPUS.split()


@dataclass(frozen=True)
class Question:
    """What is asked, and so what is answered."""

    route: str
    text: str
    most: int
    seed: int
    temperature: float
    ignore_eos: bool
    stop: tuple[str, ...]
    choices: int

    @property
    def body(self):
        prompt = {"prompt": self.text}
        if self.route == CHAT:
            prompt = {"messages": [{"role": "user", "content": self.text}]}
        names = ("seed", "temperature", "ignore_eos", "stop")
        fields = {name: getattr(self, name) for name in names}
        return {
            "model": NAME,
            "max_tokens": self.most,
            "n": self.choices,
            "return_token_ids": True,
            **prompt,
            **fields,
        }

    def alone(self, llm):
        """Each choice without any other request, and without drafts."""
        prompt = [{"role": "user", "content": self.text}] if self.route == CHAT else self.text
        return [
            llm.generate(
                prompt,
                Sampling(
                    temperature=self.temperature,
                    seed=self.seed + choice,
                    max_tokens=self.most,
                    ignore_eos=self.ignore_eos,
                    stop=self.stop,
                ),
                raw=self.route == COMPLETE,
                drafting=OFF,
            )
            for choice in range(self.choices)
        ]


@dataclass(frozen=True)
class Visit:
    """One client's request. It leaves after so many reads, if that is said: 0 are none at all."""

    question: Question
    stream: bool
    speculation: object
    slow: bool
    leaves: int | None


@dataclass
class Seen:
    """What a client got: of each choice text and tokens, as far as it read."""

    visit: Visit
    whole: bool = False
    id: str = ""
    usage: dict | None = None
    texts: Counter = field(default_factory=Counter)
    tokens: dict = field(default_factory=dict)
    reasons: dict = field(default_factory=dict)


def questions(rng):
    def one():
        start, length = rng.randrange(len(WORDS) - 50), rng.choice([1, 3, 8, 20, 45])
        return Question(
            route=rng.choice([CHAT, COMPLETE]),
            text=" ".join(WORDS[start : start + length]),
            most=rng.choice([1, 20, 180, 220]),
            seed=rng.randrange(2**32),
            temperature=rng.choice([0.0, 0.0, 0.8]),
            ignore_eos=rng.random() < 0.9,
            stop=rng.choice([(), (), (), ("fox", "zz")]),
            choices=rng.choice([1, 1, 1, 2, 3]),
        )

    return [one() for _ in range(40)]


def visits(rng, asked):
    def one():
        stream = rng.random() < 0.6
        leaves = rng.choice([None, None, None, None, 0, 2, 8])
        return Visit(rng.choice(asked), stream, rng.choice(SPECULATION), rng.random() < 0.2, leaves)

    return [one() for _ in range(COUNT)]


async def visit_all(url, plan):
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(visit):
        async with gate:
            return await asyncio.wait_for(pay(url, visit), PATIENCE_S)

    return await asyncio.gather(*map(one, plan))


async def pay(url, visit):
    """One visit, and what came of it."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps({**visit.question.body, "speculation": visit.speculation, **streamed(visit)}).encode()
    head = f"POST {visit.question.route} HTTP/1.0\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
    with closing(writer):
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        reply, reads, ended = b"", 0, False
        while visit.leaves is None or reads < visit.leaves:
            if visit.slow:
                await asyncio.sleep(0.003)
            part = await reader.read(150 if visit.slow else 1 << 16)
            reply, reads, ended = reply + part, reads + 1, not part
            if ended:
                break
        else:
            await asyncio.sleep(0.002 * (visit.question.seed % 9))
    return understood(visit, reply, ended)


def streamed(visit):
    return {"stream": True, "stream_options": {"include_usage": True}} if visit.stream else {}


def understood(visit, reply, ended):
    """A reply of HTTP/1.0 has no chunks, and ends with the connection."""
    seen = Seen(visit)
    head, _, body = reply.partition(b"\r\n\r\n")
    assert not reply or b" 200 " in head.splitlines()[0], reply
    if visit.stream:
        *events, _ = body.decode("ascii").split("\n\n")
        seen.whole = ended and events[-1] == "data: [DONE]"
        chunks = [json.loads(event.removeprefix("data: ")) for event in events if event != "data: [DONE]"]
    else:
        seen.whole = ended
        chunks = [json.loads(body)] if ended else []
    for chunk in chunks:
        read(seen, chunk)
    assert seen.whole or visit.leaves is not None, "a reply broke off"
    return seen


def read(seen, chunk):
    assert seen.id in ("", chunk["id"])
    seen.id, seen.usage = chunk["id"], chunk.get("usage") or seen.usage
    for choice in chunk["choices"]:
        index = choice["index"]
        assert index not in seen.reasons, "a choice went on after its end"
        said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        seen.texts[index] = (seen.texts[index] or "") + (said.get("content") or "")
        seen.tokens.setdefault(index, []).extend(choice["token_ids"])
        if choice["finish_reason"] is not None:
            seen.reasons[index] = choice["finish_reason"]


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """All visits, and what the server says of them."""
    folder = tmp_path_factory.mktemp("load")
    path = write_tiny(folder / "tiny.gguf", "qwen2", seed=5)
    rng = random.Random(SEED)
    asked = questions(rng)
    plan = visits(rng, asked)
    with LLM(path, ctx=CTX, kv_tokens=KV_TOKENS, threads=1) as llm:
        alone = {question: question.alone(llm) for question in asked}
        log = folder / "log.jsonl"
        with serving(
            llm, max_running=12, max_waiting=3 * AT_ONCE, send_buffer=4096, request_log=str(log)
        ) as server:
            seen = asyncio.run(visit_all(server.url, plan))
            server.await_idle()
            await_answered(server, COUNT)
            metrics = counters(server.http().get("/metrics").text)
            flows = dict(server.service.bridge._flows)
        pool = llm.pool
        pool.check([])
        held = pool.num_blocks - pool.num_free
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return SimpleNamespace(alone=alone, seen=seen, metrics=metrics, flows=flows, held=held, lines=lines)


def await_answered(server, count):
    """Until so many HTTP requests are over."""
    deadline = time.monotonic() + PATIENCE_S
    name = "http_requests_total"
    while sum(counters(server.http().get("/metrics").text, name).values()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def counters(text, only=""):
    """Values by name and the value of the label that is not the model's name."""
    found = Counter()
    for name, labels, value in re.findall(r"^foredraft:(\w+)\{(.*?)\} (\S+)$", text, re.MULTILINE):
        others = re.findall(r'(?!model_name)\b\w+="(.*?)"', labels)
        if only in name and "metrics" not in labels:
            found[(name, *others)] += float(value)
    return found


def test_every_answer_that_came_is_what_it_would_have_been_alone(day):
    whole = [seen for seen in day.seen if seen.whole]
    assert len(whole) > COUNT / 2
    for seen in whole:
        for index, expected in enumerate(day.alone[seen.visit.question]):
            assert seen.tokens[index] == list(expected.ids)
            assert seen.texts[index] == expected.text
            assert seen.reasons[index] == expected.finish_reason


def test_what_was_read_before_leaving_is_the_beginning(day):
    left = [seen for seen in day.seen if seen.visit.leaves is not None and seen.tokens and not seen.whole]
    assert left
    for seen in left:
        for index, tokens in seen.tokens.items():
            expected = day.alone[seen.visit.question][index]
            assert tokens == list(expected.ids[: len(tokens)])
            assert expected.text.startswith(seen.texts[index])


def test_nothing_is_left(day):
    assert not day.flows
    assert day.held == 0


def test_there_was_a_line_for_every_choice(day):
    outcomes = Counter(line["outcome"] for line in day.lines)
    assert outcomes.keys() == {"stop", "length", "cancelled"}
    assert len({line["ticket"] for line in day.lines}) == len(day.lines)
    by_id = {line["request_id"]: line for line in day.lines}
    for seen in day.seen:
        for index, reason in seen.reasons.items():
            line = by_id[f"{seen.id}-{index}"]
            assert (line["outcome"], line["completion_tokens"]) == (reason, len(seen.tokens[index]))


def test_usage_counts_what_was_delivered(day):
    for seen in day.seen:
        if seen.whole:
            expected = day.alone[seen.visit.question]
            assert seen.usage["completion_tokens"] == sum(len(one.ids) for one in expected)
            assert seen.usage["prompt_tokens"] == expected[0].prompt_tokens


def test_the_counters_add_up_to_the_requests(day):
    metrics, lines = day.metrics, day.lines

    def total(name):
        return sum(line[name] for line in lines)

    assert metrics["generation_tokens_total",] == total("completion_tokens") > 0
    assert metrics["prompt_tokens_total",] == sum(line["prompt_tokens"] for line in lines if line["rounds"])
    assert metrics["num_preemptions_total",] == total("preempted") > 0
    assert metrics["prefix_cache_hits_total",] == total("cached_tokens") > 0
    outcomes = Counter(line["outcome"] for line in lines)
    assert metrics["request_success_total", "stop"] == outcomes["stop"]
    assert metrics["request_success_total", "length"] == outcomes["length"]
    assert metrics["request_cancelled_total",] == outcomes["cancelled"] > 0
    assert metrics["request_failed_total",] == 0
    assert metrics["num_requests_running",] == metrics["num_requests_waiting",] == 0
    assert metrics["request_generation_tokens_count",] == outcomes["stop"] + outcomes["length"]


def test_the_counters_of_speculation_add_up(day):
    metrics, lines = day.metrics, day.lines

    def of(name):
        return {
            labels[0]: value for (found, *labels), value in metrics.items() if found == f"spec_decode_{name}"
        }

    def plain(name):
        return metrics[f"spec_decode_{name}",]

    rounds = sum(line["rounds"] for line in lines)
    assert plain("num_rounds_total") == rounds
    assert plain("num_drafts_total") + sum(of("num_rounds_without_draft_total").values()) == rounds
    drafted, accepted = plain("num_draft_tokens_total"), plain("num_accepted_tokens_total")
    assert drafted == sum(line["drafted"] for line in lines)
    assert accepted == sum(line["accepted"] for line in lines)
    assert 0 < accepted <= drafted
    at = of("num_accepted_tokens_per_pos_total")
    asked_at = of("num_draft_tokens_per_pos_total")
    assert sum(at.values()) == accepted
    assert asked_at["0"] == plain("num_drafts_total")
    assert all(value <= asked_at[position] for position, value in at.items())
    by_drafter = of("drafter_draft_tokens_total")
    assert sum(by_drafter.values()) == drafted
    assert sum(of("drafter_accepted_tokens_total").values()) == accepted
    for drafter, tokens in by_drafter.items():
        assert tokens == sum(line["by_drafter"].get(drafter, {"drafted": 0})["drafted"] for line in lines)


def test_nobody_was_refused(day):
    statuses = Counter()
    for (name, *labels), value in day.metrics.items():
        if name == "http_requests_total":
            statuses[labels[-1]] += value
    assert sum(statuses.values()) >= COUNT
    assert statuses.keys() <= {"200", "499"}
