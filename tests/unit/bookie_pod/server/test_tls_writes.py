"""What is written over TLS leaves in parts, and all of it counts until the socket has sent it: on each event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from bookie_pod.server.tls import STEPS
from bookie_pod.server.tls_reads import Told, shake_hands
from bookie_pod.server.tls_writes import hand_on_all
from bookie_pod.server.turns import Turns
from tests.support.certificates import Certificates
from tests.support.until import until

MB = 1 << 20
KERNEL = MB
"""More than the kernel takes of a socket that nobody reads from."""


class Server(asyncio.Protocol):
    """The owner of a connection, which notes what its transport tells it."""

    def __init__(self) -> None:
        self.waits = False
        self.told: list[str] = []
        self.received = b""
        self.is_lost = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def pause_writing(self) -> None:
        assert not self.waits
        self.waits = True
        self.told.append("pause")

    def resume_writing(self) -> None:
        assert self.waits
        self.waits = False
        self.told.append("resume")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        hand_on_all(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()


NewLoop = Callable[[], asyncio.AbstractEventLoop]
Scenario = Callable[[asyncio.Transport, Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    return cast("NewLoop", request.param)


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    """The server's."""
    certificates = Certificates(tmp_path).make_all()
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificates.folder / "bookie.pem", certificates.folder / "bookie.key")
    return made


@pytest.fixture
def anybody() -> ssl.SSLContext:
    """A client's, which trusts every server."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


@pytest.fixture
def over_tls(new_loop: NewLoop, context: ssl.SSLContext, anybody: ssl.SSLContext) -> Callable[..., None]:
    """Play a scenario over a connection with TLS. `before`: what was written in plain text, of which nothing is taken
    until TLS begins."""

    async def main(scenario: Scenario, before: bytes) -> list[dict[str, Any]]:
        loop, complaints = asyncio.get_running_loop(), list[dict[str, Any]]()
        loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        plain, server = await loop.connect_accepted_socket(Server, ours)
        if before:
            plain.write(before)
        told = Told(lambda: 0, lambda: False, print)
        shaking = asyncio.ensure_future(shake_hands(plain, server, context, told, Turns(STEPS)))
        reader, writer = await asyncio.open_connection(sock=theirs, limit=1 << 16)
        await reader.readexactly(len(before))
        await writer.start_tls(anybody, server_hostname="bookie")
        transport = await shaking
        assert transport is not None
        server.waits = False
        await scenario(transport, server, reader, writer)
        transport.abort()
        writer.transport.abort()
        await server.is_lost.wait()
        return complaints

    def play(scenario: Scenario, before: bytes = b"") -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(asyncio.wait_for(main(scenario, before), 20)) == []

    return play


Play = Callable[..., None]


def test_all_that_the_client_has_not_taken_counts(over_tls: Play) -> None:
    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        transport.write(bytes(8 * MB))
        assert server.told == ["pause"]
        for _ in range(3):
            assert 8 * MB - KERNEL < transport.get_write_buffer_size() <= 8 * MB + KERNEL
            await asyncio.sleep(0)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await reader.readexactly(8 * MB) == bytes(8 * MB)
        await until(lambda: transport.get_write_buffer_size() == 0)
        assert server.told == ["pause", "resume"]

    over_tls(scenario)


def test_the_last_of_it_counts_too(over_tls: Play) -> None:
    """Less than TLS would take without a word."""

    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        written = 0
        while not transport.get_write_buffer_size():
            transport.write(bytes(1000))
            written += 1000
            assert written < 8 * MB
            await asyncio.sleep(0)
        assert server.told == []
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readexactly(written)
        await until(lambda: transport.get_write_buffer_size() == 0)

    over_tls(scenario)


@pytest.mark.parametrize("limits", [(1000, 0), (10 * MB, MB)])
def test_the_owner_waits_by_its_own_marks(over_tls: Play, limits: tuple[int, int]) -> None:
    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        high, low = limits
        transport.set_write_buffer_limits(high=high, low=low)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        written = 0
        while not server.waits:
            transport.write(bytes(100_000))
            written += 100_000
            assert server.waits == (transport.get_write_buffer_size() > high)
            await asyncio.sleep(0)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        taking = asyncio.ensure_future(reader.readexactly(written))
        await until(lambda: not server.waits)
        assert transport.get_write_buffer_size() <= low
        await taking

    over_tls(scenario)


def test_small_and_large_pieces_arrive_in_their_order(over_tls: Play) -> None:
    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sizes = [1, 2, 70_000, 3, 65_536, 65_535, 1, 1, 300_000, *[7] * 10_000, 2 * MB, 5]
        pieces = [bytes([place % 251]) * size for place, size in enumerate(sizes)]
        transport.writelines(pieces[:4])
        for piece in pieces[4:9]:
            transport.write(piece)
        transport.writelines(pieces[9:])
        assert await reader.readexactly(sum(sizes)) == b"".join(pieces)

    over_tls(scenario)


def test_a_transport_that_closes_hands_on_the_rest(over_tls: Play) -> None:
    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        transport.write(bytes(4 * MB))
        for _ in range(2):
            transport.close()
            assert transport.is_closing()
        transport.write(b"too late")
        transport.resume_reading()
        assert not transport.is_reading()
        writer.write(b"too late")
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await reader.read(-1) == bytes(4 * MB)
        await server.is_lost.wait()

    over_tls(scenario)


@pytest.mark.parametrize("says_so_by", ["FIN", "close_notify"])
def test_a_client_that_sends_nothing_more_gets_all_of_its_answer(
    new_loop: NewLoop, context: ssl.SSLContext, anybody: ssl.SSLContext, says_so_by: str
) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    is_written = threading.Event()

    def client() -> int:
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured, taken = anybody.wrap_bio(came, goes), 0

        def to_its_end(step: Callable[[], object]) -> None:
            while True:
                try:
                    step()
                    return theirs.sendall(goes.read())
                except ssl.SSLWantReadError:
                    theirs.sendall(goes.read())
                    came.write(theirs.recv(1 << 16))

        to_its_end(secured.do_handshake)
        is_written.wait(10)
        if says_so_by == "FIN":
            theirs.shutdown(socket.SHUT_WR)
        else:
            with pytest.raises(ssl.SSLWantReadError):
                secured.unwrap()
            theirs.sendall(goes.read())
        while data := theirs.recv(1 << 16):
            came.write(data)
            with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while part := secured.read(1 << 16):
                    taken += len(part)
        return taken

    async def main() -> int:
        loop = asyncio.get_running_loop()
        plain, server = await loop.connect_accepted_socket(Server, ours)
        told = Told(lambda: 0, lambda: False, print)
        begin = lambda: server.received  # noqa: E731 - the client begins at once
        shaking = asyncio.ensure_future(shake_hands(plain, server, context, told, Turns(STEPS), begin=begin))
        await asyncio.sleep(0)
        reading = loop.run_in_executor(None, client)
        server.transport = await shaking
        assert server.transport is not None
        server.waits = False
        server.transport.write(bytes(8 * MB))
        is_written.set()
        return await reading

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(asyncio.wait_for(main(), 20)) == 8 * MB


@pytest.mark.parametrize("closed", [False, True])
def test_of_a_transport_that_is_aborted_nothing_is_left(over_tls: Play, closed: bool) -> None:
    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        transport.write(bytes(4 * MB))
        if closed:
            transport.close()
        transport.abort()
        await server.is_lost.wait()
        assert transport.get_write_buffer_size() == 0
        assert server.told == ["pause"]

    over_tls(scenario)


def test_plain_text_that_was_not_taken_before_tls_holds_up_nothing_after_it(over_tls: Play) -> None:
    async def scenario(
        transport: asyncio.Transport, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        transport.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write(b"you")
        await until(lambda: server.received == b"you")

    over_tls(scenario, bytes(2 * MB))
