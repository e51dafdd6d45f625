import asyncio
import json
from itertools import count

import pytest

from foredraft.errors import MeasurementError
from foredraft.measure.serve_http import Http
from foredraft.measure.serve_load import CHAT, Ask, ClosedLoop, one, streaming, together, until

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def event(**members):
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def tokens(*ids):
    return event(choices=[{"index": 0, "delta": {"content": "x"}, "token_ids": list(ids)}], usage=None)


def usage(completion_tokens):
    counts = {
        "prompt_tokens": 7,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    return event(choices=[], usage=counts) + b"data: [DONE]\n\n"


def ask(**body):
    return Ask("a prompt", CHAT, body)


class Stub:
    """Answers in so many chunks, or not before so many requests are open, as a request's own body says."""

    def __init__(self):
        self.open = 0
        self.seen = []  # how many were open, whenever one came or went
        self.labels = []

    async def answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = json.loads(await reader.readexactly(length))
        self.labels.append(body.get("label"))
        self.open += 1
        self.seen.append(self.open)
        while max(self.seen) < body.get("beside", 1):
            await asyncio.sleep(0.005)
        try:
            for number in range(body.get("chunks", 1)):
                writer.write((HEAD if number == 0 else b"") + tokens(number))
                await writer.drain()
                await asyncio.sleep(body.get("pause", 0))
                if reader.at_eof():  # cancelled
                    return
            writer.write(usage(body.get("chunks", 1)))
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


def with_server(answer, use):
    under_way = set()

    async def watched(reader, writer):
        under_way.add(writer)
        await answer(reader, writer)
        under_way.remove(writer)

    async def main():
        async with await asyncio.start_server(watched, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            try:
                return await use(Http("127.0.0.1", port, MeasurementError))
            finally:
                while under_way:  # what is cancelled goes away
                    await asyncio.sleep(0.005)

    return asyncio.run(main())


def replying(*parts):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.03)
        writer.close()

    return answer


def test_reply_is_counted_by_tokens_and_not_by_chunks():
    role = event(choices=[{"index": 0, "delta": {"role": "assistant"}, "token_ids": None}], usage=None)
    last = event(
        choices=[{"index": 0, "token_ids": [9]}], speculation={"rounds": 4, "drafted": 8, "accepted": 5}
    )
    parts = [
        HEAD + role,
        tokens(1, 2) + tokens(3),
        tokens(4, 5, 6),
        tokens()[:9],
        tokens()[9:] + last + usage(7),
    ]
    reply = with_server(replying(*parts), lambda http: one(http, ask()))
    assert reply.ids == (1, 2, 3, 4, 5, 6, 9)
    assert sum(number for _, number in reply.moments) == 7
    assert (reply.tokens, reply.prompt_tokens, reply.cached_tokens) == (7, 7, 3)
    assert (reply.rounds, reply.drafted, reply.accepted) == (4, 8, 5)
    (first, at_first), *_, (end, _) = reply.moments
    assert at_first >= 3  # the role alone is no moment
    assert reply.ttft_s == first - reply.sent
    assert reply.tpot_s == (end - first) / (7 - at_first)
    assert reply.sent < first < end <= reply.ended
    assert reply.seconds == reply.ended - reply.sent


def test_single_chunk_has_no_time_per_token():
    assert with_server(replying(HEAD + tokens(1, 2) + usage(2)), lambda http: one(http, ask())).tpot_s is None


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ((HEAD + tokens(1, 2) + usage(3),), "2 token ids came, but its usage says 3"),
        ((HEAD + tokens(1, 2),), "its usage says 0"),
        ((HEAD + tokens(1), event(error={"message": "out of memory"})), "out of memory"),
    ],
)
def test_answer_that_cannot_be_counted_is_refused(parts, complaint):
    with pytest.raises(MeasurementError, match=complaint):
        with_server(replying(*parts), lambda http: one(http, ask()))


def test_requests_are_sent_at_once_and_answered_in_order():
    stub = Stub()
    asks = [ask(chunks=chunks, beside=3) for chunks in (3, 1, 2)]
    replies = with_server(stub.answer, lambda http: together(http, asks))
    assert [reply.tokens for reply in replies] == [3, 1, 2]


def test_as_many_requests_as_workers_until_the_last_measured_one_has_ended():
    stub = Stub()
    lengths = [2, 3, 4, 2, 3, 4, 2, 3, 4, 30]
    lead = [ask(label="lead", chunks=worker + 1, pause=0.01, beside=4) for worker in range(4)]
    measured = [ask(label=index, chunks=chunks, pause=0.01) for index, chunks in enumerate(lengths)]
    fillers = (ask(label="filler", chunks=1000, pause=0.01) for _ in count())

    replies = with_server(stub.answer, lambda http: ClosedLoop(http, lead, measured, fillers).run(4))
    assert [reply.tokens for reply in replies] == lengths
    assert stub.labels[:4] == ["lead"] * 4
    assert stub.labels[4:14] == list(range(10))
    assert stub.labels[14:] == ["filler"] * 3  # while the last measured one is still answered
    assert max(stub.seen) == 4


def test_one_worker_needs_no_fillers():
    stub = Stub()
    loop = [ask(label=index) for index in range(3)]
    replies = with_server(stub.answer, lambda http: ClosedLoop(http, (), loop, iter(())).run(1))
    assert len(replies) == 3
    assert stub.seen == [1, 1, 1]


def test_failure_of_one_worker_ends_the_loop():
    stub, connections = Stub(), count()

    async def answer(reader, writer):
        if next(connections) == 2:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Oops\r\n\r\nbroken")
            writer.close()
        else:
            await stub.answer(reader, writer)

    measured = [ask(label=index, chunks=1000, pause=0.01) for index in range(3)]
    with pytest.raises(MeasurementError, match="500: broken"):
        with_server(answer, lambda http: ClosedLoop(http, (), measured, iter(())).run(3))


def test_failure_of_one_of_several_requests_is_told():
    with pytest.raises(MeasurementError, match="its usage says 5"):
        with_server(
            replying(HEAD + tokens(1) + usage(5)), lambda http: together(http, [ask() for _ in range(3)])
        )


def test_streams_are_watched_and_go_on_until_they_are_cancelled():
    stub = Stub()

    async def use(http):
        asks = (ask(chunks=3, pause=0.005) for _ in count())
        async with streaming(http, asks, 3) as streams:
            await until(lambda: all(len(stream.moments) >= 10 for stream in streams))
        return streams

    streams = with_server(stub.answer, use)
    assert max(stub.seen) == 3
    for stream in streams:
        assert [len(exchange.moments) for exchange in stream.exchanges[:3]] == [3, 3, 3]
        assert len(stream.gaps) <= len(stream.moments) - 4  # none from one answer to the next
        assert all(end > start for start, end in stream.gaps)


def test_failure_of_a_stream_is_told_while_nobody_waits_for_it():
    async def use(http):
        async with streaming(http, (ask() for _ in count()), 2):
            await until(lambda: False)

    with pytest.raises(MeasurementError, match="its usage says 5"):
        with_server(replying(HEAD + tokens(1) + usage(5)), use)


def test_failure_of_whoever_watches_streams_is_told():
    async def use(http):
        async with streaming(http, (ask(chunks=1000, pause=0.01) for _ in count()), 2):
            raise ValueError("seen enough")

    with pytest.raises(ValueError, match="seen enough"):
        with_server(Stub().answer, use)
