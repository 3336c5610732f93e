"""Long polls: each reason wakes exactly once, and nothing is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from bookie_pod.server.tcp import long_poll
from bookie_pod.server.tcp.wire import READS_IN_FLIGHT_MAX
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.errors import EntryDamaged, NoSuchEntry
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from tests.support import frames
from tests.support.frames import KEY, entry, v3_add, v3_answer, v3_fence, v3_poll, v3_read, v3_write_lac
from tests.support.production import production
from tests.support.server_rig import PaperTransport, ServerRig
from tests.support.storage_engine import put

LEDGER = 7


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig(polls_max=5)
    yield made
    made.close()


def answers(transport: PaperTransport) -> list[pb.Response]:
    return [v3_answer(frame) for frame in transport.frames]


def polled(transport: PaperTransport) -> list[pb.ReadResponse]:
    return [answer.readResponse for answer in answers(transport) if answer.header.operation == pb.READ_ENTRY]


async def written(rig: ServerRig, entries: int) -> None:
    """A ledger with some entries, written through a connection of its own."""
    conn, transport = rig.connect()
    for entry_id in range(entries):
        conn.data_received(v3_add(entry(LEDGER, entry_id)))
    rig.journal.acknowledge()
    await rig.settle(lambda: len(transport.frames) == entries)
    conn.connection_lost(None)


async def waiting(rig: ServerRig, previous: int, timeout_ms: int = 60_000, *, piggyback: bool = True) -> PaperTransport:
    conn, transport = rig.connect()
    before = rig.polls.waiting
    conn.data_received(v3_poll(LEDGER, previous, timeout_ms, piggyback=piggyback))
    await rig.settle()
    assert rig.polls.waiting == before + 1
    assert transport.frames == []
    return transport


def add(rig: ServerRig, entry_id: int) -> None:
    conn, _ = rig.connect()
    conn.data_received(v3_add(entry(LEDGER, entry_id)))


async def test_an_add_with_a_newer_lac_wakes(rig: ServerRig) -> None:
    await written(rig, 3)  # LAC 1
    transport = await waiting(rig, 1)
    before = time.time_ns() // 1_000_000
    add(rig, 3)  # carries LAC 2
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.status, read.entryId, read.maxLAC, read.body) == (pb.EOK, 2, 2, entry(LEDGER, 2))
    assert before <= read.lacUpdateTimestamp <= time.time_ns() // 1_000_000
    add(rig, 4)
    await rig.settle()
    assert len(transport.frames) == 1
    assert rig.polls.waiting == 0


async def test_a_lac_that_does_not_pass_wakes_nobody(rig: ServerRig) -> None:
    await written(rig, 3)
    transport = await waiting(rig, 2)
    add(rig, 3)
    await rig.settle()
    assert transport.frames == []
    assert rig.polls.waiting == 1


async def test_an_explicit_lac_wakes_and_striping_leaves_the_body_out(rig: ServerRig) -> None:
    await written(rig, 1)
    transport = await waiting(rig, 5)
    conn, _ = rig.connect()
    conn.data_received(v3_write_lac(LEDGER, 8))
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.status, read.entryId, read.maxLAC, read.HasField("body")) == (pb.EOK, -1, 8, False)


async def test_a_fence_wakes(rig: ServerRig) -> None:
    await written(rig, 3)
    transport = await waiting(rig, 1)
    conn, _ = rig.connect()
    conn.data_received(v3_fence(LEDGER))
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.status, read.maxLAC, read.HasField("body")) == (pb.EOK, 1, False)


async def test_a_deletion_wakes(rig: ServerRig) -> None:
    await written(rig, 3)
    transport = await waiting(rig, 1)
    rig.storage.delete_ledger(LEDGER)
    await rig.settle(lambda: polled(transport))
    assert len(polled(transport)) == 1
    assert rig.polls.waiting == 0


async def test_the_timer_answers(rig: ServerRig) -> None:
    await written(rig, 3)
    transport = await waiting(rig, 1, timeout_ms=30)
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.status, read.entryId, read.maxLAC, read.HasField("body")) == (pb.EOK, -1, 1, False)
    assert not read.HasField("lacUpdateTimestamp")
    assert rig.ledgers.states[LEDGER].waiters is None
    add(rig, 3)
    await rig.settle()
    assert len(transport.frames) == 1


async def test_without_piggyback_it_is_a_plain_read_that_waits(rig: ServerRig) -> None:
    await written(rig, 3)
    transport = await waiting(rig, 1, piggyback=False)
    add(rig, 3)
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.entryId, read.maxLAC, read.body) == (-1, 2, entry(LEDGER, 3))


@pytest.mark.parametrize(("previous", "timeout_ms"), [(0, 60_000), (1, None), (1, 0), (1, -5)])
async def test_answered_at_once(rig: ServerRig, previous: int, timeout_ms: int | None) -> None:
    await written(rig, 3)
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, previous, timeout_ms))
    assert rig.polls.waiting == 0
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.maxLAC, read.HasField("body")) == (1, previous == 0)
    assert rig.polls.waiting == 0


@pytest.fixture
async def roomy() -> AsyncIterator[ServerRig]:
    made = ServerRig(polls_max=100)
    yield made
    made.close()


async def test_nobody_has_more_polls_than_are_left_for_the_others(roomy: ServerRig) -> None:
    await written(roomy, 3)
    greedy, refused = roomy.connect()
    for _ in range(51):
        greedy.data_received(v3_poll(LEDGER, 1))
    assert roomy.polls.waiting == 50
    await roomy.settle(lambda: refused.frames)
    modest, transport = roomy.connect()
    modest.data_received(v3_poll(LEDGER, 1))
    assert roomy.polls.waiting == 51
    assert transport.frames == []
    greedy.connection_lost(None)
    assert roomy.polls.waiting == 1


async def test_many_polls_of_a_lost_connection_go_a_few_at_a_time(
    roomy: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.server.tcp.wire.LOST_PER_TURN", 10)
    await written(roomy, 3)
    conn, _ = roomy.connect()
    for _ in range(35):
        conn.data_received(v3_poll(LEDGER, 1))
    conn.connection_lost(None)
    left = [roomy.polls.waiting]
    while roomy.polls.waiting:
        await asyncio.sleep(0)
        left.append(roomy.polls.waiting)
    assert left == [25, 15, 5, 0]
    assert roomy.ledgers.states[LEDGER].waiters is None


@pytest.fixture
async def ten_a_turn(roomy: ServerRig, monkeypatch: pytest.MonkeyPatch) -> ServerRig:
    monkeypatch.setattr(long_poll, "ENDED_PER_TURN", 10)
    roomy.polls._left = 10
    await written(roomy, 3)
    return roomy


@pytest.mark.parametrize("is_lost", [False, True])
async def test_polls_that_end_together_are_answered_a_few_at_a_time(ten_a_turn: ServerRig, is_lost: bool) -> None:
    roomy = ten_a_turn
    conn, transport = roomy.connect()
    for txn in range(35):
        conn.data_received(v3_poll(LEDGER, 1, txn=txn))
    add(roomy, 3)
    left = [roomy.polls.waiting]
    if is_lost:
        conn.connection_lost(None)
    while roomy.polls.waiting:
        await asyncio.sleep(0)
        left.append(roomy.polls.waiting)
    assert left == ([25] if is_lost else [25, 15, 5, 0])
    await roomy.settle(lambda: is_lost or len(polled(transport)) == 35)
    assert sorted(v3_answer(each).header.txnId for each in transport.frames) == list(range(0 if is_lost else 35))
    assert (roomy.context.reads_in_progress.count, roomy.context.requests.count) == (0, 0)


async def test_polls_of_one_connection_do_not_keep_others_waiting(ten_a_turn: ServerRig) -> None:
    roomy = ten_a_turn
    greedy, _ = roomy.connect()
    for txn in range(40):
        greedy.data_received(v3_poll(LEDGER, 1, txn=txn))
    modest, transport = roomy.connect()
    modest.data_received(v3_poll(LEDGER, 1))
    add(roomy, 3)
    left = [roomy.polls.waiting]
    while modest.wire.on_lost:
        await asyncio.sleep(0)
        left.append(roomy.polls.waiting)
    assert left == [31, 21]
    await roomy.settle(lambda: len(polled(transport)) == 1 and not roomy.polls.waiting)
    assert not roomy.polls._ended


async def test_a_lost_connection_leaves_nothing(rig: ServerRig) -> None:
    await written(rig, 3)
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1))
    assert rig.polls.waiting == 1
    conn.connection_lost(None)
    assert rig.polls.waiting == 0
    assert rig.ledgers.states[LEDGER].waiters is None
    assert rig.context.reads_in_progress.count == 0
    add(rig, 3)
    await rig.settle()
    assert transport.frames == []


async def test_more_polls_than_a_bookie_takes(rig: ServerRig) -> None:
    await written(rig, 3)
    for _ in range(5):
        await waiting(rig, 1)
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1))
    await rig.settle(lambda: polled(transport))
    assert polled(transport)[0].status == pb.ETOOMANYREQUESTS


async def test_polls_that_wait_are_no_reads_in_progress() -> None:
    """Any number of tailing readers may share a connection with adds and reads."""
    rig = ServerRig(production(max_reads_in_progress=1), polls_max=READS_IN_FLIGHT_MAX * 3)
    try:
        await written(rig, 3)
        conn, transport = rig.connect()
        for txn in range(READS_IN_FLIGHT_MAX + 10):
            conn.data_received(v3_poll(LEDGER, 1, txn=txn))
        await rig.settle(lambda: rig.polls.waiting == READS_IN_FLIGHT_MAX + 10)
        assert not conn.wire.stalled
        assert transport.reading
        assert not rig.context.busy
        conn.data_received(v3_read(LEDGER, 0))
        await rig.settle(lambda: transport.frames)
        conn.connection_lost(None)
        await rig.settle(lambda: rig.polls.waiting == 0)
        assert rig.context.reads_in_progress.count == 0
    finally:
        rig.close()


@pytest.mark.parametrize("explicit", [None, 1], ids=["no explicit LAC", "older explicit LAC"])
async def test_after_a_restart_the_stored_lac_counts(rig: ServerRig, explicit: int | None) -> None:
    """The reference waits although what it stores carries a newer LAC."""
    put(rig.storage, *(entry(LEDGER, entry_id) for entry_id in range(6)))
    packet = None if explicit is None else frames.lac_packet(LEDGER, explicit)
    rig.storage.set_ledger(LEDGER, LedgerRecord(KEY, explicit_lac=packet))
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 3))
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.maxLAC, read.entryId, read.body) == (4, 4, entry(LEDGER, 4))


async def test_after_a_restart_an_empty_ledger_waits(rig: ServerRig) -> None:
    rig.storage.set_ledger(LEDGER, LedgerRecord(KEY))
    transport = await waiting(rig, -1)
    add(rig, 0)
    add(rig, 1)
    await rig.settle(lambda: polled(transport))
    assert polled(transport)[0].body == entry(LEDGER, 0)


async def test_an_unknown_ledger(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 3))
    await rig.settle(lambda: polled(transport))
    assert polled(transport)[0].status == pb.ENOLEDGER


async def test_a_poll_that_found_its_state_evicted_waits_on_the_right_one(rig: ServerRig) -> None:
    """The state is looked up again after the lane: an orphan would never be woken."""
    rig.storage.set_ledger(LEDGER, LedgerRecord(KEY))
    put(rig.storage, *(entry(LEDGER, entry_id) for entry_id in range(3)))
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1))
    rig.ledgers.states.clear()
    await rig.settle()
    assert rig.polls.waiting == 1
    assert rig.ledgers.states[LEDGER].waiters
    add(rig, 3)
    await rig.settle(lambda: polled(transport))


async def test_a_ledger_deleted_while_its_lac_is_looked_up(rig: ServerRig) -> None:
    put(rig.storage, entry(LEDGER, 0))
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1))
    rig.storage.delete_ledger(LEDGER)
    await rig.settle(lambda: polled(transport))
    assert polled(transport)[0].status == pb.ENOLEDGER
    await asyncio.sleep(0)
    assert rig.polls.waiting == 0


async def test_a_fault_of_ours_while_its_lac_is_looked_up_is_answered(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(rig.storage, entry(LEDGER, 0))

    def broken(ledger_id: int) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.storage, "last_entry_id", broken)
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1))
    await rig.settle(lambda: polled(transport))
    assert polled(transport)[0].status == pb.EIO
    assert (rig.polls.waiting, rig.context.requests.count, rig.context.reads_in_progress.count) == (0, 0, 0)


async def test_a_poll_whose_client_goes_while_its_lac_is_looked_up_does_not_wait(rig: ServerRig) -> None:
    put(rig.storage, entry(LEDGER, 0))
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 1))
    conn.connection_lost(None)
    await rig.settle()
    assert (rig.polls.waiting, rig.context.requests.count, rig.context.reads_in_progress.count) == (0, 0, 0)
    assert transport.frames == []


async def test_a_piggy_back_poll_asks_for_the_last_entry(rig: ServerRig) -> None:
    await written(rig, 3)
    conn, transport = rig.connect()
    request = v3.parse_request(v3_poll(LEDGER, 0)[4:])
    assert request is not None
    request.readRequest.entryId = 2
    conn.data_received(v3.encode_frame(request))
    assert [read.status for read in polled(transport)] == [pb.EBADREQ]


@pytest.mark.parametrize(
    ("error", "status"), [(NoSuchEntry("striped elsewhere"), pb.EOK), (EntryDamaged("bits have flipped"), pb.EIO)]
)
async def test_an_entry_that_cannot_be_read_is_no_entry_that_is_elsewhere(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    await written(rig, 3)

    def fails(ledger_id: int, entry_id: int) -> bytes:
        raise error

    monkeypatch.setattr(rig.storage, "read", fails)
    conn, transport = rig.connect()
    conn.data_received(v3_poll(LEDGER, 0, 0))
    await rig.settle(lambda: polled(transport))
    (read,) = polled(transport)
    assert (read.status, read.HasField("body")) == (status, False)
    assert read.maxLAC == (1 if status == pb.EOK else 0)


async def test_a_poll_that_finds_no_place_when_it_is_woken_costs_the_writer_nothing(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(rig, 3)
    transport = await waiting(rig, 1)
    monkeypatch.setattr(rig.lanes, "room", lambda ledger_id, wanted: 0)
    writer, told = rig.connect()
    writer.data_received(v3_add(entry(LEDGER, 3)) + v3_add(entry(LEDGER, 4)))
    rig.journal.acknowledge()
    await rig.settle(lambda: len(told.frames) == 2)
    assert [answer.status for answer in answers(told)] == [pb.EOK, pb.EOK]
    assert [read.status for read in polled(transport)] == [pb.ETOOMANYREQUESTS]
    assert (rig.polls.waiting, rig.context.requests.count, rig.context.reads_in_progress.count) == (0, 0, 0)
