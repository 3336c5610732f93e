"""Watches of ledgers, shared: many readers of one ledger cost one watch and one read for each change.

Invariants
- A subscriber gets what is stored when it comes, then every newer version (several changes may show as one), and the
  end once the ledger does not exist.
- What is kept of a ledger that nobody watches any more is valid only while its watch has not fired; then nothing is
  asked when somebody comes back. At most `MAX_IDLE` such ledgers are kept.
- Nobody can take a watch back from the metadata service, and that of a closed ledger may never fire. So what changed is
  read without one first: whoever waited for the end leaves with it, and no watch stays.

Threads: event loop only.

Source: reference metadata layout, section 9.4.
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
from bookie_protocol.metadata_service.versioned import Versioned

MAX_IDLE: Final = 10_000
LEAVING_SECONDS: Final = 1.0
"""For so long those who saw a ledger closed may take to leave."""
_NOTHING: Final = -1

Found = Versioned[LedgerMetadata] | None
Read = Callable[[int, Watch | None], Awaitable[Found]]
"""Read a ledger, maybe with a watch; None: it does not exist."""


class _Watched:
    """One ledger: its newest value, whether the watch stands, who wants to know."""

    def __init__(self) -> None:
        self.newest: Found = None
        self.stale = asyncio.Event()
        self.stale.set()
        self.came = asyncio.Event()
        self.subscribers: dict[Callable[[Found], None], int] = {}  # with the version that each has seen
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
        heard(task)  # its error was told to the subscribers of then

    async def _follow(self, ledger_id: int, watched: _Watched) -> None:
        """Until the ledger does not exist, or its node cannot be understood."""
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
                watched.stale, watched.newest = fired, found
                watched.tell()
                if found is None:
                    return
        finally:
            if self._watched.get(ledger_id) is watched and watched.task is asyncio.current_task():
                del self._watched[ledger_id]  # whoever comes now begins anew

    async def _see_what_changed(self, ledger_id: int, watched: _Watched) -> None:
        """See what changed of a ledger that was open. Returns when a watch is wanted; whoever leaves as the last one
        cancels this."""
        watched.came.clear()
        found = await self._read(ledger_id, None)
        if found is None or not found.value.is_closed:
            return  # told when a watch stands, too
        watched.newest = found
        watched.tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                await watched.came.wait()
