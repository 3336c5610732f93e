"""What clients make the embedded metadata service hold: counted in bytes, and taken from those who are in the way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor, Share
from bookie_pod.node.processes import metadata_service
from bookie_pod.node.processes.metadata_service import MAX_REQUEST_BYTES, RENEWALS_SHARE, serving_bounds
from bookie_pod.server.grpc import receiving
from bookie_pod.server.grpc.receiving import GovernedCalls
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner, OwnerLimits
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.oxia.wire import FORMER_SERVICE, SERVICE
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.oxia_calls import OxiaCalls
from tests.support.until import until

MB = 1 << 20
LIMIT = 32 * MB
EXECUTE = "/podkeeper.embedded_metadata.EmbeddedMetadata/Execute"


@dataclass
class Served:
    server: EmbeddedMetadataServer
    owner: EmbeddedOwner
    callers: Callers
    peak: int = 0

    @property
    def memory(self) -> MemoryGovernor:
        return self.callers.memory

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        """With a connection of its own, whose client takes nothing that it has not asked for."""
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.bdp_probe", 0),
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}", options=options) as made:
            yield made


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    owner = await EmbeddedOwner.open(str(tmp_path), OwnerLimits(sessions=100), keep_notices=True)
    memory = MemoryGovernor(LIMIT)
    callers = Callers(memory, Callers(MemoryGovernor(LIMIT // RENEWALS_SHARE)))
    server = EmbeddedMetadataServer(owner, bounds=serving_bounds(callers, 100))
    await server.start()
    made = Served(server, owner, callers)
    before = {"hold": Share.hold, "make": Share.make, "take": Share.take}

    def noting(name: str) -> Any:
        def note(share: Share, nbytes: int, **more: Any) -> Any:
            answer = before[name](share, nbytes, **more)
            made.peak = max(made.peak, memory.total)
            return answer

        return note

    for name in before:
        monkeypatch.setattr(Share, name, noting(name))
    yield made
    await server.stop()
    await owner.close()


async def session(stub: Any) -> messages.SessionRequest:
    opened = await stub.OpenSession(messages.OpenSessionRequest(timeout_ms=60_000))
    made: messages.SessionRequest = opened.session
    return made


def creation(whose: messages.SessionRequest, path: str, nbytes: int) -> messages.ExecuteRequest:
    node = messages.NewNode(path=path, data=bytes(nbytes))
    return messages.ExecuteRequest(session=whose, create=messages.Create(node=node))


async def test_large_requests_are_received_a_few_at_a_time(served: Served) -> None:
    async with served.channel() as channel:
        stub: Any = EmbeddedMetadataStub(channel)  # type: ignore[no-untyped-call]
        mine = await session(stub)
        async with asyncio.timeout(30):
            replies = await asyncio.gather(
                *(stub.Execute(creation(mine, f"/{number}", 2 * MB)) for number in range(40))
            )
        assert {reply.outcome.code for reply in replies} == {messages.OK}
        assert 4 * MB < served.peak <= LIMIT
        await until(lambda: served.memory.total == 0)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Execute(creation(mine, "/large", MAX_REQUEST_BYTES + 1))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not (await stub.Execute(messages.ExecuteRequest(session=mine, exists=messages.Read(path="/large")))).path


async def test_who_does_not_take_its_answers_makes_way(served: Served) -> None:
    async with served.channel() as channel, served.channel() as greedy:
        stub: Any = EmbeddedMetadataStub(channel)  # type: ignore[no-untyped-call]
        mine = await session(stub)
        await stub.Execute(creation(mine, "/a", 3 * MB))
        get = messages.ExecuteRequest(session=mine, get=messages.Read(path="/a"))
        execute: Any = greedy.unary_stream(EXECUTE)  # so that nothing is taken before it is asked for
        untaken = [execute(get.SerializeToString()) for _ in range(20)]

        def cut_off() -> bool:
            served.memory.relieve(time.perf_counter(), LIMIT)  # as if another one had waited for all there is
            return served.memory.cut_off > 0

        await until(cut_off)
        assert served.peak <= LIMIT, "answers were made for which there was no room"
        assert len((await stub.Execute(get)).data) == 3 * MB
        for call in untaken:
            call.cancel()
        await until(lambda: served.memory.total == 0)


async def test_a_client_of_oxia_that_does_not_take_its_answers_makes_way(served: Served) -> None:
    client = OxiaCalls(f"127.0.0.1:{served.server.port}")
    await client.put("/a", bytes(3 * MB))
    asked = oxia.RangeScanRequest(shard=0, start_inclusive="/", end_exclusive="//").SerializeToString()
    async with served.channel() as greedy:
        scan: Any = greedy.unary_stream(
            f"/{FORMER_SERVICE}/RangeScan"
        )  # so that nothing is taken before it is asked for
        untaken = [scan(asked) for _ in range(20)]

        def cut_off() -> bool:
            served.memory.relieve(time.perf_counter(), LIMIT)  # as if another one had waited for all there is
            return served.memory.cut_off > 0

        await until(cut_off)
        assert served.peak <= LIMIT, "answers were made for which there was no room"
        assert len((await client.get("/a")).value) == 3 * MB
        for call in untaken:
            call.cancel()
        await until(lambda: served.memory.total == 0)
    await client.close()


async def test_the_answers_of_a_scan_are_made_in_its_room(served: Served) -> None:
    client = OxiaCalls(f"127.0.0.1:{served.server.port}")
    await client.put("/a", bytes(3 * MB))
    gate, post = threading.Event(), asyncio.get_running_loop().create_task
    slow = post(served.owner._thread.post(lambda _: gate.wait(30)))
    scans = [post(client.scan("/", "//")) for _ in range(20)]
    await until(lambda: 2 * served.memory.total >= LIMIT)  # so many have room, and wait for the store
    gate.set()
    found = await asyncio.gather(*scans)
    await slow
    assert [len(record.value) for (record,) in found] == [3 * MB] * 20
    assert served.peak <= LIMIT
    await client.close()


async def test_streams_of_notifications_hold_no_room(served: Served) -> None:
    client = OxiaCalls(f"127.0.0.1:{served.server.port}")
    streams = [client.notifications() for _ in range(50)]
    for stream in streams:
        await stream.read()
    await until(lambda: served.memory.total == 0)
    await client.put("/a")
    assert [list((await stream.read()).notifications) for stream in streams] == [["/a"]] * 50
    for stream in streams:
        stream.cancel()
    await client.close()


async def test_a_slow_store_keeps_no_client_of_oxia_from_renewing_its_session(served: Served) -> None:
    gate, post = threading.Event(), asyncio.get_running_loop().create_task
    client = OxiaCalls(f"127.0.0.1:{served.server.port}")
    mine = await client.session()
    slow = post(served.owner._thread.post(lambda _: gate.wait(30)))
    try:
        reads = [post(client.get("/")) for _ in range(40)]
        await until(lambda: 2 * served.memory.total >= LIMIT)
        async with asyncio.timeout(10):
            await client.keep_alive(mine)
    finally:
        gate.set()
    await asyncio.gather(slow, *reads)
    await client.close()


async def test_a_slow_store_keeps_nobody_from_writing_or_renewing_a_session(served: Served) -> None:
    gate, post = threading.Event(), asyncio.get_running_loop().create_task
    async with served.channel() as channel:
        stub: Any = EmbeddedMetadataStub(channel)  # type: ignore[no-untyped-call]
        mine = await session(stub)
        store = served.owner._thread
        slow = post(store.post(lambda _: gate.wait(30)))
        try:
            writes = [stub.Execute(creation(mine, f"/{number}", 10)) for number in range(40)]
            await until(lambda: store.pending == 41)  # all are committed together
            get = messages.ExecuteRequest(session=mine, get=messages.Read(path="/"))
            reads = [stub.Execute(get) for _ in range(40)]
            await until(lambda: 2 * served.memory.total >= LIMIT)
            assert (await stub.Heartbeat(mine, timeout=10)).code == messages.OK
        finally:
            gate.set()
        await asyncio.gather(slow, *writes, *reads)
        await until(lambda: served.memory.total == 0)


async def test_renewals_that_say_nothing_hold_up_nobodys_and_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "SILENT_S", 30)
    heartbeat = EXECUTE.replace("Execute", "Heartbeat")
    async with served.channel() as channel, AsyncExitStack() as stack:
        stub: Any = EmbeddedMetadataStub(channel)  # type: ignore[no-untyped-call]
        mine = await session(stub)
        others = [await stack.enter_async_context(served.channel()) for _ in range(10)]
        silent = [other.stream_unary(heartbeat)() for other in others for _ in range(5)]
        await until(lambda: served.callers.receivers == len(silent))
        for _ in range(3):
            assert (await stub.Heartbeat(mine, timeout=10)).code == messages.OK
        monkeypatch.setattr(receiving, "SILENT_S", 0.05)
        ending: Any = others[0].stream_unary(heartbeat)()
        assert await ending.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        large = channel.unary_unary(heartbeat)(bytes(receiving.APART_BYTES + 1))
        assert await large.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert served.callers.cut_receivers(0) == len(silent), "should memory be short"
        assert {await call.code() for call in silent} <= {
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNAVAILABLE,
        }


async def test_a_call_whose_request_does_not_come_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "SILENT_S", 0.001)
    async with served.channel() as channel, asyncio.timeout(10):
        silent: Any = channel.stream_stream(EXECUTE)()
        assert await silent.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_client_as_it_is_works_as_ever(served: Served) -> None:
    service = await open_metadata_service(served.server.uri(), timeout=10)
    instance = await service.cluster.initialize()
    assert await service.cluster.instance_id() == instance
    await service.close()


@pytest.mark.parametrize(
    ("stream", "request_"),
    [
        ("GetNotifications", oxia.NotificationsRequest(shard=0)),
        ("GetShardAssignments", oxia.ShardAssignmentsRequest(namespace="default")),
        ("GetSequenceUpdates", oxia.GetSequenceUpdatesRequest(shard=0, key="/s")),
    ],
)
async def test_streams_of_one_client_keep_no_other_from_renewing_its_session_or_from_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str, request_: Any
) -> None:
    """Also of one that is silent on many of them, and has many connections."""
    monkeypatch.setattr(metadata_service, "CALLS", 10)
    owner = await EmbeddedOwner.open(str(tmp_path), OwnerLimits(sessions=20), keep_notices=True)
    callers = Callers(MemoryGovernor(LIMIT), Callers(MemoryGovernor(LIMIT // RENEWALS_SHARE)))
    server = EmbeddedMetadataServer(owner, bounds=serving_bounds(callers, 20))
    await server.start()
    served = Served(server, owner, callers)
    async with AsyncExitStack() as stack:
        client, channel = OxiaCalls(f"127.0.0.1:{server.port}"), await stack.enter_async_context(served.channel())
        stack.push_async_callback(client.close)
        stub: Any = EmbeddedMetadataStub(channel)  # type: ignore[no-untyped-call]
        number, mine = await client.session(60_000), await session(stub)
        notices = client.notifications()
        await notices.read()
        held: list[Any] = []
        for _ in range(4):
            greedy = await stack.enter_async_context(served.channel())
            call: Any = greedy.unary_stream(f"/{SERVICE}/{stream}")
            held += [call(request_.SerializeToString()) for _ in range(25)]
            await held[-1].initial_metadata()  # all of them are served now
        await client.keep_alive(number)
        assert (await stub.Heartbeat(mine)).code == messages.OK
        assert (await client.put("/a")).status == oxia.OK
        assert dict((await notices.read()).notifications).keys() == {"/a"}, "it was ended for none of theirs"
        for each in held:
            each.cancel()
        notices.cancel()
    await server.stop()
    await owner.close()


def test_renewals_of_sessions_are_answered_at_once() -> None:
    bounds = serving_bounds(Callers(MemoryGovernor(1 << 20)), 10)
    governed = next(each for each in bounds.interceptors if isinstance(each, GovernedCalls))
    assert {name.rpartition("/")[2] for name, places in governed._own.items() if places._at_once} == {
        "Heartbeat",
        "KeepAlive",
    }
