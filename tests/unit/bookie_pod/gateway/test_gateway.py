"""The calls of LedgerService, by a generated client, against model bookies."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from bookie_protocol.errors import LedgerFenced, MetadataUnavailable, QuorumLost
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from tests.support.until import until
from tests.unit.bookie_pod.gateway.conftest import serve

CLOSED = pb.LedgerMetadata.CLOSED


def error_of(raised):
    """Status code, error name and message, as a client reads them."""
    error = raised.value
    status = rpc_status.from_call(error)
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, status.message) == ("podkeeper", error.details())
    return error.code().name, info.reason, error.details()


def batches(*sizes, payload=b"x"):
    return [pb.AppendRequest(entries=[payload] * size) for size in sizes]


async def write(stub, *requests, **create):
    """Append everything to a new ledger and return the responses."""
    first = pb.AppendRequest(create=pb.CreateRequest(**create))
    return [response async for response in stub.Append(iter([first, *requests]))]


async def read_all(stub, **request):
    return [response async for response in stub.Read(pb.ReadRequest(**request))]


async def rest_of(call):
    """All responses that are still to come. Calls of which one was read by itself cannot be iterated over."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


async def test_what_was_appended_is_read(stub):
    payloads = [f"entry {i}".encode() for i in range(5000)]
    requests = [pb.AppendRequest(entries=payloads[i : i + 500]) for i in range(0, 5000, 500)]
    responses = await write(stub, *requests, password=b"pw", custom_metadata={"app": b"x"})
    assert (responses[0].last_entry_id, responses[0].closed) == (-1, False)
    acknowledged = [response.last_entry_id for response in responses]
    assert acknowledged == sorted(acknowledged)
    assert (responses[-1].last_entry_id, responses[-1].closed) == (4999, True)
    ledger_id = responses[0].ledger_id
    read = await read_all(stub, ledger_id=ledger_id, password=b"pw")
    assert [entry for response in read for entry in response.entries] == payloads
    metadata = await stub.GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id))
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (CLOSED, 4999, sum(map(len, payloads)))
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 2, 2)
    assert dict(metadata.custom_metadata) == {"app": b"x"}
    assert [len(segment.bookies) for segment in metadata.segments] == [3]
    assert b"pw" not in metadata.SerializeToString()


async def test_create_append_twice_close(served, stub):
    metadata = (await stub.Create(pb.CreateRequest(password=b"pw", ledger_id=42, digest_type=pb.MAC))).metadata
    assert (metadata.ledger_id, metadata.state, metadata.digest_type) == (42, pb.LedgerMetadata.OPEN, pb.MAC)
    existing = pb.ExistingWriter(ledger_id=42, password=b"pw", keep_open=True)
    for expected in (2, 5):
        first = pb.AppendRequest(existing=existing, entries=[b"with the first request"])
        responses = [response async for response in stub.Append(iter([first, *batches(2)]))]
        assert (responses[-1].last_entry_id, responses[-1].closed) == (expected, False)
    assert served.writers == 1
    for _ in range(2):
        closed = await stub.Close(pb.CloseRequest(ledger_id=42, password=b"pw"))
        assert (closed.state, closed.last_entry_id) == (CLOSED, 5)
    assert served.writers == 0


async def test_acknowledgements_come_while_the_client_goes_on_writing(stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest()))
    assert (await call.read()).last_entry_id == -1
    for number in range(3):
        await call.write(pb.AppendRequest(entries=[b"x"] * 10))
        assert (await call.read()).last_entry_id == 10 * number + 9
    await call.done_writing()
    assert (await call.read()).closed
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_window_that_is_full_stops_the_reading_of_the_stream(cluster):
    async with serve(cluster, max_pending_bytes=1_000_000) as served:
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest()))
        await call.read()
        for server in cluster.servers.values():
            server.hold = True

        async def send():
            for _ in range(300):
                await call.write(pb.AppendRequest(entries=[bytes(90_000)] * 10))
            await call.done_writing()

        sending = asyncio.create_task(send())
        await until(lambda: served.level("APPENDED_ENTRIES") == 10)
        await asyncio.sleep(0.05)
        assert served.level("APPENDED_ENTRIES") == 10
        assert served.level("PENDING_BYTES") <= 1_000_000
        assert not sending.done()
        for server in cluster.servers.values():
            server.release()
        reading = asyncio.create_task(rest_of(call))
        await sending
        last = (await reading)[-1]
        assert (last.last_entry_id, last.closed) == (2999, True)
        assert served.level("PENDING_BYTES") == 0


@pytest.mark.parametrize("limits", [{"max_batch_entries": 7}, {"max_batch_bytes": 70}])
async def test_responses_are_bounded(stub, limits):
    responses = await write(stub, *batches(100, payload=b"0123456789"))
    read = await read_all(stub, ledger_id=responses[0].ledger_id, **limits)
    assert max(len(response.entries) for response in read) <= 7
    assert len(read) >= 15
    ids = [response.first_entry_id + i for response in read for i in range(len(response.entries))]
    assert ids == list(range(100))
    assert all((response.last_add_confirmed, response.ledger_closed) == (99, True) for response in read)


async def test_ranges(stub):
    ledger_id = (await write(stub, *batches(10)))[0].ledger_id
    part = await read_all(stub, ledger_id=ledger_id, first_entry_id=3, last_entry_id=5)
    assert [(response.first_entry_id, len(response.entries)) for response in part] == [(3, 3)]
    empty = (await write(stub))[0].ledger_id
    (nothing,) = await read_all(stub, ledger_id=empty)
    assert (list(nothing.entries), nothing.last_add_confirmed, nothing.ledger_closed) == ([], -1, True)


async def test_tail_follows_a_writer_to_the_end(stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"entry 0"]))
    ledger_id = (await call.read()).ledger_id
    await call.read()
    tail = stub.Tail(pb.TailRequest(ledger_id=ledger_id, first_entry_id=0))
    await call.write(pb.AppendRequest(entries=[b"entry 1"]))
    first = await tail.read()
    assert (first.first_entry_id, list(first.entries)) == (0, [b"entry 0"])
    await call.write(pb.AppendRequest(entries=[b"entry 2"]))
    await call.done_writing()
    rest = await rest_of(tail)
    assert [entry for response in rest for entry in response.entries] == [b"entry 1", b"entry 2"]
    assert rest[-1].ledger_closed


async def test_tail_begins_behind_what_is_confirmed(stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"0", b"1", b"2"]))
    ledger_id = (await call.read()).ledger_id
    await call.read()
    await call.write(pb.AppendRequest(entries=[b"3"]))
    await call.read()
    tail = stub.Tail(pb.TailRequest(ledger_id=ledger_id))
    await asyncio.sleep(0.05)
    await call.write(pb.AppendRequest(entries=[b"4"]))
    await call.done_writing()
    responses = [response async for response in tail]
    assert responses[0].first_entry_id in (3, 4)  # the LAC rides on the next entry
    assert [entry for response in responses for entry in response.entries][-1] == b"4"


async def test_recover_fences_the_writer(stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(write_quorum=3), entries=[b"a", b"b"]))
    ledger_id = (await call.read()).ledger_id
    await call.read()
    recovered = await stub.Recover(pb.RecoverRequest(ledger_id=ledger_id))
    assert (recovered.state, recovered.last_entry_id) == (CLOSED, 1)
    await call.write(pb.AppendRequest(entries=[b"late"]))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        while await call.read() is not grpc.aio.EOF:
            pass
    assert error_of(raised)[:2] == ("FAILED_PRECONDITION", LedgerFenced.__name__)
    (response,) = await read_all(stub, ledger_id=ledger_id, recover=True)
    assert list(response.entries) == [b"a", b"b"]


async def test_delete_and_list(stub):
    ids = [(await write(stub))[0].ledger_id for _ in range(3)]
    await stub.Delete(pb.DeleteRequest(ledger_id=ids[1]))
    await stub.Delete(pb.DeleteRequest(ledger_id=ids[1]))
    listed = [i async for response in stub.List(pb.ListRequest()) for i in response.ledger_ids]
    assert listed == [ids[0], ids[2]]


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
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
    ],
)
async def test_errors_have_a_code_and_their_own_name(stub, call, expected):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(stub)
    assert error_of(raised)[:2] == expected


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


# --- ends ------------------------------------------------------------------------------------------------------


async def test_a_cancelled_append_closes_its_ledger(cluster, served, stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a", b"b"]))
    ledger_id = (await call.read()).ledger_id
    assert (await call.read()).last_entry_id == 1
    call.cancel()
    await until(lambda: cluster.stored(ledger_id).is_closed)
    assert cluster.stored(ledger_id).last_entry_id == 1
    await until(lambda: (served.writers, served.level("OPEN_STREAMS")) == (0, 0))


async def test_a_deadline_ends_calls_and_what_they_opened(cluster, served, stub):
    first = pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"])
    call = stub.Append(timeout=0.3)
    await call.write(first)
    ledger_id = (await call.read()).ledger_id
    tail = stub.Tail(pb.TailRequest(ledger_id=ledger_id, first_entry_id=5), timeout=0.2)
    for each in (tail, call):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while await each.read() is not grpc.aio.EOF:
                pass
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: cluster.stored(ledger_id).is_closed)
    await until(lambda: (served.writers, served.level("OPEN_STREAMS")) == (0, 0))


async def test_a_connection_that_is_lost_closes_the_ledger(cluster, served):
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{served.server.port}", [("grpc.use_local_subchannel_pool", 1)])
    append = channel.stream_stream(
        "/podkeeper.ledger.v1.LedgerService/Append",
        request_serializer=pb.AppendRequest.SerializeToString,
        response_deserializer=pb.AppendResponse.FromString,
    )
    call = append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"]))
    ledger_id = (await call.read()).ledger_id
    await channel.close()
    await until(lambda: cluster.stored(ledger_id).is_closed)


async def test_a_create_that_is_cancelled_half_way_leaves_no_writer(cluster, served, stub, monkeypatch):
    gate, ledgers = asyncio.Event(), cluster.metadata.ledgers
    create = ledgers.create
    entered, cancelled = asyncio.Event(), asyncio.Event()
    writers = served.gateway._writers
    create_writer = writers.create

    async def watched(arguments):
        try:
            return await create_writer(arguments)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def slow(metadata, **options):
        entered.set()
        await gate.wait()
        return await create(metadata, **options)

    monkeypatch.setattr(ledgers, "create", slow)
    monkeypatch.setattr(writers, "create", watched)
    call = stub.Create(pb.CreateRequest(ledger_id=7))
    waiting = asyncio.ensure_future(call.code())
    await entered.wait()
    call.cancel()
    await waiting
    await cancelled.wait()
    assert served.writers == 1
    gate.set()
    await until(lambda: served.writers == 0)
    assert cluster.stored(7).is_closed


async def test_idle_writers_are_ended(cluster):
    async with serve(cluster, idle_writer_seconds=0.2) as served:
        kept = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"]))
        ledger_id = (await call.read()).ledger_id
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while True:
                await call.read()
        code, reason, message = error_of(raised)
        assert (code, reason) == ("FAILED_PRECONDITION", "LedgerClosed")
        assert "gatewayIdleWriterSeconds" in message
        await until(lambda: cluster.stored(ledger_id).is_closed and cluster.stored(kept).is_closed)
        assert cluster.stored(ledger_id).last_entry_id == 0


async def test_a_writer_that_is_used_is_not_idle(cluster):
    async with serve(cluster, idle_writer_seconds=1.0) as served:  # far above a pause, for machines that are busy
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest()))
        for _ in range(15):
            await call.write(pb.AppendRequest(entries=[b"x"]))
            await asyncio.sleep(0.1)
        await call.done_writing()
        assert [response async for response in call][-1].closed


async def test_limits_on_writers_and_streams(cluster):
    async with serve(cluster, max_open_writers=2, max_streams=1) as served:
        kept = [(await served.stub.Create(pb.CreateRequest())).metadata.ledger_id for _ in range(2)]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.Create(pb.CreateRequest())
        assert error_of(raised)[:2] == ("RESOURCE_EXHAUSTED", "TooManyRequests")
        await served.stub.Close(pb.CloseRequest(ledger_id=kept[0]))
        await served.stub.Create(pb.CreateRequest())
        tail = served.stub.Tail(pb.TailRequest(ledger_id=kept[1], first_entry_id=0))
        await until(lambda: served.level("OPEN_STREAMS") == 1)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_all(served.stub, ledger_id=kept[0])
        assert error_of(raised)[:2] == ("RESOURCE_EXHAUSTED", "TooManyRequests")
        tail.cancel()
        await until(lambda: served.level("OPEN_STREAMS") == 0)
        assert len(await read_all(served.stub, ledger_id=kept[0])) == 1


async def test_one_call_at_a_time_uses_a_writer(stub):
    kept = (await stub.Create(pb.CreateRequest())).metadata.ledger_id
    first = pb.AppendRequest(existing=pb.ExistingWriter(ledger_id=kept))
    call = stub.Append()
    await call.write(first)
    await call.read()
    for other in (
        lambda: anext(aiter(stub.Append(iter([first])))),
        lambda: stub.Close(pb.CloseRequest(ledger_id=kept)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await other()
        assert error_of(raised)[:2] == ("INVALID_ARGUMENT", "BadRequest")
    await call.done_writing()
    assert (await rest_of(call))[-1].closed


def hold_writes(ledgers, monkeypatch):
    """From now on writes of metadata wait; returns the events "one has begun" and "they may go on"."""
    begun, go_on, stored = asyncio.Event(), asyncio.Event(), ledgers.write

    async def held(*args, **more):
        begun.set()
        await go_on.wait()
        return await stored(*args, **more)

    monkeypatch.setattr(ledgers, "write", held)
    return begun, go_on


async def test_stopping_waits_for_a_close_under_way(cluster, monkeypatch):
    async with serve(cluster) as served:
        ledger_id = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        begun, go_on = hold_writes(cluster.metadata.ledgers, monkeypatch)
        closing = asyncio.ensure_future(served.stub.Close(pb.CloseRequest(ledger_id=ledger_id)))
        await begun.wait()
        stopping = asyncio.create_task(served.gateway.stop())
        await asyncio.wait([stopping], timeout=0.2)
        assert not stopping.done()
        go_on.set()
        await stopping
        assert (await closing).state == CLOSED
    assert cluster.stored(ledger_id).is_closed


async def test_a_close_whose_call_was_cancelled_goes_on(cluster, monkeypatch):
    async with serve(cluster) as served:
        ledger_id = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        begun, go_on = hold_writes(cluster.metadata.ledgers, monkeypatch)
        closing = asyncio.ensure_future(served.stub.Close(pb.CloseRequest(ledger_id=ledger_id)))
        await begun.wait()
        closing.cancel()
        await asyncio.wait([closing])
        assert served.writers == 1
        go_on.set()
        await until(lambda: served.writers == 0)
    assert cluster.stored(ledger_id).is_closed


async def test_stopping_closes_the_ledgers_that_are_written(cluster):
    async with serve(cluster) as served:
        kept = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"]))
        ledger_id = (await call.read()).ledger_id
        await call.read()
        await served.server.stop()
        assert (cluster.stored(kept).is_closed, cluster.stored(ledger_id).is_closed) == (True, True)
        assert cluster.stored(ledger_id).last_entry_id == 0


async def test_a_message_that_is_too_large_is_refused(cluster):
    async with serve(cluster, max_message_bytes=1 << 20) as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await write(served.stub, *batches(1, payload=bytes(2 << 20)))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_reflection_and_health_name_the_service(served):
    reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel).ServerReflectionInfo()
    await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await reflection.read()).list_services_response.service}
    assert "podkeeper.ledger.v1.LedgerService" in names
    await reflection.write(
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="podkeeper.ledger.v1.AppendRequest")
    )
    assert (await reflection.read()).file_descriptor_response.file_descriptor_proto
    await reflection.done_writing()


async def test_no_ledger_where_appends_could_never_reach_enough_racks(cluster):
    """The model's bookies publish no rack: all of them stand in one."""
    async with serve(cluster, enforce_fault_domains=True, add_quorum_timeout_seconds=5) as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.Create(pb.CreateRequest())
        code, reason, message = error_of(raised)
        assert (code, reason) == ("UNAVAILABLE", "NotEnoughBookies")
        assert "too few fault domains" in message
