"""A connection that stalls: no room for adds or reads, a client that does not read, a bookie that stops."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bookie_pod.server.tcp.connection_stalls import COLD_BYTES, LARGE_PER_TURN, Stall
from bookie_pod.server.tcp.context import FEW_REQUESTS, REQUEST_BYTES, REQUESTS_SHARE
from tests.support.frames import (
    KEY,
    entry,
    v2_add,
    v2_batch,
    v2_code,
    v2_read,
    v3_add,
    v3_fence,
    v3_force,
    v3_list,
    v3_read,
    v3_read_lac,
    v3_start_tls,
    v3_write_lac,
)
from tests.support.production import production
from tests.support.server_rig import ServerRig, answers


async def test_reads_are_answered_while_adds_wait() -> None:
    rig = ServerRig(half_bytes=4096)
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0, bytes(5000)), txn=1))
    rig.journal.acknowledge()
    conn.data_received(v3_add(entry(1, 1), txn=2) + v3_read(1, 0, txn=3) + v3_add(entry(1, 2), txn=4))
    await rig.settle(lambda: len(transport.frames) == 2)
    assert len(conn.wire.parked or ()) == 2
    assert rig.flush_requests
    rig.storage.flush()
    assert len(conn.wire.parked or ()) == 0
    await answers(rig, transport, 4)
    assert list(rig.storage.entry_ids(1)) == [0, 1, 2]
    # ... and after that adds are hot again: one batch for many.
    rig.journal.batches.clear()
    conn.data_received(b"".join(v3_add(entry(1, entry_id)) for entry_id in range(3, 9)))
    assert len(rig.journal.batches) == 1
    rig.close()


async def test_without_journaled_data_parked_adds_are_answered_once() -> None:
    """The journal answers at once then, which admits what waits in the middle of handing over a lane."""
    rig = ServerRig(production(max_adds_in_progress=1), write_data=False)
    conn, transport = rig.connect()
    rig.admission.started(1)
    conn.data_received(b"".join(v2_add(entry(1, entry_id)) for entry_id in range(5)))
    assert len(conn.wire.parked or ()) == 5
    rig.admission.finished(1)
    await rig.settle(lambda: len(transport.frames) >= 5)
    assert [int.from_bytes(frame[20:28]) for frame in transport.frames] == list(range(5))
    assert rig.admission.adds_in_progress == 0
    rig.close()


async def test_others_have_their_turn_beside_very_many_requests() -> None:
    """Of some clients, in one read of each one's socket, dealt with one by one."""
    rig = ServerRig()
    clients, count = [rig.connect() for _ in range(12)], 200
    for conn, _ in clients:
        conn.data_received(v3_start_tls() * count)
    answered = [0] * len(clients)
    turns = []
    while min(answered) < count:
        before = sum(answered)
        await asyncio.sleep(0)
        answered = [len(transport.frames) for _, transport in clients]
        turns.append(sum(answered) - before)
        requests = LARGE_PER_TURN // COLD_BYTES  # in a turn
        assert max(answered) - min(answered) <= 2 * requests  # to each its part
    assert max(turns) <= requests + len(clients)
    assert not any(conn.wire.stalled for conn, _ in clients)
    rig.close()


@pytest.mark.parametrize(
    "frame", [v2_batch(1, 0, 0, 9), v3_fence(1), v3_force(1), v3_list(1), v3_read_lac(1), v3_write_lac(1, 0)]
)
async def test_requests_under_way_are_bounded_over_all_connections(frame: bytes) -> None:
    """Disks are slow, and some clients have sent very many requests whose answers need them."""
    memory = 1 << 20
    rig = ServerRig(memory_bytes=memory, reads_pending_max=0)
    disk = threading.Event()
    writer, _ = rig.connect()
    writer.data_received(v3_add(entry(1, 0)))
    rig.journal.acknowledge()
    rig.lanes.run(0, disk.wait, lambda result, error: None)
    clients, count, requests = [rig.connect() for _ in range(10)], 60, rig.context.requests
    for conn, _ in clients:
        conn.data_received(frame * count)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 10 * FEW_REQUESTS <= requests.count <= 2 * memory // REQUESTS_SHARE // REQUEST_BYTES + 10 * FEW_REQUESTS
    assert all(conn.wire.stalled for conn, _ in clients)
    disk.set()
    while min(len(transport.frames) for _, transport in clients) < count:
        rig.journal.acknowledge()
        await asyncio.sleep(0.001)
    await rig.settle()
    assert requests.count == 0
    assert not any(conn.wire.stalled for conn, _ in clients)
    rig.close()


async def test_others_have_their_turn_beside_many_large_frames() -> None:
    """Many clients send a frame of megabytes at once, as fast as they are read from."""
    rig = ServerRig()
    frame, part = v2_add(entry(2, 0, bytes(1_500_000))), 256 * 1024
    clients = [(*rig.connect(), iter(range(0, len(frame), part))) for _ in range(40)]
    turns = []
    while any(conn._rest_bytes or not turns for conn, _, _ in clients):
        taken = 0
        for conn, transport, places in clients:
            while transport.reading and (at := next(places, None)) is not None:
                conn.data_received(frame[at : at + part])
                taken += part
        turns.append(taken)
        await asyncio.sleep(0)
    # The first part of each is taken before anybody knows that it is one of many.
    assert turns[0] <= LARGE_PER_TURN + 2 * part * len(clients)
    assert max(turns[1:]) <= 2 * (LARGE_PER_TURN + part)
    rig.close()


@pytest.mark.parametrize("special", ["force", "lac", "fence"])
async def test_an_add_that_waits_behind_special_records_is_admitted_when_they_are_acknowledged(special: str) -> None:
    rig = ServerRig()
    conn, transport = rig.connect()
    frame = {"force": v3_force(1), "lac": v3_write_lac(1, 0), "fence": v3_fence(1)}[special]
    conn.data_received(frame)
    rig.journal.full = True
    conn.data_received(v3_add(entry(2, 0), txn=2))
    assert len(conn.wire.parked or ()) == 1
    rig.journal.full = False
    rig.journal.acknowledge()
    assert len(conn.wire.parked or ()) == 0
    await answers(rig, transport, 2)
    rig.close()


async def test_the_limit_on_adds_in_progress_holds_for_what_waited() -> None:
    rig = ServerRig(production(max_adds_in_progress=2))
    conn, transport = rig.connect()
    conn.data_received(b"".join(v3_add(entry(ledger_id, 0), txn=ledger_id) for ledger_id in range(10)))
    highest = rig.admission.adds_in_progress
    assert highest == 2
    while len(transport.frames) < 10:
        rig.journal.acknowledge(1)
        highest = max(highest, rig.admission.adds_in_progress)
        await rig.settle()
    assert highest == 2
    assert rig.admission.adds_in_progress == 0
    rig.close()


async def test_the_limit_on_reads_in_progress() -> None:
    rig = ServerRig(production(max_reads_in_progress=1))
    rig.storage.set_master_key(1, KEY)
    conn, transport = rig.connect()
    conn.data_received(v2_read(1, 0) * 20)
    assert rig.context.reads_in_progress.count == 1
    assert conn.wire.stalled
    await rig.settle(lambda: len(transport.frames) == 20)
    assert {v2_code(frame) for frame in transport.frames} == {2}
    assert not conn.wire.stalled
    assert transport.reading
    rig.close()


async def test_stalls_are_independent(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.wire.stall(Stall.READS_LIMIT)
    conn.wire.stall(Stall.SLOW_RECEIVER)
    assert not transport.reading
    conn.data_received(v2_add(entry(1, 0)))
    conn.wire.unstall(Stall.READS_LIMIT)
    conn.wire.unstall(Stall.ADDS_PARKED)  # never was
    await rig.settle()
    assert rig.journal.batches == []
    assert not transport.reading
    conn.wire.unstall(Stall.SLOW_RECEIVER)
    await rig.settle()
    assert len(rig.journal.batches) == 1
    assert transport.reading


async def test_what_came_before_a_stall_ends_is_served_in_order(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    frames = b"".join(v2_add(entry(1, entry_id)) for entry_id in range(6))
    conn.data_received(frames[:100])
    conn.wire.stall(Stall.SLOW_RECEIVER)
    for start in range(100, len(frames), 7):
        conn.data_received(frames[start : start + 7])
    conn.wire.unstall(Stall.SLOW_RECEIVER)
    await answers(rig, transport, 6)
    assert list(rig.storage.entry_ids(1)) == list(range(6))


async def test_a_bad_length_while_stalled_closes_with_one_line(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.wire.stall(Stall.HANDSHAKE)
    conn.data_received(b"\xff\xff\xff\xff rubbish")
    assert transport.closing
    assert rig.context.connection_errors == 1


async def test_a_client_that_does_not_read_is_not_read_from(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    assert transport.limits == {"high": 512 * 1024, "low": 384 * 1024}
    conn.pause_writing()
    assert not transport.reading
    conn.resume_writing()
    await rig.settle()
    assert transport.reading


@pytest.mark.parametrize("close", [False, True])
async def test_a_client_that_does_not_read_for_long(close: bool) -> None:
    rig = ServerRig(production(response_backpressure_timeout_ms=10, close_channel_on_response_timeout=close))
    rig.storage.set_master_key(1, KEY)
    conn, transport = rig.connect()
    conn.pause_writing()
    await asyncio.sleep(0.03)
    assert transport.aborted == close
    conn.wire.send(b"dropped")
    await rig.settle()
    if not close:
        assert transport.writes == []
        conn.resume_writing()
        conn.wire.send(b"sent")
        await rig.settle()
        assert transport.writes == [b"sent"]
    rig.close()


async def test_a_stopping_bookie_takes_no_more_requests(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    conn.wire.stall(Stall.STOPPING)
    conn.data_received(v2_add(entry(1, 1)))
    assert await answers(rig, transport, 1)
    assert rig.storage.cached(1, 1) is None
