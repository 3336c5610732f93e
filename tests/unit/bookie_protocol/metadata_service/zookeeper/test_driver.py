"""What the driver makes of kazoo's sessions: in which of them requests are sent, and what follows if none can begin."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, NoChildrenForEphemeralsError, NoNodeError
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, ANYONE_ID_UNSAFE

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.zookeeper import driver
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from bookie_protocol.versioned import Identity
from tests.support.until import until


class Client:
    """A kazoo client that is asked for nothing but its session, and notes what is handed over."""

    def __init__(self) -> None:
        self.client_id: tuple[int, bytes] | None = (7, b"")
        self.client_state = KeeperState.CONNECTED
        self.queue: deque[Any] = deque()
        self.asked: list[str] = []
        self._connection = SimpleNamespace(_connection_routine=None)
        self.handler = SimpleNamespace(failure="")
        self.last_zxid = 0
        self.create_async = self._asked("create_async")
        self.sync_async = self._asked("sync_async")
        self.exists_async = self._asked("exists_async")

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self.listener = listener

    def __getattr__(self, name: str) -> Any:
        return self._asked(name)

    def _asked(self, name: str) -> Callable[..., Any]:
        def asked(*_: object, **__: object) -> Any:
            self.asked.append(name)
            raise ConnectionLost("handed over")

        return asked


Write = Callable[[ZooKeeperTree], Any]
LIFE = Identity(version=3, creation=5)


@pytest.mark.parametrize("ending", [KeeperState.EXPIRED_SESSION, KeeperState.CONNECTING])
@pytest.mark.parametrize(
    "ask",
    [
        lambda tree: tree.create("/a", b"", ephemeral=True, timeout=1),
        lambda tree: tree.create_all([("/a", b"")], timeout=1),
        lambda tree: tree.set("/a", b"", None, session_id=7, timeout=1),
        lambda tree: tree.set("/a", b"", LIFE, timeout=1),
        lambda tree: tree.delete("/a", None, session_id=7, timeout=1),
        lambda tree: tree.get("/a", timeout=1),
        lambda tree: tree.exists("/a", watch=print, timeout=1),
        lambda tree: tree.sync("/a", timeout=1),
    ],
)
async def test_nothing_is_sent_on_a_connection_that_the_loop_has_not_heard_of(
    ask: Callable[[ZooKeeperTree], Awaitable[object]], ending: KeeperState
) -> None:
    """The loop rests while it hands a request over, and kazoo's thread begins the next session meanwhile."""
    tree = ZooKeeperTree("127.0.0.1:1", 5)
    client, hand_over = tree._client, tree._client._call

    def rest(request: object, result: object) -> None:
        client._session_callback(ending)
        client._session_callback(KeeperState.CONNECTING)
        begin(client, 7 if ending == KeeperState.CONNECTING else 8)
        hand_over(request, result)

    begin(client, 7)
    await asyncio.sleep(0)
    client._call = rest
    with pytest.raises(ConnectionLost):
        await ask(tree)
    assert list(client._queue) == []


async def test_what_is_handed_over_while_a_connection_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo has failed what was in its queue, and has not told of the end yet."""
    tree = ZooKeeperTree("127.0.0.1:1", 5)
    client = tree._client
    begin(client, 7)
    await asyncio.sleep(0)
    result = client.handler.async_result()
    monkeypatch.setattr(KazooClient, "_notify_pending", lambda *_: client._call(None, result))
    client._session_callback(KeeperState.CONNECTING)
    assert isinstance(result.exception, ConnectionLoss)


def begin(client: Any, session_id: int) -> None:
    """Connect, as kazoo's thread does it."""
    client._session_id = session_id
    client._session_callback(KeeperState.CONNECTED)


class Result:
    """kazoo's `IAsyncResult` that has its outcome already."""

    def __init__(self, outcome: object) -> None:
        self.exception = outcome if isinstance(outcome, Exception) else None
        self.value = outcome

    def rawlink(self, callback: Callable[[object], None]) -> None:
        callback(self)


@pytest.mark.parametrize(
    "write", [lambda tree: tree.set("/a", b"", LIFE, timeout=1), lambda tree: tree.delete("/a", LIFE, timeout=1)]
)
async def test_nothing_is_written_after_a_look_whose_sync_was_lost(
    monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    """The connection broke between the two requests: the next server may know less than was written."""
    client = Client()
    client.sync_async = lambda path: Result(ConnectionLoss())
    client.exists_async = lambda path: Result(SimpleNamespace(czxid=LIFE.creation, version=LIFE.version))
    monkeypatch.setattr(driver, "make_client", lambda *_, **__: client)
    tree = ZooKeeperTree("zk:1", 5)
    client.listener(KazooState.CONNECTED)
    await asyncio.sleep(0)
    with pytest.raises(ConnectionLost):
        await write(tree)
    assert client.asked == []


async def test_node_below_an_ephemeral_one_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are not at fault, so nobody may give up for good, or take it for a service that refuses."""
    client = Client()
    client.create_async = lambda *_, **__: Result(NoChildrenForEphemeralsError())
    monkeypatch.setattr(driver, "make_client", lambda *_, **__: client)
    tree = ZooKeeperTree("zk:1", 5)
    client.listener(KazooState.CONNECTED)
    await asyncio.sleep(0)
    with pytest.raises(MetadataUnavailable) as caught:
        await tree.create("/ephemeral/a", b"", timeout=1)
    assert type(caught.value) is MetadataUnavailable


@pytest.mark.parametrize(("ephemeral", "permissions"), [(True, ["READ"]), (False, ["ALL"])])
async def test_node_for_all_is_hidden_by_nobody_if_it_is_of_a_session(
    monkeypatch: pytest.MonkeyPatch, ephemeral: bool, permissions: list[str]
) -> None:
    """Whoever may change the access list may take the right to read it from its owner, too."""
    client, lists = Client(), []

    def create_async(*_: object, acl: list[ACL], **__: object) -> Result:
        lists.extend(acl)
        return Result(NoNodeError())

    client.create_async = create_async
    monkeypatch.setattr(driver, "make_client", lambda *_, **__: client)
    tree = ZooKeeperTree("zk:1", 5)
    client.listener(KazooState.CONNECTED)
    await asyncio.sleep(0)
    with pytest.raises(MetadataNotFound):
        await tree.create("/a", b"", ephemeral=ephemeral, open_to_all=True, timeout=1)
    assert [(each.acl_list, each.id) for each in lists] == [(permissions, ANYONE_ID_UNSAFE)]


async def test_a_connection_that_ends_at_each_start_is_begun_again_until_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the one that grants logins is away, say. kazoo tells of the first such end alone."""
    client, starts = Client(), 0

    def start() -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise OSError("no descriptor left")
        if starts == 3:
            client._connection._connection_routine = threading.current_thread()
            client.client_state = KeeperState.CONNECTED
            client.listener(KazooState.CONNECTED)

    client.start_async = start  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "make_client", lambda *_, **__: client)
    monkeypatch.setattr(driver, "LONGEST_RECONNECT_PAUSE", 0.001)
    tree = ZooKeeperTree("zk:1", 5)
    client.client_state = KeeperState.AUTH_FAILED
    client.listener(KazooState.LOST)
    await until(lambda: tree.session.state is SessionState.CONNECTED)
    await until(lambda: tree._restart is None)
    assert starts == 3


async def test_what_the_server_makes_of_the_time_out_is_known() -> None:
    """A server has bounds of its own: who waits for another session to end has to wait for as long as that takes."""
    tree = ZooKeeperTree("zk:1", 1.0)
    assert tree.session.expires_after == 1.0
    connection = tree._client._connection
    answer = struct.pack(">iiqi16s?", 0, 4000, 7, 16, bytes(16), False)
    pieces = [struct.pack(">i", len(answer)), answer]
    connection._submit = lambda *_: None
    connection._read = lambda *_: pieces.pop(0)
    connection._invoke(1.0, Connect(0, 0, 1000, 0, bytes(16), False))
    assert (tree.session.expires_after, tree.session.default_timeout) == (4.0, 1.0)
