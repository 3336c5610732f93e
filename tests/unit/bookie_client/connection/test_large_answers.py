"""Large answers come in pieces: whatever the pieces are, each request gets its own answer, whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.connection import connection
from bookie_client.connection.connection import LARGE_FRAME, BookieConnection
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.latency import Ticker
from bookie_client.connection.operations import OneShot, detail_of
from bookie_client.options import ClientOptions
from bookie_protocol.wire import v2
from bookie_protocol.wire.v2 import CURRENT_VERSION, PackedEntries
from tests.support.receiving import receive

SIZES = [0, 1, 5000, LARGE_FRAME, 3 * LARGE_FRAME]


def answer(request_id: int, entries: list[bytes]) -> bytes:
    return b"".join(v2.encode_batch_read_response(CURRENT_VERSION, 0, 7, 0, request_id, entries))


def from_this_process(connection: BookieConnection, data: bytes) -> None:
    if data:
        connection.data_received(data)


WAYS = [receive, from_this_process]
Way = Callable[[BookieConnection, bytes], None]


def connected(dialect: V2Dialect, transport: asyncio.Transport) -> BookieConnection:
    loop = asyncio.get_running_loop()
    connection = BookieConnection(
        "b",
        dialect,
        max_frame_size=1 << 20,
        ticker=Ticker(1000.0),
        patience=10,
        silence_ticks=10,
        record=BookieHealth(ClientOptions(), loop.time).record("b"),
        on_closed=lambda _: None,
    )
    connection.connection_made(transport)
    return connection


async def received(way: Way, answers: list[list[bytes]], cuts: list[float]) -> list[list[bytes]]:
    """What the requests get when their answers come in pieces; `cuts` by share of the whole."""
    dialect = V2Dialect()
    connection = connected(dialect, asyncio.Transport())
    requests = []
    for request_id in range(len(answers)):
        key, _ = dialect.batch_read(request_id, 7, 0, 10, 1 << 20, recovery=False)
        requests.append(OneShot("the probe", detail_of(PackedEntries)))
        connection.send(b"", key, requests[-1], 10)
    connection._out.clear()
    stream = b"".join(answer(request_id, entries) for request_id, entries in enumerate(answers))
    places = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    for start, stop in pairwise(places):
        way(connection, stream[start:stop])
    assert len(connection._incoming._buffer) == 0
    return [(await request.outcome()).split() for request in requests]


@pytest.mark.parametrize("way", WAYS)
@given(
    sizes=st.lists(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3), min_size=1, max_size=3),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
def test_answers_in_any_pieces(way, sizes, cuts):
    answers = [[bytes([number]) * size for number, size in enumerate(each)] for each in sizes]
    assert asyncio.run(received(way, answers, cuts)) == answers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behind", [1, 3, 4, 5, 100])
def test_the_beginning_of_the_next_answer_comes_with_the_end_of_a_large_one(monkeypatch, way, behind):
    """And the large one is not looked at together with it."""
    monkeypatch.setattr(connection, "LARGE_FRAME", 1000)
    answers = [[b"a" * 2000], [b"b" * 2000]]
    whole = 2 * len(answer(0, answers[0]))
    assert asyncio.run(received(way, answers, [0.25, 0.5 + behind / whole])) == answers


class Aborted(asyncio.Transport):
    def abort(self) -> None:
        raise EOFError


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_front", [b"", answer(0, [b"a" * LARGE_FRAME])])
async def test_an_answer_above_the_limit_ends_the_connection_before_there_is_memory_for_it(way, in_front):
    connection = connected(V2Dialect(), Aborted())
    with pytest.raises(EOFError):
        way(connection, in_front + (1 << 20).to_bytes(4) + bytes(10))
    assert "frame length 1048576 is above the 1048572 bytes" in str(connection._reason)
    assert len(connection.get_buffer(-1)) < 1 << 20
