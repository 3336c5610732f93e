"""The tree `underreplication`: marks, locks, and what all auditors and workers of a cluster agree on.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 10, 10.5 and 10.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
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
    Rest,
    UnderreplicatedLedger,
)
from bookie_protocol.versioned import Versioned

RECHECK_SECONDS: Final = 60.0
"""Seconds after which a worker that found nothing asks the service again, even without an event."""


def never(mark: UnderreplicatedLedger) -> float:
    """Let no ledger rest."""
    return 0.0


class UnderReplication(Marks):
    """The tree `underreplication`. `timeout` as in `interface`, where one may be given. `random`: the order in
    which work is looked for."""

    def __init__(self, base: UnderReplicationBase, random: Random | None = None) -> None:
        super().__init__(base)
        self._locks = Locks(base, random)
        self._disable = f"{base.path}/{formats.DISABLE}"
        self._delay = f"{base.path}/{formats.LOST_BOOKIE_RECOVERY_DELAY}"

    # --- locks ------------------------------------------------------------------------------------------------

    async def acquire(self, rest: Rest = never) -> LedgerLock:
        """Lock a marked ledger; waits, without limit, for one and for auto-recovery to be enabled.

        Every mark has its turn, but for ledgers that rest: the tree is walked in random order.
        """
        loop = asyncio.get_running_loop()
        recheck_at = loop.time() + RECHECK_SECONDS
        while True:
            await self._until_enabled()
            lock, changed = await self._locks.find(rest)
            if lock is not None:
                return lock
            left, rested = recheck_at - loop.time(), self._locks.next_end()
            with suppress(TimeoutError):
                async with asyncio.timeout(left if rested is None else min(left, rested)):
                    await changed.wait()
            if loop.time() >= recheck_at:
                self._locks.forget_directories()
                recheck_at = loop.time() + RECHECK_SECONDS

    def rest(self, ledger_id: int, seconds: float) -> None:
        """Let `acquire` of this process pass over a ledger for so long. Others are not kept from it."""
        self._locks.rest(ledger_id, seconds)

    @property
    def many_rest(self) -> bool:
        """Return True if no more ledgers can rest: a worker that fails has to slow down by itself."""
        return self._locks.many_rest

    @property
    def locks_not_released(self) -> int:
        """Locks of this session that were given back, and that the service has not removed yet."""
        return self._locks.not_released

    async def try_acquire(self, rest: Rest = never) -> LedgerLock | None:
        """Lock a marked ledger as `acquire` does, but return None at once if none can be locked or auto-recovery
        is disabled."""
        if not await self.is_enabled():
            return None
        return (await self._locks.find(rest))[0]

    async def lock(self, ledger_id: int, *, timeout: float | None = None) -> LedgerLock:
        """Lock one ledger, marked or not. `MetadataExists`: it is locked already."""
        return await self._locks.lock(ledger_id, timeout)

    def is_held(self, lock: LedgerLock) -> bool:
        """Return True if a lock was not given back yet, and its session has not ended as far as this process knows."""
        return self._locks.is_held(lock)

    async def mark_replicated(self, lock: LedgerLock) -> bool:
        """Remove the mark unless it was renewed since, then the lock. Return True if there is no mark.

        With a lock that was given back nothing is done. `SessionEnded`: the lock had ended, and the mark remains.
        """
        gone = lock.mark is None
        if lock.mark is not None and self._locks.holds(lock):
            gone = await self._remove(lock.ledger_id, lock.mark, session_id=lock.session_id)
        await self.release(lock)
        return gone

    async def release(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Give a lock back; one that ended with its session is fine, and so is one that was given back before.

        Never raises for want of the metadata service: what it does not answer within `timeout` seconds is repeated in
        the background until it does, or the session ends.
        """
        await self._locks.release(lock, timeout)

    async def locked_by(self, ledger_id: int) -> str | None:
        """Return the holder of this ledger's lock (a host name, as the holder wrote it); None: it is not locked."""
        return await self._locks.locked_by(ledger_id)

    async def holders(self) -> Mapping[int, LockHolder]:
        """Return all current locks: one that was taken before this call is included, or was given back."""
        return await self._locks.all()

    async def locks(self) -> Mapping[int, str]:
        """Return all locks: ledger id and the host of its holder."""
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
        """Return True if auto-recovery is enabled in this cluster; it is until it is disabled."""
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
        """Yield whether auto-recovery is enabled, now and after each change."""
        return changes(self.is_enabled, lambda enabled: enabled)

    async def lost_bookie_recovery_delay(self) -> int | None:
        """Return the seconds between the loss of a bookie and its audit; None: not set."""
        data = await self._base.read(formats.LOST_BOOKIE_RECOVERY_DELAY)
        return None if data is None else formats.decode_delay(data, self._delay)

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> bool:
        """Set the delay unless one is set; whether this call did it."""
        return await self._write_delay(seconds, replace=False)

    async def set_lost_bookie_recovery_delay(self, seconds: int) -> None:
        """Set the delay. Setting the present value again asks the auditor for an audit now."""
        await self._write_delay(seconds, replace=True)

    async def ask_for_audit(self) -> bool:
        """Ask the auditor for an audit now, by writing the delay as it is; a value that another client sets
        meanwhile stays. Return False if none is set."""
        while True:
            try:
                stored = await self._tree.read(self._delay)
                formats.decode_delay(stored.value, self._delay)
                await self._tree.set(self._delay, stored.value, stored.identity)
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
        """Return the delay, now and after each write, also of the same value (then with a greater version)."""

        def show(node: Node | None) -> Versioned[int] | None:
            if node is None:
                return None
            return Versioned(formats.decode_delay(node.data, self._delay), node.stat.identity())

        return changes(lambda watch: self._base.cluster.watched(self._delay, watch), show)

    async def check_time(self, check: AuditorCheck) -> int | None:
        """Return the time at which this check last ran to its end, in ms since the epoch; None: never."""
        data = await self._base.read(check.value)
        return None if data is None else formats.decode_check_time(data, f"{self._base.path}/{check.value}")

    async def set_check_time(self, check: AuditorCheck, time_ms: int) -> None:
        await self._base.write(check.value, formats.encode_check_time(check, time_ms))
