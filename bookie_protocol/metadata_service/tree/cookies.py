"""Cookies as nodes `<root>/cookies/<bookie id>`.

Threads: event loop only.

Sources: reference metadata layout, sections 5.1 and 5.3.
"""

from __future__ import annotations

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import ANY_VERSION, Identified, Identity
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree


class TreeCookies:
    """Implements `CookieStore`."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self._tree = tree
        self._parent = f"{root}/{paths.COOKIES}"
        self._cluster = cluster

    async def create(self, bookie_id: str, data: bytes, *, timeout: float | None = None) -> int:
        path = f"{self._parent}/{bookie_id}"
        try:
            await self._tree.create(path, data, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._tree.ensure(self._parent, timeout=timeout)
            await self._tree.create(path, data, timeout=timeout)
        return 0

    async def read(self, bookie_id: str, *, timeout: float | None = None) -> Identified[bytes]:
        return await self._tree.read(f"{self._parent}/{bookie_id}", timeout=timeout)

    async def update(self, bookie_id: str, data: bytes, version: int, *, timeout: float | None = None) -> int:
        return await self._tree.set(f"{self._parent}/{bookie_id}", data, version, timeout=timeout)

    async def delete(self, bookie_id: str, version: int = ANY_VERSION, *, timeout: float | None = None) -> None:
        await self._tree.delete(f"{self._parent}/{bookie_id}", version, timeout=timeout)

    async def delete_this(self, bookie_id: str, cookie: Identity, *, timeout: float | None = None) -> None:
        await self._tree.delete_this(f"{self._parent}/{bookie_id}", cookie, timeout=timeout)
