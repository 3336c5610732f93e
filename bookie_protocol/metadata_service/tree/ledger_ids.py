"""Ledger ids out of sequential nodes, each given out once in the life of the cluster.

31 bits: the sequence number of an ephemeral node `ID-...` (in the root for the flat layout, else in
`idgen`). 63 bits (hierarchical and long hierarchical): once the former overflowed, a directory
`idgen-long/HOB-<high order bits>` holds such nodes, and the id is `high << 32 | sequence number`.

Invariants
- A lost answer may waste an id, never give one out twice.
- The existence of `idgen-long` is looked up once; whoever saw it absent goes on with 31 bits until these
  overflow.

Threads: event loop only.

Sources: reference metadata layout, section 6.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import LedgerIdsExhausted, MetadataDamaged, MetadataError, MetadataNotFound
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree

_HIGH_ORDER: Final = "HOB-"
_KEPT_DIRECTORIES: Final = 3
_LARGEST_HIGH_ORDER: Final = 2**31 - 1
_MAX_DELETES: Final = 64
_LONG_LAYOUTS: Final = (LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL)


class LedgerIdGenerator:
    """Generates ids; `close` waits for the deletion of used nodes."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self._tree = tree
        self._root = root
        self._cluster = cluster
        self._long_ids: bool | None = None
        self._deletes: set[asyncio.Task[None]] = set()

    async def generate(self, *, timeout: float | None = None) -> int:
        """A new id. `LedgerIdsExhausted`: this layout has none left. `MetadataDamaged`: a node is no generator's."""
        layout = await self._cluster.settled_layout(timeout=timeout)
        long_root = f"{self._root}/{paths.LONG_ID_GENERATION}"
        if self._long_ids is None:
            found = layout in _LONG_LAYOUTS and await self._tree.exists(long_root, timeout=timeout)
            self._long_ids = bool(found)
        if not self._long_ids:
            parent = self._root if layout is LedgerLayout.FLAT else f"{self._root}/{paths.ID_GENERATION}"
            number = await self._next(parent, timeout)
            if number is not None:
                return number
            if layout not in _LONG_LAYOUTS:
                raise LedgerIdsExhausted(
                    f"the {layout.name.lower()} layout of {self._root} has no ledger id left below 2^31-1"
                )
            await self._tree.ensure(long_root, open_to_all=True, timeout=timeout)
            self._long_ids = True
        return await self._generate_long(long_root, timeout)

    async def close(self) -> None:
        """Let the deletions under way end."""
        if self._deletes:
            await asyncio.wait(self._deletes)

    async def _generate_long(self, long_root: str, timeout: float | None) -> int:
        minimum = 1
        while minimum <= _LARGEST_HIGH_ORDER:
            high = max(minimum, await self._newest_directory(long_root, timeout))
            directory = f"{long_root}/{_HIGH_ORDER}{high:010d}"
            await self._tree.ensure(directory, open_to_all=True, timeout=timeout)
            low = await self._next(directory, timeout)
            if low is not None:
                return high << 32 | low
            minimum = high + 1
        raise LedgerIdsExhausted(f"{long_root} has no ledger id left below 2^63")

    async def _newest_directory(self, long_root: str, timeout: float | None) -> int:
        children = await self._tree.children(long_root, timeout=timeout)
        found = sorted(
            int(name.removeprefix(_HIGH_ORDER))
            for name in children.names
            if name.startswith(_HIGH_ORDER) and name.removeprefix(_HIGH_ORDER).isdecimal()
        )
        newest = found[-1] if found else 0
        if newest > _LARGEST_HIGH_ORDER:
            raise MetadataDamaged(
                f"{long_root}/{_HIGH_ORDER}{newest:010d} would give ledger ids above 2^63-1, so nobody has any of it:"
                " remove it"
            )
        for old in found[:-_KEPT_DIRECTORIES]:
            with suppress(MetadataError):
                await self._tree.delete(f"{long_root}/{_HIGH_ORDER}{old:010d}", 0, timeout=timeout)
        return newest

    async def _next(self, parent: str, timeout: float | None) -> int | None:
        """The number of a new sequential node below `parent`; None if the sequence has overflowed."""
        prefix = f"{parent}/{paths.ID_PREFIX}"
        try:
            path = await self._tree.create(prefix, ephemeral=True, sequential=True, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._tree.ensure(parent, timeout=timeout)
            path = await self._tree.create(prefix, ephemeral=True, sequential=True, timeout=timeout)
        await self._delete_later(path)
        number = int(path.removeprefix(prefix))
        return number if 0 <= number < paths.SHORT_ID_LIMIT else None

    async def _delete_later(self, path: str) -> None:
        if len(self._deletes) >= _MAX_DELETES:
            await asyncio.wait(self._deletes, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(self._delete(path))
        self._deletes.add(task)
        task.add_done_callback(self._deletes.discard)

    async def _delete(self, path: str) -> None:
        with suppress(MetadataError):  # what stays goes with the session
            await self._tree.delete(path)
