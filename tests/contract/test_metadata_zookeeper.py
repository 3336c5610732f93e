"""What only the ZooKeeper driver has: its server's restarts, its access lists, kazoo's threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from tests.contract.test_metadata_service import INFO, ledger
from tests.support import zookeeper as zookeeper_support
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that a test may stop."""
    server = ZooKeeperServer(str(tmp_path))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def raw(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


async def test_a_restarted_server_costs_neither_session_nor_error(own_server: ZooKeeperServer) -> None:
    service = await open_metadata_service(own_server.uri(), timeout=10)
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
    service = TreeMetadataService(tree, root, None)
    await service.cluster.initialize()
    await service.ledgers.create(ledger(1))
    await service.tree.create(f"{root}/idgen-long", open_to_all=True)
    assert await service.ledgers.generate_id() == 1 << 32
    with pytest.raises(MetadataUnavailable, match="refuses access"):
        await open_metadata_service(zookeeper.uri(root))
    for path in ("idgen-long", "idgen-long/HOB-0000000001"):
        acls, _ = raw.get_acls(f"{root}/{path}")
        assert [(acl.id.scheme, acl.perms) for acl in acls] == [("world", 31)]
    raw.add_auth("digest", "bk:secret")
    for path in ("00/0000/L0001", "INSTANCEID"):
        acls, _ = raw.get_acls(f"{root}/{path}")
        assert [acl.id.scheme for acl in acls] == ["digest"]
    await service.close()


def test_without_java_the_fixture_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_support.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="install openjdk-17-jre-headless"):
        ZooKeeperServer(str(tmp_path)).start()
