"""What only etcd can do to its driver: leases, leaders, compactions, quotas, pages."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bookie_protocol.errors import (
    BadRequest,
    InvalidConfiguration,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    SessionEnded,
)
from bookie_protocol.metadata_service.etcd import etcd_pb2 as messages
from bookie_protocol.metadata_service.etcd import tree as etcd_tree
from bookie_protocol.metadata_service.etcd.keys import Keys
from bookie_protocol.metadata_service.etcd.operations import put
from bookie_protocol.metadata_service.etcd.tree import EtcdTree
from bookie_protocol.metadata_service.etcd.watches import Watched
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.bookie_process import free_port
from tests.support.etcd import EtcdServer
from tests.support.metadata_drivers import EtcdUnderTest
from tests.support.metadata_examples import INFO, Recorded, W, ledger, listed
from tests.support.until import until

pytestmark = pytest.mark.etcd


@pytest.fixture
async def driver(etcd: EtcdServer) -> AsyncIterator[EtcdUnderTest]:
    made = EtcdUnderTest(etcd)
    yield made
    await made.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """Of this test alone, which may do anything to it."""
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.stop()


async def opened(uri: str, timeout: float = 10.0) -> MetadataService:
    return await open_metadata_service(uri, timeout=timeout)


def tree_of(service: MetadataService) -> EtcdTree:
    tree = service.tree._tree
    assert isinstance(tree, EtcdTree)
    return tree


# --- sessions ---------------------------------------------------------------------------------------------------


async def test_a_write_of_a_session_that_ended_is_refused_by_etcd_itself(driver: EtcdUnderTest) -> None:
    """Before the client has heard of the end."""
    service, other = await driver.open(timeout=30.0), await driver.open()
    await service.cluster.initialize()
    made = await service.ledgers.create(ledger(1))
    session = service.tree.session_id
    await driver.expire(service)
    assert service.session.state is SessionState.CONNECTED
    with pytest.raises(SessionEnded):
        await service.ledgers.write(made.value.in_recovery(), made.identity, session_id=session)
    assert (await other.ledgers.read(1)).version == 0


async def test_a_registration_that_is_written_again_keeps_its_lease(driver: EtcdUnderTest) -> None:
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    await service.bookies.register("b:1", W, INFO)
    path = f"{driver.root}/available/b:1"
    await other.tree.overwrite(path, b"")
    assert (await other.tree.get(path)).stat.owner == service.tree.session_id
    await service.close()
    assert await other.tree.exists(path) is None


async def test_an_answer_to_a_renewal_says_nothing_about_the_history(
    driver: EtcdUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members fill it with what they know, which may be less than others have told."""
    service = await driver.open()
    await service.cluster.initialize()
    tree = tree_of(service)
    keep_alive, asked = tree._connection.keep_alive, asyncio.Event()

    async def late(lease: int, timeout: float) -> messages.LeaseKeepAliveResponse:
        answer = await keep_alive(lease, timeout)
        answer.header.revision = 1
        asked.set()
        return answer

    monkeypatch.setattr(tree._connection, "keep_alive", late)
    tree._in_doubt.set()
    await asked.wait()
    await service.cluster.exists()
    assert service.session.went_back_to is None


async def test_a_session_whose_key_was_deleted_is_replaced(driver: EtcdUnderTest, etcd: EtcdServer) -> None:
    service = await driver.open(timeout=3.0)
    await service.cluster.initialize()
    recorded = Recorded(service.session)
    etcd.control("del", "--prefix", f"{driver.root}/@/")
    await recorded.renewed(20)
    await service.bookies.register("b:1", W, INFO)


# --- members ----------------------------------------------------------------------------------------------------


async def test_the_leader_of_three_is_killed(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path, members=3)
    server.start()
    try:
        services = [await opened(server.uri(), 12.0) for _ in range(3)]
        await services[0].cluster.initialize()
        await services[0].bookies.register("b:1", W, INFO)
        sessions = [service.tree.session_id for service in services]
        ids: set[int] = set()

        async def work(service: MetadataService, first: int) -> None:
            for number in range(first, first + 40):
                made = await service.ledgers.create(ledger(number))
                await service.ledgers.write(made.value.in_recovery(), made.identity)
                ids.add(await service.ledgers.generate_id())

        leader = server.leader()
        working = [asyncio.create_task(work(service, 1000 * n)) for n, service in enumerate(services)]
        await until(lambda: len(ids) > 10)
        leader.kill()
        await asyncio.gather(*working)
        assert len(ids) == 120
        assert len(await listed(services[1])) == 120
        assert [service.tree.session_id for service in services] == sessions
        assert await services[1].bookies.is_registered("b:1", W)
        for service in services:
            await service.close()
    finally:
        server.stop()


async def test_without_a_leader_nobody_can_tell(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path, members=3)
    server.start()
    try:
        service = await opened(server.uri(), 4.0)
        await service.cluster.initialize()
        lost = server.members[:2]
        for member in lost:
            member.kill()
        for call in (service.ledgers.read(7), service.cookies.read("b:1"), listed(service), service.cluster.exists()):
            with pytest.raises(MetadataUnavailable):
                await call
        with pytest.raises(MetadataUnavailable, match="half"):
            await open_metadata_service(server.uri(), timeout=2.0)
        for member in lost:
            server.restart(member)
        async with asyncio.timeout(60):
            while True:
                try:
                    await service.ledgers.read(7)
                except MetadataUnavailable:
                    continue
                except MetadataNotFound:
                    break
        await service.close()
    finally:
        server.stop()


async def test_an_endpoint_that_is_down_is_passed_over(driver: EtcdUnderTest, etcd: EtcdServer) -> None:
    service = await opened(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()},{etcd.endpoints}{driver.root}", 6.0)
    assert not await service.cluster.exists()
    await service.close()


async def test_another_etcd_at_the_same_place_is_one_that_went_back(own_server: EtcdServer) -> None:
    service = await opened(own_server.uri(), 4.0)
    await service.cluster.initialize()
    for number in range(20):
        await service.ledgers.create(ledger(number))
    recorded = Recorded(service.session)
    (member,) = own_server.members
    member.kill()
    shutil.rmtree(member.folder)
    own_server.restart(member)
    await recorded.renewed(60)
    assert service.session.went_back_to is not None
    with pytest.raises(MetadataNotFound, match="cluster at /podkeeper"):
        await service.ledgers.read(1)
    await service.close()


# --- watches ----------------------------------------------------------------------------------------------------


async def test_a_watch_from_a_compacted_revision_fires(driver: EtcdUnderTest, etcd: EtcdServer) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    tree = tree_of(service)
    revision = service.session.position
    for _ in range(3):
        await service.tree.overwrite(driver.root, b"")
    etcd.control("compact", str(service.session.position))
    fired = asyncio.Event()
    tree._watches.add((Watched(Keys(driver.root).node(driver.root)),), revision, fired.set)
    async with asyncio.timeout(10):
        await fired.wait()
    assert len(tree._watches) == 0


async def test_watches_stand_again_after_a_restart_and_compaction(own_server: EtcdServer) -> None:
    reader, writer = await opened(own_server.uri(), 8.0), await opened(own_server.uri(), 8.0)
    await writer.cluster.initialize()
    created = await writer.ledgers.create(ledger(1))
    fired: list[str] = []
    for number in range(3):
        await writer.cookies.create(f"b:{number}", b"")
        path = f"/podkeeper/cookies/b:{number}"
        await reader.tree.get(path, watch=lambda path=path: fired.append(path))  # type: ignore[misc]
    async with reader.ledgers.watch(1) as changes, reader.bookies.watch(W) as bookies:
        assert await anext(changes) is not None
        assert (await anext(bookies)).bookies == frozenset()
        (member,) = own_server.members
        member.kill()
        own_server.restart(member)
        await writer.ledgers.write(created.value.in_recovery(), created.identity)
        own_server.control("compact", str(writer.session.position))
        await writer.bookies.register("b:1", W, INFO)
        async with asyncio.timeout(30):
            second = await anext(changes)
            assert (await anext(bookies)).bookies == {"b:1"}
        assert second is not None
        assert second.version == 1
    await writer.cookies.delete("b:1")
    await until(lambda: "/podkeeper/cookies/b:1" in fired)
    assert sum("_consume_request_iterator" in repr(task) for task in asyncio.all_tasks()) <= 2, "of streams that ended"
    for service in (reader, writer):
        await service.close()


async def test_what_changes_while_the_stream_is_broken_is_heard_and_the_rest_does_not_fire(
    own_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await opened(own_server.uri(), 8.0), await opened(own_server.uri(), 8.0)
    await writer.cluster.initialize()
    fired: list[int] = []
    for number in range(5):
        await writer.cookies.create(f"b:{number}", b"")
        await reader.tree.get(f"/podkeeper/cookies/b:{number}", watch=lambda n=number: fired.append(n))  # type: ignore[misc]
    tree = tree_of(reader)
    may_listen = asyncio.Event()
    listen = tree._watches.listen

    async def held(timeout: float) -> None:
        await may_listen.wait()
        await listen(timeout)

    monkeypatch.setattr(tree._watches, "listen", held)
    (member,) = own_server.members
    member.kill()
    own_server.restart(member)
    await writer.cookies.delete("b:3")
    assert fired == []
    may_listen.set()
    await until(lambda: fired == [3])
    await writer.cookies.delete("b:1")
    await until(lambda: fired == [3, 1])
    for service in (reader, writer):
        await service.close()


async def test_watches_hear_of_a_store_that_was_put_back(own_server: EtcdServer, tmp_path: Path) -> None:
    """Its revisions are smaller than those that they wait for."""
    reader, writer = await opened(own_server.uri(), 6.0), await opened(own_server.uri(), 6.0)
    await writer.cluster.initialize()
    own_server.control("snapshot", "save", str(tmp_path / "snapshot"))
    for number in range(100):
        await writer.tree.overwrite("/podkeeper", b"%d" % number)
    async with reader.bookies.watch(W) as bookies:
        assert (await anext(bookies)).bookies == frozenset()
        before = reader.session.position
        (member,) = own_server.members
        member.kill()
        shutil.rmtree(member.folder)
        own_server.put_back(member, tmp_path / "snapshot")
        async with asyncio.timeout(60):
            while True:
                try:
                    await writer.bookies.register("b:1", W, INFO)
                    break
                except MetadataUnavailable:
                    continue
            while (await anext(bookies)).bookies != {"b:1"}:
                pass
        assert (await writer.tree.get("/podkeeper")).data == b""
        went_back = reader.session.went_back_to
        assert went_back is not None
        assert went_back < before
    for service in (reader, writer):
        await service.close()


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_watch_that_is_cancelled_for_another_reason_stands_in_the_next_stream(
    driver: EtcdUnderTest, is_named: bool
) -> None:
    """etcd 3.4 names the watch that it refuses, newer ones say -1."""
    service = await driver.open()
    await service.cluster.initialize()
    watches = tree_of(service)._watches
    fired: list[int] = []
    await service.tree.get(driver.root, watch=lambda: fired.append(1))
    (number,) = watches._standing
    refused = number if is_named else -1
    with pytest.raises(ConnectionLost, match="token"):
        watches._hear(messages.WatchResponse(watch_id=refused, canceled=True, cancel_reason="invalid auth token"))
    assert (fired, len(watches)) == ([], 1)


# --- listings ---------------------------------------------------------------------------------------------------


async def many_children(service: MetadataService, path: str, number: int) -> None:
    keys, connection = Keys(service.root), tree_of(service)._connection
    await service.tree.ensure(path)
    for first in range(0, number, 100):
        puts = [put(keys.node(f"{path}/{each:06d}"), b"x" * 100) for each in range(first, first + 100)]
        await connection.txn(messages.TxnRequest(success=puts), 10)


async def test_ten_thousand_children_come_in_pages_of_one_moment(
    driver: EtcdUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    path = f"{driver.root}/many"
    await many_children(service, path, 10_000)
    tree = tree_of(service)
    page, pages = tree._page, 0

    async def overtaken(*arguments: object) -> messages.RangeResponse:
        nonlocal pages
        pages += 1
        await other.tree.create(f"{path}/1{pages}")
        await other.tree.delete(f"{path}/{9990 + pages:06d}")
        return await page(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tree, "_page", overtaken)
    assert sorted((await service.tree.children(path)).names) == [f"{each:06d}" for each in range(10_000)]
    assert pages == 4
    stat = await service.tree.exists(path)
    assert stat is not None
    assert stat.children == 10_000


async def test_a_listing_that_is_compacted_meanwhile_is_read_anew(
    driver: EtcdUnderTest, etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    path = f"{driver.root}/many"
    await many_children(service, path, 300)
    monkeypatch.setattr(etcd_tree, "PAGE", 100)
    tree = tree_of(service)
    page, pages = tree._page, 0

    async def compacted(*arguments: object) -> messages.RangeResponse:
        nonlocal pages
        pages += 1
        if pages == 2:
            await other.tree.create(f"{path}/new")
            etcd.control("compact", str(other.session.position))
        return await page(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tree, "_page", compacted)
    names = (await service.tree.children(path)).names
    assert len(names) == 301
    assert "new" in names


async def test_what_has_children_is_not_deleted_and_its_counter_goes_with_it(driver: EtcdUnderTest) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    tree = tree_of(service)
    parent = f"{driver.root}/parent"
    await service.tree.create(parent)
    made = [await tree.create(f"{parent}/n-", b"", sequential=True, timeout=5) for _ in range(3)]
    assert [each.path[-10:] for each in made] == ["0000000000", "0000000001", "0000000002"]
    assert (await tree.take_number(f"{parent}/n-", timeout=5))[0] == 3
    await service.tree.create(f"{parent}/n-0000000004")  # by hand
    assert (await tree.create(f"{parent}/n-", b"", sequential=True, timeout=5)).path.endswith("0000000005")
    for name in (await service.tree.children(parent)).names:
        await service.tree.delete(f"{parent}/{name}")
    await service.tree.delete(parent)
    await service.tree.create(parent)
    assert (await tree.create(f"{parent}/n-", b"", sequential=True, timeout=5)).path.endswith("0000000000")


# --- clusters ---------------------------------------------------------------------------------------------------


async def test_clusters_share_an_etcd_and_nothing_else(own_server: EtcdServer) -> None:
    services = [await opened(own_server.uri(root)) for root in ("/a", "/b", "/a/b")]
    instances = [await service.cluster.initialize() for service in services]
    for number, service in enumerate(services):
        await service.ledgers.create(ledger(number))
        await service.bookies.register(f"b:{number}", W, INFO)
    assert [await listed(service) for service in services] == [[0], [1], [2]]
    assert [(await service.bookies.list(W)).bookies for service in services] == [{"b:0"}, {"b:1"}, {"b:2"}]
    await services[0].bookies.unregister("b:0", W)
    with pytest.raises(InvalidConfiguration, match="changed"):
        await services[0].cluster.nuke(instance_id=instances[1], with_ledgers=True)
    await services[0].cluster.nuke(instance_id=instances[0], with_ledgers=True)
    assert not await services[0].cluster.exists()
    assert [await service.cluster.instance_id() for service in services[1:]] == instances[1:]
    await services[0].close()
    keys = own_server.control("get", "/a/", "--prefix", "--keys-only").split()
    assert [key for key in keys if not key.startswith("/a/b/")] == [], "a cluster leaves nothing behind"
    for service in services[1:]:
        await service.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_creation_whose_answer_is_lost_is_made_once(
    driver: EtcdUnderTest, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    service = await driver.open()
    connection = tree_of(service)._connection
    txn, lose = connection.txn, True

    async def lossy(request: messages.TxnRequest, timeout: float) -> messages.TxnResponse:
        nonlocal lose
        if len(request.success) < 5 or not lose:
            return await txn(request, timeout)
        lose = False
        if when == "after":
            await txn(request, timeout)
        raise ConnectionLost("lost")

    monkeypatch.setattr(connection, "txn", lossy)
    instance = await service.cluster.initialize()
    assert not lose
    assert await service.cluster.instance_id() == instance


async def test_a_cluster_comes_whole_or_not_at_all(driver: EtcdUnderTest) -> None:
    service = await driver.open()
    tree = tree_of(service)
    other = Keys(driver.root).node(f"{driver.root}/available/readonly")
    await tree._connection.txn(messages.TxnRequest(success=[put(other, b"")]), 5)
    with pytest.raises(MetadataExists):
        await service.cluster.initialize()
    assert not await service.cluster.exists()
    assert await service.tree.exists(f"{driver.root}/INSTANCEID") is None


async def test_nothing_is_made_beside_the_root(driver: EtcdUnderTest) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    beside = driver.root.rpartition("/")[0] + "/bookies"
    with pytest.raises(BadRequest):
        await service.tree.create(beside, b"{}")
    with pytest.raises(MetadataNotFound):
        await service.tree.get(beside)


# --- errors -----------------------------------------------------------------------------------------------------


async def test_a_full_etcd_says_so_and_serves_reads_and_deletions(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path, options=("--quota-backend-bytes", str(2 * 1024 * 1024)))
    server.start()
    try:
        service = await opened(server.uri())
        await service.cluster.initialize()
        await service.bookies.register("b:1", W, INFO)
        session = service.tree.session_id
        made = 0
        with pytest.raises(MetadataUnavailable, match=r"quota .*etcdctl") as caught:
            for made in range(100):
                await service.tree.create(f"/podkeeper/{made}", b"x" * 60_000)
        assert not isinstance(caught.value, ConnectionLost)
        assert made > 5
        assert len((await service.tree.get("/podkeeper/0")).data) == 60_000
        assert service.tree.session_id == session
        assert await service.bookies.is_registered("b:1", W)
        for number in range(made):
            await service.tree.delete(f"/podkeeper/{number}")
        server.control("compact", str(service.session.position))
        server.control("defrag")
        server.control("alarm", "disarm")
        await service.ledgers.create(ledger(1))
        await service.close()
    finally:
        server.stop()


async def test_what_is_no_etcd_is_not_taken_for_an_empty_one(driver: EtcdUnderTest) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        with pytest.raises(MetadataUnavailable, match="metadataServiceUri"):
            await open_metadata_service(f"etcd://127.0.0.1:{port}/podkeeper", timeout=1.0)
