"""Ledger ids out of the numbers of sequential nodes, each given out once in the life of the cluster.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, section 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import LedgerIdsExhausted, MetadataDamaged, MetadataError, MetadataNotFound
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.nodes import NO_SESSION
from bookie_protocol.metadata_service.tree.retrying import RetryingTree

HIGH_ORDER: Final = "HOB-"
_KEPT_DIRECTORIES: Final = 3
LARGEST_HIGH_ORDER: Final = 2**31 - 1
_MOST_DIGITS: Final = 20
"""Digits of a name that are read: more of them are too large a number anyway."""
_MAX_DELETES: Final = 64
LONG_LAYOUTS: Final = (LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL)


def high_orders(names: Iterable[str]) -> list[int]:
    """Return the high-order bits that these children of the 63-bit generator stand for. Any client may make such."""
    digits = [name.removeprefix(HIGH_ORDER) for name in names if name.startswith(HIGH_ORDER)]
    return [int(each[:_MOST_DIGITS]) for each in digits if each.isdecimal()]


class LedgerIdGenerator:
    """Ledger ids out of the numbers of sequential nodes, each given out once in the life of the cluster.

    31 bits: the number of an ephemeral node `ID-...` (in the root for the flat layout, else in `idgen`). 63
    bits (hierarchical and long hierarchical): once the former overflowed, a directory `idgen-long/HOB-<high order
    bits>` holds such nodes, and the id is `high << 32 | sequence number`.

    Invariants
    - A lost answer may waste an id, never give one out twice.
    - The existence of `idgen-long` is looked up once in each session; a client that saw it absent continues with 31
      bits until these overflow.
    - An id was looked up and numbered in one session. If that ended meanwhile, the number is wasted.

    Generates ids; `close` waits for the deletion of used nodes.
    """

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self._tree = tree
        self._root = root
        self._cluster = cluster
        self._long_ids: bool | None = None
        self._looked_in = NO_SESSION
        """The session in which that was looked up."""
        self._deletes: set[asyncio.Task[None]] = set()

    async def generate(self, *, timeout: float | None = None) -> int:
        """A new id. `LedgerIdsExhausted`: this layout has none left. `MetadataDamaged`: a node is no generator's."""
        layout = await self._cluster.settled_layout(timeout=timeout)
        while True:
            session_id = self._tree.session_id
            found = await self._generate(layout, session_id, timeout)
            if self._tree.session_id == session_id:
                return found
            # The next session may be with another service, to which the metadata moved: then the look was at one, and
            # the number may be of a generator of the other that clients must not use any more.

    async def _generate(self, layout: LedgerLayout, session_id: int, timeout: float | None) -> int:
        """Return an id. It counts only if the session is still this one."""
        long_root = f"{self._root}/{paths.LONG_ID_GENERATION}"
        if self._looked_in == session_id and self._long_ids is not None:
            long_ids = self._long_ids
        else:
            long_ids = layout in LONG_LAYOUTS and await self._tree.exists(long_root, timeout=timeout) is not None
            self._long_ids, self._looked_in = long_ids, session_id
        if not long_ids:
            parent = self._root if layout is LedgerLayout.FLAT else f"{self._root}/{paths.ID_GENERATION}"
            number = await self._next(parent, timeout)
            if number is not None:
                return number
            if layout not in LONG_LAYOUTS:
                raise LedgerIdsExhausted(
                    f"the {layout.name.lower()} layout of {self._root} has no ledger id left below 2^31-1"
                )
            await self._tree.ensure(long_root, open_to_all=True, timeout=timeout)
            self._long_ids, self._looked_in = True, session_id
        return await self._generate_long(long_root, timeout)

    async def close(self) -> None:
        """Let the deletions under way end."""
        if self._deletes:
            await asyncio.wait(self._deletes)

    async def _generate_long(self, long_root: str, timeout: float | None) -> int:
        minimum = 1
        while minimum <= LARGEST_HIGH_ORDER:
            high = max(minimum, await self._newest_directory(long_root, timeout))
            directory = f"{long_root}/{HIGH_ORDER}{high:010d}"
            await self._tree.ensure(directory, open_to_all=True, timeout=timeout)
            low = await self._next(directory, timeout)
            if low is not None:
                return high << 32 | low
            minimum = high + 1
        raise LedgerIdsExhausted(f"{long_root} has no ledger id left below 2^63")

    async def _newest_directory(self, long_root: str, timeout: float | None) -> int:
        found = sorted(high_orders((await self._tree.children(long_root, timeout=timeout)).names))
        newest = found[-1] if found else 0
        if newest > LARGEST_HIGH_ORDER:
            raise MetadataDamaged(
                f"{long_root}/{HIGH_ORDER}{newest:010d} would give ledger ids above 2^63-1, which cannot exist:"
                " remove it"
            )
        for old in found[:-_KEPT_DIRECTORIES]:
            with suppress(MetadataError):
                await self._tree.delete(f"{long_root}/{HIGH_ORDER}{old:010d}", timeout=timeout)
        return newest

    async def _next(self, parent: str, timeout: float | None) -> int | None:
        """Return a number that is new below `parent`; None if they have overflowed."""
        prefix = f"{parent}/{paths.ID_PREFIX}"
        try:
            number, node = await self._tree.take_number(prefix, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._tree.ensure(parent, timeout=timeout)
            number, node = await self._tree.take_number(prefix, timeout=timeout)
        if node is not None:
            await self._delete_later(node)
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
