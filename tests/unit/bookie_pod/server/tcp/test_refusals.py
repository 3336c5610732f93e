"""What a bookie answers to requests that it does not serve: each hears why, in its own version, and goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.requests import RequestMetrics
from bookie_pod.server.tcp.context import V2_HEAD_BYTES
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.errors import EntryDamaged, V2Code, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from tests.support.frames import (
    KEY,
    OTHER_KEY,
    entry,
    lac_packet,
    v2_add,
    v2_code,
    v3_add,
    v3_answer,
    v3_force,
    v3_list,
    v3_read,
    v3_read_lac,
    v3_status,
    v3_write_lac,
)
from tests.support.production import production
from tests.support.server_rig import ServerRig, answers
from tests.support.storage_engine import put
from tests.support.v2_frames import encode_add_request

ADD, READ, BATCH = v2.OpCode.ADDENTRY, v2.OpCode.READENTRY, v2.OpCode.BATCH_READ_ENTRY
BATCH_OF_9 = v2.encode_batch_read_request(1, 7, 33, 9, 1000, version=9)


@pytest.mark.parametrize(
    ("request_frame", "opcode"),
    [
        (encode_add_request(KEY, entry(1, 7), version=9), ADD),
        (v2.encode_read_request(1, 7, version=9), READ),
        (BATCH_OF_9, BATCH),
    ],
    ids=["add", "read", "batch"],
)
async def test_a_version_that_nobody_speaks_is_answered_in_it(
    rig: ServerRig, request_frame: bytes, opcode: v2.OpCode
) -> None:
    conn, transport = rig.connect()
    conn.data_received(request_frame + v2_add(entry(1, 0)))
    refused, added = await answers(rig, transport, 2)
    answer = v2.decode_response(refused[4:])
    assert not isinstance(answer, v2.AuthFrame)
    assert (answer.version, answer.code, answer.ledger_id, answer.entry_id) == (9, V2Code.EBADVERSION, 1, 7)
    if isinstance(answer, v2.BatchReadResponse):
        assert (opcode, answer.request_id) == (BATCH, 33)
    else:
        assert answer.opcode == opcode
    assert v2_code(added) == V2Code.EOK
    assert list(rig.storage.entry_ids(1)) == [0]


@pytest.mark.parametrize("size", [0, 23])
async def test_an_add_of_version_2_that_is_shorter_than_its_prefix(rig: ServerRig, size: int) -> None:
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)[:size]) + v2_add(entry(1, 0)))
    if size < 16:  # there is nothing to answer without the ids
        assert transport.closing
        return
    refused, added = await answers(rig, transport, 2)
    assert (v2_code(refused), v2_code(added)) == (V2Code.EBADREQ, V2Code.EOK)


@pytest.mark.parametrize("add", [v2_add, v3_add])
@pytest.mark.parametrize("size", [16, 23, 24])
async def test_nor_is_one_taken_on_a_hot_ledger(rig: ServerRig, add: Callable[[bytes], bytes], size: int) -> None:
    """24 bytes are a whole prefix, of an entry that claims a length and has nothing."""
    conn, transport = rig.connect()
    conn.data_received(add(entry(1, 0)))
    rig.journal.acknowledge()
    short = add(entry(1, 1)[:size]) if add is v2_add else v3_short(entry(1, 1)[:size])
    conn.data_received(short + add(entry(1, 2)) + short + add(entry(1, 3)) * 3)
    told = [v2_code(frame) if add is v2_add else v3_status(frame) for frame in await answers(rig, transport, 7)]
    refused = V2Code.EBADREQ if add is v2_add else V3Status.EBADREQ
    assert told.count(refused) == (2 if size < 24 else 0)
    assert list(rig.storage.entry_ids(1)) == ([0, 2, 3] if size < 24 else [0, 1, 2, 3])


def v3_short(stored: bytes) -> bytes:
    request = v3.new_request(pb.ADD_ENTRY, 5)
    add = request.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body = 1, 1, KEY, stored
    return v3.encode_frame(request)


def as_version(frame: bytes, version: int) -> bytes:
    request = v3.parse_request(frame[4:])
    assert request is not None
    request.header.version = version
    return v3.encode_frame(request)


INNER = {
    "addResponse": v3_add(entry(1, 0)),
    "readResponse": v3_read(1, 0),
    "writeLacResponse": v3_write_lac(1, 0),
    "readLacResponse": v3_read_lac(1),
    "forceLedgerResponse": v3_force(1),
    "getListOfEntriesOfLedgerResponse": v3_list(1),
}


@pytest.mark.parametrize("name", INNER)
async def test_a_message_of_version_3_that_says_another(rig: ServerRig, name: str) -> None:
    conn, transport = rig.connect()
    conn.data_received(as_version(INNER[name], pb.VERSION_TWO))
    answer = v3_answer(transport.frames[0])
    assert answer.status == V3Status.EBADVERSION
    assert answer.HasField(name)
    inner = getattr(answer, name)
    assert (inner.status, inner.ledgerId) == (V3Status.EBADVERSION, 1)
    assert rig.storage.ledger(1) is None
    assert rig.context.requests.count == 0


async def test_an_operation_that_is_not_served(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3.encode_frame(v3.new_request(pb.RANGE_ADD_ENTRY, 9)) + v3_add(entry(1, 0)))
    refused, _ = await answers(rig, transport, 2)
    answer = v3_answer(refused)
    assert (answer.status, answer.header.txnId) == (V3Status.EBADREQ, 9)
    assert answer.header.operation == pb.RANGE_ADD_ENTRY


@pytest.mark.parametrize("more", [0, 1])
async def test_the_longest_entry_that_is_taken_is_the_same_for_both_versions(more: int) -> None:
    rig = ServerRig(production(max_frame_size_bytes=1024))
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(1, 0, bytes(1024 - V2_HEAD_BYTES - 32 + more))))
    (frame,) = await answers(rig, transport, 1)
    assert v3_status(frame) == (V3Status.EBADREQ if more else V3Status.EOK)
    assert not transport.closing
    rig.close()


@pytest.mark.parametrize("length", [0, 15])
async def test_an_explicit_lac_whose_packet_is_too_short(rig: ServerRig, length: int) -> None:
    request = v3.new_request(pb.WRITE_LAC, 1)
    write = request.writeLacRequest
    write.ledgerId, write.lac, write.masterKey, write.body = 1, 0, KEY, lac_packet(1, 0)[:length]
    conn, transport = rig.connect()
    conn.data_received(v3.encode_frame(request))
    assert [v3_status(frame) for frame in transport.frames] == [V3Status.EBADREQ]
    assert not rig.context.busy


async def test_an_explicit_lac_with_another_password(rig: ServerRig) -> None:
    conn, transport = rig.connect()
    conn.data_received(v3_write_lac(1, 0))
    rig.journal.acknowledge()
    conn.data_received(v3_write_lac(1, 3, OTHER_KEY))
    assert [v3_status(frame) for frame in await answers(rig, transport, 2)] == [V3Status.EOK, V3Status.EUA]
    assert rig.ledgers.states[1].lac == 0
    assert not rig.context.busy


@pytest.mark.parametrize("room", [True, False])
async def test_a_read_only_bookie_takes_copies_at_most(rig: ServerRig, room: bool) -> None:
    registry = Registry()
    rig.context.metrics = RequestMetrics(registry, BookieMetrics(registry))
    conn, transport = rig.connect()
    rig.admission.set_mode(read_only=True, high_priority_writes=room)
    conn.data_received(v3_add(entry(1, 0)) + v3_write_lac(1, 0) + v3_add(entry(1, 1), priority=True))
    statuses = [v3_status(frame) for frame in await answers(rig, transport, 3)]
    assert statuses == [V3Status.EREADONLY, V3Status.EREADONLY, V3Status.EOK if room else V3Status.EREADONLY]
    assert (list(rig.storage.entry_ids(1)) if room else rig.storage.ledger(1)) == ([1] if room else None)
    assert f'bookkeeper_server_ADD_ENTRY_REQUEST_count{{success="false"}} {1 if room else 2}' in registry.render()
    assert not rig.context.busy


async def test_an_add_that_finds_too_many_waiting_is_told_and_counted() -> None:
    rig = ServerRig(production(max_pending_adds_per_thread=1))
    registry = Registry()
    rig.context.metrics = RequestMetrics(registry, BookieMetrics(registry))
    rig.journal.full = True
    (first, _), (second, transport) = rig.connect(), rig.connect()
    first.data_received(v2_add(entry(1, 0)))
    second.data_received(v2_add(entry(1, 1)))
    await rig.settle(lambda: transport.frames)
    assert v2_code(transport.frames[0]) == V2Code.ETOOMANYREQUESTS
    assert "bookkeeper_server_ADD_ENTRY_REJECTED 1" in registry.render()
    rig.close()


@pytest.mark.parametrize(
    ("packet", "stored", "limbo", "status"),
    [
        (True, True, False, V3Status.EOK),
        (False, True, False, V3Status.EOK),
        (True, False, False, V3Status.EIO),
        (True, False, True, V3Status.EUNKNOWNLEDGERSTATE),
        (False, False, False, V3Status.ENOENTRY),
        (False, False, True, V3Status.EUNKNOWNLEDGERSTATE),
    ],
)
async def test_what_is_known_of_a_lac(
    rig: ServerRig, packet: bool, stored: bool, limbo: bool, status: V3Status
) -> None:
    """The packet comes whatever is missing beside it."""
    body = lac_packet(1, 5) if packet else None
    rig.storage.set_ledger(1, LedgerRecord(KEY, limbo=limbo, explicit_lac=body))
    if stored:
        put(rig.storage, entry(1, 3))
    conn, transport = rig.connect()
    conn.data_received(v3_read_lac(1, txn=4))
    await rig.settle(lambda: transport.frames)
    answer = v3_answer(transport.frames[0])
    inner = answer.readLacResponse
    assert (answer.status, inner.status, inner.ledgerId) == (status, status, 1)
    assert (inner.HasField("lacBody"), inner.HasField("lastEntryBody")) == (packet, stored)


@pytest.mark.parametrize("ask", [v3_read_lac, v3_list])
async def test_of_a_ledger_that_is_not_here(rig: ServerRig, ask: Callable[[int], bytes]) -> None:
    conn, transport = rig.connect()
    conn.data_received(ask(1))
    absent = V3Status.ENOLEDGER if ask is v3_list else V3Status.ENOENTRY
    assert [v3_status(frame) for frame in transport.frames] == [absent]


@pytest.mark.parametrize("ask", [v3_read_lac, v3_list])
async def test_what_cannot_be_read_now_is_no_proof_of_absence(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, ask: Callable[[int], bytes]
) -> None:
    rig.storage.set_master_key(1, KEY)

    def damaged(ledger_id: int) -> int:
        raise EntryDamaged("bits have flipped")

    monkeypatch.setattr(rig.storage, "last_entry_id", damaged)
    monkeypatch.setattr(rig.storage, "entry_ids", damaged)
    conn, transport = rig.connect()
    conn.data_received(ask(1))
    await rig.settle(lambda: transport.frames)
    assert v3_status(transport.frames[0]) == V3Status.EIO


@pytest.mark.parametrize(("total", "free"), [(True, True), (True, False), (False, True), (False, False)])
async def test_of_a_bookies_disks_only_what_is_asked_for_is_told(rig: ServerRig, total: bool, free: bool) -> None:
    request = v3.new_request(pb.GET_BOOKIE_INFO, 1)
    request.getBookieInfoRequest.requested = (
        total * pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY | free * pb.GetBookieInfoRequest.FREE_DISK_SPACE
    )
    conn, transport = rig.connect()
    conn.data_received(v3.encode_frame(request))
    await rig.settle(lambda: transport.frames)
    inner = v3_answer(transport.frames[0]).getBookieInfoResponse
    assert (inner.HasField("totalDiskCapacity"), inner.HasField("freeDiskSpace")) == (total, free)
    assert (inner.totalDiskCapacity, inner.freeDiskSpace, inner.status) == (100 * total, 50 * free, 0)


async def test_disks_that_cannot_be_asked(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> tuple[int, int]:
        raise OSError("no such directory")

    monkeypatch.setattr(rig.handlers, "_disk_space", fails)
    request = v3.new_request(pb.GET_BOOKIE_INFO, 1)
    request.getBookieInfoRequest.requested = pb.GetBookieInfoRequest.FREE_DISK_SPACE
    conn, transport = rig.connect()
    conn.data_received(v3.encode_frame(request))
    await rig.settle(lambda: transport.frames)
    answer = v3_answer(transport.frames[0])
    assert (answer.status, answer.getBookieInfoResponse.HasField("freeDiskSpace")) == (V3Status.EIO, False)
