"""The generation of ledger ids when metadata move: how far it has gone, and how it goes on in another place.

An id that was given once must not be given again: bookies may still hold entries of the ledger that had it, long after
its deletion. The next number of a service cannot be set. So numbers are taken and dropped where few are missing.
Otherwise the 63-bit generator begins with high-order bits of its own, which every client of these layouts follows.

Threads: event loop only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.ledger_ids import HIGH_ORDER, LONG_LAYOUTS, high_orders
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.together import bounded

FEW: Final = 10_000
"""The most numbers that are taken one by one."""
_LOST: Final = 100_000
"""The most ids that may have been given since a backup, in layouts without 63-bit ids."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A state of the generator: the next 31-bit number, and the newest high-order bits of 63-bit ids (None: none)."""

    next: int
    high_order: int | None


async def numbers_of(service: MetadataService) -> Numbers:
    """Take one number, and return how far the generator is."""
    tree, prefix = service.tree, await _prefix(service)
    try:
        number = await _take(service, prefix)
    except MetadataNotFound:
        number = 0
    try:
        names = (await tree.children(f"{service.root}/{paths.LONG_ID_GENERATION}")).names
    except MetadataNotFound:
        return Numbers(number, None)
    return Numbers(number, max(high_orders(names), default=0))


async def go_on_behind(service: MetadataService, given: Numbers, *, restored: bool) -> None:
    """Give no id that was given before. `restored`: unknown ids were given since. It may be repeated."""
    tree, prefix = service.tree, await _prefix(service)
    parent, first = prefix.rpartition("/")[0], given.next
    await tree.ensure(parent)
    if await service.cluster.settled_layout() in LONG_LAYOUTS:
        if restored or given.high_order is not None or first > FEW:
            # Minutes, so that of two places that were restored from one backup the later one gives other ids.
            minutes = int(time.time() // 60) if restored else 0
            long_root = f"{service.root}/{paths.LONG_ID_GENERATION}"
            await tree.ensure(long_root, open_to_all=True)
            high_order = max((given.high_order or 0) + 1, minutes)
            await tree.ensure(f"{long_root}/{HIGH_ORDER}{high_order:010d}", open_to_all=True)
            return
    elif restored:
        first += _LOST
    missing = first - await _take(service, prefix) - 1

    async def take(_: int) -> int:
        return await _take(service, prefix)

    await bounded(range(missing), take)


async def _prefix(service: MetadataService) -> str:
    is_flat = await service.cluster.settled_layout() is LedgerLayout.FLAT
    return f"{service.root}{'' if is_flat else '/' + paths.ID_GENERATION}/{paths.ID_PREFIX}"


async def _take(service: MetadataService, prefix: str) -> int:
    number, node = await service.tree.take_number(prefix)
    if node is not None:
        await service.tree.delete(node)
    return number if 0 <= number < paths.SHORT_ID_LIMIT else paths.SHORT_ID_LIMIT
