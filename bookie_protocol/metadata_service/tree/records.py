"""Records as nodes `<root>/podkeeper/<kind>/<name>`.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import ANY_VERSION, Versioned
from bookie_protocol.metadata_service.records import check_kind, check_name
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.nodes import Watch
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.watching import follow

_Incarnation = tuple[Versioned[bytes], int]
"""A record with its node's time of creation: one that is made again starts at version 0 again."""


class TreeRecords:
    """Implements `RecordStore`."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster, kind: str) -> None:
        self._tree = tree
        self._cluster = cluster
        self._top = f"{root}/{paths.PODKEEPER}"
        self._parent = f"{self._top}/{check_kind(kind)}"

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> int:
        path = self._path(name)
        try:
            await self._tree.create(path, data, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._tree.ensure(self._top, timeout=timeout)
            await self._tree.ensure(self._parent, timeout=timeout)
            await self._tree.create(path, data, timeout=timeout)
        return 0

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        node = await self._tree.get(path, timeout=timeout)
        return Versioned(node.data, node.stat.version)

    async def update(self, name: str, data: bytes, version: int, *, timeout: float | None = None) -> int:
        return await self._tree.set(self._path(name), data, version, timeout=timeout)

    async def delete(self, name: str, version: int = ANY_VERSION, *, timeout: float | None = None) -> None:
        await self._tree.delete(self._path(name), version, timeout=timeout)

    async def names(self, *, timeout: float | None = None) -> frozenset[str]:
        await self._tree.sync(self._parent, timeout=timeout)
        return await self._names(None, timeout)

    def watch(self, name: str) -> Subscription[Versioned[bytes] | None]:
        path = self._path(name)

        async def read(watch: Watch) -> _Incarnation | None:
            while True:
                try:
                    node = await self._tree.get(path, watch=watch)
                    return Versioned(node.data, node.stat.version), node.stat.ctime_ms
                except MetadataNotFound:
                    await self._cluster.require()
                if await self._tree.exists(path, watch=watch) is None:
                    return None

        async def feed(publish: Callable[[Versioned[bytes] | None], None]) -> None:
            last: list[_Incarnation | None] = []

            def deliver(found: _Incarnation | None) -> bool:
                if [found] != last:
                    last[:] = [found]
                    publish(None if found is None else found[0])
                return True

            await follow(read, deliver)

        return Subscription(feed)

    def watch_names(self) -> Subscription[frozenset[str]]:
        async def feed(publish: Callable[[frozenset[str]], None]) -> None:
            last: list[frozenset[str]] = []

            def deliver(found: frozenset[str]) -> bool:
                if [found] != last:
                    last[:] = [found]
                    publish(found)
                return True

            await follow(lambda watch: self._names(watch, None), deliver)

        return Subscription(feed)

    async def _names(self, watch: Watch | None, timeout: float | None) -> frozenset[str]:
        """With a watch on the lowest node that exists: one that is missing cannot be listed, but waited for."""
        while True:
            try:
                return frozenset((await self._tree.children(self._parent, watch=watch, timeout=timeout)).names)
            except MetadataNotFound:
                await self._cluster.require(timeout=timeout)
            if await self._tree.exists(self._parent, watch=watch, timeout=timeout) is None:
                return frozenset()

    def _path(self, name: str) -> str:
        return f"{self._parent}/{check_name(name)}"
