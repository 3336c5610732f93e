"""What a client makes the bookie hold is bounded in bytes, and it alone waits for that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from bookie_pod.client_memory import LEAVES
from bookie_pod.server.tcp import connection, reads
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.frame_rooms import PATIENCE_S
from bookie_protocol.errors import V2Code
from tests.support.frames import entry, v2_add, v2_batch, v2_code, v2_entries, v2_read, v3_add, v3_read_lac
from tests.support.production import production
from tests.support.server_rig import PaperTransport, ServerRig, SlowTransport, answers, slow

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
    conn.wire.copies = 1 + encrypted
    conn.wire._expected_read = 64
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
    while rig.context.reads_in_progress.count or conn.wire._postponed or conn.wire.stalled or transport.unsent:
        transport.take()
        await rig.settle()
    assert transport.taken > 100 * SIZE
    rig.clients.look()
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
    conn.wire._expected_read = 64
    conn.data_received(frame * 100)
    await rig.settle(lambda: conn.wire._postponed)
    disk = threading.Event()
    rig.lanes.run(1, disk.wait, lambda result, error: None)
    rig.lanes._pending_max = 1
    async with asyncio.timeout(10):
        while rig.context.reads_in_progress.count or conn.wire._postponed or conn.wire.stalled or transport.unsent:
            transport.take()
            await asyncio.sleep(0)
    disk.set()
    await rig.settle()
    # entries are written in pieces, which are only counted, or now and then whole
    refused = [each for each in transport.frames if v2_code(each) == V2Code.ETOOMANYREQUESTS]
    assert refused
    size, rest = divmod(transport.taken - sum(map(len, refused)), 100 - len(refused))
    assert (size > SIZE, rest) == (True, 0), "every read has its answer"
    rig.clients.look()
    assert rig.context.memory.total == 0
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
    await rig.settle(lambda: conn.wire._postponed)
    conn.connection_lost(None)
    await rig.settle(lambda: rig.context.reads_in_progress.count == 0)
    assert not conn.wire._postponed
    assert rig.context.memory.total == 0


async def test_many_clients_that_take_no_answers(rig: ServerRig) -> None:
    await stored(rig)
    clients = [slow(rig) for _ in range(40)]
    for conn, _ in clients:
        conn.data_received(v2_read(1, 1) * 50)
        await rig.settle()
    rig.clients.look()
    held = sum(transport.unsent for _, transport in clients if not transport.aborted)
    assert held <= LIMIT
    assert [transport.aborted for _, transport in clients] == sorted(
        (transport.aborted for _, transport in clients), reverse=True
    )  # those that wait longest went


async def test_frames_that_do_not_come_to_their_end(rig: ServerRig) -> None:
    """Each of a megabyte, all but their last bytes: most have to go, and who came last is served."""
    whole = v2_add(entry(2, 0, bytes(MB)))
    clients = [rig.connect() for _ in range(20)]
    for conn, _ in clients:
        conn.data_received(whole[:-10])
        await rig.settle()
        conn.data_received(whole[-10:-5])
        await rig.settle()
        assert rig.context.memory.total <= LIMIT + MB
    assert 0 < sum(not transport.aborted for _, transport in clients) <= 8
    assert clients[0][1].aborted
    conn, transport = clients[-1]
    conn.data_received(whole[-5:])
    for _ in range(len(clients)):
        rig.context.frame_rooms.look(time.perf_counter() + 2 * PATIENCE_S)  # who does not use its room makes way
        await rig.settle()
    await answers(rig, transport, 1)
    assert conn.wire.share.held == 0


async def sends(conn: Connection, transport: PaperTransport, frame: bytes) -> None:
    """As an honest client over the network: what is not read is not received."""
    for start in range(0, len(frame), 64 * KB):
        while not transport.reading and not transport.closing:  # noqa: ASYNC110 - a double that has no event
            await asyncio.sleep(0)
        if transport.closing:
            return
        conn.data_received(frame[start : start + 64 * KB])
        await asyncio.sleep(0)


async def test_very_many_large_frames_are_received_in_turn(rig: ServerRig) -> None:
    """Of honest clients, together five times as much as clients may hold: none of them loses its connection."""
    clients = [rig.connect() for _ in range(40)]
    sending = asyncio.gather(
        *(sends(conn, transport, v2_add(entry(2, place, bytes(MB)))) for place, (conn, transport) in enumerate(clients))
    )
    most = 0
    while not sending.done():
        assert rig.context.memory.total <= LIMIT
        most = max(most, rig.admission.parked_bytes)
        if rig.flush_requests and most > LIMIT // 4:
            rig.flush_requests.clear()
            rig.storage.flush()
        await asyncio.sleep(0)
    assert most <= LIMIT // 2 + MB, "they wait for the write cache, too"
    for _, transport in clients:
        await answers(rig, transport, 1)
    assert not any(transport.closing for _, transport in clients)
    assert rig.context.memory.total == 0


@pytest.mark.parametrize("ends", ["admitted", "gone", "cut off"])
async def test_adds_that_wait_for_the_write_cache_count(rig: ServerRig, ends: str) -> None:
    """And nothing of them does afterwards."""
    rig.storage.active_entries(0)[0] = bytes(17 * MB)
    rig.storage.account(0, 17 * MB, 1)
    rig.admission.filled(0)
    conn, transport = rig.connect()
    conn.data_received(b"".join(v2_add(entry(2, number, bytes(SIZE))) for number in range(3)))
    memory = rig.context.memory
    assert memory.held == rig.admission.parked_bytes > 3 * SIZE
    rig.clients.look()
    assert memory.held == rig.admission.parked_bytes
    if ends == "admitted":
        rig.storage.flush()
        await answers(rig, transport, 3)
    elif ends == "cut off":
        conn.wire.share.end()
    if ends != "admitted":
        conn.connection_lost(None)
    assert (memory.held, conn.wire.share.held, rig.admission.parked_bytes) == (0, 0, 0)


async def test_a_large_frame_that_waits_for_room_goes_with_its_connection(rig: ServerRig) -> None:
    clients = [rig.connect() for _ in range(8)]
    for conn, _ in clients:
        conn.data_received(v2_add(entry(2, 0, bytes(MB)))[: 64 * KB])
    waiting = [conn for conn, transport in clients if not transport.reading]
    assert waiting
    waiting[0].connection_lost(None)
    for conn, _ in clients:
        if conn not in waiting:
            conn.connection_lost(None)
    await rig.settle()
    assert [transport.reading for conn, transport in clients if conn in waiting[1:]] == [True] * (len(waiting) - 1)
    for conn in waiting[1:]:
        conn.connection_lost(None)
    assert rig.context.memory.total == 0


async def test_a_frame_has_a_time_limit(rig: ServerRig) -> None:
    def late(conn: Connection) -> float:
        return conn.wire.received_at + connection.FRAME_S + 1

    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 1)[:7])
    conn.look(conn.wire.received_at + connection.FRAME_S - 1)
    assert not transport.closing
    conn.look(late(conn))
    assert transport.closing
    idle, idle_transport = rig.connect()
    idle.look(late(idle))
    assert not idle_transport.closing


async def test_what_the_bookie_keeps_back_has_none(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.wire.stall(connection.Stall.ADDS_PARKED)
    conn.data_received(v2_read(1, 1)[:7])
    conn.look(conn.wire.received_at + connection.FRAME_S + 1)
    assert not transport.closing


async def test_time_in_which_the_bookie_read_nothing_is_none_of_a_frames(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)) + v2_add(entry(2, 0, bytes(SIZE)))[:-10])
    conn.wire.stall(connection.Stall.ADDS_PARKED)
    now = time.perf_counter() + connection.FRAME_S + 1
    monkeypatch.setattr(connection.time, "perf_counter", lambda: now)
    conn.wire.unstall(connection.Stall.ADDS_PARKED)
    conn.wire.stall(connection.Stall.READS_IN_FLIGHT)  # before it has gone on
    conn.wire.unstall(connection.Stall.READS_IN_FLIGHT)
    await rig.settle()
    conn.look(now)
    assert not transport.closing
    conn.look(now + connection.FRAME_S + 1)
    assert transport.closing


@pytest.mark.parametrize(("adds", "size"), [(4, 60 * KB), (1, 60 * KB), (2, 30 * KB)], ids=["much", "an add", "little"])
async def test_adds_that_wait_are_bounded_however_many_clients_send_some(adds: int, size: int) -> None:
    """All of them come in one turn of the loop. No other client loses its connection for what they send, and each add
    of a client that keeps its connection is answered."""
    rig = ServerRig(memory_bytes=LIMIT)
    full, _ = rig.connect()
    for entry_id in range(20):
        full.data_received(v2_add(entry(1, entry_id, bytes(60 * KB))))
    assert rig.storage.is_full(1)
    clients = [slow(rig, Kept()) for _ in range(600)]
    for ledger_id, (conn, _) in enumerate(clients, 100):
        conn.data_received(b"".join(v2_add(entry(ledger_id, entry_id, bytes(size))) for entry_id in range(adds)))
        assert rig.context.memory.total <= LIMIT + LIMIT // LEAVES
    rig.clients.look()
    assert rig.context.memory.total <= LIMIT
    modest, modest_transport = slow(rig)
    modest.data_received(v2_read(1, 1)[:9])
    sender, sending = slow(rig, Kept())
    frame = v2_add(entry(99, 0, bytes(SIZE)))
    sender.data_received(frame[: SIZE // 2])
    rig.clients.look()
    await rig.settle()
    assert (sending.aborted, modest_transport.aborted) == (False, False)
    stay = [transport for _, transport in clients if not transport.aborted]
    async with asyncio.timeout(20):
        while not all(len(transport.frames) == adds for transport in stay):
            rig.storage.flush()
            rig.journal.acknowledge()
            await rig.settle()
    codes = [v2_code(answer) for transport in stay for answer in transport.frames]
    assert set(codes) == {V2Code.EOK, V2Code.ETOOMANYREQUESTS}
    assert codes.count(V2Code.EOK) * size >= LIMIT // 4
    sender.data_received(frame[SIZE // 2 :])
    await answers(rig, sending, 1)
    rig.close()


async def test_no_frame_began_later_than_now(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it comes at the end of a long stall, and only the time since then is none of the frame's."""
    now = time.perf_counter()
    monkeypatch.setattr(connection.time, "perf_counter", lambda: now)
    conn, _ = rig.connect()
    conn.wire.stall(connection.Stall.HANDSHAKE)
    now += 8
    conn.data_received(v2_add(entry(1, 0, bytes(MB)))[:-10])
    now += 1
    conn.wire.unstall(connection.Stall.HANDSHAKE)
    await rig.settle()
    assert conn.wire.share.stuck_since == now


async def test_those_who_leave_a_little_untaken_go_before_one_who_sends(rig: ServerRig) -> None:
    """Each holds less than makes the bookie stop reading from it, and all of them more than there is."""
    silent = [slow(rig) for _ in range(40)]
    for conn, transport in silent:
        conn.wire.send(bytes(2 * SIZE))
        await rig.settle()
        assert transport.unsent < transport.limits["high"]
        rig.clients.look()
        await rig.settle()
    sender, sending = rig.connect()
    whole = v2_add(entry(2, 0, bytes(2 * MB)))
    sender.data_received(whole[:-10])
    sender.data_received(whole[-10:-5])
    rig.clients.look()
    assert rig.context.memory.total <= LIMIT
    assert not sending.aborted
    gone = [transport.aborted for _, transport in silent]
    assert gone == sorted(gone, reverse=True)
    assert 0 < sum(gone) < 40


async def test_who_takes_its_answers_slowly_goes_after_those_who_take_none(rig: ServerRig) -> None:
    honest, taking = slow(rig)
    honest.wire.send(bytes(2 * SIZE))
    await rig.settle()
    silent, silent_transport = slow(rig)
    silent.wire.send(bytes(2 * SIZE))
    await rig.settle()
    rig.clients.look()
    honest.wire.send(bytes(2 * SIZE))
    await rig.settle()
    taking.unsent -= 2 * SIZE  # there is always something left, but what was asked for first is taken
    rig.clients.look()
    rig.context.memory.limit = 3 * SIZE
    rig.clients.look()
    assert (taking.aborted, silent_transport.aborted) == (False, True)


async def test_a_client_that_must_wait_is_not_read_for_ever(rig: ServerRig) -> None:
    """Reads of the LAC count for no limit of reads in progress."""
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0)))
    await answers(rig, transport, 1)
    transport.unsent = 2 * SIZE
    conn.data_received(v3_read_lac(1))
    rig.clients.look()
    others = rig.context.memory.share(lambda: None)
    others.hold(LIMIT - 3 * SIZE)
    sent = 0
    while not conn.wire.stalled and sent < 10_000:
        conn.data_received(v3_read_lac(1) * 100)
        sent += 100
        await rig.settle()
    assert sent <= 1200
    others.end()
    transport.unsent = 0
    await rig.settle(lambda: len(transport.frames) == sent + 2 or rig.clients.look())
    assert not conn.wire.stalled


async def test_a_frame_is_not_late_because_the_bookie_slept(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 1)[:7])
    rig.clients.look()
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 10 * connection.FRAME_S)
    rig.clients.look()
    assert not transport.closing
    conn.data_received(v2_read(1, 1)[7:])
    await rig.settle(lambda: transport.frames)


@pytest.mark.parametrize(
    "frame", [v2_batch(1, 0, 2**31 - 1, 2**31 - 1), v2_read(1, -1)], ids=["huge counts", "the last entry"]
)
async def test_many_clients_that_take_their_answers_slowly(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds nothing when its reads begin, and what they bring is more than there is for all: they take turns."""
    monkeypatch.setattr("bookie_pod.client_memory.STUCK_S", 3600.0)  # on no machine are they too slow
    options = production(max_batch_read_size_bytes=2 * MB)
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
        conn.wire.send(bytes(size))
        await rig.settle()
    counted = []
    for taken in (MB - 1, 1, MB, MB - 1, 1, KB):
        transport.unsent -= taken
        rig.clients.look()
        counted.append(rig.context.memory.held)
    assert counted == [3 * MB + KB, 2 * MB + KB, 2 * MB + KB, 2 * MB + KB, KB, 0]
    conn.connection_lost(None)
