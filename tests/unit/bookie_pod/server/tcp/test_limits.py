"""What one connection may have under way, and hold: exactly so much, and from there on it waits, or goes."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from bookie_pod.client_memory import SMALL
from bookie_pod.server.tcp.connection import FRAME_S, MOST_PIECES, PIECE_BYTES, Connection
from bookie_pod.server.tcp.connection_stalls import COLD_BYTES, LARGE_FRAME_BYTES, LARGE_PER_TURN, Stall
from bookie_pod.server.tcp.context import FEW_REQUESTS, V3_HEAD_BYTES
from bookie_pod.server.tcp.wire import (
    POSTPONED_MAX,
    POSTPONED_PER_TURN,
    READ_BYTES_IN_FLIGHT_MAX,
    READS_IN_FLIGHT_MAX,
)
from bookie_protocol.errors import ProtocolViolation
from tests.support.frames import entry, v2_add, v2_read, v3_add
from tests.support.production import production
from tests.support.server_rig import PaperTransport, ServerRig, answers, slow


async def test_no_more_connections_than_allowed() -> None:
    rig = ServerRig(production(max_connections=2))
    first, _ = rig.connect()
    _, second = rig.connect()
    refused, third = rig.connect()
    assert (second.aborted, third.aborted, rig.clients.connections_refused) == (False, True, 1)
    assert refused.wire not in rig.clients.connections
    first.connection_lost(None)
    _, fourth = rig.connect()
    assert (fourth.aborted, rig.clients.connections_refused) == (False, 1)
    rig.close()


class OverSocket(PaperTransport):
    """Nobody knows who is at the other end."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock

    def get_extra_info(self, name: str) -> object:
        return self.sock if name == "socket" else None


@pytest.mark.parametrize("told", [True, False])
async def test_options_of_the_socket(told: bool) -> None:
    rig = ServerRig(production(tcp_no_delay=told, sock_keepalive=told, tcp_keep_idle_seconds=0))
    with socket.socket() as sock, socket.socket() as untouched:
        conn = Connection(rig.clients)
        conn.connection_made(OverSocket(sock))  # type: ignore[arg-type]
        assert bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) == told
        assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == told
        idle = socket.IPPROTO_TCP, socket.TCP_KEEPIDLE
        assert sock.getsockopt(*idle) == untouched.getsockopt(*idle)
        assert conn.wire.peer == "?"
    rig.close()


async def test_a_connection_ends_once_and_with_one_line(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    with capture_logs() as logs:
        for reason in ("first", "second"):
            conn.wire.close(ProtocolViolation(reason))
        transport.closing = False
        conn.connection_lost(None)
        conn.wire.close(ProtocolViolation("third"))
    assert [(line["peer"], line["reason"]) for line in logs] == [("192.0.2.1:40000", "first")]
    assert rig.context.connection_errors == 1
    assert not transport.closing
    assert conn.wire._linger_timer is not None
    assert conn.wire._linger_timer.cancelled()


async def test_a_defect_is_told_with_what_it_was(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.wire.broke(ZeroDivisionError("by zero"))
    assert [(line["log_level"], line.get("error")) for line in logs] == [
        ("error", "ZeroDivisionError('by zero')"),
        ("warning", None),
    ]
    assert (transport.closing, rig.context.connection_errors) == (True, 1)


FRAME = 1024


@pytest.mark.parametrize("cut", [None, 4, 5, 60])
@pytest.mark.parametrize(
    ("length", "head", "speaks_v2", "goes_on"),
    [
        (FRAME - 4, b"\x00", False, True),
        (FRAME - 3, b"\x00", False, False),
        (FRAME - 3, b"\x0a", False, True),
        (FRAME - 4 + V3_HEAD_BYTES, b"\x0a", False, True),
        (FRAME - 3 + V3_HEAD_BYTES, b"\x0a", False, False),
        (FRAME - 4, b"\x0a", True, True),
        (FRAME - 3, b"\x0a", True, False),
        (0, b"\x0a", False, False),
        (0, b"", True, False),
    ],
)
async def test_the_lengths_that_a_frame_may_have(
    length: int, head: bytes, speaks_v2: bool, goes_on: bool, cut: int | None
) -> None:
    """However much of it has come."""
    rig = ServerRig(production(max_frame_size_bytes=FRAME))
    conn, transport = rig.connect()
    if speaks_v2:
        conn.data_received(v2_read(9, 9))
    data = (struct.pack(">I", length) + head + bytes(FRAME))[: cut or 100]
    if not speaks_v2 and not 0 < length <= FRAME - 4:
        goes_on = goes_on or (cut == 4 and 0 < length <= FRAME - 4 + V3_HEAD_BYTES)  # nobody knows its head
    with capture_logs() as logs:
        conn.data_received(data)
    assert transport.closing != goes_on
    assert [line["reason"] for line in logs] == [
        f"frame length {length} is outside 1 to {FRAME - 4} (nettyMaxFrameSizeBytes counts the length word too)"
    ] * (not goes_on)
    rig.close()


async def test_a_connection_that_has_as_many_requests_as_are_left_waits_for_a_half_of_them(rig: ServerRig) -> None:
    rig.context.requests._most = FEW_REQUESTS  # nobody else has any
    conn, transport = rig.connect()
    for _ in range(FEW_REQUESTS - 1):
        conn.wire.request_began()
    assert transport.reading
    conn.wire.request_began()
    assert not transport.reading
    while conn.wire.stalled:
        conn.wire.request_ended()
    assert rig.context.requests.count == conn.wire._requests == FEW_REQUESTS // 2
    conn.wire.stall(Stall.ADDS_PARKED)
    conn.wire.request_ended()
    assert conn.wire.stalled, "for another reason"


@pytest.mark.parametrize(
    ("most", "fill"),
    [(0, READS_IN_FLIGHT_MAX), (READ_BYTES_IN_FLIGHT_MAX // 4, 4), (READ_BYTES_IN_FLIGHT_MAX // 4 - 1, 5)],
)
async def test_reads_under_way_are_bounded_by_number_and_bytes(rig: ServerRig, most: int, fill: int) -> None:
    conn, transport = rig.connect()
    conn.wire._expected_read = 64
    reserved = [conn.wire.read_started(most) for _ in range(fill - 1)]
    assert transport.reading
    reserved.append(conn.wire.read_started(most))
    assert (set(reserved), conn.wire.stalls) == ({max(most, 64)}, Stall.READS_IN_FLIGHT)
    while conn.wire.stalled:
        conn.wire.read_paused(reserved.pop())
    assert len(reserved) == fill // 2
    assert rig.context.reads_in_progress.count == len(reserved)
    assert conn.wire._read_bytes == sum(reserved)


async def test_what_reads_bring_tells_what_the_next_ones_may_bring(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    expected = []
    for size in (100, 50_000, 0, 43_750, *[0] * 70):
        conn.wire.read_finished(conn.wire.read_started(), size)
        expected.append(conn.wire.read_started())
        conn.wire.read_paused(expected[-1])
    assert expected[:4] == [16 * 1024 * 7 // 8, 50_000, 43_750, 43_750]
    assert expected[-1] == 64


async def test_a_client_waits_that_takes_nothing_or_has_its_share(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    conn.wire.share.hold(SMALL)
    others = rig.context.memory.share(lambda: None)
    others.hold(rig.context.memory.limit - SMALL)
    assert not conn.wire.must_wait, "so much it may have in any case"
    conn.wire.share.make(1)
    assert conn.wire.must_wait
    others.hold(-4 * SMALL)
    assert not conn.wire.must_wait
    conn.pause_writing()
    assert conn.wire.must_wait
    conn.wire.share.end()
    others.end()


async def test_reads_that_were_put_aside_are_begun_a_few_at_a_time(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    begun: list[int] = []
    conn.pause_writing()
    for number in range(POSTPONED_MAX - 1):
        conn.wire.postpone(lambda number=number: begun.append(number))  # type: ignore[misc]
    assert conn.wire.stalls == Stall.SLOW_RECEIVER
    conn.wire.postpone(lambda: begun.append(-1), 100)
    assert conn.wire.stalls == Stall.SLOW_RECEIVER | Stall.READS_PUT_ASIDE
    await asyncio.sleep(0)
    assert begun == []
    conn.resume_writing()
    assert begun == list(range(POSTPONED_PER_TURN))
    while len(conn.wire._postponed) > POSTPONED_MAX // 2 + POSTPONED_PER_TURN:
        conn.wire._go_on()
    assert conn.wire.stalled
    conn.wire._go_on()
    assert (conn.wire.stalled, len(conn.wire._postponed)) == (False, POSTPONED_MAX // 2)
    while conn.wire._postponed:
        conn.wire._go_on()
    assert begun == [*range(POSTPONED_MAX - 1), -1]
    assert rig.context.memory.making == 100, "taken for the one that said how much it needs"


async def test_reads_that_were_put_aside_go_on_when_there_is_room(rig: ServerRig) -> None:
    """The first of them waits in the governor's queue, and those behind it wait for that one."""
    conn, transport = rig.connect()
    begun: list[str] = []
    memory = rig.context.memory
    transport.unsent = memory.limit // 2
    conn.wire.postpone(lambda: begun.append("large"), memory.limit // 2)
    conn.wire.postpone(lambda: begun.append("small"))
    await rig.settle(lambda: conn.wire._waiter)
    assert begun == []
    transport.unsent = 0
    conn.look(time.perf_counter())
    await rig.settle(lambda: len(begun) == 2)
    assert begun == ["large", "small"]
    assert (conn.wire._waiter, memory.making, len(memory._waiting)) == (None, memory.limit // 2, 0)


@pytest.mark.parametrize("how", ["gone", "full"])
async def test_who_waits_for_room_leaves_the_queue_when_it_cannot_go_on(rig: ServerRig, how: str) -> None:
    conn, transport = rig.connect()
    begun: list[str] = []
    memory = rig.context.memory
    others = memory.share(lambda: None)
    others.hold(memory.limit)
    transport.unsent = 2 * SMALL
    conn.wire.postpone(lambda: begun.append("read"), SMALL)
    await rig.settle(lambda: conn.wire._waiter)
    if how == "gone":
        conn.connection_lost(None)
    else:
        conn.pause_writing()
    assert (conn.wire._waiter, len(memory._waiting)) == (None, 0)
    assert begun == (["read"] if how == "gone" else [])
    assert memory.making == (SMALL if how == "gone" else 0)
    others.end()


@pytest.mark.parametrize(("late", "goes"), [(FRAME_S, False), (FRAME_S + 0.001, True)])
async def test_how_long_a_frame_may_take(rig: ServerRig, late: float, goes: bool) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 1)[:9])
    conn._rest_since = 1000.0
    with capture_logs() as logs:
        conn.look(1000.0 + late)
    assert transport.closing == goes
    assert [line["reason"] for line in logs] == ["a frame of 24 bytes was not complete after 60 s"] * goes


async def test_time_asleep_is_none_of_a_frames_but_no_more_than_there_was(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    conn.data_received(v2_read(1, 1)[:9])
    conn._rest_since = 1000.0
    conn.look(1010.0, 4.0)
    assert conn._rest_since == 1004.0
    conn.look(1010.0, 100.0)
    assert conn._rest_since == 1010.0


async def test_nothing_moves_for_a_client_since_the_earlier_of_what_it_sends_and_takes(rig: ServerRig) -> None:
    conn, transport = slow(rig)
    share = conn.wire.share
    conn.wire.count_held()
    assert share.stuck_since is None
    conn.data_received(v2_read(1, 1)[:9])
    conn._rest_since = 5.0
    conn.wire.count_held()
    assert share.stuck_since == 5.0
    transport.unsent = 10
    conn.wire.count_held()
    assert share.stuck_since == 5.0
    conn._rest_since = sys.maxsize
    conn.wire.count_held()
    assert share.stuck_since == conn.wire.answers.stuck_since
    conn.wire.stall(Stall.ADDS_PARKED)  # it is not its turn to send
    conn._rest_since = 5.0
    conn.wire.count_held()
    assert share.stuck_since == conn.wire.answers.stuck_since
    assert share.held == 9 + PIECE_BYTES + 10
    conn.connection_lost(None)


async def test_a_frame_that_comes_byte_by_byte_counts_what_its_pieces_take(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    frame = v2_add(entry(1, 0, bytes(100_000)))
    for at in range(3 * MOST_PIECES):
        conn.data_received(frame[at : at + 1])
        assert len(conn._rest) < MOST_PIECES
    assert conn.wire.share.held > 3 * MOST_PIECES
    conn.data_received(frame[3 * MOST_PIECES :])
    assert conn.wire.share.held == 0
    conn.connection_lost(None)


async def test_the_begin_of_a_frame_counts_from_the_first_read_on(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    conn.data_received(v2_add(entry(1, 0, bytes(200_000)))[:60_000])
    assert conn.wire.share.held >= 60_000
    conn.connection_lost(None)
    assert rig.context.memory.total == 0


async def test_in_the_middle_of_a_handshake_a_connection_that_is_dropped_is_gone_at_once(rig: ServerRig) -> None:
    for stalled in (False, True):
        conn, transport = rig.connect()
        if stalled:
            conn.wire.stall(Stall.HANDSHAKE)
        conn.wire.drop()
        assert (transport.aborted, conn.wire.closed) == (True, stalled)
    conn.connection_lost(None)
    transport.aborted = False
    conn.wire.drop()
    assert not transport.aborted


async def test_who_is_cut_off_is_told_in_one_line_and_holds_nothing(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0, bytes(2 * SMALL)))[:-1])
    with capture_logs() as logs:
        rig.context.memory.limit = 0
        conn.wire.count_held()
        await rig.settle(lambda: transport.aborted)
        conn.connection_lost(None)
        conn._cut_off()
    assert [line["reason"] for line in logs] == ["memory is short, and it makes no progress"]
    assert (rig.context.connection_errors, rig.context.memory.held, conn._rest_bytes) == (1, 0, False)


@pytest.mark.parametrize("held", [SMALL, SMALL + 1])
async def test_whoever_holds_something_asks_others_to_go_if_it_is_too_much(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    relieved: list[float] = []
    monkeypatch.setattr(rig.context.memory, "relieve", relieved.append)
    conn, transport = rig.connect()
    transport.unsent = held
    rig.context.memory.limit = held
    conn.wire.count_held()
    await asyncio.sleep(0)
    assert relieved == []
    rig.context.memory.limit = held - 1
    conn.wire.count_held()
    await asyncio.sleep(0)
    assert len(relieved) == 1
    rig.context.memory.limit = 1 << 30


async def test_a_large_frame_waits_for_its_turn_and_no_other(rig: ServerRig) -> None:
    conn, _ = rig.connect()
    frame = v2_add(entry(1, 0, bytes(1 << 20)))
    conn.data_received(frame[:LARGE_FRAME_BYTES])
    assert rig.context.turns.came(LARGE_PER_TURN, list)  # others' in this turn
    conn.data_received(b"")
    assert not conn.wire.stalled, "not large yet"
    conn.data_received(frame[LARGE_FRAME_BYTES : LARGE_FRAME_BYTES + 1])
    assert conn.wire.stalls == Stall.TURN
    waiting = len(rig.context.turns._waiting)
    conn.data_received(b"1")  # came before the stall
    assert len(rig.context.turns._waiting) == waiting
    await rig.settle()
    assert not conn.wire.stalled


async def test_requests_that_are_dealt_with_by_themselves_count_for_the_turn(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[tuple[int, int]] = []

    def noted(nbytes: int, go_on: Callable[[], None], part: int = 0) -> bool:
        came.append((nbytes, part))
        return len(came) % 3 != 0

    monkeypatch.setattr(rig.context.turns, "came", noted)
    conn, _ = rig.connect()
    for _ in range(3):
        conn.wire.took_cold()
    assert conn.wire.stalls == Stall.TURN
    conn.wire.took_cold()
    assert came == [(COLD_BYTES, each * COLD_BYTES) for each in (1, 2, 3, 1)]


async def test_a_connection_goes_on_once_nothing_speaks_against_it(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    for reason in (Stall.ADDS_PARKED, Stall.STOPPING):
        conn.wire.stall(reason)
    conn.wire.unstall(Stall.ADDS_PARKED)
    await asyncio.sleep(0)
    assert not transport.reading
    conn.wire.unstall(Stall.STOPPING)
    conn.wire.stall(Stall.ADDS_PARKED)  # before it has gone on
    await asyncio.sleep(0)
    assert not transport.reading
    conn.wire.unstall(Stall.ADDS_PARKED)
    transport.closing = True
    await asyncio.sleep(0)
    assert not transport.reading


async def test_what_a_connection_kept_back_may_stall_it_again(rig: ServerRig) -> None:
    """Then it reads nothing more until that is over too."""
    rig.journal.full = True
    conn, transport = rig.connect()
    conn.wire.stall(Stall.HANDSHAKE)
    conn.data_received(v3_add(entry(1, 0, bytes(1 << 20))))
    conn.wire.unstall(Stall.HANDSHAKE)
    await asyncio.sleep(0)
    assert conn.wire.stalls == Stall.ADDS_PARKED
    assert not transport.reading
    rig.journal.full = False
    rig.admission.refresh()
    await answers(rig, transport, 1)
    assert transport.reading
