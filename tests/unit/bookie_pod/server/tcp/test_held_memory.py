"""What a client makes the bookie hold is bounded in bytes, and it alone waits for that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from bookie_pod.server.tcp import connection, reads
from bookie_pod.server.tcp.answers import TLS_PART
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.context import TcpOptions
from bookie_protocol.errors import V2Code
from tests.support.frames import entry, v2_add, v2_batch, v2_code, v2_entries, v2_entry, v2_read, v3_add, v3_read_lac
from tests.support.server_rig import ServerRig, SlowTransport, answers, slow

KB, MB = 1 << 10, 1 << 20
LIMIT = 8 * MB
SIZE = 200 * KB


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig(memory_bytes=LIMIT, half_bytes=16 * MB)
    yield made
    made.close()


async def stored(rig: ServerRig, entries: int = 4) -> None:
    """On disk, not in memory."""
    conn, transport = rig.connect()
    for entry_id in range(entries):
        conn.data_received(v2_add(entry(1, entry_id, bytes(SIZE))))
    await answers(rig, transport, entries)
    rig.storage.flush()


@pytest.mark.parametrize(
    "frame",
    [v2_read(1, 1), v2_batch(1, 0, 0, 3 * SIZE), v3_read_lac(1)],
    ids=["reads", "batch reads", "reads of the LAC"],
)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_a_client_that_takes_no_answers(rig: ServerRig, frame: bytes, encrypted: bool) -> None:
    """It sends a hundred requests first, as one does that has answered small ones quickly."""
    await stored(rig)
    conn, transport = slow(rig)
    conn.security.encrypted = encrypted
    conn._expected_read = 64
    conn.data_received(frame * 100)
    held = 0
    for _ in range(20):
        await rig.settle()
        held = max(held, rig.context.memory.making + transport.unsent)
    assert held < LIMIT // 2 + 4 * SIZE
    modest, others = rig.connect()
    modest.data_received(v2_read(1, 2))
    await rig.settle(lambda: others.frames)
    assert v2_code(others.frames[0]) == 0
    # It is served on as fast as it takes its answers, to the last one.
    while rig.context.reads_in_progress.count or conn._postponed or conn.stalled or transport.unsent:
        transport.take()
        await rig.settle()
    assert transport.taken > 100 * SIZE
    rig.context.look_at_connections()
    assert rig.context.memory.total == 0
    conn.connection_lost(None)


class Kept(SlowTransport):
    """Keeps what it was given, too."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self.largest = 0

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))
        self.largest = max(self.largest, len(data))
        super().write(data)
        self.most = max(self.most, self.unsent)


@pytest.mark.parametrize("frame", [v2_read(1, 1), v2_batch(1, 0, 0, 3 * SIZE)], ids=["reads", "batch reads"])
async def test_what_was_put_aside_and_then_finds_no_place_on_its_lane_is_told(rig: ServerRig, frame: bytes) -> None:
    await stored(rig)
    conn, transport = slow(rig, Kept())
    conn._expected_read = 64
    conn.data_received(frame * 100)
    await rig.settle(lambda: conn._postponed)
    disk = threading.Event()
    rig.lanes.run(1, disk.wait, lambda result, error: None)
    rig.lanes._pending_max = 1
    async with asyncio.timeout(10):
        while rig.context.reads_in_progress.count or conn._postponed or conn.stalled or transport.unsent:
            transport.take()
            await asyncio.sleep(0)
    disk.set()
    await rig.settle()
    # entries are written in pieces, which are only counted, or now and then whole
    refused = [each for each in transport.frames if v2_code(each) == V2Code.ETOOMANYREQUESTS]
    assert refused
    size, rest = divmod(transport.taken - sum(map(len, refused)), 100 - len(refused))
    assert (size > SIZE, rest) == (True, 0), "every read has its answer"
    rig.context.look_at_connections()
    assert rig.context.memory.total == 0
    conn.connection_lost(None)


async def test_of_what_is_encrypted_no_more_is_than_the_client_takes(rig: ServerRig) -> None:
    """TLS keeps the room of the largest it had to encrypt at once for as long as the connection lasts."""
    sizes = [10, SIZE, 3 * MB, 20, 20, TLS_PART, 3 * MB, 1]
    writer, done = rig.connect()
    for entry_id, size in enumerate(sizes):
        writer.data_received(v2_add(entry(1, entry_id, bytes([entry_id]) * size)))
    await answers(rig, done, len(sizes))
    conn, transport = slow(rig, Kept())
    conn.security.encrypted = True
    conn.data_received(b"".join(v2_read(1, entry_id) for entry_id in range(len(sizes))))
    await rig.settle()
    while transport.unsent or conn.stalled or rig.context.reads_in_progress.count or conn._postponed:
        transport.take()
        await rig.settle()
    assert transport.largest == TLS_PART
    assert transport.most <= rig.context.options.write_high_water + TLS_PART
    found = [v2_entry(frame) for frame in transport.frames]
    assert found == [entry(1, entry_id, bytes([entry_id]) * size) for entry_id, size in enumerate(sizes)]
    rig.context.look_at_connections()
    assert rig.context.memory.total == 0
    conn.connection_lost(None)


async def test_a_connection_that_is_closed_hands_over_the_rest_of_what_is_encrypted(rig: ServerRig) -> None:
    writer, done = rig.connect()
    writer.data_received(v2_add(entry(1, 0, bytes(3 * MB))))
    await answers(rig, done, 1)
    conn, transport = slow(rig, Kept())
    conn.security.encrypted = True
    conn.data_received(v2_read(1, 0))
    await rig.settle(lambda: transport.writes)
    conn.close()
    assert [v2_entry(frame) for frame in transport.frames] == [entry(1, 0, bytes(3 * MB))]
    conn.connection_lost(None)


async def test_a_batch_of_very_many_small_entries_does_not_ask_for_all_of_them_at_once(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "RUN", 3)
    writer, done = rig.connect()
    for entry_id in range(11):
        writer.data_received(v2_add(entry(1, entry_id)))
    await answers(rig, done, 11)
    asked: list[int] = []
    cached_run = rig.storage.cached_run

    def noted(ledger_id: int, ids: range) -> list[bytes]:
        asked.append(len(ids))
        return cached_run(ledger_id, ids)

    monkeypatch.setattr(rig.storage, "cached_run", noted)
    conn, transport = rig.connect()
    conn.data_received(v2_batch(1, 0))
    await rig.settle(lambda: transport.frames)
    assert v2_entries(transport.frames[0]) == [entry(1, entry_id) for entry_id in range(11)]
    assert max(asked) == 3
    conn.connection_lost(None)


async def test_reads_put_aside_end_with_their_connection(rig: ServerRig) -> None:
    await stored(rig)
    conn, _ = slow(rig)
    conn.data_received(v2_read(1, 1) * 100)
    await rig.settle(lambda: conn._postponed)
    conn.connection_lost(None)
    await rig.settle(lambda: rig.context.reads_in_progress.count == 0)
    assert not conn._postponed
    assert rig.context.memory.total == 0


async def test_many_clients_that_take_no_answers(rig: ServerRig) -> None:
    await stored(rig)
    clients = [slow(rig) for _ in range(40)]
    for conn, _ in clients:
        conn.data_received(v2_read(1, 1) * 50)
        await rig.settle()
    rig.context.look_at_connections()
    held = sum(transport.unsent for _, transport in clients if not transport.aborted)
    assert held <= LIMIT
    assert [transport.aborted for _, transport in clients] == sorted(
        (transport.aborted for _, transport in clients), reverse=True
    )  # those that wait longest went


async def test_frames_that_do_not_come_to_their_end(rig: ServerRig) -> None:
    """Each of a megabyte, all but their last bytes: the oldest have to go."""
    whole = v2_add(entry(2, 0, bytes(MB)))
    clients = [rig.connect() for _ in range(20)]
    for conn, _ in clients:
        conn.data_received(whole[:-10])
        await rig.settle()
        conn.data_received(whole[-10:-5])
        await rig.settle()
        assert rig.context.memory.total <= LIMIT + MB
    gone = [transport.aborted for _, transport in clients]
    assert gone == sorted(gone, reverse=True)
    assert 0 < sum(not each for each in gone) <= 8
    conn, transport = clients[-1]
    conn.data_received(whole[-5:])
    assert conn.share.held == 0
    await answers(rig, transport, 1)


async def test_a_frame_has_a_time_limit(rig: ServerRig) -> None:
    def late(conn: Connection) -> float:
        return conn.received_at + connection.FRAME_S + 1

    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 1)[:7])
    conn.look(conn.received_at + connection.FRAME_S - 1)
    assert not transport.closing
    conn.look(late(conn))
    assert transport.closing
    idle, idle_transport = rig.connect()
    idle.look(late(idle))
    assert not idle_transport.closing


async def test_what_the_bookie_keeps_back_has_none(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.stall(connection.Stall.ADDS_PARKED)
    conn.data_received(v2_read(1, 1)[:7])
    conn.look(conn.received_at + connection.FRAME_S + 1)
    assert not transport.closing


async def test_time_in_which_the_bookie_read_nothing_is_none_of_a_frames(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)) + v2_add(entry(2, 0, bytes(SIZE)))[:-10])
    conn.stall(connection.Stall.ADDS_PARKED)
    now = time.perf_counter() + connection.FRAME_S + 1
    monkeypatch.setattr(connection.time, "perf_counter", lambda: now)
    conn.unstall(connection.Stall.ADDS_PARKED)
    conn.stall(connection.Stall.READS_IN_FLIGHT)  # before it has gone on
    conn.unstall(connection.Stall.READS_IN_FLIGHT)
    await rig.settle()
    conn.look(now)
    assert not transport.closing
    conn.look(now + connection.FRAME_S + 1)
    assert transport.closing


async def test_those_who_leave_a_little_untaken_go_before_one_who_sends(rig: ServerRig) -> None:
    """Each holds less than makes the bookie stop reading from it, and all of them more than there is."""
    silent = [slow(rig) for _ in range(40)]
    for conn, transport in silent:
        conn.send(bytes(2 * SIZE))
        await rig.settle()
        assert transport.unsent < transport.limits["high"]
        rig.context.look_at_connections()
        await rig.settle()
    sender, sending = rig.connect()
    whole = v2_add(entry(2, 0, bytes(2 * MB)))
    sender.data_received(whole[:-10])
    sender.data_received(whole[-10:-5])
    rig.context.look_at_connections()
    assert rig.context.memory.total <= LIMIT
    assert not sending.aborted
    gone = [transport.aborted for _, transport in silent]
    assert gone == sorted(gone, reverse=True)
    assert 0 < sum(gone) < 40


async def test_who_takes_its_answers_slowly_goes_after_those_who_take_none(rig: ServerRig) -> None:
    honest, taking = slow(rig)
    honest.send(bytes(2 * SIZE))
    await rig.settle()
    silent, silent_transport = slow(rig)
    silent.send(bytes(2 * SIZE))
    await rig.settle()
    rig.context.look_at_connections()
    honest.send(bytes(2 * SIZE))
    await rig.settle()
    taking.unsent -= 2 * SIZE  # there is always something left, but what was asked for first is taken
    rig.context.look_at_connections()
    rig.context.memory.limit = 3 * SIZE
    rig.context.look_at_connections()
    assert (taking.aborted, silent_transport.aborted) == (False, True)


async def test_a_client_that_must_wait_is_not_read_for_ever(rig: ServerRig) -> None:
    """Reads of the LAC count for no limit of reads in progress."""
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0)))
    await answers(rig, transport, 1)
    transport.unsent = 2 * SIZE
    conn.data_received(v3_read_lac(1))
    rig.context.look_at_connections()
    others = rig.context.memory.share(lambda: None)
    others.hold(LIMIT - 3 * SIZE)
    sent = 0
    while not conn.stalled and sent < 10_000:
        conn.data_received(v3_read_lac(1) * 100)
        sent += 100
        await rig.settle()
    assert sent <= 1200
    others.end()
    transport.unsent = 0
    await rig.settle(lambda: len(transport.frames) == sent + 2 or rig.context.look_at_connections())
    assert not conn.stalled


async def test_a_frame_is_not_late_because_the_bookie_slept(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 1)[:7])
    rig.context.look_at_connections()
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 10 * connection.FRAME_S)
    rig.context.look_at_connections()
    assert not transport.closing
    conn.data_received(v2_read(1, 1)[7:])
    await rig.settle(lambda: transport.frames)


@pytest.mark.parametrize(
    "frame", [v2_batch(1, 0, 2**31 - 1, 2**31 - 1), v2_read(1, -1)], ids=["huge counts", "the last entry"]
)
async def test_many_clients_that_take_their_answers_slowly(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds nothing when its reads begin, and what they bring is more than there is for all: they take turns."""
    monkeypatch.setattr("bookie_pod.client_memory.STUCK_S", 3600.0)  # on no machine are they too slow
    options = TcpOptions(max_batch_read_bytes=2 * MB)
    rig = ServerRig(options, memory_bytes=LIMIT, half_bytes=16 * MB)
    await stored(rig, entries=8)
    clients = [slow(rig) for _ in range(20)]
    for conn, _ in clients:
        conn.data_received(frame * 2)
    held = 0
    while rig.context.reads_in_progress.count:
        for _, transport in clients:
            transport.take()
            for _ in range(3):
                await rig.settle()
                held = max(held, rig.context.memory.total)
    assert LIMIT // 4 < held <= LIMIT
    for conn, transport in clients:
        transport.take()
        assert not transport.aborted
        assert transport.taken > 2 * SIZE
        conn.look(time.perf_counter())
    assert rig.context.memory.total == 0
    assert rig.context.memory.cut_off == 0
    rig.close()


async def test_an_answer_is_held_until_all_of_it_is_taken(rig: ServerRig) -> None:
    """The transport lets go of no part of it before."""
    conn, transport = slow(rig)
    for size in (MB, 2 * MB, KB):
        conn.send(bytes(size))
        await rig.settle()
    counted = []
    for taken in (MB - 1, 1, MB, MB - 1, 1, KB):
        transport.unsent -= taken
        rig.context.look_at_connections()
        counted.append(rig.context.memory.held)
    assert counted == [3 * MB + KB, 2 * MB + KB, 2 * MB + KB, 2 * MB + KB, KB, 0]
    conn.connection_lost(None)
