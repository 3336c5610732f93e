"""Whether there is a cluster at all, asked by many at once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree


class Root:
    """A tree that has a root, or has not, or cannot tell."""

    def __init__(self) -> None:
        self.there = True
        self.down = False
        self.asked = 0

    async def exists(self, path: str, *, timeout: float | None = None) -> object | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise MetadataUnavailable("down")
        return object() if self.there else None


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def cluster(root: Root) -> TreeCluster:
    return TreeCluster(cast("RetryingTree", root), "/ledgers", None)


async def asked_by(cluster: TreeCluster, count: int) -> list[Any]:
    return await asyncio.gather(*(cluster.require() for _ in range(count)), return_exceptions=True)


async def test_those_who_ask_in_one_turn_share_one_request(root: Root, cluster: TreeCluster) -> None:
    assert await asked_by(cluster, 64) == [None] * 64
    assert root.asked == 1
    root.there = False
    assert {type(each) for each in await asked_by(cluster, 64)} == {MetadataNotFound}
    root.down = True
    assert {type(each) for each in await asked_by(cluster, 64)} == {MetadataUnavailable}
    assert root.asked == 3


async def test_who_asks_later_hears_no_older_answer(root: Root, cluster: TreeCluster) -> None:
    first = asyncio.ensure_future(cluster.require())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert root.asked == 1
    root.there = False
    with pytest.raises(MetadataNotFound):
        await cluster.require()
    assert root.asked == 2
    await asyncio.gather(first, return_exceptions=True)


async def test_one_who_gives_up_takes_the_answer_from_nobody(root: Root, cluster: TreeCluster) -> None:
    first, second = (asyncio.ensure_future(cluster.require()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert root.asked == 1
