"""Writes through our driver for Oxia that depend on a session or on another node: on Oxia, and on the embedded service,
which speaks Oxia's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bookie_protocol.errors import MetadataError, MetadataNotFound, MetadataUnavailable, SessionEnded
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.tree import OxiaTree, Record
from bookie_protocol.metadata_service.tree.nodes import NO_SESSION, ConnectionLost, Node
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.metadata_drivers import OxiaUnderTest, oxia_tree
from tests.support.metadata_fixtures import OVER_OXIA, driver
from tests.support.until import until

__all__ = ["driver"]

pytestmark = pytest.mark.parametrize("driver", OVER_OXIA, indirect=True)


async def with_parent(driver: OxiaUnderTest) -> tuple[MetadataService, MetadataService, str]:
    """Make a cluster with a node, and return two services and the path of the node."""
    service, other, parent = await driver.open(), await driver.open(), f"{driver.root}/parent"
    await service.cluster.initialize()
    await service.tree.create(parent, b"")
    return service, other, parent


async def end_of_session(driver: OxiaUnderTest, service: MetadataService) -> None:
    """End the session, and wait for the next one."""
    tree = oxia_tree(service)
    session = tree.session_id
    await driver.expire(service)
    await until(lambda: tree.session_id not in (session, NO_SESSION), seconds=20)
    await until(lambda: service.session.state is SessionState.CONNECTED, seconds=20)


def behind_the_look_at(
    path: str, tree: OxiaTree, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]
) -> None:
    """Do this, once, between the tree's look at a node and what it does then."""
    read, done = tree._read, asyncio.Event()

    async def overtaken(paths: Sequence[str], left: Callable[[], float]) -> list[Record | None]:
        found = await read(paths, left)
        if list(paths) == [path] and not done.is_set():
            done.set()
            await act()
        return found

    monkeypatch.setattr(tree, "_read", overtaken)


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
        await end_of_session(driver, service)
        return await present(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OxiaTree, "_present", overtaken)
    with pytest.raises(MetadataUnavailable):
        await tree.create(path, b"", ephemeral=True, session_id=session, timeout=30)
    assert await service.tree.exists(path) is None


async def test_a_number_is_taken_without_undoing_a_write_of_the_parent(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other, parent = await with_parent(driver)
    present = OxiaTree._present

    async def overtaken(self: OxiaTree, *arguments: object) -> object:
        found = await present(self, *arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        await other.tree.overwrite(parent, b"two")
        return found

    monkeypatch.setattr(OxiaTree, "_present", overtaken)
    assert (await oxia_tree(service).take_number(f"{parent}/n-", timeout=10)) == (2, None)
    assert (await other.tree.get(parent)).data == b"two"


@pytest.mark.parametrize(
    ("shard_does", "expected"),
    [("answer", MetadataNotFound), ("fail", ConnectionLost), ("hang", MetadataUnavailable)],
)
async def test_nodes_that_are_made_together_go_with_their_parent(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch, shard_does: str, expected: type[MetadataError]
) -> None:
    """Also if a shard does not answer, and those that did are not asked again."""
    service, other, parent = await with_parent(driver)
    tree = oxia_tree(service)
    behind_the_look_at(parent, tree, monkeypatch, lambda: other.tree.delete(parent))
    write, first = tree._connection.write, tree._connection.known.shard_of(f"{parent}/0")

    async def lossy(shard: int, request: messages.WriteRequest, timeout: float) -> messages.WriteResponse:
        if shard == first and any(put.key.startswith(f"{parent}/") for put in request.puts):
            if shard_does == "fail":
                raise ConnectionLost("another one leads the shard")
            await asyncio.Event().wait()
        return await write(shard, request, timeout)

    if shard_does != "answer":
        monkeypatch.setattr(tree._connection, "write", lossy)
    nodes = [(f"{parent}/{number}", b"") for number in range(9)]
    with pytest.raises(expected):
        await tree.create_all([*nodes, (f"{parent}/last", b"")], timeout=2)
    assert all(isinstance(each, MetadataError) for each in await other.tree.get_each([path for path, _ in nodes]))


@pytest.mark.parametrize("write", ["create", "create_all", "set", "delete"])
async def test_nothing_is_written_once_the_session_that_it_depends_on_is_known_to_have_ended(
    driver: OxiaUnderTest, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    service, other, parent = await with_parent(driver)
    tree = oxia_tree(service)
    session = tree.session_id
    behind_the_look_at(parent, tree, monkeypatch, lambda: end_of_session(driver, service))
    arguments = {
        "create": (f"{parent}/0", b""),
        "create_all": ([(f"{parent}/{number}", b"") for number in range(9)],),
        "set": (parent, b"new", None),
        "delete": (parent, None),
    }
    with pytest.raises(SessionEnded):
        await getattr(tree, write)(*arguments[write], session_id=session, timeout=30)
    assert (await other.tree.get(parent)).data == b""
    assert (await other.tree.children(parent)).names == ()


@pytest.mark.parametrize("below", ["2/x", "0/x", "4/x", "22/x", None])
async def test_siblings_are_known_to_be_leaves_if_nothing_is_below_them(
    driver: OxiaUnderTest, below: str | None
) -> None:
    service, _, parent = await with_parent(driver)
    tree = service.tree
    names = ["0", "1", "2", "3", "4", "22"]
    for path in (*(f"{parent}/{name}" for name in names), *([f"{parent}/{below}"] if below else [])):
        await tree.create(path, b"")

    async def children(*paths: str) -> set[int]:
        found = await tree.get_each(paths, childless=True)
        return {each.stat.children for each in found if isinstance(each, Node)}

    paths = [f"{parent}/{name}" for name in names]
    assert await children(*paths[:5]) == ({1} if below else {0})
    assert await children(*paths[1:2], *paths[3:4]) == ({0} if below is None or below[0] in "04" else {1})
    assert await children(*paths) == await children(parent) == {1}
