"""Writes through our driver for Oxia that depend on a session or on another node: on Oxia, and on the embedded service,
which speaks Oxia's protocol."""

from __future__ import annotations

import pytest

from bookie_protocol.errors import MetadataUnavailable, SessionEnded
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.metadata_drivers import OxiaUnderTest, oxia_tree
from tests.support.metadata_fixtures import OVER_OXIA, driver
from tests.support.until import until

__all__ = ["driver"]

pytestmark = pytest.mark.parametrize("driver", OVER_OXIA, indirect=True)


async def test_a_dropped_canary_is_not_put_back_by_what_asks_whether_the_session_lasts(driver: OxiaUnderTest) -> None:
    """Else a shard that has dropped the records of our session would seem to have kept them."""
    service, other = await driver.open(timeout=30.0), await driver.open()
    await service.cluster.initialize()
    tree = oxia_tree(service)
    session = tree.session_id
    tree._history._doubt = lambda: None  # the driver has not heard of it
    shard, canary = next(iter(tree._open_sessions._canaries.items()))
    delete = messages.WriteRequest(deletes=[messages.DeleteRequest(key=canary)])
    await oxia_tree(other)._connection.write(shard, delete, 10)
    with pytest.raises(SessionEnded):
        await service.tree.create(f"{driver.root}/node", session_id=session)
    found = await tree._connection.read(shard, [messages.GetRequest(key=canary)], 10)
    assert [each.status for each in found] == [messages.KEY_NOT_FOUND]
    assert await other.tree.exists(f"{driver.root}/node") is None


async def test_an_ephemeral_node_is_refused_where_no_canary_tells_of_its_loss(driver: OxiaUnderTest) -> None:
    service = await driver.open(timeout=30.0)
    await service.cluster.initialize()
    tree, path = oxia_tree(service), f"{driver.root}/node"
    tree._open_sessions._canaries.clear()
    with pytest.raises(ConnectionLost):
        await tree.create(path, b"", ephemeral=True, timeout=10)
    assert await tree.exists(path, timeout=10) is None


async def test_an_ephemeral_node_is_never_made_in_a_later_session(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller named the session that it looked at, and a new one begins while the parent is looked for."""
    service = await driver.open()
    await service.cluster.initialize()
    tree, path = oxia_tree(service), f"{driver.root}/node"
    session, present = tree.session_id, OxiaTree._present

    async def overtaken(self: OxiaTree, *arguments: object) -> object:
        monkeypatch.undo()
        await driver.expire(service)
        await until(lambda: tree.session_id != session and service.session.state is SessionState.CONNECTED, seconds=20)
        return await present(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OxiaTree, "_present", overtaken)
    with pytest.raises(MetadataUnavailable):
        await tree.create(path, b"", ephemeral=True, session_id=session, timeout=30)
    assert await service.tree.exists(path) is None


async def test_a_number_is_taken_without_undoing_a_write_of_the_parent(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = await driver.open(), await driver.open()
    await service.cluster.initialize()
    parent, present = f"{driver.root}/parent", OxiaTree._present
    await service.tree.create(parent, b"one")

    async def overtaken(self: OxiaTree, *arguments: object) -> object:
        found = await present(self, *arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        await other.tree.overwrite(parent, b"two")
        return found

    monkeypatch.setattr(OxiaTree, "_present", overtaken)
    assert (await oxia_tree(service).take_number(f"{parent}/n-", timeout=10)) == (2, None)
    assert (await other.tree.get(parent)).data == b"two"
