"""What leaves when: reads and adds of one turn of the loop leave together, work that keeps a bookie busy at once."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.connection.connection import FLUSH_BYTES, BookieConnection
from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.latency import Ticker
from bookie_client.connection.operations import OneShot, nothing
from bookie_client.options import ClientOptions


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.written = []

    def writelines(self, pieces):
        self.written.append(b"".join(pieces))


class Connected:
    def __init__(self):
        self.transport = Transport()
        self.connection = BookieConnection(
            "b",
            V2Dialect(),
            max_frame_size=1 << 20,
            ticker=Ticker(1000.0),
            patience=10,
            silence_ticks=10,
            record=BookieHealth(ClientOptions(), asyncio.get_running_loop().time).record("b"),
            on_closed=lambda _: None,
        )
        self.connection.connection_made(self.transport)
        self.sent = 0

    def send(self, way, frame):
        self.sent += 1
        getattr(self.connection, way)(frame, b"%d" % self.sent, OneShot("the probe", nothing), 10)


@pytest.mark.parametrize("way", ["send", "send_measured"])
async def test_requests_of_one_turn_leave_together(way):
    one = Connected()
    for frame in (b"a", b"b", b"c"):
        one.send(way, frame)
    assert one.transport.written == []
    await asyncio.sleep(0)
    assert one.transport.written == [b"abc"]
    await asyncio.sleep(0)
    assert len(one.transport.written) == 1


async def test_what_a_bookie_is_busy_with_leaves_at_once_and_in_order():
    one = Connected()
    one.send("send", b"a")
    one.send("send_at_once", b"b")
    one.send("send", b"c")
    assert one.transport.written == [b"ab"]
    await asyncio.sleep(0)
    assert one.transport.written == [b"ab", b"c"]


async def test_much_does_not_wait_for_the_turn_to_end():
    one = Connected()
    one.send("send", b"a")
    one.send("send", bytes(FLUSH_BYTES))
    assert [len(each) for each in one.transport.written] == [1 + FLUSH_BYTES]
