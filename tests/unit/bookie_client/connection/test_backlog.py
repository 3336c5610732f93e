"""Bytes that a bookie does not take: how long they may wait, and what is sent meanwhile."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bookie_client.connection.backlog import Backlog
from bookie_protocol.errors import BookieBusy
from tests.support.until import until

SIZE = 100_000
PATIENCE = 4


class Sent:
    """A backlog whose transport is a number."""

    def __init__(self):
        self.backlog, self.unsent, self.now = Backlog(), 0, 0

    def write(self, nbytes):
        self.backlog.written += nbytes
        self.unsent += nbytes

    def tick(self, times=1):
        for _ in range(times):
            self.now += 1
            behind = self.backlog.tick(self.now, self.unsent, PATIENCE)
        return behind


def test_connection_is_behind_until_the_bytes_that_waited_too_long_have_left():
    sent = Sent()
    sent.write(100)
    assert not sent.tick(PATIENCE)
    sent.write(30)
    assert sent.tick()
    sent.unsent = 31
    assert sent.backlog.is_behind(sent.unsent)
    sent.unsent = 30
    assert not sent.backlog.is_behind(sent.unsent)


def test_connection_that_drains_slower_than_it_is_written_to_but_in_time_is_not_behind():
    sent = Sent()
    for _ in range(50):
        sent.write(100)
        sent.unsent = min(sent.unsent, 350)
        assert not sent.tick()


def test_a_stuck_buffer_is_remembered_by_few_marks():
    sent = Sent()
    sent.write(100)
    sent.tick(1000)
    assert len(sent.backlog._marks) == 1


def test_buffer_that_holds_more_than_was_written_is_not_behind():
    """TLS adds to each frame, and what the handshake sent may still be there."""
    backlog = Backlog()
    backlog.written = 100
    assert not backlog.tick(1, 130, PATIENCE)
    assert not backlog.is_behind(130)
    for now in range(2, PATIENCE + 2):
        behind = backlog.tick(now, 130, PATIENCE)
    assert behind


class SlowProxy:
    """Stands in front of a bookie; takes bytes only while it is let."""

    def __init__(self, port):
        self.port_behind = port
        self.open = asyncio.Event()
        self.open.set()

    async def __aenter__(self):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.server = await asyncio.start_server(self._serve, sock=listener, limit=4096)
        self.tasks = []
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        from_bookie, to_bookie = await asyncio.open_connection("127.0.0.1", self.port_behind)
        self.tasks += [
            asyncio.create_task(self._pump(reader, to_bookie, self.open)),
            asyncio.create_task(self._pump(from_bookie, writer, None)),
        ]

    async def _pump(self, reader, writer, gate):
        while data := await reader.read(4096):
            if gate is not None:
                await gate.wait()
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize("delay", [False, True], ids=["change at once", "delayed change"])
async def test_bytes_of_adds_that_timed_out_are_bounded_and_the_bookie_comes_back(three, delay):
    async with SlowProxy(three.servers["b3"].port) as proxy:
        three.metadata.bookies.register_address("b3", "127.0.0.1", proxy.port)
        linger = 1 << 20
        async with (
            three.client(write_linger_bytes=linger, delay_ensemble_change=delay) as client,
            client.create(write_quorum=3, ack_quorum=2) as ledger,
        ):
            await ledger.append(bytes(SIZE))
            channel = client.context.pool.channel("b3", ledger.ledger_id)
            sock = channel._connection._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            proxy.open.clear()
            for _ in range(40):
                await asyncio.wait_for(ledger.append(bytes(SIZE)), 5)
                assert channel._connection is None or channel._connection._unsent <= linger + 3 * SIZE
            await until(lambda: isinstance(channel._connection and channel._connection.refusal(), BookieBusy))
            proxy.open.set()
            await until(lambda: not ledger.degraded and channel.is_connected and not channel._connection.refusal())
            last = await ledger.append(b"again on all")
            await until(lambda: last in three.held_at("b3", ledger.ledger_id))
