"""Our driver for Oxia on the embedded metadata service, which speaks Oxia's protocol: the suite of all drivers, and
what of the driver needs no shards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookie_protocol.errors import MetadataUnavailable, SessionEnded
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from tests.contract import test_metadata_service as suite
from tests.support.metadata_drivers import OxiaUnderTest
from tests.support.until import until


@dataclass
class Served:
    """What the driver under test asks of a server."""

    target: str

    def uri(self, root: str) -> str:
        return f"oxia://{self.target}/default{root}"


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[OxiaUnderTest]:
    owner = await EmbeddedOwner.open(str(tmp_path / "store"), keep_notices=True)
    server = EmbeddedMetadataServer(owner)
    await server.start()
    served: Any = Served(f"127.0.0.1:{server.port}")
    made = OxiaUnderTest(served)
    yield made
    await made.close()
    await server.stop()
    await owner.close()


class TestBookies(suite.TestBookies):
    """Registrations and cookies."""


class TestLedgers(suite.TestLedgers):
    """Metadata, ids and lists of ledgers."""


def tree_of(service: TreeMetadataService) -> OxiaTree:
    tree = service.tree._tree
    assert isinstance(tree, OxiaTree)
    return tree


async def test_a_dropped_canary_is_not_put_back_by_what_asks_whether_the_session_lasts(driver: OxiaUnderTest) -> None:
    """Else a shard that has dropped the records of our session would seem to have kept them."""
    service, other = await driver.open(timeout=30.0), await driver.open()
    await service.cluster.initialize()
    tree = tree_of(service)
    session = tree.session_id
    tree._history._doubt = lambda: None  # the driver has not heard of it
    shard, canary = next(iter(tree._open_sessions._canaries.items()))
    delete = messages.WriteRequest(deletes=[messages.DeleteRequest(key=canary)])
    await tree_of(other)._connection.write(shard, delete, 10)
    with pytest.raises(SessionEnded):
        await service.tree.create(f"{driver.root}/node", session_id=session)
    found = await tree._connection.read(shard, [messages.GetRequest(key=canary)], 10)
    assert [each.status for each in found] == [messages.KEY_NOT_FOUND]
    assert await other.tree.exists(f"{driver.root}/node") is None


async def test_an_ephemeral_node_is_never_made_in_a_later_session(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller named the session that it looked at, and a new one begins while the parent is looked for."""
    service = await driver.open()
    await service.cluster.initialize()
    tree, path = tree_of(service), f"{driver.root}/node"
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
    assert (await tree_of(service).take_number(f"{parent}/n-", timeout=10)) == (2, None)
    assert (await other.tree.get(parent)).data == b"two"
