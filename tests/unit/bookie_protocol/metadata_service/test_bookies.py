"""Who is registered, as whoever follows hears it over the lives of the metadata service."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bookie_client.bookies import FollowedGroup
from bookie_protocol.errors import MetadataDamaged, MetadataError
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.bookies import BookieRegistry
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.nodes import Children, Watch
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from tests.support.until import until


class Tree:
    """One parent, with names and a version that a test sets."""

    def __init__(self) -> None:
        self.found = Children(("b1:1",), 7)
        self.problem: MetadataError | None = None
        self._watches: list[Watch] = []

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float | None = None) -> Children:
        if self.problem is not None:
            raise self.problem
        if watch is not None:
            self._watches.append(watch)
        return self.found

    def becomes(self, names: tuple[str, ...], version: int) -> None:
        """All watches fire, as they do with a new connection."""
        self.found = Children(names, version)
        watches, self._watches = self._watches, []
        for watch in watches:
            watch()


async def test_what_a_restored_service_tells_is_news_though_it_counts_from_an_earlier_number() -> None:
    tree: Any = Tree()
    registry = BookieRegistry(cast("RetryingTree", tree), "/ledgers", cast("TreeCluster", None))
    group = FollowedGroup(registry, BookieGroup.WRITABLE, lambda before, after: None)
    group.start()
    await until(lambda: group.known == {"b1:1"})
    before = await registry.list(BookieGroup.WRITABLE)
    for names, version in ({"b2:1"}, 3), ({"b2:1", "b3:1"}, 4), ({"b4:1"}, 4):
        tree.becomes(tuple(names), version)
        await until(lambda names=names: group.known == names)
        listed = await registry.list(BookieGroup.WRITABLE)
        assert listed.version > before.version
        before = listed
    await group.close()


async def test_so_it_is_though_the_service_knew_nothing_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_client.bookies.FOLLOW_PAUSE", 0.01)
    tree: Any = Tree()
    registry = BookieRegistry(cast("RetryingTree", tree), "/ledgers", cast("TreeCluster", None))
    group = FollowedGroup(registry, BookieGroup.WRITABLE, lambda before, after: None)
    group.start()
    await until(lambda: group.known == {"b1:1"})
    tree.problem = MetadataDamaged("half of it is there")
    tree.becomes((), 0)
    await until(lambda: not group.is_following)
    tree.becomes(("b2:1",), 3)
    tree.problem = None
    await until(lambda: group.known == {"b2:1"})
    await group.close()
