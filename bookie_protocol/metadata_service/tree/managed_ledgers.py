"""Pulsar's managed ledgers below a path of their own.

Threads: event loop only.
"""

from __future__ import annotations

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.managed_ledgers import check_name, check_root
from bookie_protocol.metadata_service.tree.retrying import RetryingTree


class TreeManagedLedgers:
    """Implements `ManagedLedgerNodes`."""

    def __init__(self, tree: RetryingTree, root: str) -> None:
        self._tree = tree
        self._root = check_root(root)

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        node = await self._tree.get(path, timeout=timeout)
        return Versioned(node.data, node.stat.version)

    async def children(self, name: str, *, timeout: float | None = None) -> tuple[str, ...]:
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        try:
            return tuple(sorted((await self._tree.children(path, timeout=timeout)).names))
        except MetadataNotFound:
            return ()

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}" if name else self._root
