"""Oxia's protocol over the embedded store, and the same tree through our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.embedded import notices, oxia_scan
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.oxia_service import OxiaServing
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia
from bookie_protocol.metadata_service.oxia.wire import FORMER_SERVICE, SERVICE
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.oxia_calls import NEW, OxiaCalls
from tests.support.until import until


class Served:
    """A store that is served, and opened again; its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner: EmbeddedOwner
        self.server: EmbeddedMetadataServer
        self.opened: list[OxiaCalls] = []

    async def start(self, namespaces: tuple[str, ...] = ("default", "pulsar")) -> None:
        self.owner = await EmbeddedOwner.open(str(self.folder), keep_notices=True)
        self.server = EmbeddedMetadataServer(self.owner, oxia=OxiaServing(namespaces))
        await self.server.start()

    async def stop(self) -> None:
        for calls in self.opened:
            await calls.close()
        self.opened.clear()
        await self.server.stop()
        await self.owner.close()

    def client(self, **options: Any) -> OxiaCalls:
        calls = OxiaCalls(f"127.0.0.1:{self.server.port}", **options)
        self.opened.append(calls)
        return calls

    async def ours(self) -> MetadataService:
        return await connect_local(self.owner, 10.0)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path / "store")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def client(served: Served) -> OxiaCalls:
    return served.client()


def reason(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(error)
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    return info.reason


# --- records ----------------------------------------------------------------------------------------------


async def test_versions_of_a_record(client: OxiaCalls) -> None:
    made = await client.put("/a", b"1", expected_version_id=NEW, client_identity="me")
    assert made.status == oxia.OK
    assert made.version.modifications_count == 0
    assert made.version.client_identity == "me"
    assert made.version.created_timestamp > 1_700_000_000_000
    assert not made.version.HasField("session_id")
    assert not made.HasField("key")
    assert (await client.put("/a", b"2", expected_version_id=NEW)).status == oxia.UNEXPECTED_VERSION_ID
    written = await client.put("/a", b"2", expected_version_id=made.version.version_id)
    assert written.version.modifications_count == 1
    assert written.version.created_timestamp == made.version.created_timestamp
    assert written.version.modified_timestamp >= made.version.modified_timestamp
    again = await client.put("/a", b"3", expected_version_id=made.version.version_id)
    assert again.status == oxia.UNEXPECTED_VERSION_ID
    found = await client.get("/a")
    assert (found.value, found.version) == (b"2", written.version)
    assert not found.HasField("key")
    (without,) = await client.gets(oxia.GetRequest(key="/a"))
    assert not without.HasField("value")
    assert await client.delete("/a", expected_version_id=made.version.version_id) == oxia.UNEXPECTED_VERSION_ID
    assert await client.delete("/a", expected_version_id=written.version.version_id) == oxia.OK
    assert await client.delete("/a") == oxia.KEY_NOT_FOUND
    assert await client.delete("/a", expected_version_id=1) == oxia.UNEXPECTED_VERSION_ID
    assert (await client.get("/a")).status == oxia.KEY_NOT_FOUND
    assert (await client.put("/a")).version.version_id not in (made.version.version_id, written.version.version_id)


async def test_a_key_needs_no_parents_and_has_none_that_show(client: OxiaCalls) -> None:
    await client.put("/a/b/c")
    assert await client.list() == ["/a/b/c"]
    assert (await client.get("/a/b")).status == oxia.KEY_NOT_FOUND
    assert await client.delete("/a/b") == oxia.KEY_NOT_FOUND
    made = await client.put("/a/b", b"1", expected_version_id=NEW)
    assert made.version.modifications_count == 0
    assert await client.list("/a/", "/a//") == ["/a/b"]
    assert await client.delete("/a/b", expected_version_id=made.version.version_id) == oxia.OK
    assert await client.list() == ["/a/b/c"]
    assert await client.delete("/a/b/c") == oxia.OK
    assert await client.list() == []


async def test_keys_that_are_no_paths(client: OxiaCalls) -> None:
    names = [".canary-1", "a", "/", "a/b", "/a", "//a", "/a/b"]
    for name in names:
        assert (await client.put(name, name.encode())).status == oxia.OK
    assert [(await client.get(name)).value for name in names] == [name.encode() for name in names]
    assert await client.list() == [".canary-1", "a", "a/b", "/", "/a", "/a/b", "//a"]


async def test_each_of_a_request_is_judged_by_itself(client: OxiaCalls) -> None:
    await client.put("/there")
    puts = [
        oxia.PutRequest(key="/there", expected_version_id=NEW),
        oxia.PutRequest(key="/new", expected_version_id=NEW, value=b"1"),
        oxia.PutRequest(key="/new", expected_version_id=NEW),
        oxia.PutRequest(key="/new", value=b"2"),
    ]
    deletes = [oxia.DeleteRequest(key="/there"), oxia.DeleteRequest(key="/there")]
    answer = await client.write(oxia.WriteRequest(puts=puts, deletes=deletes))
    statuses = [oxia.UNEXPECTED_VERSION_ID, oxia.OK, oxia.UNEXPECTED_VERSION_ID, oxia.OK]
    assert [put.status for put in answer.puts] == statuses
    assert answer.puts[3].version.modifications_count == 1
    assert [each.status for each in answer.deletes] == [oxia.OK, oxia.KEY_NOT_FOUND]
    assert (await client.get("/new")).value == b"2"


async def test_comparisons(client: OxiaCalls) -> None:
    for name in ("/a", "/c", "/e", "/c/x"):
        await client.put(name)

    async def found(key: str, kind: int) -> str | None:
        answer = await client.get(key, comparison_type=kind)
        return answer.key if answer.status == oxia.OK else None

    assert [await found("/c", kind) for kind in (oxia.FLOOR, oxia.CEILING)] == ["/c", "/c"]
    assert [await found("/c", kind) for kind in (oxia.LOWER, oxia.HIGHER)] == ["/a", "/e"]
    assert [await found("/d", kind) for kind in (oxia.FLOOR, oxia.LOWER)] == ["/c", "/c"]
    assert [await found("/d", kind) for kind in (oxia.CEILING, oxia.HIGHER)] == ["/e", "/e"]
    assert [await found("/e", kind) for kind in (oxia.HIGHER, oxia.EQUAL)] == ["/c/x", ""]
    assert [await found("/a", kind) for kind in (oxia.LOWER, oxia.FLOOR)] == [None, "/a"]
    assert [await found("/x/x", kind) for kind in (oxia.HIGHER, oxia.CEILING)] == [None, None]


async def test_ranges(client: OxiaCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oxia_scan, "ROWS", 3)
    names = [f"/p/{number:02d}" for number in range(10)]
    await client.write(oxia.WriteRequest(puts=[oxia.PutRequest(key=name, value=name.encode()) for name in names]))
    await client.put("/p/05/below")
    assert await client.list("/p/", "/p//") == names
    assert await client.list("/p/03", "/p/05") == ["/p/03", "/p/04"]
    assert [(each.key, each.value) for each in await client.scan("/p/08", "/p//")] == [
        ("/p/08", b"/p/08"),
        ("/p/09", b"/p/09"),
    ]
    ranges = [oxia.DeleteRangeRequest(start_inclusive="/p/01", end_exclusive="/p/09")]
    answer = await client.write(oxia.WriteRequest(delete_ranges=ranges))
    assert [each.status for each in answer.delete_ranges] == [oxia.OK]
    assert await client.list() == ["/p/00", "/p/09", "/p/05/below"]


async def test_sequences(client: OxiaCalls) -> None:
    asked = {"sequence_key_delta": [1], "partition_key": "p"}
    puts = [oxia.PutRequest(key="/s", **asked) for _ in range(2)]
    answer = await client.write(oxia.WriteRequest(puts=puts))
    assert [put.key for put in answer.puts] == ["/s-00000000000000000001", "/s-00000000000000000002"]
    growing = client.many(
        "GetSequenceUpdates", oxia.GetSequenceUpdatesRequest(key="/s"), oxia.GetSequenceUpdatesResponse
    )
    assert (await growing.read()).highest_sequence_key == "/s-00000000000000000002"
    made = await client.put("/s", sequence_key_delta=[5, 7], partition_key="p")
    assert made.key == "/s-00000000000000000007-00000000000000000007"
    assert (await growing.read()).highest_sequence_key == made.key
    growing.cancel()
    refused = await client.put("/s", expected_version_id=1, **asked)
    assert refused.status == oxia.UNEXPECTED_VERSION_ID
    for wrong in ({"sequence_key_delta": [1]}, {"sequence_key_delta": [0], "partition_key": "p"}, asked):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.put("/s", **wrong)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_secondary_indexes(client: OxiaCalls) -> None:
    async def put(key: str, *secondary: str) -> None:
        entries = [oxia.SecondaryIndex(index_name="i", secondary_key=each) for each in secondary]
        await client.put(key, key.encode(), secondary_indexes=entries)

    await put("/r/a", "/r/3")
    await put("/r/b", "/r/1", "/r/2")
    await put("/r/c", "/r/3")
    assert await client.list("/r/1", "/r/3~", secondary_index_name="i") == ["/r/b", "/r/b", "/r/a", "/r/c"]
    assert await client.list("/r/2", "/r/3", secondary_index_name="i") == ["/r/b"]
    assert [each.value for each in await client.scan("/r/3", "", secondary_index_name="i")] == [b"/r/a", b"/r/c"]

    async def found(key: str, kind: int) -> tuple[str, str]:
        answer = await client.get(key, comparison_type=kind, secondary_index_name="i")
        return answer.key, answer.secondary_index_key

    assert await found("/r/2", oxia.EQUAL) == ("/r/b", "/r/2")
    assert await found("/r/2", oxia.LOWER) == ("/r/b", "/r/1")
    assert await found("/r/2", oxia.HIGHER) == ("/r/a", "/r/3")
    assert await found("/r/25", oxia.FLOOR) == ("/r/b", "/r/2")
    assert await found("/r/25", oxia.CEILING) == ("/r/a", "/r/3")
    assert await found("/r/25", oxia.EQUAL) == ("", "")
    assert await found("/r/1", oxia.LOWER) == ("", "")
    await put("/r/b", "/r/9")
    await client.delete("/r/a")
    assert await client.list("", "", secondary_index_name="i") == ["/r/c", "/r/b"]
    assert await client.list("", "", secondary_index_name="other") == []


async def test_a_stream_of_writes_is_answered_in_order(client: OxiaCalls) -> None:
    async def requests() -> AsyncIterator[oxia.WriteRequest]:
        for number in range(20):
            yield oxia.WriteRequest(puts=[oxia.PutRequest(key=f"/n{number}", value=b"%d" % number)])

    answers = [each async for each in client.write_stream(requests(), "pulsar")]
    assert [each.puts[0].status for each in answers] == [oxia.OK] * 20
    assert (await client.get("/n7")).value == b"7"


# --- sessions ---------------------------------------------------------------------------------------------


async def test_a_session_takes_its_records_along(served: Served, client: OxiaCalls) -> None:
    session = await client.session()
    made = await client.put("/e/x", session_id=session, client_identity="me")
    assert made.version.session_id == session
    await client.put("/e/x/below", session_id=session)
    await client.put(".canary", session_id=session)
    await client.put("/kept", session_id=session)
    await client.put("/kept")  # without the session, so it stays
    await client.keep_alive(session)
    await client.close_session(session)
    assert await client.list() == ["/kept"]
    assert not (await client.get("/kept")).version.HasField("session_id")
    for call in (client.keep_alive(session), client.close_session(session)):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        assert raised.value.details() == "oxia: session not found"
        assert reason(raised.value) == "SESSION_NOT_FOUND"
    assert (await client.put("/e", session_id=session)).status == oxia.SESSION_DOES_NOT_EXIST
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.session(1_000)
    assert reason(raised.value) == "INVALID_SESSION_TIMEOUT"


async def test_a_session_ends_when_it_is_not_kept_alive(client: OxiaCalls) -> None:
    session = await client.session(2_000)
    await client.put("/e", session_id=session)
    told = client.notifications()
    await told.read()
    assert dict((await told.read()).notifications) == {"/e": oxia.Notification(type=oxia.KEY_DELETED)}
    told.cancel()


async def test_sessions_of_our_own_clients_are_not_theirs(served: Served, client: OxiaCalls) -> None:
    ours = await served.ours()
    await ours.tree.create("/e", b"", ephemeral=True)
    session = (await client.get("/e")).version.session_id
    assert session == ours.tree.session_id
    for call in (client.keep_alive(session), client.close_session(session)):
        with pytest.raises(grpc.aio.AioRpcError):
            await call
    assert (await client.put("/f", session_id=session)).status == oxia.SESSION_DOES_NOT_EXIST
    await ours.close()
    assert (await client.get("/e")).status == oxia.KEY_NOT_FOUND


async def test_sessions_and_records_outlive_the_process(served: Served) -> None:
    client = served.client()
    session = await client.session()
    entries = [oxia.SecondaryIndex(index_name="i", secondary_key="1")]
    made = await client.put("/a/b", b"1", session_id=session, client_identity="me", secondary_indexes=entries)
    await served.stop()
    await served.start()
    client = served.client()
    assert (await client.get("/a/b")).version == made.version
    assert await client.list("", "", secondary_index_name="i") == ["/a/b"]
    await client.keep_alive(session)
    await client.close_session(session)
    assert await client.list() == []


# --- what changed -----------------------------------------------------------------------------------------


def told(batch: oxia.NotificationBatch) -> dict[str, int]:
    return {key: notice.type for key, notice in batch.notifications.items()}


async def test_notices_of_all_clients(served: Served, client: OxiaCalls) -> None:
    stream = client.notifications()
    first = await stream.read()
    assert told(first) == {}
    made = await client.put("/a/b")
    batch = await stream.read()
    assert dict(batch.notifications) == {
        "/a/b": oxia.Notification(type=oxia.KEY_CREATED, version_id=made.version.version_id)
    }
    assert batch.offset > first.offset
    ours = await served.ours()
    await ours.tree.create("/ours", b"")
    await ours.tree.set("/ours", b"1", None)
    await client.write(
        oxia.WriteRequest(delete_ranges=[oxia.DeleteRangeRequest(start_inclusive="/", end_exclusive="//")])
    )
    assert told(await stream.read()) == {"/ours": oxia.KEY_CREATED}
    assert told(await stream.read()) == {"/ours": oxia.KEY_MODIFIED}
    ranged = await stream.read()
    assert dict(ranged.notifications) == {"/": oxia.Notification(type=oxia.KEY_RANGE_DELETED, key_range_last="//")}
    stream.cancel()
    await ours.close()
    again = client.notifications(batch.offset)
    assert told(await again.read()) == {"/ours": oxia.KEY_CREATED}
    again.cancel()


async def test_the_id_of_a_session_is_its_place_among_the_notices(served: Served) -> None:
    client = served.client()
    await client.put("/before")
    session = await client.session()
    stream = client.notifications()
    assert (await stream.read()).offset == session
    stream.cancel()
    await client.put("/after")
    await served.stop()
    await served.start()
    stream = served.client().notifications(session)
    assert told(await stream.read()) == {"/after": oxia.KEY_CREATED}
    stream.cancel()


async def test_notices_outlive_the_process(served: Served) -> None:
    client = served.client()
    stream = client.notifications()
    first = await stream.read()
    for number in range(5):
        await client.put(f"/{number}")
    await served.stop()
    await served.start()
    client = served.client()
    stream = client.notifications(first.offset)
    assert [told(await stream.read()) for _ in range(5)] == [{f"/{number}": oxia.KEY_CREATED} for number in range(5)]
    await client.delete("/0")
    last = await stream.read()
    assert told(last) == {"/0": oxia.KEY_DELETED}
    stream.cancel()


async def test_notices_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "KEPT_BATCHES", 10)
    monkeypatch.setattr(notices, "BATCH_NOTICES", 4)
    served = Served(tmp_path / "store")
    await served.start()
    client = served.client()
    await client.write(oxia.WriteRequest(puts=[oxia.PutRequest(key=f"/{number}") for number in range(10)]))
    stream = client.notifications(0)
    assert [len((await stream.read()).notifications) for _ in range(3)] == [4, 4, 2]
    for number in range(30):
        await client.put(f"/n{number}")
    await served.stop()
    await served.start()
    stream = served.client().notifications(0)
    assert [told(await stream.read()) for _ in range(10)] == [{f"/n{n}": oxia.KEY_CREATED} for n in range(20, 30)]
    stream.cancel()
    await served.stop()


async def test_our_watches_see_what_they_write(served: Served, client: OxiaCalls) -> None:
    ours = await served.ours()
    fired = asyncio.Queue[str]()

    def watch(name: str) -> Callable[[], None]:
        return lambda: fired.put_nowait(name)

    await ours.tree.create("/a", b"")
    await ours.tree.children("/a", watch=watch("children"))
    await ours.tree.exists("/a/b", watch=watch("exists"))
    await client.put("/a/b", b"1")
    assert {await fired.get(), await fired.get()} == {"children", "exists"}
    node = await ours.tree.get("/a/b", watch=watch("get"))
    assert node.data == b"1"
    await client.put("/a/b", b"2")
    assert await fired.get() == "get"
    await client.delete("/a/b")
    with pytest.raises(MetadataNotFound):
        await ours.tree.get("/a/b")
    await ours.close()


# --- ids --------------------------------------------------------------------------------------------------


async def test_ids_of_ledgers_are_never_given_twice(served: Served, client: OxiaCalls) -> None:
    """Pulsar's ids are the modifications of a node, ours the numbers of sequential nodes below it."""
    ours = await served.ours()
    await ours.tree.create("/idgen", b"")
    given = []
    for number in range(30):
        if number % 3:
            taken, node = await ours.tree.take_number("/idgen/ID-")
            assert node is not None
            await ours.tree.delete(node)
            given.append(taken)
        else:
            given.append((await client.put("/idgen")).version.modifications_count)
    assert len(set(given)) == 30
    assert given == sorted(given)
    await ours.close()


async def test_copies_keep_their_versions(client: OxiaCalls) -> None:
    made = await client.put("/a", override_version_id=12345, override_modifications_count=7)
    assert (made.version.version_id, made.version.modifications_count) == (12345, 7)
    written = await client.put("/a", expected_version_id=12345)
    assert written.version.modifications_count == 8
    assert written.version.version_id != 12345


# --- who asks for what ------------------------------------------------------------------------------------


async def test_the_shard_of_each_namespace(served: Served) -> None:
    for service in (SERVICE, FORMER_SERVICE):
        client = served.client(service=service)
        for namespace in ("default", "pulsar"):
            stream = client.many(
                "GetShardAssignments", oxia.ShardAssignmentsRequest(namespace=namespace), oxia.ShardAssignments
            )
            (shard,) = (await stream.read()).namespaces[namespace].assignments
            assert shard.leader == f"127.0.0.1:{served.server.port}"
            assert (shard.shard, shard.int32_hash_range.max_hash_inclusive) == (0, 2**32 - 1)
            stream.cancel()
        stream = client.many("GetShardAssignments", oxia.ShardAssignmentsRequest(namespace="x"), oxia.ShardAssignments)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await anext(aiter(stream))
        assert raised.value.details() == "oxia: namespace not found"
        assert reason(raised.value) == "NAMESPACE_NOT_FOUND"


async def test_another_shard_is_an_error(client: OxiaCalls) -> None:
    async def nothing() -> AsyncIterator[oxia.WriteRequest]:
        yield oxia.WriteRequest()

    calls = (
        client.many("List", oxia.ListRequest(shard=1), oxia.ListResponse),
        client.many("List", oxia.ListRequest(), oxia.ListResponse),
        client.many("GetNotifications", oxia.NotificationsRequest(shard=7), oxia.NotificationBatch),
        client.write_stream(nothing(), shard="x"),
        client.write_stream(nothing(), namespace="x"),
    )
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await anext(aiter(call))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "put",
    [
        {"key": ""},
        {"key": "/a//"},
        {"key": "a\0b"},
        {"key": "/x" * 65},
        {"key": "x" * 8193},
        {"key": "__oxia/x"},
        {"key": "/a", "client_identity": "x" * 600},
        {"key": "/a", "override_version_id": -5},
        {"key": "/a", "secondary_indexes": [oxia.SecondaryIndex(index_name="i")] * 17},
        {"key": "/a", "secondary_indexes": [oxia.SecondaryIndex(index_name="\0")]},
    ],
)
async def test_what_no_record_may_be(client: OxiaCalls, put: dict[str, Any]) -> None:
    good = oxia.PutRequest(key="/good")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.write(oxia.WriteRequest(puts=[good, oxia.PutRequest(**put)]))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await client.list() == []


async def test_large_requests_are_refused_before_anything_is_written(client: OxiaCalls) -> None:
    deep = "/" + "/".join(["x" * 120] * 60)
    for asked in (
        oxia.WriteRequest(puts=[oxia.PutRequest(key=f"{deep}/{number}") for number in range(60)]),
        oxia.WriteRequest(deletes=[oxia.DeleteRequest(key="/a")] * 10_001),
        oxia.WriteRequest(delete_ranges=[oxia.DeleteRangeRequest()] * 101),
        oxia.WriteRequest(delete_ranges=[oxia.DeleteRangeRequest(start_inclusive="x" * 9000)]),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.write(asked)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for gets in ([oxia.GetRequest(key="x" * 9000)], [oxia.GetRequest(key="x")] * 10_001):
        with pytest.raises(grpc.aio.AioRpcError):
            await client.gets(*gets)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.list("x" * 9000)


async def test_many_large_values_come_in_parts(client: OxiaCalls) -> None:
    await client.put("/a", bytes(600_000))
    asked = oxia.ReadRequest(shard=0, gets=[oxia.GetRequest(key="/a", include_value=True)] * 7)
    parts = [len(part.gets) async for part in client.many("Read", asked, oxia.ReadResponse)]
    assert parts == [2, 2, 2, 1]


async def test_streams_end_with_the_server(served: Served) -> None:
    client = served.client()
    stream = client.many(
        "GetShardAssignments", oxia.ShardAssignmentsRequest(namespace="default"), oxia.ShardAssignments
    )
    await stream.read()
    notices_ = client.notifications()
    await notices_.read()
    await served.server.stop()
    await until(stream.done)
    await until(notices_.done)
