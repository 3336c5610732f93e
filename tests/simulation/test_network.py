"""Connections of the virtual network behave like TCP, also when they break."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bookie_protocol.wire.framing import frame
from tests.simulation.conftest import run
from tests.support.simulation.clock import START, VirtualLoop
from tests.support.simulation.network import Network, NetworkOptions
from tests.support.simulation.trace import Trace

PORT = 1


class Recorder(asyncio.Protocol):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.data = b""
        self.pieces = 0
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert not self.lost
        self.data += data
        self.pieces += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Net:
    """One client, one server that records."""

    def __init__(self, loop: VirtualLoop, **options: float) -> None:
        self.network = Network(loop, Random(1), Trace(keep=False), NetworkOptions(**options))
        self.servers: list[Recorder] = []
        self.listen()

    def listen(self) -> None:
        def accept() -> Recorder:
            self.servers.append(Recorder())
            return self.servers[-1]

        self.network.listen("server", PORT, accept)

    async def connect(self) -> tuple[Recorder, Recorder]:
        client = Recorder()
        await self.network.connector("client")(lambda: client, "server", PORT)
        return client, self.servers[-1]


def test_bytes_arrive_in_order_after_a_while_whole_or_split(loop):
    net = Net(loop, split_chance=0.5, jitter=20.0)

    async def work() -> None:
        client, server = await net.connect()
        sent = [bytes([n]) * (n + 1) for n in range(100)]
        for piece in sent:
            client.transport.write(piece)
        assert server.data == b""
        await asyncio.sleep(1)
        assert server.data == b"".join(sent)
        server.transport.write(b"answer")
        await asyncio.sleep(1)
        assert client.data == b"answer"

    run(loop, work())


def test_a_partition_holds_bytes_back_and_loses_none(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        net.network.block("client", "server")
        client.transport.write(b"question")
        server.transport.write(b"the other way is open")
        await asyncio.sleep(60)
        assert (server.data, client.data) == (b"", b"the other way is open")
        net.network.unblock("client", "server")
        await asyncio.sleep(1)
        assert server.data == b"question"
        assert client.lost == server.lost == []

    run(loop, work())


def test_connecting_through_a_partition_waits_and_to_nobody_is_refused(loop):
    net = Net(loop)

    async def work() -> None:
        net.network.block("server", "client")
        attempt = asyncio.create_task(net.connect())
        await asyncio.sleep(30)
        assert not attempt.done()
        net.network.unblock("server", "client")
        await attempt
        net.network.stop_listening("server", PORT)
        with pytest.raises(ConnectionRefusedError):
            await net.connect()

    run(loop, work())


def test_closing_delivers_what_was_written_first(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        client.transport.write(b"last words")
        client.transport.close()
        client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert server.data == b"last words"
        assert (client.lost, server.lost) == ([None], [None])
        assert net.network.connections == {}

    run(loop, work())


def test_a_killed_process_resets_its_connections(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        for connection in net.network.of("server"):
            connection.die("server")
        await asyncio.sleep(1)
        assert isinstance(client.lost[0], ConnectionResetError)
        assert server.lost == []  # its process hears nothing any more

    run(loop, work())


def test_a_host_without_power_is_silent_and_tells_who_still_sends_when_it_is_back(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        net.network.power_off("server")
        client.transport.write(b"anybody there?")
        await asyncio.sleep(600)
        assert client.lost == []
        net.network.power_on("server")
        await asyncio.sleep(1)
        assert isinstance(client.lost[0], ConnectionResetError)
        assert server.data == b""

    run(loop, work())


def test_one_end_may_know_of_a_reset_while_what_it_sent_still_arrives(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        client.transport.write(b"a request")
        (connection,) = net.network.of("client")
        connection.reset_at("client")
        await asyncio.sleep(0)
        assert isinstance(client.lost[0], ConnectionResetError)
        await asyncio.sleep(1)
        assert server.data == b"a request"

    run(loop, work())


def test_an_answer_may_be_lost_with_its_connection(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        server.transport.write(b"an answer")
        (connection,) = net.network.of("client")
        connection.lose_in_flight("server")
        connection.reset_at("client")
        await asyncio.sleep(1)
        assert client.data == b""
        assert len(client.lost) == 1

    run(loop, work())


def test_who_does_not_read_gets_it_later(loop):
    net = Net(loop)

    async def work() -> None:
        client, server = await net.connect()
        server.transport.pause_reading()
        client.transport.write(b"patience")
        await asyncio.sleep(10)
        assert server.data == b""
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.data == b"patience"

    run(loop, work())


def test_a_slow_link_is_slow_for_a_while(loop):
    net = Net(loop, jitter=0.0, spread=0.0, base_delay=0.01)

    async def work() -> None:
        client, server = await net.connect()
        net.network.slow_down("client", "server", 5.0, 100.0)
        client.transport.write(b"x")
        await asyncio.sleep(0.9)
        assert server.data == b""
        await asyncio.sleep(0.2)
        assert server.data == b"x"
        await asyncio.sleep(5.0)
        before = loop.time()
        client.transport.write(b"y")
        await asyncio.sleep(0.02)
        assert server.data == b"xy"
        assert before > START + 5

    run(loop, work())


def test_answers_come_again_frame_by_frame_for_a_while(loop):
    net = Net(loop)
    frames = [frame(bytes([n])) for n in range(40)]

    async def exchange() -> tuple[bytes, bytes]:
        client, server = await net.connect()
        for recorder in (client, server):
            recorder.transport.writelines(frames)
        await asyncio.sleep(1)
        return client.data.removeprefix(b"".join(frames)), server.data.removeprefix(b"".join(frames))

    async def work() -> None:
        net.network.repeat_answers("server", 2.0)
        answers, requests = await exchange()
        again = [answers[at : at + 5] for at in range(0, len(answers), 5)]
        assert 5 < len(again) < 35
        assert set(again) < set(frames)
        assert len(set(again)) == len(again)
        assert requests == b""
        await asyncio.sleep(1)
        assert await exchange() == (b"", b"")
        net.network.repeat_answers("server", 2.0)
        net.network.heal()
        assert await exchange() == (b"", b"")

    run(loop, work())
