"""What only the ZooKeeper driver has: its server's restarts, its access lists, kazoo's threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Create2
from kazoo.protocol.states import KazooState
from kazoo.security import OPEN_ACL_UNSAFE

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerLayout, SessionState, Versioned
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.flag_reader import FlagReader, Listing
from bookie_protocol.metadata_service.migrating.lines import Lines
from bookie_protocol.metadata_service.migrating.proofs import Proofs, ProvingWatch
from bookie_protocol.metadata_service.options import MetadataTls, SaslLogin, SaslMechanism
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.metadata_service.zookeeper.client import Client, MultiRead
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from tests.support import zookeeper as zookeeper_support
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.metadata_examples import INFO, ledger
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def server_of_this_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(str(tmp_path_factory.mktemp("own")))
    yield server
    server.stop()


@pytest.fixture
def own_server(server_of_this_module: ZooKeeperServer) -> ZooKeeperServer:
    """A server that a test may stop, which answers; tests take roots of their own."""
    if not server_of_this_module.is_running:
        server_of_this_module.start()
    return server_of_this_module


@pytest.fixture
def raw(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


async def test_many_reads_at_once_are_few_requests_and_each_has_its_own_outcome(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await open_metadata_service(zookeeper.uri(), timeout=30)
    await service.cluster.initialize()
    await asyncio.gather(*(service.ledgers.create(ledger(i)) for i in range(0, 200, 2)))
    asked: list[object] = []
    ask = Client._call

    def noting(client: Client, request: object, result: object) -> None:
        asked.append(request)
        ask(client, request, result)

    monkeypatch.setattr(Client, "_call", noting)
    try:
        found = await asyncio.gather(*(service.ledgers.read(i) for i in range(200)), return_exceptions=True)
    finally:
        await service.close()
    assert sum(len(request.paths) for request in asked if isinstance(request, MultiRead)) == 200
    # Each ledger that is missing is followed by the question whether the cluster is there at all.
    assert sum(isinstance(request, MultiRead) for request in asked) < 10
    for number, outcome in enumerate(found):
        if number % 2:
            assert isinstance(outcome, MetadataNotFound), number
        else:
            assert isinstance(outcome, Versioned)
            assert outcome.value.ledger_id == number


class CreateContainer(Create2):
    """The request for a node that ZooKeeper deletes when its last child has gone. kazoo has no call for it."""

    type = 19


async def test_container_node_belongs_to_no_session(zookeeper: ZooKeeperServer, raw: KazooClient) -> None:
    """Pulsar makes the parents of its nodes so. A node with an owner would count as the ephemeral one of a process."""
    created = raw.handler.async_result()
    raw._call(CreateContainer("/container", b"", OPEN_ACL_UNSAFE, 4), created)
    await asyncio.to_thread(created.get, 30)
    raw.create("/container/child", b"", ephemeral=True)
    tree = ZooKeeperTree(zookeeper.hosts, 30)
    await tree.connect()
    try:
        container, child = [await tree.exists(path, timeout=30) for path in ("/container", "/container/child")]
    finally:
        await tree.close()
        raw.delete("/container", recursive=True)
    assert container is not None
    assert child is not None
    assert (container.owner, child.owner) == (0, raw.client_id[0])


async def test_nodes_are_deleted_only_while_another_one_has_its_version(
    zookeeper: ZooKeeperServer, raw: KazooClient
) -> None:
    for path in ("/while/flag", "/while/a", "/while/b"):
        raw.create(path, b"", makepath=True)
    raw.set("/while/flag", b"")
    tree = ZooKeeperTree(zookeeper.hosts, 30)
    await tree.connect()

    async def delete(paths: list[str], checked: str, version: int, session_id: int = 0) -> None:
        await tree.delete_while(paths, checked, version, session_id=session_id or tree.session_id, timeout=30)

    try:
        with pytest.raises(MetadataVersionConflict):
            await delete(["/while/a", "/while/b"], "/while/flag", 0)
        with pytest.raises(MetadataNotFound):
            await delete(["/while/a", "/while/none"], "/while/flag", 1)
        with pytest.raises(MetadataNotFound):
            await delete(["/while/a"], "/while/none", 1)
        with pytest.raises(SessionEnded):
            await delete(["/while/a"], "/while/flag", 1, tree.session_id - 1)
        assert sorted(raw.get_children("/while")) == ["a", "b", "flag"]
        await delete(["/while/a", "/while/b"], "/while/flag", 1)
        assert raw.get_children("/while") == ["flag"]
    finally:
        await tree.close()


async def test_listings_tell_a_flag_that_has_come_and_gone_from_other_nodes(
    zookeeper: ZooKeeperServer, raw: KazooClient
) -> None:
    tree = ZooKeeperTree(zookeeper.hosts, 30)
    await tree.connect()

    async def always(_: float) -> bool:
        return True

    path = f"/told-apart{flag.FLAG}"
    watch = ProvingWatch(Proofs(), lambda: None)
    reader = FlagReader(tree, path, watch, always, Lines())
    found: list[Listing | None] = [await reader.listing(30)]

    async def is_shown(change: Callable[[], object]) -> bool:
        await asyncio.to_thread(change)
        await tree.sync("/", timeout=30)
        found.append(await reader.listing(30))
        assert found[-2] is not None
        return found[-2].shows_no_flag_until(found[-1])

    def come_and_go() -> None:
        raw.create(path, b"")
        raw.delete(path)

    def make_again() -> None:
        raw.delete(participants)
        raw.create(participants, b"")

    participants = f"/told-apart{flag.PARTICIPANTS}"
    try:
        assert await is_shown(lambda: raw.create(participants, b"", makepath=True))
        assert await is_shown(make_again)
        assert await is_shown(lambda: raw.create(f"{path}-another", b""))
        assert not await is_shown(come_and_go)
        assert await is_shown(lambda: raw.create(path, b""))
    finally:
        await tree.close()


async def test_what_is_ours_while_nobody_answers(own_server: ZooKeeperServer) -> None:
    """The session lives on without a connection, and so do its nodes: nobody may be told that they are gone."""
    uri = own_server.uri("/while-nobody-answers")
    service = await open_metadata_service(uri, timeout=30)
    other = await open_metadata_service(uri, timeout=30)
    await service.cluster.initialize()
    for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY):
        await service.bookies.register("b:1", group, INFO)
    locks, session_id = service.under_replication, service.tree.session_id
    await locks.mark(7, ["b:9"], ctime_ms=1)
    lock = await locks.lock(7)
    office = await service.auditor_election.elect("b:1")
    down = asyncio.Event()
    service.session.add_listener(lambda state: down.set() if state is SessionState.SUSPENDED else None)
    own_server.stop()
    await down.wait()
    assert service.tree.session_id == lock.session_id == session_id
    outcomes = await asyncio.gather(
        locks.release(lock, timeout=0.2),
        service.bookies.unregister("b:1", BookieGroup.WRITABLE, timeout=0.2),
        locks.lock(8, timeout=0.2),
        return_exceptions=True,
    )
    assert outcomes[0] is None  # a release goes on in the background
    assert [type(outcome) for outcome in outcomes[1:]] == [MetadataUnavailable] * 2
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(office.resign(), 0.2)
    with pytest.raises(MetadataExists, match="process"):
        await locks.lock(7, timeout=0.2)  # nobody here takes it before the old lock is gone
    own_server.start()
    async with asyncio.timeout(30):
        successor = await other.auditor_election.elect("b:2")
        assert successor.bookie_id == "b:2"
        for taker in (other.under_replication, service.under_replication):
            await taker.release(await taker.acquire())
        assert await other.under_replication.locks() == {}
    assert service.tree.session_id == session_id
    await service.bookies.unregister("b:1", BookieGroup.WRITABLE)
    assert not await other.bookies.is_registered("b:1", BookieGroup.WRITABLE)
    await other.close()
    await service.close()


async def test_a_start_that_is_cancelled_leaves_no_thread() -> None:
    before = threading.enumerate()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await open_metadata_service(f"zk+null://127.0.0.1:{free_port()}/ledgers", timeout=30)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in left if not name.startswith("asyncio")] == []  # but for the loop's own pool


async def test_a_new_session_is_tried_for_until_it_can_be_begun(
    own_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_protocol.metadata_service.zookeeper.driver.LONGEST_RECONNECT_PAUSE", 0.05)
    tree = ZooKeeperTree(own_server.hosts, 10)
    await tree.connect()
    refusals = [OSError("too many open files"), RuntimeError("can't start new thread")]
    start = tree._client.start_async

    def begin() -> object:
        if refusals:
            raise refusals.pop()
        return start()

    monkeypatch.setattr(tree._client, "start_async", begin)
    lost = asyncio.Event()
    tree.session.add_listener(lambda state: lost.set() if state is SessionState.EXPIRED else None)
    await asyncio.to_thread(tree._client.stop)  # as after a refused login: kazoo's connection thread ends
    async with asyncio.timeout(30):
        await lost.wait()
        assert await tree.exists("/", timeout=30) is not None
    assert refusals == []
    await tree.close()


async def test_a_restarted_server_costs_neither_session_nor_error(own_server: ZooKeeperServer) -> None:
    service = await open_metadata_service(own_server.uri("/restarted"), timeout=10)
    await service.cluster.initialize()
    await service.bookies.register("b:1", BookieGroup.WRITABLE, INFO)
    states: list[SessionState] = []
    service.session.add_listener(states.append)
    async with service.bookies.watch(BookieGroup.WRITABLE) as changes:
        assert (await anext(changes)).bookies == {"b:1"}
        own_server.stop()
        creating = asyncio.create_task(service.ledgers.create(ledger(1), timeout=30))
        reading = asyncio.create_task(service.cluster.instance_id(timeout=30))
        await asyncio.to_thread(own_server.start)
        assert (await creating).version == 0
        assert await reading is not None
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        await service.bookies.register("b:2", BookieGroup.WRITABLE, INFO)
        async with asyncio.timeout(10):
            assert (await anext(changes)).bookies == {"b:1", "b:2"}
    await service.close()


async def test_a_connection_that_a_starting_server_never_answers_does_not_cost_the_session(
    zookeeper: ZooKeeperServer,
) -> None:
    """Of connections to it the first is accepted and never answered."""
    silent = list[asyncio.StreamWriter]()
    passing = list["asyncio.Future[object]"]()
    host, _, port = zookeeper.hosts.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not silent:
            silent.append(writer)
            return
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        both = asyncio.gather(_pass_on(reader, server_writer), _pass_on(server_reader, writer))
        passing.append(both)
        await both

    async with await asyncio.start_server(serve, "127.0.0.1") as front:
        tree = ZooKeeperTree(f"127.0.0.1:{front.sockets[0].getsockname()[1]}", 8)
        began = asyncio.get_running_loop().time()
        await tree.connect()
        assert asyncio.get_running_loop().time() - began < 6
        assert silent
        await tree.close()
        silent[0].close()
        await asyncio.wait(passing)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def test_closing_while_nobody_answers_ends(own_server: ZooKeeperServer) -> None:
    service = await open_metadata_service(own_server.uri(), timeout=2)
    own_server.stop()
    async with asyncio.timeout(15):
        await service.close()
    assert service.session.state is SessionState.CLOSED


async def test_kazoo_is_started_again_should_its_thread_end(zookeeper: ZooKeeperServer) -> None:
    tree = ZooKeeperTree(zookeeper.hosts, 5)
    await tree.connect()
    again, states = asyncio.Event(), list[SessionState]()

    def listen(state: SessionState) -> None:
        states.append(state)
        if state is SessionState.CONNECTED:
            again.set()

    tree.session.add_listener(listen)
    await asyncio.to_thread(tree._client.stop)
    async with asyncio.timeout(10):
        await again.wait()
    assert states == [SessionState.EXPIRED, SessionState.CONNECTED]
    assert await tree.exists("/", timeout=5) is not None
    await tree.close()
    assert tree._client.state == KazooState.LOST


async def test_connecting_makes_the_read_only_parent(zookeeper: ZooKeeperServer, raw: KazooClient) -> None:
    root = "/side-effect"
    first = await open_metadata_service(zookeeper.uri(root))
    await first.close()
    assert raw.exists(root) is None  # no cluster: nothing is made
    raw.create(f"{root}/available", makepath=True)
    second = await open_metadata_service(zookeeper.uri(root))
    await second.close()
    assert sorted(raw.get_children(root)) == ["LAYOUT", "available"]
    assert raw.get(f"{root}/available/readonly")[0] == b""


async def test_secure_nodes_belong_to_their_creator(zookeeper: ZooKeeperServer, raw: KazooClient) -> None:
    root = "/secure"
    tree = ZooKeeperTree(zookeeper.hosts, 5, auth=[("digest", "bk:secret")], secure=True)
    await tree.connect()
    service = MetadataService(tree, root, None)
    await service.cluster.initialize()
    await service.ledgers.create(ledger(1))
    await service.tree.create(f"{root}/idgen-long", open_to_all=True)
    assert await service.ledgers.generate_id() == 1 << 32
    with pytest.raises(MetadataUnavailable, match="credentials"):
        await open_metadata_service(zookeeper.uri(root))
    for path in ("idgen-long", "idgen-long/HOB-0000000001"):
        acls, _ = raw.get_acls(f"{root}/{path}")
        assert [(acl.id.scheme, acl.perms) for acl in acls] == [("world", 31)]
    raw.add_auth("digest", "bk:secret")
    for path in ("00/0000/L0001", "INSTANCEID"):
        acls, _ = raw.get_acls(f"{root}/{path}")
        assert [acl.id.scheme for acl in acls] == ["digest"]
    await service.close()


async def test_two_components_of_a_secure_cluster_share_it(zookeeper: ZooKeeperServer, raw: KazooClient) -> None:
    """Everything that several components write must be open to whoever logged in as the same user."""
    uri, options = zookeeper.uri("/secure-shared"), {"auth": [("digest", "bk:secret")], "secure": True}
    one = await open_metadata_service(uri, **options)  # type: ignore[arg-type]
    two = await open_metadata_service(uri, **options)  # type: ignore[arg-type]
    await one.cluster.initialize()
    await two.bookies.register("b:1", BookieGroup.WRITABLE, INFO)
    created = await one.ledgers.create(ledger(1))
    await two.ledgers.write(created.value.in_recovery(), created.identity)
    await one.under_replication.mark(1, ["b:1"], ctime_ms=1)
    await two.under_replication.mark_replicated(await two.under_replication.acquire())
    await one.under_replication.set_lost_bookie_recovery_delay(5)
    acls, _ = raw.get_acls("/secure-shared/underreplication/lostBookieRecoveryDelay")
    assert [(acl.id.scheme, acl.perms) for acl in acls] == [("world", 31)]
    with pytest.raises(MetadataUnavailable, match="credentials"):
        await open_metadata_service(uri, auth=[("digest", "bk:wrong")])
    await one.close()
    await two.close()


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    folder = tmp_path_factory.mktemp("sasl")
    certificates = Certificates(folder).make_all()
    certificates.make_named("server", "IP:127.0.0.1")
    server = ZooKeeperServer(str(folder), {"bookie": "s3cret"}, tls=str(folder))
    server.start()
    yield server
    server.stop()


async def test_a_sasl_login(sasl_server: ZooKeeperServer) -> None:
    login = SaslLogin(username="bookie", password="s3cret")
    service = await open_metadata_service(sasl_server.uri(), sasl=login, secure=True)
    await service.cluster.initialize()
    await service.ledgers.create(ledger(1))
    client = sasl_server.kazoo()
    client.start()
    try:
        acls, _ = client.get_acls("/ledgers/00/0000/L0001")
        assert [(acl.id.scheme, acl.id.id) for acl in acls] == [("sasl", "bookie")]
    finally:
        client.stop()
        client.close()
    identity = service.tree._tree.source.client_id  # type: ignore[attr-defined]
    sasl_server.expire(*identity)
    assert (await service.ledgers.read(1, timeout=15)).version == 0  # the next session logs in again
    await service.close()


@pytest.mark.parametrize("sasl", [None, SaslLogin(username="bookie", password="wrong")])
async def test_a_wrong_login_is_said_to_be_one(sasl_server: ZooKeeperServer, sasl: SaslLogin | None) -> None:
    with pytest.raises(MetadataUnavailable, match="credentials"):
        await open_metadata_service(sasl_server.uri("/nobody"), sasl=sasl, timeout=5)


async def test_over_tls(sasl_server: ZooKeeperServer) -> None:
    """With certificates of both sides; many answers at once, which come in one record of TLS."""
    folder, login = sasl_server.folder, SaslLogin(username="bookie", password="s3cret")
    uri = f"zk+null://127.0.0.1:{sasl_server.secure_port}/over-tls"

    def tls(name: str, ca: str = "authority") -> MetadataTls:
        return MetadataTls(
            ca_file=f"{folder}/{ca}.pem", certificate_file=f"{folder}/{name}.pem", key_file=f"{folder}/{name}.key"
        )

    service = await open_metadata_service(uri, sasl=login, tls=tls("client"), timeout=30)
    await service.cluster.initialize()
    await asyncio.gather(*(service.ledgers.create(ledger(number)) for number in range(200)))
    async with asyncio.timeout(5):  # a ping, every ten seconds, would bring an answer that was left behind
        assert len(await asyncio.gather(*(service.ledgers.read(number) for number in range(200)))) == 200
    await service.close()

    async def refused(with_tls: MetadataTls | None, uri_of: str, told: str) -> None:
        with pytest.raises(MetadataUnavailable, match=told):
            await open_metadata_service(uri_of, sasl=login, tls=with_tls, timeout=2)

    await asyncio.gather(
        refused(tls("client", "stranger"), uri, "CERTIFICATE_VERIFY_FAILED"),
        refused(tls("client"), uri.replace("127.0.0.1", "localhost"), "Hostname mismatch|is not valid for 'localhost'"),
        refused(tls("unknown"), uri, "that the servers run"),
        refused(None, uri, "that the servers run"),
    )


async def test_gssapi_names_the_package_that_is_missing(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)  # type: ignore[arg-type]
    login = SaslLogin(mechanism=SaslMechanism.GSSAPI, username="bookie@EXAMPLE.COM")
    with pytest.raises(InvalidConfiguration, match="gssapi"):
        await open_metadata_service(zookeeper.uri(), sasl=login)


async def test_several_hosts_of_which_some_do_not_answer(zookeeper: ZooKeeperServer) -> None:
    """One port refuses; at the other the connection stands and nobody ever answers."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    refusing = free_port()
    for _ in range(3):  # kazoo shuffles them
        uri = f"zk+hierarchical://127.0.0.1:{refusing};127.0.0.1:{port};{zookeeper.hosts}/several/parts/ledgers"
        service = await open_metadata_service(uri, timeout=8)
        if not await service.cluster.exists():
            await service.cluster.initialize()
        assert await service.cluster.layout() is LedgerLayout.HIERARCHICAL
        await service.close()
    silent.close()


async def test_the_newest_format_of_new_ledgers_can_be_chosen(zookeeper: ZooKeeperServer) -> None:
    uri = zookeeper.uri("/formats")
    service = await open_metadata_service(uri)
    await service.cluster.initialize()
    await service.ledgers.create(ledger(3))
    await service.close()
    for version in (1, 2, 3, -1):
        service = await open_metadata_service(uri, ledger_metadata_version=version)
        created = await service.ledgers.create(ledger(10 + version))
        assert created.value.format_version == (3 if version == -1 else version)
        found = await service.ledgers.read(10 + version)
        assert found.value.format_version == created.value.format_version
        old = await service.ledgers.read(3)
        await service.ledgers.write(old.value.in_recovery(), old.identity)
        assert (await service.ledgers.read(3)).value.format_version == 3  # a rewrite keeps the format
        await service.close()


def test_without_java_the_fixture_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_support.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="openjdk-17-jre-headless"):
        ZooKeeperServer(str(tmp_path)).start()
