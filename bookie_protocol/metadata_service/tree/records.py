"""Records as nodes `<root>/podkeeper/<kind>/<name>`.

Threads: event loop only.
"""

from __future__ import annotations

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import Identified, Identity, Versioned
from bookie_protocol.metadata_service.records import check_kind, check_name as check_record
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.watching import changes


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

    async def read(self, name: str, *, timeout: float | None = None) -> Identified[bytes]:
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        return await self._tree.read(path, timeout=timeout)

    async def update(self, name: str, data: bytes, version: int, *, timeout: float | None = None) -> int:
        return await self._tree.set(self._path(name), data, version, timeout=timeout)

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        await self._tree.delete(self._path(name), timeout=timeout)

    async def delete_this(self, name: str, record: Identity, *, timeout: float | None = None) -> None:
        await self._tree.delete_this(self._path(name), record, timeout=timeout)

    async def names(self, *, timeout: float | None = None) -> frozenset[str]:
        await self._tree.sync(self._parent, timeout=timeout)
        try:
            return frozenset((await self._tree.children(self._parent, timeout=timeout)).names)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return frozenset()

    def watch(self, name: str) -> Subscription[Versioned[bytes] | None]:
        path = self._path(name)
        # A node that is made again starts at version 0 again, but not at the same time of creation: it is another one.
        return changes(
            lambda watch: self._cluster.watched(path, watch),
            lambda node: None if node is None else Versioned(node.data, node.stat.version),
        )

    def _path(self, name: str) -> str:
        return f"{self._parent}/{check_record(name)}"
