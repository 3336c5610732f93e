"""What only Oxia can do to its driver: shards, their sessions and leaders, the order of keys, writes without
transactions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.moving.moves import copy_cluster
from bookie_protocol.metadata_service.options import MetadataServiceOptions, SaslLogin
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection
from bookie_protocol.metadata_service.oxia.keys import CANARIES
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import connect_metadata_service, open_metadata_service
from tests.support.bookie_process import free_port
from tests.support.metadata_drivers import OxiaUnderTest, oxia_tree
from tests.support.metadata_examples import INFO, Recorded, W, ledger, listed
from tests.support.oxia import MISSING, OxiaCluster, OxiaServer, is_program
from tests.support.until import until

pytestmark = pytest.mark.oxia

ROOT = "/ledgers"
_namespaces = itertools.count()


@pytest.fixture
async def driver(oxia: OxiaServer) -> AsyncIterator[OxiaUnderTest]:
    made = OxiaUnderTest(oxia)
    yield made
    await made.close()


def own(folder: Path, *options: str) -> OxiaServer:
    if not is_program():
        pytest.skip(MISSING)
    server = OxiaServer(folder, options=options)
    server.start()
    return server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[OxiaServer]:
    """Of this test alone, which may do anything to it."""
    server = own(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaCluster]:
    if not is_program():
        pytest.skip(MISSING)
    made = OxiaCluster(tmp_path_factory.mktemp("oxia-cluster"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def namespace(cluster: OxiaCluster) -> str:
    name = f"test-{next(_namespaces)}"
    cluster.make_namespace(name)
    return name


async def opened(uri: str, timeout: float = 10.0) -> MetadataService:
    """Also where the namespace was made a moment ago, of which a server may not have heard."""
    async with asyncio.timeout(60):
        while True:
            try:
                service = await open_metadata_service(uri, timeout=timeout)
            except InvalidConfiguration as error:
                if "has no namespace" not in str(error):
                    raise
                await asyncio.sleep(0.1)
            except MetadataUnavailable:
                pass  # its shards have no leaders yet
            else:
                return service


async def until_renewed(service: MetadataService) -> None:
    """Until there is another session than now."""
    before = service.tree.session_id
    await until(
        lambda: service.tree.session_id != before and service.session.state is SessionState.CONNECTED, seconds=20
    )


# --- the namespace ----------------------------------------------------------------------------------------------


async def test_a_namespace_that_sorts_naturally_is_refused(tmp_path: Path) -> None:
    """Every listing there is empty, which must never read as: there are no ledgers."""
    server = own(tmp_path, "--key-sorting", "natural")
    try:
        with pytest.raises(InvalidConfiguration, match="--key-sorting") as caught:
            await open_metadata_service(server.uri(), timeout=5)
        assert "\n" not in str(caught.value)
    finally:
        server.stop()


async def test_a_namespace_without_notifications_is_refused(tmp_path: Path) -> None:
    server = own(tmp_path, "--notifications-enabled=false")
    try:
        with pytest.raises(InvalidConfiguration, match="--notifications"):
            await open_metadata_service(server.uri(), timeout=5)
    finally:
        server.stop()


async def test_a_namespace_that_does_not_exist_is_named(oxia: OxiaServer) -> None:
    with pytest.raises(InvalidConfiguration, match="nothing"):
        await open_metadata_service(f"metadata-store:oxia://{oxia.target}/nothing", timeout=5)


async def test_an_endpoint_that_is_down_is_passed_over(oxia: OxiaServer, driver: OxiaUnderTest) -> None:
    down = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    service = await opened(f"oxia://{down},{oxia.target}/default{driver.root}", 6.0)
    assert not await service.cluster.exists()
    await service.close()


async def test_credentials_that_oxia_does_not_know_are_refused(oxia: OxiaServer) -> None:
    login = MetadataServiceOptions(sasl=SaslLogin(username="me", password="s3cret"))
    with pytest.raises(InvalidConfiguration, match="metadataServiceTokenFile"):
        await connect_metadata_service(oxia.uri(), login)
    with pytest.raises(InvalidConfiguration, match="metadataServiceTlsEnable=true"):
        await open_metadata_service("oxia://far:6648/default", token_file="/token")


async def test_nodes_are_where_pulsar_has_them(driver: OxiaUnderTest, oxia: OxiaServer) -> None:
    service = await driver.open()
    await service.cluster.initialize(instance_id="an-id")
    await service.ledgers.create(ledger(1))
    await service.bookies.register("b:1", W, INFO)
    raw = OxiaConnection([oxia.target], "default")
    shards = await raw.shards(10)
    for path, is_ephemeral in (
        ("/INSTANCEID", False),
        ("/00/0000/L0001", False),
        ("/available/b:1", True),
    ):
        key = f"{driver.root}{path}"
        get = messages.GetRequest(key=key, include_value=True)
        (found,) = await raw.read(shards.shard_of(key), [get], 10)
        assert found.status == messages.OK
        assert found.version.HasField("session_id") is is_ephemeral
        assert path != "/INSTANCEID" or found.value == b"an-id"
    await raw.close()


async def test_numbers_are_those_of_pulsars_clients(driver: OxiaUnderTest, oxia: OxiaServer) -> None:
    """Both take the count of changes of the parent."""
    service = await driver.open()
    await service.cluster.initialize()
    assert await service.ledgers.generate_id() == 1
    raw = OxiaConnection([oxia.target], "default")
    key = f"{driver.root}/idgen"
    put = messages.WriteRequest(puts=[messages.PutRequest(key=key)])
    answer = await raw.write((await raw.shards(10)).shard_of(key), put, 10)
    assert answer.puts[0].version.modifications_count == 2
    assert await service.ledgers.generate_id() == 3
    await raw.close()


# --- sessions ---------------------------------------------------------------------------------------------------


async def test_a_write_of_a_session_that_ended_is_refused_before_it_was_heard(driver: OxiaUnderTest) -> None:
    service, other = await driver.open(timeout=30.0), await driver.open()
    await service.cluster.initialize()
    made = await service.ledgers.create(ledger(1))
    session = service.tree.session_id
    oxia_tree(service)._history._doubt = lambda: None  # the driver has not heard of it
    await driver.expire(service)
    with pytest.raises(SessionEnded):
        await service.ledgers.write(made.value.in_recovery(), made.identity, session_id=session)
    assert (await other.ledgers.read(1)).version == 0


async def test_sessions_of_all_shards_end_together(driver: OxiaUnderTest) -> None:
    """One shard ends its own. What the others hold goes before the end is told."""
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    names = [f"b:{number}" for number in range(24)]
    for name in names:
        await service.bookies.register(name, W, INFO)
    tree = oxia_tree(service)
    ids = dict(tree._open_sessions.ids)
    of_shard = {name: tree._connection.known.shard_of(f"{driver.root}/available/{name}") for name in names}
    assert set(of_shard.values()) == set(ids)
    seen: list[frozenset[str]] = []
    listing: asyncio.Task[None] | None = None

    async def look() -> None:
        seen.append((await other.bookies.list(W)).bookies)

    def listen(state: SessionState) -> None:
        nonlocal listing
        if state is SessionState.EXPIRED:
            listing = asyncio.create_task(look())

    service.session.add_listener(listen)
    lost = min(ids)
    await other.tree._tree._connection.close_session(lost, ids[lost], 10)  # type: ignore[attr-defined]
    await until_renewed(service)
    assert listing is not None
    await listing
    assert seen == [frozenset()]
    for name in names:
        await service.bookies.register(name, W, INFO)
    assert (await other.bookies.list(W)).bookies == set(names)


async def test_a_shard_that_drops_what_a_session_held_ends_it(driver: OxiaUnderTest) -> None:
    """Without an expiry: the session of the shard answers as before."""
    service, other = await driver.open(), await driver.open()
    sessions = oxia_tree(service)._open_sessions
    shard, key = next(iter(sessions._canaries.items()))
    delete = messages.WriteRequest(deletes=[messages.DeleteRequest(key=key)])
    recorded = Recorded(service.session)
    renewed = asyncio.create_task(until_renewed(service))
    await asyncio.sleep(0)
    await oxia_tree(other)._connection.write(shard, delete, 10)
    await renewed
    assert SessionState.EXPIRED in recorded.states


async def test_an_ephemeral_node_that_is_written_stays_with_its_session(driver: OxiaUnderTest) -> None:
    """A write that named no session would make it persistent."""
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    path = f"{driver.root}/available/b:1"
    await service.bookies.register("b:1", W, INFO)
    await service.tree.overwrite(path, b"ours")
    await other.tree.overwrite(path, b"another's")
    node = await other.tree.get(path)
    assert (node.data, node.stat.owner) == (b"another's", service.tree.session_id)
    gone = asyncio.Event()
    await other.tree.exists(path, watch=gone.set)
    await service.close()
    async with asyncio.timeout(10):
        await gone.wait()
    assert await other.tree.exists(path) is None


async def test_a_shorter_or_longer_time_out_than_oxia_takes_is_one_that_it_takes(oxia: OxiaServer) -> None:
    for wanted, taken in ((500, 2.0), (3_600_000, 300.0)):
        service = await opened(f"{oxia.uri()}?sessionTimeoutMillis={wanted}")
        assert service.session.expires_after == taken
        assert service.session.default_timeout / 3 < taken, "the pause between two renewals"
        await service.close()


async def test_canaries_are_in_no_listing_copy_or_backup(driver: OxiaUnderTest, own_server: OxiaServer) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    connection = oxia_tree(service)._connection
    canaries = [
        key
        for shard in connection.known.numbers
        for key in await connection.list(shard, f"{CANARIES}/", f"{CANARIES}//", 10)
    ]
    assert {key for key in canaries if oxia_tree(service)._open_sessions.is_canary(key)}
    assert not any(name.startswith(".") for name in (await service.tree.children("/")).names)
    target = await opened(own_server.uri())
    tally = await copy_cluster(service, target, lambda _: None)
    assert tally.nodes
    await target.cluster.nuke(instance_id=None, with_ledgers=True)
    assert not await target.cluster.exists()
    await target.close()


# --- servers ----------------------------------------------------------------------------------------------------


async def test_a_restart_is_ridden_out_and_no_change_is_missed(own_server: OxiaServer) -> None:
    service, writer = await opened(own_server.uri(), 8.0), await opened(own_server.uri(), 8.0)
    await service.cluster.initialize()
    await service.bookies.register("b:1", W, INFO)
    created = await writer.ledgers.create(ledger(1))
    recorded = Recorded(service.session)
    async with service.ledgers.watch(1) as changes:
        assert await anext(changes) is not None
        own_server.kill()
        own_server.start()
        await writer.ledgers.write(created.value.in_recovery(), created.identity, timeout=30)
        async with asyncio.timeout(30):
            found = await anext(changes)
    assert found is not None
    assert found.version == 1
    assert SessionState.EXPIRED not in recorded.states
    assert await writer.bookies.is_registered("b:1", W)
    assert service.session.went_back_to is None
    await service.close()
    await writer.close()


async def test_another_oxia_at_the_same_place_is_one_that_went_back(own_server: OxiaServer) -> None:
    service = await opened(own_server.uri(), 4.0)
    await service.cluster.initialize()
    for number in range(20):
        await service.ledgers.create(ledger(number))
    own_server.kill()
    own_server.forget()
    own_server.start()
    await until_renewed(service)
    assert service.session.went_back_to is not None
    with pytest.raises(MetadataNotFound, match="cluster at /ledgers"):
        await service.ledgers.read(1)
    await service.close()


async def test_a_shard_is_split_under_sessions_and_writers(cluster: OxiaCluster, namespace: str) -> None:
    service, writer = await opened(cluster.uri(namespace)), await opened(cluster.uri(namespace))
    await service.cluster.initialize()
    names = {f"b:{number}" for number in range(12)}
    for name in names:
        await service.bookies.register(name, W, INFO)
    recorded = Recorded(service.session)
    tree = oxia_tree(service)
    before = tree._connection.known.numbers
    written: list[int] = []

    async def write() -> None:
        while True:
            number = await writer.ledgers.generate_id(timeout=30)
            await writer.ledgers.create(ledger(number), timeout=30)
            written.append(number)

    writing = asyncio.create_task(write())
    await asyncio.to_thread(cluster.admin, "shard", "split", "--namespace", namespace, "--shard", str(min(before)))
    await until(lambda: len(tree._open_sessions.ids) > len(before), seconds=60)
    so_far = len(written)
    await until(lambda: len(written) >= so_far + 20, seconds=60)
    assert not writing.done()
    writing.cancel()
    await asyncio.wait([writing])
    assert SessionState.EXPIRED not in recorded.states
    assert (await writer.bookies.list(W)).bookies == names
    assert set(written) <= set(await listed(service))
    async with service.bookies.watch(W) as changes:
        await anext(changes)
        await writer.bookies.register("b:new", W, INFO)
        async with asyncio.timeout(20):
            while "b:new" not in (await anext(changes)).bookies:
                pass
    await service.close()
    await writer.close()


async def test_a_leader_that_dies_is_replaced(cluster: OxiaCluster, namespace: str) -> None:
    service = await opened(cluster.uri(namespace))
    await service.cluster.initialize()
    await service.bookies.register("b:1", W, INFO)
    recorded = Recorded(service.session)
    leaders = oxia_tree(service)._connection.known.leaders
    dead = leaders[min(leaders)]
    cluster.kill(dead)
    try:
        for number in range(20):
            await service.ledgers.create(ledger(number), timeout=30)
        assert await listed(service) == list(range(20))
        assert await service.bookies.is_registered("b:1", W)
        assert SessionState.EXPIRED not in recorded.states
        assert dead not in oxia_tree(service)._connection.known.leaders.values()
    finally:
        cluster.restart(dead)
    await service.close()


# --- what other services do in one step -------------------------------------------------------------------------


async def test_a_cluster_whose_making_was_interrupted_is_made_by_another_call(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was: without its instance id it is none, and nothing of it is taken for one."""
    service, other = await driver.open(), await driver.open()
    write = OxiaConnection.write
    for done in range(5):
        left = done

        async def interrupted(
            self: OxiaConnection, shard: int, request: messages.WriteRequest, timeout: float
        ) -> object:
            nonlocal left
            ours = [put for put in request.puts if put.key.startswith(driver.root)]
            if len(ours) <= left:
                left -= len(ours)
                return await write(self, shard, request, timeout)
            taken, left = ours[:left], 0
            if taken:
                await write(self, shard, messages.WriteRequest(puts=taken), timeout)
            raise MetadataUnavailable("interrupted")

        with monkeypatch.context() as patch:
            patch.setattr(OxiaConnection, "write", interrupted)
            with pytest.raises(MetadataUnavailable):
                await service.cluster.initialize()
        if done:
            assert await other.cluster.instance_id() is None
    made = await other.cluster.initialize()
    assert await service.cluster.instance_id() == made
    with pytest.raises(MetadataExists, match="cluster"):
        await service.cluster.initialize()


async def test_of_two_that_make_a_cluster_one_does(driver: OxiaUnderTest) -> None:
    one, two = await driver.open(), await driver.open()
    makers = [each.cluster.initialize(instance_id="same") for each in (one, two)]
    ended = await asyncio.gather(*makers, return_exceptions=True)
    assert [type(each) for each in ended if each != "same"] == [MetadataExists]
    assert await one.cluster.instance_id() == await two.cluster.instance_id() == "same"


async def test_a_root_with_anything_in_it_and_no_instance_id_is_not_made_a_cluster(driver: OxiaUnderTest) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    await service.ledgers.create(ledger(1))
    await service.tree.delete(f"{driver.root}/INSTANCEID")
    with pytest.raises(MetadataExists):
        await service.cluster.initialize()


async def test_a_child_that_is_made_while_its_parent_is_deleted_brings_it_back(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In no listing would it be found otherwise."""
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    parent = f"{driver.root}/p"
    await service.tree.create(parent, b"kept")
    delete = OxiaTree._delete

    async def overtaken(self: OxiaTree, *arguments: object) -> bool:
        monkeypatch.undo()
        await other.tree.create(f"{parent}/child")
        return await delete(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OxiaTree, "_delete", overtaken)
    with pytest.raises(MetadataNotEmpty):
        await service.tree.delete(parent)
    assert (await other.tree.get(parent)).data == b"kept"
    assert (await other.tree.children(parent)).names == ("child",)


async def test_a_node_whose_parent_is_deleted_while_it_is_made_is_taken_back(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    parent = f"{driver.root}/p"
    await service.tree.create(parent)
    put = OxiaTree._put

    async def overtaken(self: OxiaTree, *arguments: object) -> messages.PutResponse:
        monkeypatch.undo()
        await other.tree.delete(parent)
        return await put(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OxiaTree, "_put", overtaken)
    with pytest.raises(MetadataNotFound):
        await service.tree.create(f"{parent}/child")
    assert await other.tree.exists(parent) is None
    assert await other.tree.exists(f"{parent}/child") is None


async def test_a_sequential_node_that_was_overtaken_gets_a_later_name(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the auditor that was elected would see an older vote than its own."""
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    parent = f"{driver.root}/votes"
    await service.tree.create(parent)
    take = OxiaTree._take_number

    async def overtaken(self: OxiaTree, *arguments: object) -> int:
        number = await take(self, *arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        assert (await other.tree.create(f"{parent}/V_", sequential=True)).path.endswith("0000000002")
        return number

    monkeypatch.setattr(OxiaTree, "_take_number", overtaken)
    made = await service.tree.create(f"{parent}/V_", sequential=True)
    assert made.path.endswith("0000000003")
    assert set((await other.tree.children(parent)).names) == {"V_0000000002", "V_0000000003"}


async def test_a_node_that_was_made_again_between_look_and_write_is_not_changed(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    known = await service.cookies.create("b:1", b"one")
    meant = OxiaTree._meant

    async def overtaken(self: OxiaTree, *arguments: object) -> object:
        found = await meant(self, *arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        await other.cookies.delete("b:1")
        await other.cookies.create("b:1", b"two")
        return found

    for writes in (True, False):
        monkeypatch.setattr(OxiaTree, "_meant", overtaken)
        with pytest.raises(MetadataReplaced):
            if writes:
                await service.cookies.update("b:1", b"three", known)
            else:
                await service.cookies.delete_this("b:1", known)
        assert (await other.cookies.read("b:1")).value == b"two"
        await other.cookies.delete("b:1")
        known = await service.cookies.create("b:1", b"one")


async def test_a_listing_without_one_of_the_shards_is_an_error(driver: OxiaUnderTest) -> None:
    service = await driver.open()
    await service.cluster.initialize()
    connection = oxia_tree(service)._connection
    shards = connection.known
    lost = min(shards.numbers)
    connection._map = type(shards)(each for each in shards._shards if each.number != lost)
    with pytest.raises(ConnectionLost):
        await oxia_tree(service)._names(driver.root, lambda: 5.0)
    connection._map = shards
