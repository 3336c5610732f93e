"""Listing all ledgers in ascending ranges, for garbage collection and tools.

Invariants
- Complete or an error: ids that a listing leaves out are deleted by bookies. A directory that vanished while
  it was being listed is empty; a root that is not there, an id out of order or any other doubt ends the
  listing with an error.
- Ranges follow each other without a gap from the first id that is asked for, or 0, to 2^63-1; the last one may hold no
  ids. Directories of smaller ids are not read.
- Bounded: at most `READ_AHEAD` leaf directories (up to 10,000 ids each) are under way or waiting to be taken; one if
  the listing begins at an id, since its caller wants few.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 7 and 11.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID
from bookie_protocol.metadata_service.interface import LedgerLayout, LedgerRange
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.together import read_ahead

READ_AHEAD: Final = 16
_FLAT_RANGE: Final = 10_000
_LEVELS = {
    LedgerLayout.LEGACY_HIERARCHICAL: (paths.SHORT_LEVELS,),
    LedgerLayout.HIERARCHICAL: (paths.SHORT_LEVELS, paths.LONG_LEVELS),
    LedgerLayout.LONG_HIERARCHICAL: (paths.LONG_LEVELS,),
}


class LedgerListing:
    """Lists the ledgers of one cluster."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self._tree = tree
        self._root = root
        self._cluster = cluster

    async def ranges(
        self, *, first: int | None = None, timeout: float | None = None
    ) -> AsyncGenerator[LedgerRange, None]:
        """See `LedgerStore.ranges`."""
        layout = await self._cluster.settled_layout(timeout=timeout)
        await self._tree.sync(self._root, timeout=timeout)
        start = first or 0
        async with aclosing(self._id_lists(layout, first, timeout)) as id_lists:
            async for listed in id_lists:
                ids = listed if first is None else listed[bisect_left(listed, first) :]
                if not ids:
                    continue
                if ids[0] < start:
                    raise MetadataDamaged(
                        f"{self._root} lists ledger {ids[0]} after {start - 1}: ledgers of two layouts are mixed"
                    )
                yield LedgerRange(start, ids[-1], ids)
                start = ids[-1] + 1
        if start <= MAX_LEDGER_ID:
            yield LedgerRange(start, MAX_LEDGER_ID, ())

    async def _id_lists(
        self, layout: LedgerLayout, first: int | None, timeout: float | None
    ) -> AsyncGenerator[tuple[int, ...], None]:
        if layout is LedgerLayout.FLAT:
            children = await self._tree.children(self._root, timeout=timeout)
            ids = sorted(i for i in map(paths.flat_ledger_id, children.names) if i is not None)
            for start in range(0, len(ids), _FLAT_RANGE):
                yield tuple(ids[start : start + _FLAT_RANGE])
            return

        async def read(directory: str) -> tuple[int, ...]:
            return await self._leaf(directory, timeout)

        for levels in _LEVELS[layout]:
            leaf_names = self._leaves("", levels, paths.first_digits(levels, first) if first else "", timeout)
            at_a_time = READ_AHEAD if first is None else 1
            async with aclosing(read_ahead(leaf_names, read, at_a_time)) as leaves:
                async for found in leaves:
                    yield found

    async def _leaves(
        self, directory: str, levels: Sequence[re.Pattern[str]], first: str, timeout: float | None
    ) -> AsyncGenerator[str, None]:
        """The leaf directories below `directory` (itself below the root) that may hold ids from `first` on, in
        ascending order."""
        if not levels:
            yield directory
            return
        try:
            children = await self._tree.children(self._root + directory, timeout=timeout)
        except MetadataNotFound:
            if not directory:
                raise
            return
        # names of one level have one length, so the order of text is that of numbers
        for name in sorted(filter(levels[0].fullmatch, children.names)):
            below = f"{directory}/{name}"
            if first and (digits := below.replace("/", "")) < first[: len(digits)]:
                continue
            async for leaf in self._leaves(below, levels[1:], first, timeout):
                yield leaf

    async def _leaf(self, directory: str, timeout: float | None) -> tuple[int, ...]:
        path = self._root + directory
        try:
            await self._tree.sync(path, timeout=timeout)
            children = await self._tree.children(path, timeout=timeout)
        except MetadataNotFound:
            return ()
        found = (paths.leaf_ledger_id(directory, name) for name in children.names)
        return tuple(sorted(ledger_id for ledger_id in found if ledger_id is not None))
