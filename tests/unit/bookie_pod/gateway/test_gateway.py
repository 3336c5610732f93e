"""The calls of LedgerService, by a generated client, against model bookies."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.gateway.gateway import Gateway
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import LedgerFenced
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.until import until
from tests.unit.bookie_pod.gateway.calls import CLOSED, batches, error_of, read_all, rest_of, write
from tests.unit.bookie_pod.gateway.conftest import serve


async def test_what_was_appended_is_read(served, stub):
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
    for way in ("APPENDED", "READ"):
        assert (served.level(f"{way}_ENTRIES"), served.level(f"{way}_BYTES")) == (5000, sum(map(len, payloads)))


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


async def test_tail_begins_behind_what_is_confirmed(cluster, stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"0", b"1", b"2"]))
    ledger_id = (await call.read()).ledger_id
    await call.read()
    await call.write(pb.AppendRequest(entries=[b"3"]))
    await call.read()
    tail = stub.Tail(pb.TailRequest(ledger_id=ledger_id))
    await until(lambda: any(cluster.bookie(name).lac_waiters.get(ledger_id) for name in cluster.servers))
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


async def test_a_gateway_that_could_not_be_served_is_made_anew(cluster):
    """Descriptors were short when its server began; the same process then begins once more."""
    registry, memory = Registry(), MemoryGovernor(1 << 20)
    server = grpc.aio.server()
    for serves in (False, True):
        gateway = Gateway(BookieConfig(), cluster.metadata, registry, memory)
        await gateway.start()
        if serves:
            gateway.add_to(server)
        await gateway.stop()
    assert "bookie_gateway_OPEN_WRITERS 0" in registry.render()
    await server.stop(None)


@pytest.mark.parametrize("clients", [1, 4])
async def test_calls_that_come_at_once_are_all_answered(served, clients):
    """gRPC's core would end some of them unseen, with CANCELLED or UNAVAILABLE."""
    target, options = f"127.0.0.1:{served.server.port}", [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options) for _ in range(clients)]
    stubs = [LedgerServiceStub(channel) for channel in channels]
    calls = [stub.GetMetadata(pb.GetMetadataRequest(ledger_id=5)) for stub in stubs for _ in range(300)]
    codes = Counter([await call.code() for call in calls])
    for channel in channels:
        await channel.close()
    assert codes == {grpc.StatusCode.NOT_FOUND: 300 * clients}
