import asyncio
import socket
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import MeasurementError
from foredraft.measure.serve_http import Events, Head, Http, Unchunked

CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut(data, places):
    ends = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(ends)]


def chunked(parts, rest=b""):
    return b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + rest + b"\r\n"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), CUTS)
def test_framing_is_undone_wherever_reads_end(parts, places):
    taken = Unchunked()
    read = [taken.feed(piece) for piece in cut(chunked(parts, b"Trailer: x\r\n"), places)]
    assert b"".join(read) == b"".join(parts)
    assert taken.ended


def test_body_that_is_cut_off_has_not_ended():
    taken = Unchunked()
    assert taken.feed(b"5\r\nabc") == b"abc"
    assert not taken.ended


@given(
    st.lists(st.text("aé{}:\u2028 ", min_size=1, max_size=20), max_size=6),
    CUTS,
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_are_whole_wherever_reads_end(values, places, end):
    stream = "".join(f": nothing{end}{end}event: x{end}data: {value}{end}{end}" for value in values).encode()
    events = Events()
    found = [data for piece in cut(stream + b"data: begun", places) for data in events.feed(piece)]
    assert found == [value.encode() for value in values]


def test_several_lines_of_data_are_one_event():
    assert Events().feed(b"data: a\ndata:b\n\ndata:  c\n\n") == [b"a\nb", b" c"]


def test_head():
    assert Head.parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nX: y\r\n\r\n") == Head(200, True)
    assert Head.parse(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\n\r\n") == Head(429, False)


async def served(reply, use):
    """Asks a server that answers everything with these bytes."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await use(Http("127.0.0.1", port, MeasurementError))


def test_answer_with_and_without_chunks():
    body = b'{"a": 1}'
    head = b"HTTP/1.1 200 OK\r\n"
    for reply in (
        head + b"Content-Length: 8\r\n\r\n" + body,
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked([body[:3], body[3:]]),
    ):
        assert asyncio.run(served(reply, lambda http: http.post("/x", {}))) == {"a": 1}
        assert asyncio.run(served(reply, lambda http: http.get("/x"))) == (200, body)


async def streamed(http):
    return [event async for _, events in http.stream("/x", {}) for event in events]


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_stream():
    reply = STREAM + chunked([b"data: 1\n", b"\ndata: 2\n\n"])
    assert asyncio.run(served(reply, streamed)) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (STREAM + b"9\r\ndata: 1\n\n\r\n", "/x failed: the stream broke off"),
        (b"HTTP/1.1 400 Bad\r\n\r\n{no such field}", "/x was answered with 400: {no such field}"),
        (b"HTTP/1.1 20", "/x failed"),
    ],
)
def test_what_goes_wrong_is_told(reply, complaint):
    with pytest.raises(MeasurementError, match=complaint):
        asyncio.run(served(reply, streamed))


def test_server_that_is_not_there_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        http = Http("127.0.0.1", taken.getsockname()[1], MeasurementError)
        with pytest.raises(MeasurementError, match="GET /health failed"):
            asyncio.run(http.get("/health"))
