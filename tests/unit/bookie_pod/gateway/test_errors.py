"""What a client is told of a call that fails: a code, the error's own name and a message."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import pytest

from bookie_pod.gateway.appending import ENTRY_BYTES, MAX_ENTRIES
from bookie_protocol.errors import MetadataUnavailable, QuorumLost
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from tests.support.garbage import left_in_cycles
from tests.support.until import until
from tests.unit.bookie_pod.gateway.calls import CLOSED, batches, error_of, read_all, rest_of, write
from tests.unit.bookie_pod.gateway.conftest import serve

ERRORS = [
    (lambda s: s.GetMetadata(pb.GetMetadataRequest(ledger_id=9)), ("NOT_FOUND", "NoSuchLedger")),
    (lambda s: s.Recover(pb.RecoverRequest(ledger_id=9)), ("NOT_FOUND", "NoSuchLedger")),
    (lambda s: s.Close(pb.CloseRequest(ledger_id=9)), ("NOT_FOUND", "NoSuchLedger")),
    (lambda s: s.Create(pb.CreateRequest(ensemble_size=9)), ("UNAVAILABLE", "NotEnoughBookies")),
    (lambda s: s.Create(pb.CreateRequest(ensemble_size=-1)), ("INVALID_ARGUMENT", "BadRequest")),
    (lambda s: s.Create(pb.CreateRequest(ensemble_size=2, write_quorum=3)), ("INVALID_ARGUMENT", "BadRequest")),
    (lambda s: s.Create(pb.CreateRequest(digest_type=77)), ("INVALID_ARGUMENT", "BadRequest")),
    (lambda s: s.Delete(pb.DeleteRequest(ledger_id=-1)), ("INVALID_ARGUMENT", "BadRequest")),
    (lambda s: read_all(s, ledger_id=9), ("NOT_FOUND", "NoSuchLedger")),
    (lambda s: read_all(s, ledger_id=0, max_batch_bytes=-1), ("INVALID_ARGUMENT", "BadRequest")),
    (lambda s: anext(aiter(s.Append(iter(batches(1))))), ("INVALID_ARGUMENT", "BadRequest")),
    (lambda s: anext(aiter(s.Append(iter([])))), ("INVALID_ARGUMENT", "BadRequest")),
    (
        lambda s: anext(aiter(s.Append(iter([pb.AppendRequest(existing=pb.ExistingWriter(ledger_id=9))])))),
        ("FAILED_PRECONDITION", "LedgerClosed"),
    ),
]


async def test_errors_have_a_code_and_their_own_name(stub):
    for number, (call, expected) in enumerate(ERRORS):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(stub)
        assert error_of(raised)[:2] == expected, number


async def append_to_what_is_closed(stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest()))
    await stub.Recover(pb.RecoverRequest(ledger_id=(await call.read()).ledger_id))
    for request in batches(1, 1, 1):
        await call.write(request)
    await rest_of(call)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.GetMetadata(pb.GetMetadataRequest(ledger_id=9)),
        lambda s: read_all(s, ledger_id=9),
        lambda s: anext(aiter(s.Append(iter(batches(1))))),
        lambda s: write(s, *batches(1)),
        lambda s: append_to_what_is_closed(s),
    ],
)
async def test_a_call_that_ends_leaves_nothing_to_the_collector_of_cycles(stub, call):
    async def end():
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the latter: it ended while it was written
            await call(stub)
        await asyncio.sleep(0.01)  # the server's side too

    await end()
    with left_in_cycles() as left:
        for _ in range(5):
            await end()
    assert not left & {"RPCState", "_ServicerContext"}


@pytest.mark.parametrize("by_append", [False, True])
async def test_a_ledger_may_exist_though_the_metadata_service_did_not_answer(cluster, stub, monkeypatch, by_append):
    async def create(request):
        if by_append:
            await write(stub, **request)
        else:
            await stub.Create(pb.CreateRequest(**request))

    async def stores_and_does_not_answer(metadata, **options):
        await store(metadata, **options)
        raise MetadataUnavailable("no answer")

    store = cluster.metadata.ledgers.create
    with monkeypatch.context() as patch:
        patch.setattr(cluster.metadata.ledgers, "create", stores_and_does_not_answer)
        for request, which in (({"ledger_id": 77}, "ledger 77"), ({}, "a ledger")):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await create(request)
            told = f"no answer; {which} may have been created all the same, open and empty"
            assert error_of(raised) == ("UNAVAILABLE", "MetadataUnavailable", told)
    assert len([i async for response in stub.List(pb.ListRequest()) for i in response.ledger_ids]) == 2
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await create({"ledger_id": 77})
    assert error_of(raised)[:2] == ("ALREADY_EXISTS", "MetadataExists")
    await create({})


async def test_passwords(stub):
    ledger_id = (await write(stub, *batches(1), password=b"right"))[0].ledger_id
    kept = (await stub.Create(pb.CreateRequest(password=b"right"))).metadata.ledger_id
    wrong = pb.AppendRequest(existing=pb.ExistingWriter(ledger_id=kept, password=b"wrong"))
    for call in (
        lambda: read_all(stub, ledger_id=ledger_id, password=b"wrong"),
        lambda: stub.Close(pb.CloseRequest(ledger_id=kept, password=b"wrong")),
        lambda: stub.Close(pb.CloseRequest(ledger_id=ledger_id, password=b"wrong")),
        lambda: stub.Recover(pb.RecoverRequest(ledger_id=kept, password=b"wrong")),
        lambda: anext(aiter(stub.Append(iter([wrong])))),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call()
        assert error_of(raised)[:2] == ("PERMISSION_DENIED", "Unauthorized")


async def test_an_entry_that_fits_no_frame_ends_the_call_and_closes_the_ledger(served, stub):
    call = stub.Append(
        iter([pb.AppendRequest(create=pb.CreateRequest(), entries=[b"ok"]), *batches(1, payload=bytes(6 << 20))])
    )
    ledger_id = (await call.read()).ledger_id
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        while True:
            await call.read()
    code, reason, message = error_of(raised)
    assert (code, reason) == ("INVALID_ARGUMENT", "BadRequest")
    assert "split it" in message
    await until(lambda: served.writers == 0)
    metadata = await stub.GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id))
    assert (metadata.state, metadata.last_entry_id) == (CLOSED, 0)


async def test_bookies_that_fail_end_a_call_that_only_waits(cluster, stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(write_quorum=3, ack_quorum=3)))
    await call.read()
    for name in cluster.servers:
        cluster.bookie(name).fail_adds = QuorumLost
    await call.write(pb.AppendRequest(entries=[b"x"]))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert error_of(raised)[1] == "QuorumLost"


async def test_damage_is_not_absence(cluster, stub):
    ledger_id = (await write(stub, *batches(1), write_quorum=3))[0].ledger_id
    for name in cluster.servers:
        cluster.bookie(name).damage(ledger_id, 0)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await read_all(stub, ledger_id=ledger_id)
    assert error_of(raised)[:2] == ("DATA_LOSS", "DigestMismatch")


async def test_an_unforeseen_fault_is_internal(served, stub, monkeypatch):
    async def broken(*args, **kwargs):
        raise KeyError("surprise")

    monkeypatch.setattr(served.gateway._client, "delete", broken)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Delete(pb.DeleteRequest(ledger_id=1))
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert "surprise" in raised.value.details()


async def test_a_message_that_is_too_large_is_refused(cluster):
    async with serve(cluster, max_message_bytes=1 << 20) as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await write(served.stub, *batches(1, payload=bytes(2 << 20)))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_no_ledger_where_appends_could_never_reach_enough_racks(cluster):
    """The model's bookies publish no rack: all of them stand in one."""
    async with serve(cluster, enforce_fault_domains=True, add_quorum_timeout_seconds=5) as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.Create(pb.CreateRequest())
        code, reason, message = error_of(raised)
        assert (code, reason) == ("UNAVAILABLE", "NotEnoughBookies")
        assert "too few fault domains" in message


async def test_entries_without_payload_count_too(cluster):
    async with serve(cluster) as served:
        for server in cluster.servers.values():
            server.hold = True
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b""] * 1000))
        await until(lambda: served.level("PENDING_BYTES") == 1000 * ENTRY_BYTES)
        for server in cluster.servers.values():
            server.release()
        await call.done_writing()
        assert [response async for response in call][-1].last_entry_id == 999
        assert served.level("PENDING_BYTES") == 0
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await write(served.stub, pb.AppendRequest(create=pb.CreateRequest(), entries=[b""] * (MAX_ENTRIES + 1)))
        assert error_of(raised)[:2] == ("INVALID_ARGUMENT", "BadRequest")


async def test_a_huge_ensemble_is_refused_at_once(stub):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Create(pb.CreateRequest(ensemble_size=100_000, write_quorum=50_000, ack_quorum=50_000))
    assert error_of(raised)[:2] == ("INVALID_ARGUMENT", "BadRequest")
