"""TLS receives a part at a time, and a client whose bytes bring nothing is told of."""

from __future__ import annotations

import asyncio
import mmap
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from bookie_pod.server.tls import STEPS
from bookie_pod.server.tls_reads import PART, RATIO, WINDOW, TlsReads, Told, shake_hands
from bookie_pod.server.turns import Turns
from tests.support.certificates import Certificates
from tests.support.server_rig import PaperTransport


class Tls(asyncio.BufferedProtocol):
    """Decrypts nothing, and keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(sizehint))

    def buffer_updated(self, nbytes: int) -> None:
        self.calls.append(nbytes)

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(exc)

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Lost(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class AnyNumber(Turns):
    """Has room for each."""

    def __init__(self) -> None:
        super().__init__(1)

    def take(self, go_on: Callable[[], bool]) -> bool:
        return True


class Connection:
    """Counts by hand."""

    def __init__(self, steps: Turns | None = None) -> None:
        self.tls, self.plain = Tls(), PaperTransport()
        self.received = self.pending = self.asked = self.wasteful = 0
        self.grows = False
        self.read_limit: int | None = None
        told = Told(lambda: self.received, self._may_grow, self._waste)
        self.reads = TlsReads(self.tls, cast("asyncio.Transport", self.plain), told, steps or AnyNumber())

    def set_read_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.read_limit = high

    def get_read_buffer_size(self) -> int:
        return self.pending

    def _may_grow(self) -> bool:
        self.asked += 1
        return self.grows

    def _waste(self) -> None:
        self.wasteful += 1


@pytest.fixture
def conn() -> Connection:
    made = Connection()
    made.reads.handshake_over(made)
    return made


def test_a_handshake_may_be_long_but_is_received_in_parts_too() -> None:
    conn = Connection()
    for _ in range(4 * WINDOW // PART):
        assert len(conn.reads.get_buffer(-1)) == PART
        conn.reads.buffer_updated(PART)
    assert (conn.asked, conn.wasteful) == (0, 0)
    conn.reads.handshake_over(conn)
    assert conn.read_limit == PART
    conn.reads.buffer_updated(WINDOW - 1)
    assert conn.wasteful == 0
    conn.reads.buffer_updated(1)
    assert conn.wasteful == 1


def test_what_was_received_before_tls_was_there_is_given_to_it_in_parts() -> None:
    conn = Connection()
    conn.reads.begin(bytes(2 * PART + 1))
    assert conn.tls.calls == [PART, PART, 1]


async def test_few_steps_of_handshakes_are_made_in_a_turn_of_the_loop_in_the_order_in_which_their_bytes_came() -> None:
    steps = Turns(STEPS)
    silent, *busy = (Connection(steps) for _ in range(1 + 3 * STEPS - 1))

    def made() -> list[int]:
        return [len(conn.tls.calls) for conn in busy]

    for nbytes, conn in enumerate(busy[:-1], 1):
        conn.reads.buffer_updated(nbytes)
    busy[-1].reads.begin(bytes(PART + 1))
    assert made() == [1] * STEPS + [0] * (2 * STEPS - 1)
    assert [conn.plain.reading for conn in busy] == [True] * STEPS + [False] * (2 * STEPS - 1)
    for turns in (2, 3):
        while made()[turns * STEPS - 2] == 0:
            assert not any(made()[turns * STEPS :])
            await asyncio.sleep(0)
    assert [conn.tls.calls[0] for conn in busy[:-1]] == list(range(1, 3 * STEPS - 1))
    assert busy[-1].tls.calls == [PART, 1]
    assert all(conn.plain.reading for conn in busy)
    silent.reads.buffer_updated(1)
    assert silent.tls.calls == [1]


async def test_step_that_waits_is_made_at_the_end_of_the_handshake_and_not_for_a_socket_that_closes() -> None:
    steps = Turns(STEPS)
    for _ in range(STEPS):
        Connection(steps).reads.buffer_updated(1)
    over, closing = Connection(steps), Connection(steps)
    for conn in (over, closing):
        conn.reads.buffer_updated(7)
    over.reads.handshake_over(over)
    assert (over.tls.calls, over.plain.reading) == ([7], True)
    closing.plain.closing = True
    for _ in range(3):
        await asyncio.sleep(0)
    assert over.tls.calls == [7]
    assert (closing.tls.calls, closing.plain.reading) == ([], False)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_socket_that_was_lost_before_tls_begins_is_waited_for_by_nothing(factory: Any, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path).make_all()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.folder / "bookie.pem", certificates.folder / "bookie.key")
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        plain, protocol = await loop.connect_accepted_socket(Lost, ours)
        theirs.send(_client_hello())
        theirs.close()
        plain.abort()
        await protocol.lost.wait()
        told = Told(lambda: 0, lambda: False, lambda: None)
        assert await shake_hands(plain, protocol, context, told, Turns(STEPS), begin=_client_hello) is None

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(main(), 10))
    assert complaints == []


def _client_hello() -> bytes:
    sent = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), sent, server_hostname="bookie")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def test_a_part_at_a_time_until_there_is_room_for_more(conn: Connection) -> None:
    conn.received = PART
    for nbytes in (PART - 1, PART, PART):
        assert len(conn.reads.get_buffer(-1)) == PART
        conn.reads.buffer_updated(nbytes)
        conn.received += nbytes
    assert conn.asked == 2, "only what is used up is too little"
    conn.grows = True
    conn.reads.buffer_updated(PART)
    assert len(conn.reads.get_buffer(-1)) > PART
    conn.reads.buffer_updated(PART)
    assert conn.asked == 3
    assert conn.tls.calls == [PART - 1, PART, PART, PART, PART]


@pytest.mark.parametrize(
    ("received", "pending", "wasteful"),
    [(0, 0, 1), (WINDOW, 0, 0), (WINDOW // RATIO, 0, 0), (WINDOW // 100, 0, 1), (0, WINDOW, 0)],
    ids=["nothing", "all of it", "small records", "next to nothing", "not taken yet"],
)
def test_bytes_that_bring_nothing(conn: Connection, received: int, pending: int, wasteful: int) -> None:
    conn.received, conn.pending = received, pending
    conn.reads.buffer_updated(WINDOW - 1)
    assert conn.wasteful == 0
    conn.reads.buffer_updated(1)
    assert conn.wasteful == wasteful


def test_what_came_long_ago_makes_up_for_nothing(conn: Connection) -> None:
    conn.received += 100 * WINDOW
    conn.reads.buffer_updated(WINDOW)
    assert conn.wasteful == 0
    conn.reads.buffer_updated(WINDOW)
    assert conn.wasteful == 1


def test_all_else_is_for_tls(conn: Connection) -> None:
    lost = OSError()
    conn.reads.pause_writing()
    conn.reads.resume_writing()
    assert conn.reads.eof_received()
    conn.reads.connection_lost(lost)
    assert conn.tls.calls == ["pause", "resume", "eof", lost]


@pytest.mark.skipif(sys.platform != "linux", reason="others do not empty what is given back")
def test_what_tls_does_not_receive_into_is_not_resident() -> None:
    """However often its memory was used before."""
    memory = bytearray(b"x" * (1 << 20))
    whole, largest = memoryview(memory), 256 * 1024
    tls = Tls()
    tls.get_buffer = lambda sizehint: whole[100 : 100 + sizehint]  # type: ignore[method-assign]
    told = Told(lambda: 0, lambda: False, lambda: None)
    TlsReads(tls, cast("asyncio.Transport", PaperTransport()), told, AnyNumber())
    assert memory[: 100 + PART].count(0) == memory[100 + largest :].count(0) == 0
    given_back = memory[100 + PART : 100 + largest].count(0)
    assert largest - PART - 2 * mmap.PAGESIZE < given_back <= largest - PART
