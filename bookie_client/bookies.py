"""The bookies as this client knows them: who is writable now, and where each one listens.

Invariants
- The writable set follows the metadata service's watch; nothing older than what was seen is ever used.
- "Nobody is registered" is an answer; "could not tell" is an error.

Event loop only.

Source: reference metadata layout, section 4.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bookie_protocol.errors import MetadataDamaged, MetadataError
from bookie_protocol.metadata_service.interface import BookieGroup, BookieRegistry, BookieSet


class Bookies:
    """Follows the registry while it is open; `start` before use."""

    def __init__(self, registry: BookieRegistry) -> None:
        self._registry = registry
        self._known: BookieSet | None = None
        self.is_following = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the set of writable bookies."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="writable bookies")

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def writable(self) -> frozenset[str]:
        """The writable bookies. Asks the metadata service when the watch has told nothing yet; raises its
        error."""
        if self._known is None or not self.is_following:
            self._take(await self._registry.list(BookieGroup.WRITABLE))
        assert self._known is not None
        return self._known.bookies

    async def changed(self, timeout: float) -> None:
        """Wait until the writable set changes, at most `timeout` seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def address(self, bookie_id: str) -> tuple[str, int]:
        """Host and port of a registered bookie. Raises `MetadataError`."""
        info = await self._registry.service_info(bookie_id)
        address = info.bookie_address()
        if address is None:
            raise MetadataDamaged(f"bookie {bookie_id} is registered without an endpoint for the BookKeeper protocol")
        return address

    async def _follow(self) -> None:
        # Once this ends, `writable` asks the service itself, and its caller sees the error.
        try:
            with suppress(MetadataError):
                async with self._registry.watch(BookieGroup.WRITABLE) as snapshots:
                    async for snapshot in snapshots:
                        self.is_following = True
                        self._take(snapshot)
        finally:
            self.is_following = False

    def _take(self, snapshot: BookieSet) -> None:
        if self._known is None or snapshot.version > self._known.version:
            self._known = snapshot
            self._changed.set()
