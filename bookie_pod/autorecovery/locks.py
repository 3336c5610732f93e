"""Locks of ledgers that are given back whatever happens, and work that ends with its lock.

A lock ends with the session that took it. While that session lives a lock that is not given back keeps its ledger from
every worker of the cluster, so giving back is repeated until the metadata service has answered.

Invariants
- After `give_back` or `finish` the lock is gone, or somebody goes on trying: after `close` the metadata service itself.
- `while_session` lets nobody work on under a lock that has ended with its session.
- Nothing here removes a lock of another session, of which the service sees to it.

Event loop only.

Source: reference metadata layout, section 10.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import structlog

from bookie_protocol.errors import MetadataError, MetadataUnavailable, SessionEnded
from bookie_protocol.metadata_service.interface import Session, SessionState
from bookie_protocol.metadata_service.tree.under_replication.manager import UnderReplication
from bookie_protocol.metadata_service.under_replication import LedgerLock

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)


async def while_session(session: Session, work: Coroutine[Any, Any, _T]) -> _T:
    """What `work` returns or raises; when the session of now ends it is cancelled, and `SessionEnded` is raised."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    ended = False

    def listen(state: SessionState) -> None:
        nonlocal ended
        if state in (SessionState.EXPIRED, SessionState.CLOSED) and not working.done():
            ended = working.cancel()

    stop_listening = session.add_listener(listen)
    try:
        await asyncio.wait({working})
        if ended and working.cancelled():
            raise SessionEnded("the session with the metadata service has ended, and the ledger's lock with it")
        return working.result()
    finally:
        stop_listening()
        working.cancel()
        await asyncio.wait({working})


class LockKeeper:
    """Gives locks back. `close` when whoever takes them has ended."""

    def __init__(self, marks: UnderReplication) -> None:
        self._marks = marks
        self._retrying: set[asyncio.Task[None]] = set()

    @property
    def not_released(self) -> int:
        """Locks that the metadata service has not been told about yet."""
        return len(self._retrying)

    async def finish(self, lock: LedgerLock) -> None:
        """The ledger is repaired: remove its mark unless it was renewed, then the lock.

        `MetadataUnavailable`: the mark may still stand, and the lock is still held.
        """
        await self._marks.mark_replicated(lock)

    async def give_back(self, lock: LedgerLock) -> None:
        """Remove the lock. Never raises for want of the metadata service: it is tried again in the background."""
        giving = asyncio.get_running_loop().create_task(self._give_back(lock), name=f"lock of ledger {lock.ledger_id}")
        self._retrying.add(giving)
        giving.add_done_callback(self._retrying.discard)
        first_try = asyncio.wait({giving}, timeout=FIRST_PAUSE_S)
        await first_try

    async def close(self, seconds: float) -> None:
        """Wait at most so long for locks that are being given back; those left are the metadata service's business.

        However it ends, cancelled itself too, this keeper does not go on trying afterwards.
        """
        try:
            if self._retrying:
                await asyncio.wait(self._retrying, timeout=seconds)
        finally:
            for task in self._retrying:
                task.cancel()
        if self._retrying:
            await asyncio.wait(self._retrying)

    async def _give_back(self, lock: LedgerLock) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                await self._marks.release(lock)
                return
            except MetadataUnavailable as error:
                _log.warning("lock is not given back yet", ledger=lock.ledger_id, reason=str(error))
            except MetadataError as error:
                _log.warning("lock cannot be given back", ledger=lock.ledger_id, reason=str(error))
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
