"""Watches of ledgers, which the readers of a ledger share.

However many readers there are, one watch and one read are needed for each change.

Invariants
- A watcher gets what is stored when it comes, then every newer version (several changes may show as one), and the end
  once the ledger does not exist.
- What is kept of a ledger without watchers is valid only while its watch has not fired; then a returning watcher causes
  no request. At most `MAX_IDLE` such ledgers are kept.
- A watch cannot be removed from the metadata service, and that of a closed ledger may never fire. So a change is read
  without one first: watchers that waited for the end leave with it, and no watch stays.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, section 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.lasting import heard
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.nodes import Watch
from bookie_protocol.metadata_service.tree.watching import RETRY_SECONDS
from bookie_protocol.versioned import Versioned, may_be_one_life

MAX_IDLE: Final = 10_000
LEAVING_SECONDS: Final = 1.0
"""Seconds that watchers which saw a ledger closed may take to leave."""
_NOTHING: Final = -1

Found = Versioned[LedgerMetadata] | None
Read = Callable[[int, Watch | None], Awaitable[Found]]
"""Read a ledger, maybe with a watch; None: it does not exist."""


class _Watched:
    """One ledger: its newest value, the state of the watch, the subscribers."""

    def __init__(self) -> None:
        self.newest: Found = None
        self.stale = asyncio.Event()
        self.stale.set()
        self.came = asyncio.Event()
        self.subscribers: dict[Callable[[Found], None], int] = {}
        """Subscribers with the version that each has seen: all of one life of the ledger."""
        self.task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Publish the newest value to those who have not seen it."""
        version = _NOTHING if self.newest is None else self.newest.version
        for publish, seen in list(self.subscribers.items()):
            if self.newest is None or version > seen:
                self.subscribers[publish] = version
                publish(self.newest)


class LedgerWatches:
    """All watched ledgers of one service."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._watched: dict[int, _Watched] = {}
        self._idle: dict[int, _Watched] = {}

    def watch(self, ledger_id: int) -> Subscription[Found]:
        """See `LedgerStore.watch`."""

        async def feed(publish: Callable[[Found], None]) -> None:
            watched = self._join(ledger_id)
            watched.subscribers[publish] = _NOTHING
            watched.came.set()
            if not watched.stale.is_set():
                watched.tell()
            if watched.task is None:
                watched.task = asyncio.get_running_loop().create_task(self._follow(ledger_id, watched))
            try:
                await asyncio.wait([watched.task])
                watched.task.result()
            finally:
                del watched.subscribers[publish]
                await self._leave(ledger_id, watched)

        return Subscription(feed)

    def _join(self, ledger_id: int) -> _Watched:
        watched = self._watched.get(ledger_id)
        if watched is None:
            watched = self._idle.pop(ledger_id, None)
            if watched is None or watched.stale.is_set():
                watched = _Watched()
            self._watched[ledger_id] = watched
        return watched

    async def _leave(self, ledger_id: int, watched: _Watched) -> None:
        task = watched.task
        if watched.subscribers or task is None:
            return
        watched.task = None
        if self._watched.get(ledger_id) is watched:
            del self._watched[ledger_id]
        if not watched.stale.is_set() and not task.done():
            if len(self._idle) >= MAX_IDLE:
                self._idle.pop(next(iter(self._idle)))
            self._idle[ledger_id] = watched
        task.cancel()
        await asyncio.wait([task])
        heard(task)  # its error was passed to its subscribers

    async def _follow(self, ledger_id: int, watched: _Watched) -> None:
        """Follow the ledger until it does not exist, or its node cannot be decoded."""
        try:
            while True:
                await watched.stale.wait()
                fired = asyncio.Event()
                try:
                    if watched.newest is not None and not watched.newest.value.is_closed:
                        await self._see_what_changed(ledger_id, watched)
                    found = await self._read(ledger_id, fired.set)
                except MetadataUnavailable:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if _is_another(found, watched.newest):
                    found = None  # this ledger does not exist any more
                watched.stale, watched.newest = fired, found
                watched.tell()
                if found is None:
                    return
        finally:
            if self._watched.get(ledger_id) is watched and watched.task is asyncio.current_task():
                del self._watched[ledger_id]  # a later watcher starts again

    async def _see_what_changed(self, ledger_id: int, watched: _Watched) -> None:
        """Read what changed of a ledger that was open. Returns if a watch is wanted; the last watcher that leaves
        cancels this."""
        watched.came.clear()
        found = await self._read(ledger_id, None)
        if found is None or not found.value.is_closed or _is_another(found, watched.newest):
            return  # reported once a watch is set, too
        watched.newest = found
        watched.tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                await watched.came.wait()


def _is_another(found: Found, before: Found) -> bool:
    """Return True if the ledger was deleted and made again under its id."""
    if found is None or before is None:
        return False
    return not may_be_one_life(found.identity.creation, before.identity.creation)
