"""Who is registered, writable or read-only: followed by watches, and listed anew when it counts.

Invariants
- One group alone tells nothing: nothing is told before both are known.
- A snapshot replaces an older one of its group only; watches and lists may overtake each other.
- A watch that ends with an error is begun again; what was known stays.

Event loop only.

Source: reference auto-recovery, section 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet, MetadataService

_log = structlog.get_logger(__name__)

FOLLOW_PAUSE: Final = 30.0
"""Seconds until a watch that ended is begun again."""
_LOOKS: Final = 5


class Registrations:
    """`on_look` gets all registered bookies whenever something may have changed."""

    def __init__(self, service: MetadataService, on_look: Callable[[frozenset[str]], None]) -> None:
        self._bookies = service.bookies
        self._on_look = on_look
        self._groups: dict[BookieGroup, BookieSet] = {}

    async def look(self) -> None:
        """Ask who is registered now. Raises `MetadataError`.

        A bookie registers on its new side before it leaves the old one, so whoever is on neither side in writable,
        read-only, writable is gone; who was seen only at first is looked at again.
        """
        for _ in range(_LOOKS):
            first = await self._bookies.list(BookieGroup.WRITABLE)
            read_only = await self._bookies.list(BookieGroup.READ_ONLY)
            writable = await self._bookies.list(BookieGroup.WRITABLE)
            if first.bookies <= writable.bookies | read_only.bookies:
                break
        self._take(BookieGroup.READ_ONLY, read_only)
        self._take(BookieGroup.WRITABLE, writable)
        self._tell()

    async def follow(self, group: BookieGroup) -> None:
        """Until cancelled."""
        while True:
            try:
                async with self._bookies.watch(group) as snapshots:
                    async for snapshot in snapshots:
                        self._take(group, snapshot)
                        self._tell()
            except MetadataError as error:
                _log.warning("registrations cannot be followed", group=group.value, reason=str(error))
            await asyncio.sleep(FOLLOW_PAUSE)

    def _take(self, group: BookieGroup, found: BookieSet) -> None:
        known = self._groups.get(group)
        if known is None or found.version > known.version:
            self._groups[group] = found

    def _tell(self) -> None:
        if len(self._groups) == 2:
            self._on_look(frozenset[str]().union(*(group.bookies for group in self._groups.values())))
