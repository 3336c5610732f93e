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


class TreeUnderReplication:
    """Implements `UnderReplication`. `random`: the order in which work is looked for."""

    def __init__(self, base: UnderReplicationBase, random: Random | None = None) -> None:
        self._marks = Marks(base)
        self._locks = Locks(base, random)
        self._settings = Settings(base)

    # --- marks ------------------------------------------------------------------------------------------------

    async def mark(
        self, ledger_id: int, missing_replicas: Collection[str], *, ctime_ms: int | None, timeout: float | None = None
    ) -> None:
        await self._marks.mark(ledger_id, missing_replicas, ctime_ms, timeout)

    async def renew(self, ledger_id: int, *, timeout: float | None = None) -> bool:
        return await self._marks.renew(ledger_id, timeout)

    async def count(self, *, timeout: float | None = None) -> int:
        return await self._marks.count(timeout)

    async def read(self, ledger_id: int, *, timeout: float | None = None) -> UnderreplicatedLedger | None:
        return await self._marks.read(ledger_id, timeout)

    def list(
        self, predicate: ReplicaPredicate | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[UnderreplicatedLedger]:
        return self._marks.list(predicate, timeout)

    async def unmark(self, ledger_id: int, *, timeout: float | None = None) -> None:
        await self._marks.unmark(ledger_id, timeout)

    # --- locks ------------------------------------------------------------------------------------------------

    async def acquire(self, *, skip: Collection[int] = (), timeout: float | None = None) -> LedgerLock:
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
        if not await self.is_enabled(timeout=timeout):
            return None
        return (await self._locks.find(timeout))[0]

    async def lock(self, ledger_id: int, *, timeout: float | None = None) -> LedgerLock:
        return await self._locks.lock(ledger_id, timeout)

    async def mark_replicated(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
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
        await self._locks.release(lock, timeout)

    async def locked_by(self, ledger_id: int, *, timeout: float | None = None) -> str | None:
        return await self._locks.locked_by(ledger_id, timeout)

    async def holders(self, *, timeout: float | None = None) -> Mapping[int, LockHolder]:
        return await self._locks.all(timeout)

    async def locks(self, *, timeout: float | None = None) -> Mapping[int, str]:
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
        return await self._settings.is_enabled(timeout)

    async def enable(self, *, timeout: float | None = None) -> None:
        await self._settings.enable(timeout)

    async def disable(self, *, timeout: float | None = None) -> None:
        await self._settings.disable(timeout)

    def watch_enabled(self) -> Subscription[bool]:
        return self._settings.watch_enabled()

    async def lost_bookie_recovery_delay(self, *, timeout: float | None = None) -> int | None:
        return await self._settings.delay(timeout)

    async def initialize_lost_bookie_recovery_delay(self, seconds: int, *, timeout: float | None = None) -> bool:
        return await self._settings.initialize_delay(seconds, timeout)

    async def set_lost_bookie_recovery_delay(self, seconds: int, *, timeout: float | None = None) -> None:
        await self._settings.set_delay(seconds, timeout)

    def watch_lost_bookie_recovery_delay(self) -> Subscription[Versioned[int] | None]:
        return self._settings.watch_delay()

    async def check_time(self, check: AuditorCheck, *, timeout: float | None = None) -> int | None:
        return await self._settings.check_time(check, timeout)

    async def set_check_time(self, check: AuditorCheck, time_ms: int, *, timeout: float | None = None) -> None:
        await self._settings.set_check_time(check, time_ms, timeout)
