"""A ledger as one reader's handle knows it: metadata that follow the store, and a LAC that only rises.

Invariants
- The metadata are never replaced by older ones, and the LAC never goes back.
- Once the ledger is closed the LAC is its last entry, the same for every handle, and nothing changes any more
  but the bookies of its segments (re-replication). No LAC heard before can be above that end, because what was
  heard was confirmed by the writer; were it so, the end would count, and the log would tell.
- `next_change` is asked for before a condition is looked at, so no change is missed between look and wait.

Event loop only.

Source: reference client protocol, sections 12 and 13.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bookie_client.context import ClientContext
from bookie_client.logs import get_logger
from bookie_client.reading.background import fail_on_defect
from bookie_client.reading.lac import least_lac
from bookie_protocol.errors import LedgerClosed, MetadataError, MetadataNotFound, NoSuchLedger, PodkeeperError, fresh
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned

_log = get_logger(__name__)


class FollowedLedger:
    """`follow` it to learn of new segments, of closing and of deletion; `close` ends that."""

    def __init__(self, context: ClientContext, stored: Versioned[LedgerMetadata]) -> None:
        self.ledger_id = stored.value.ledger_id
        self._context = context
        self._stored = stored
        self._lac = least_lac(stored.value)
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.is_deleted = False
        self.failure: PodkeeperError | None = None
        """Why nothing more can be learnt through this handle."""

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        return self._stored.value

    @property
    def lac(self) -> int:
        return self._lac

    @property
    def is_closed(self) -> bool:
        return self._stored.value.is_closed

    @property
    def next_change(self) -> asyncio.Future[None]:
        """Done at the next change of anything here. Wait for it with `asyncio.wait`, which leaves it alone when
        cancelled."""
        return self._change

    async def reach(self, entry_id: int) -> None:
        """Wait until an entry is confirmed, or never will be because the ledger was closed in front of it.

        Raises `NoSuchLedger` when the ledger was deleted first, or what ended this handle.
        """
        while True:
            change = self._change
            if self._lac >= entry_id or self.is_closed:
                return
            if self.failure is not None:
                raise fresh(self.failure)
            if self.is_deleted:
                raise NoSuchLedger(f"ledger {self.ledger_id} was deleted before it was closed")
            await asyncio.wait([change])

    # --- news -----------------------------------------------------------------------------------------------

    def heard(self, lac: int) -> None:
        """Somebody told a last add confirmed."""
        if lac > self._lac and not self.is_closed:
            self._lac = lac
            self._changed()

    def take(self, stored: Versioned[LedgerMetadata]) -> bool:
        """Metadata from the store; False when they are nothing new."""
        if stored.version <= self._stored.version:
            return False
        self._stored = stored
        lac = least_lac(stored.value)
        if not stored.value.is_closed:
            self._lac = max(self._lac, lac)
        else:
            if lac < self._lac:
                _log.error("ledger closed below its LAC", ledger=self.ledger_id, last_entry=lac, lac=self._lac)
            self._lac = lac
        self._changed()
        return True

    async def refresh(self) -> bool:
        """Read the metadata now; whether they are news. A metadata service that cannot tell has no news."""
        try:
            return self.take(await self._context.ledgers.read(self.ledger_id))
        except MetadataNotFound:
            self._deleted()
            return False
        except MetadataError:
            return False

    def fail(self, error: PodkeeperError) -> None:
        """Nothing more can be learnt: whoever waits gets this error."""
        if self.failure is None:
            self.failure = fresh(error)
            self._changed()

    def _deleted(self) -> None:
        if not self.is_deleted:
            self.is_deleted = True
            self._changed()

    def _changed(self) -> None:
        done, self._change = self._change, asyncio.get_running_loop().create_future()
        if not done.done():
            done.set_result(None)

    # --- following ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Watch the metadata until `close`; of a ledger that is closed nothing is expected any more, unless the
        client keeps metadata updated."""
        if self._task is None and self._is_moving:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"metadata of {self.ledger_id}")
            fail_on_defect(self._task, self.ledger_id, "following its metadata", self.fail)

    async def close(self) -> None:
        """Stop watching; whoever still waits is told. Calling it again is fine."""
        self.fail(LedgerClosed(f"ledger {self.ledger_id}: this reader was closed"))
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @property
    def _is_moving(self) -> bool:
        keep = self._context.options.keep_metadata_updated
        return not self.is_deleted and (keep or not self.is_closed)

    async def _follow(self) -> None:
        while self._is_moving:
            with suppress(MetadataError):
                await self._watch()
            if self._is_moving:
                # The watch ended by a fault that it does not ride out: begin anew, unhurriedly.
                await asyncio.sleep(self._context.options.degraded_retry_interval)

    async def _watch(self) -> None:
        async with self._context.ledgers.watch(self.ledger_id) as snapshots:
            async for stored in snapshots:
                if stored is None:
                    self._deleted()
                    return
                self.take(stored)
                if not self._is_moving:
                    return
