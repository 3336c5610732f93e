"""Connections inside a process: order, turns, back-pressure, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from bookie_pod.server.tcp.in_process import TURN_BYTES, connect_in_process
from tests.support.add_frames import add_frames
from tests.support.until import until


class Protocol(asyncio.Protocol):
    """Notes what it hears."""

    def __init__(self):
        self.transport = None
        self.received = []
        self.events = []

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received.append(data)

    def pause_writing(self):
        self.events.append("paused")

    def resume_writing(self):
        self.events.append("resumed")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))

    @property
    def bytes(self):
        return b"".join(self.received)


LOST = ("lost", None)


@pytest.fixture
async def ends():
    client, server = Protocol(), Protocol()
    connect_in_process(asyncio.get_running_loop(), lambda: client, lambda: server)
    return client, server


async def test_bytes_arrive_in_order_and_never_inside_the_call_that_wrote_them(ends):
    client, server = ends
    client.transport.writelines([b"one ", b"", bytearray(b"two ")])
    client.transport.write(memoryview(b"three"))
    assert server.received == []
    await until(lambda: server.bytes == b"one two three")
    assert len(server.received) == 1  # one call for all of a turn
    server.transport.write(b"back")
    await until(lambda: client.bytes == b"back")


async def test_a_large_write_is_not_copied_and_the_next_one_waits_for_its_turn(ends):
    client, server = ends
    large = bytes(TURN_BYTES)
    client.transport.writelines([large, b"next"])
    await asyncio.sleep(0)
    assert server.received[0] is large
    assert len(server.received) == 1
    await until(lambda: server.received[1:] == [b"next"])


class Server(Protocol):
    """Takes adds as they are."""

    def adds_received(self, adds):
        self.received.append(adds)


async def test_adds_arrive_as_they_are_in_their_place_among_the_bytes():
    client, server, adds = Protocol(), Server(), add_frames(1, bytes(20), 0, [b"one", b"two"])
    connect_in_process(asyncio.get_running_loop(), lambda: client, lambda: server)
    assert client.transport.takes_adds
    client.transport.writelines([b"before ", b"it", adds, b"behind"])
    assert server.received == []
    await until(lambda: server.received == [b"before it", adds, b"behind"])


async def test_adds_count_as_the_bytes_of_their_frames():
    client, server, adds = Protocol(), Server(), add_frames(1, bytes(20), 0, [b"one", b"two"])
    connect_in_process(asyncio.get_running_loop(), lambda: client, lambda: server)
    client.transport.set_write_buffer_limits(high=len(adds.frames), low=1)
    client.transport.writelines([adds])
    assert client.events == []
    client.transport.write(b"1")
    assert client.events == ["paused"]
    await until(lambda: client.events == ["paused", "resumed"])
    assert client.transport.get_write_buffer_size() == 0


async def test_a_protocol_that_knows_only_bytes_gets_no_adds(ends):
    client, server = ends
    assert not client.transport.takes_adds
    assert not server.transport.takes_adds


async def test_who_does_not_read_pauses_the_writer_and_loses_nothing(ends):
    client, server = ends
    server.transport.set_write_buffer_limits(high=10, low=5)
    client.transport.pause_reading()
    server.transport.write(b"0123456789")
    assert server.events == []
    server.transport.write(b"a")
    assert server.events == ["paused"]
    await asyncio.sleep(0)
    assert (client.received, server.transport.get_write_buffer_size()) == ([], 11)
    client.transport.resume_reading()
    await until(lambda: server.events == ["paused", "resumed"])
    assert client.bytes == b"0123456789a"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_the_other_end_hears_all_that_was_written_before_the_end_and_each_hears_the_end_once(ends, how):
    client, server = ends
    client.transport.set_write_buffer_limits(high=2 * TURN_BYTES)
    client.transport.write(bytes(TURN_BYTES))
    client.transport.write(b"last")
    server.transport.write(b"too late")
    getattr(client.transport, how)()
    client.transport.close()
    assert client.transport.is_closing()
    assert client.events == []
    await until(lambda: server.events == [LOST])
    assert len(server.bytes) == TURN_BYTES + 4
    assert (client.events, client.received) == ([LOST], [])


async def test_an_end_that_does_not_read_hears_the_end_when_it_reads_again(ends):
    client, server = ends
    server.transport.pause_reading()
    client.transport.write(b"request")
    client.transport.close()
    await until(lambda: client.events == [LOST])
    assert server.events == []
    server.transport.resume_reading()
    await until(lambda: server.events == [LOST])
    assert server.bytes == b"request"


async def test_a_writer_that_was_paused_does_not_wait_for_an_end_that_is_gone(ends):
    client, server = ends
    server.transport.set_write_buffer_limits(high=10)
    client.transport.pause_reading()
    server.transport.pause_reading()
    server.transport.write(bytes(100))
    client.transport.close()
    await until(lambda: client.events == [LOST])
    assert server.events == ["paused", "resumed"]


async def test_writing_to_an_end_that_is_gone_ends_this_one(ends):
    client, server = ends
    server.transport.pause_reading()
    client.transport.close()
    server.transport.set_write_buffer_limits(high=1)
    server.transport.write(b"answer")
    assert server.transport.get_write_buffer_size() == 0
    await until(lambda: server.events == [LOST])


async def test_an_end_may_refuse_in_connection_made():
    class Refusing(Protocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.abort()

    client, server = Protocol(), Refusing()
    connect_in_process(asyncio.get_running_loop(), lambda: client, lambda: server)
    client.transport.write(b"request")
    await until(lambda: client.events == server.events == [LOST])
    assert server.received == []


async def test_the_marks_of_a_writer_follow_from_each_other(ends):
    client, _ = ends
    transport = client.transport
    default = transport.get_write_buffer_limits()
    for given, marks in (
        ({"high": 1000, "low": 30}, (30, 1000)),
        ({"high": 1000}, (250, 1000)),
        ({"low": 30}, (30, 120)),
        ({"high": 0}, (0, 0)),
        ({"high": 9, "low": 0}, (0, 9)),
        ({}, default),
    ):
        transport.set_write_buffer_limits(**given)
        assert transport.get_write_buffer_limits() == marks
    assert default[1] == 4 * default[0]
    assert transport.get_extra_info("peername") == ("in-process", 0)
    assert not transport.can_write_eof()
    assert transport.get_protocol() is client


async def test_a_writer_is_paused_above_its_mark_and_resumed_at_the_lower_one(ends):
    client, server = ends
    client.transport.set_write_buffer_limits(high=10, low=4)
    server.transport.pause_reading()
    client.transport.write(bytes(10))
    assert client.events == []
    client.transport.write(b"1")
    client.transport.write(b"2")
    assert client.events == ["paused"]
    server.transport._receive()
    client.transport._drained()
    assert client.events == ["paused", "resumed"]
    client.transport._drained()
    assert client.events == ["paused", "resumed"]
    for size, events in ((11, ["paused"]), (5, ["paused"]), (4, ["paused", "resumed"])):
        client.events.clear()
        client.transport._writer_paused = False
        client.transport.write(bytes(11))
        server.transport._arrived_bytes = size
        client.transport._drained()
        assert client.events == events


async def test_one_turn_brings_as_many_pieces_as_it_has_room_for(ends):
    client, server = ends
    client.transport.writelines([bytes(TURN_BYTES - 2), b"ab", b"c", b"d"])
    await asyncio.sleep(0)
    assert [len(each) for each in server.received] == [TURN_BYTES]
    await asyncio.sleep(0)
    assert server.received[1:] == [b"cd"]
    assert client.transport.get_write_buffer_size() == 0


async def test_whoever_pauses_in_the_middle_of_a_turn_receives_nothing_more(ends):
    client, server = ends
    client.transport.write(b"first")
    server.transport.pause_reading()  # the delivery is due already
    await asyncio.sleep(0)
    assert server.received == []
    assert not server.transport.is_reading()
    server.transport.resume_reading()
    assert server.transport.is_reading()
    await asyncio.sleep(0)
    assert server.received == [b"first"]


async def test_an_end_that_is_closed_takes_nothing_more(ends):
    client, server = ends
    client.transport.close()
    client.transport.write(b"late")
    assert client.transport.is_closing()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (server.received, server.events) == ([], [LOST])
    assert (client.events, client.transport.is_reading()) == ([LOST], False)


async def test_however_often_something_is_written_one_turn_brings_no_more_than_a_turns_bytes(ends):
    client, server = ends
    for _ in range(3):
        client.transport.write(bytes(TURN_BYTES))
    server.transport.resume_reading()
    for received in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(server.received) == received
