"""The tree `underreplication`: marks, locks, and what all auditors and workers of a cluster agree on.

Threads: event loop only.

Sources: reference metadata layout, sections 10, 10.5 and 10.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Final

from bookie_protocol.errors import MetadataExists, MetadataNotFound, MetadataVersionConflict
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.nodes import Node, Watch
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.under_replication.locks import Locks
from bookie_protocol.metadata_service.tree.under_replication.marks import Marks
from bookie_protocol.metadata_service.tree.watching import changes
from bookie_protocol.metadata_service.under_replication import (
    AuditorCheck,
    LedgerLock,
    LockHolder,
)
from bookie_protocol.metadata_service.versioned import Versioned

RECHECK_SECONDS: Final = 60.0
"""A worker that found nothing asks the service again after this long even if no watch told it to."""


class UnderReplication(Marks):
    """The tree `underreplication`. `timeout` as in `interface`, where one may be given. `random`: the order in
    which work is looked for."""

    def __init__(self, base: UnderReplicationBase, random: Random | None = None) -> None:
        super().__init__(base)
        self._locks = Locks(base, random)
        self._disable = f"{base.path}/{formats.DISABLE}"
        self._delay = f"{base.path}/{formats.LOST_BOOKIE_RECOVERY_DELAY}"

    # --- locks ------------------------------------------------------------------------------------------------

    async def acquire(self) -> LedgerLock:
        """Lock a marked ledger; waits, without limit, for one and for auto-recovery to be enabled.

        Every mark has its turn, but for ledgers that are left alone: the tree is walked in random order.
        """
        while True:
            await self._until_enabled()
            lock, changed = await self._locks.find()
            if lock is not None:
                return lock
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await changed.wait()
            except TimeoutError:
                self._locks.forget_directories()

    def leaving_alone(self, ledger_id: int) -> AbstractAsyncContextManager[None]:
        """Meanwhile no worker acquires this ledger, which nobody has to lock for that, as long as our session lives.
        Never raises for want of the metadata service: then others may acquire it."""
        return self._locks.leaving_alone(ledger_id)

    async def try_acquire(self) -> LedgerLock | None:
        """As `acquire`, but None at once if nothing can be locked or auto-recovery is disabled."""
        if not await self.is_enabled():
            return None
        return (await self._locks.find())[0]

    async def lock(self, ledger_id: int, *, timeout: float | None = None) -> LedgerLock:
        """Lock one ledger, marked or not. `MetadataExists`: it is locked already."""
        return await self._locks.lock(ledger_id, timeout)

    async def mark_replicated(self, lock: LedgerLock) -> None:
        """Remove the mark unless it was renewed since, then the lock. With a lock that was given back nothing is done.
        `SessionEnded`: the lock had ended, and the mark stands."""
        if lock.mark_version is not None and self._locks.holds(lock):
            await self._remove(
                lock.ledger_id,
                lock.mark_version,
                created_ms=lock.mark_created_ms,
                session_id=lock.session_id,
            )
        await self.release(lock)

    async def release(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Give a lock back; one that ended with its session is fine, and so is one that was given back before."""
        await self._locks.release(lock, timeout)

    async def locked_by(self, ledger_id: int) -> str | None:
        """Who holds the lock of this ledger (a host name, as the holder wrote it); None: nobody."""
        return await self._locks.locked_by(ledger_id)

    async def holders(self) -> Mapping[int, LockHolder]:
        """All locks, as of now: whoever took one before this call is among them, or has given it back."""
        return await self._locks.all()

    async def locks(self) -> Mapping[int, str]:
        """All locks: ledger id and the host of its holder."""
        return {ledger_id: holder.host for ledger_id, holder in (await self._locks.all()).items()}

    async def _until_enabled(self) -> None:
        while True:
            changed = asyncio.Event()
            if await self.is_enabled():  # without a watch: one would be left behind each time
                return
            if await self.is_enabled(changed.set):
                return
            await changed.wait()

    # --- settings ---------------------------------------------------------------------------------------------

    async def is_enabled(self, watch: Watch | None = None) -> bool:
        """Whether auto-recovery is enabled in this cluster; it is until somebody disables it."""
        if await self._tree.exists(self._disable, watch=watch) is not None:
            return False
        await self._base.cluster.require()
        return True

    async def enable(self) -> None:
        """`MetadataNotFound`: it is enabled already."""
        try:
            await self._tree.delete(self._disable)
        except MetadataNotFound:
            await self._base.cluster.require()
            raise MetadataNotFound("auto-recovery is enabled already") from None

    async def disable(self) -> None:
        """`MetadataExists`: it is disabled already."""
        if not await self._base.write(formats.DISABLE, b"", replace=False):
            raise MetadataExists("auto-recovery is disabled already")

    def watch_enabled(self) -> Subscription[bool]:
        """Whether auto-recovery is enabled, now and after each change."""
        return changes(self.is_enabled, lambda enabled: enabled)

    async def lost_bookie_recovery_delay(self) -> int | None:
        """Seconds between the loss of a bookie and its audit; None: nobody set it."""
        data = await self._base.read(formats.LOST_BOOKIE_RECOVERY_DELAY)
        return None if data is None else formats.decode_delay(data, self._delay)

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> bool:
        """Set the delay unless one is set; whether this call did it."""
        return await self._write_delay(seconds, replace=False)

    async def set_lost_bookie_recovery_delay(self, seconds: int) -> None:
        """Set the delay. Setting the present value again asks the auditor for an audit now."""
        await self._write_delay(seconds, replace=True)

    async def ask_for_audit(self) -> bool:
        """Ask the auditor for an audit now, by writing the delay as it is; a value that somebody sets meanwhile stays.
        False: nobody has set one."""
        while True:
            try:
                node = await self._tree.get(self._delay)
                formats.decode_delay(node.data, self._delay)
                await self._tree.set(self._delay, node.data, node.stat.version)
            except MetadataVersionConflict:
                continue
            except MetadataNotFound:
                await self._base.cluster.require()
                return False
            return True

    async def _write_delay(self, seconds: int, *, replace: bool) -> bool:
        data = formats.encode_delay(seconds)
        return await self._base.write(formats.LOST_BOOKIE_RECOVERY_DELAY, data, open_to_all=True, replace=replace)

    def watch_lost_bookie_recovery_delay(self) -> Subscription[Versioned[int] | None]:
        """The delay, now and after each write, also of the same value (then with a greater version)."""

        def show(node: Node | None) -> Versioned[int] | None:
            return None if node is None else Versioned(formats.decode_delay(node.data, self._delay), node.stat.version)

        # A node that is made again starts at version 0 again, but not at the same time of creation: it is another one.
        return changes(lambda watch: self._base.cluster.watched(self._delay, watch), show)

    async def check_time(self, check: AuditorCheck) -> int | None:
        """When this check last ran to its end, in ms since the epoch; None: never."""
        data = await self._base.read(check.value)
        return None if data is None else formats.decode_check_time(data, f"{self._base.path}/{check.value}")

    async def set_check_time(self, check: AuditorCheck, time_ms: int) -> None:
        await self._base.write(check.value, formats.encode_check_time(check, time_ms))
