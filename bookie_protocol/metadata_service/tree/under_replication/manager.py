"""All parts of the tree behind the interface.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from random import Random
from typing import Final

from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.under_replication.locks import Locks
from bookie_protocol.metadata_service.tree.under_replication.marks import Marks
from bookie_protocol.metadata_service.tree.under_replication.settings import Settings
from bookie_protocol.metadata_service.under_replication import (
    AuditorCheck,
    LedgerLock,
    LockHolder,
    ReplicaPredicate,
    UnderreplicatedLedger,
)
from bookie_protocol.metadata_service.versioned import Versioned

RECHECK_SECONDS: Final = 60.0
"""A worker that found nothing asks the service again after this long even if no watch told it to."""


class UnderReplication:
    """The tree `underreplication`. `timeout` as in `interface`: seconds for each request, None for the default.
    `random`: the order in which work is looked for."""

    def __init__(self, base: UnderReplicationBase, random: Random | None = None) -> None:
        self._marks = Marks(base)
        self._locks = Locks(base, random)
        self._settings = Settings(base)

    # --- marks ------------------------------------------------------------------------------------------------

    async def mark(
        self, ledger_id: int, missing_replicas: Collection[str], *, ctime_ms: int | None, timeout: float | None = None
    ) -> None:
        """Mark a ledger; replicas join those of an existing mark, which stays as it is if it has them all.

        `ctime_ms` None: the time is not recorded (`storeSystemTimeAsLedgerUnderreplicatedMarkTime=false`).
        """
        await self._marks.mark(ledger_id, missing_replicas, ctime_ms, timeout)

    async def renew(self, ledger_id: int, *, timeout: float | None = None) -> bool:
        """See that a mark outlives a repair under way, which may have looked too early; False: there is no mark."""
        return await self._marks.renew(ledger_id, timeout)

    async def count(self, *, timeout: float | None = None) -> int:
        """How many ledgers are marked, without reading the marks: of many, those whose directories are there."""
        return await self._marks.count(timeout)

    async def read(self, ledger_id: int, *, timeout: float | None = None) -> UnderreplicatedLedger | None:
        """The mark of a ledger; None: it is not marked."""
        return await self._marks.read(ledger_id, timeout)

    def list(
        self, predicate: ReplicaPredicate | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[UnderreplicatedLedger]:
        """Every mark, in ascending order of ids, bounded in memory. Marks made or removed meanwhile may show; one that
        is damaged says so, unless there is a predicate, which it cannot be asked for."""
        return self._marks.list(predicate, timeout)

    async def unmark(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Remove a mark, whoever set it (the ledger was deleted). None is fine."""
        await self._marks.unmark(ledger_id, timeout)

    # --- locks ------------------------------------------------------------------------------------------------

    async def acquire(self, *, skip: Collection[int] = (), timeout: float | None = None) -> LedgerLock:
        """Lock a marked ledger; waits, without limit, for one and for auto-recovery to be enabled.

        Every mark has its turn: the tree is walked in random order, and passes over ledgers that are in `skip`, which
        may change meanwhile. `timeout` is for each request.
        """
        while True:
            await self._until_enabled(timeout)
            lock, changed = await self._locks.find(timeout, skip)
            if lock is not None:
                return lock
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await changed.wait()
            except TimeoutError:
                self._locks.forget_directories()

    async def try_acquire(self, *, timeout: float | None = None) -> LedgerLock | None:
        """As `acquire`, but None at once if nothing can be locked or auto-recovery is disabled."""
        if not await self.is_enabled(timeout=timeout):
            return None
        return (await self._locks.find(timeout))[0]

    async def lock(self, ledger_id: int, *, timeout: float | None = None) -> LedgerLock:
        """Lock one ledger, marked or not. `MetadataExists`: it is locked already."""
        return await self._locks.lock(ledger_id, timeout)

    async def mark_replicated(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Remove the mark unless it was renewed since, then the lock. With a lock that was given back nothing is done.
        `SessionEnded`: the lock had ended, and the mark stands."""
        if lock.mark_version is not None and self._locks.holds(lock):
            await self._marks.remove(
                lock.ledger_id,
                lock.mark_version,
                timeout,
                created_ms=lock.mark_created_ms,
                session_id=lock.session_id,
            )
        await self.release(lock, timeout=timeout)

    async def release(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Give a lock back; one that ended with its session is fine, and so is one that was given back before."""
        await self._locks.release(lock, timeout)

    async def locked_by(self, ledger_id: int, *, timeout: float | None = None) -> str | None:
        """Who holds the lock of this ledger (a host name, as the holder wrote it); None: nobody."""
        return await self._locks.locked_by(ledger_id, timeout)

    async def holders(self, *, timeout: float | None = None) -> Mapping[int, LockHolder]:
        """All locks, as of now: whoever took one before this call is among them, or has given it back."""
        return await self._locks.all(timeout)

    async def locks(self, *, timeout: float | None = None) -> Mapping[int, str]:
        """All locks: ledger id and the host of its holder."""
        return {ledger_id: holder.host for ledger_id, holder in (await self._locks.all(timeout)).items()}

    async def _until_enabled(self, timeout: float | None) -> None:
        while True:
            changed = asyncio.Event()
            if await self._settings.is_enabled(timeout):  # without a watch: one would be left behind each time
                return
            if await self._settings.is_enabled(timeout, changed.set):
                return
            await changed.wait()

    # --- settings ---------------------------------------------------------------------------------------------

    async def is_enabled(self, *, timeout: float | None = None) -> bool:
        """Whether auto-recovery is enabled in this cluster; it is until somebody disables it."""
        return await self._settings.is_enabled(timeout)

    async def enable(self, *, timeout: float | None = None) -> None:
        """`MetadataNotFound`: it is enabled already."""
        await self._settings.enable(timeout)

    async def disable(self, *, timeout: float | None = None) -> None:
        """`MetadataExists`: it is disabled already."""
        await self._settings.disable(timeout)

    def watch_enabled(self) -> Subscription[bool]:
        """Whether auto-recovery is enabled, now and after each change."""
        return self._settings.watch_enabled()

    async def lost_bookie_recovery_delay(self, *, timeout: float | None = None) -> int | None:
        """Seconds between the loss of a bookie and its audit; None: nobody set it."""
        return await self._settings.delay(timeout)

    async def initialize_lost_bookie_recovery_delay(self, seconds: int, *, timeout: float | None = None) -> bool:
        """Set the delay unless one is set; whether this call did it."""
        return await self._settings.initialize_delay(seconds, timeout)

    async def set_lost_bookie_recovery_delay(self, seconds: int, *, timeout: float | None = None) -> None:
        """Set the delay. Setting the present value again asks the auditor for an audit now."""
        await self._settings.set_delay(seconds, timeout)

    def watch_lost_bookie_recovery_delay(self) -> Subscription[Versioned[int] | None]:
        """The delay, now and after each write, also of the same value (then with a greater version)."""
        return self._settings.watch_delay()

    async def check_time(self, check: AuditorCheck, *, timeout: float | None = None) -> int | None:
        """When this check last ran to its end, in ms since the epoch; None: never."""
        return await self._settings.check_time(check, timeout)

    async def set_check_time(self, check: AuditorCheck, time_ms: int, *, timeout: float | None = None) -> None:
        await self._settings.set_check_time(check, time_ms, timeout)
