"""In which session writes are handed to kazoo, whose thread may know of one that the event loop has not heard of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooState
from kazoo.protocol.states import KeeperState

from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.zookeeper import driver
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree


class Client:
    """A kazoo client that is asked for nothing but its session, and notes what is handed over."""

    def __init__(self) -> None:
        self.client_id: tuple[int, bytes] | None = (7, b"")
        self.client_state = KeeperState.CONNECTED
        self.asked: list[str] = []

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self.listener = listener

    def __getattr__(self, name: str) -> Any:
        def asked(*_: object, **__: object) -> Any:
            self.asked.append(name)
            raise ConnectionLost("handed over")

        return asked


Write = Callable[[ZooKeeperTree], Any]


@pytest.mark.parametrize("identity", [(8, b""), None])
@pytest.mark.parametrize(
    ("write", "request_name"),
    [
        (lambda tree: tree.create("/a", b"", ephemeral=True, timeout=1), "create_async"),
        (lambda tree: tree.create_all([("/a", b"")], timeout=1), "transaction"),
        (lambda tree: tree.set("/a", b"", 0, session_id=7, timeout=1), "set_async"),
        (lambda tree: tree.delete("/a", session_id=7, timeout=1), "delete_async"),
    ],
)
async def test_nothing_is_written_in_a_session_that_the_loop_has_not_heard_of(
    monkeypatch: pytest.MonkeyPatch, write: Write, request_name: str, identity: tuple[int, bytes] | None
) -> None:
    client = Client()
    monkeypatch.setattr(driver, "make_client", lambda *_, **__: client)
    tree = ZooKeeperTree("zk:1", 5)
    client.listener(KazooState.CONNECTED)
    await asyncio.sleep(0)
    with pytest.raises(ConnectionLost, match="handed over"):
        await write(tree)
    client.client_id = identity
    with pytest.raises(ConnectionLost, match="another one by now"):
        await write(tree)
    assert client.asked == [request_name]
