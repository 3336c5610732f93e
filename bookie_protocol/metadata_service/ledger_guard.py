"""The guard of work on one ledger: take its lock, end with the session, change its mark, give the lock back.

    guard = LedgerGuard(service)
    lock = await guard.lock(ledger_id, wait=60.0)
    if lock is not None:
        async with guard.holding(lock):
            await guard.work(lock, copy_and_exchange())

Invariants
- `work` neither begins nor goes on under a lock that has ended: it is cancelled when the lock's session ends
  (`SessionEnded`). What was sent under the lock is carried out in its session or not at all (`LedgerLock.session_id`).
- A lock that was taken is given back, also if its taker was cancelled at that moment
  (`UnderReplication.acquire` gives back a lock that its caller never gets). What the metadata service does
  not answer it removes later by itself (`UnderReplication.release`).
- No other part takes locks, gives them back, or changes the mark of a locked ledger (`test_healing_room.py`).

Event loop only.

Source: docs/internals/metadata-layout.md, section 10.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from bookie_protocol.errors import MetadataExists, PodkeeperError, SessionEnded
from bookie_protocol.metadata_service.findings import Failure
from bookie_protocol.metadata_service.interface import Session, SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock, Rest

LOCK_POLL_SECONDS: Final = 0.5

_T = TypeVar("_T")


class LedgerGuard:
    """Guards work on ledgers, any number at a time."""

    def __init__(self, service: MetadataService) -> None:
        self._marks = service.under_replication
        self._service = service

    async def lock(self, ledger_id: int, *, wait: float = 0.0, timeout: float | None = None) -> LedgerLock | None:
        """Lock a ledger, marked or not. Return None if another client held the lock for `wait` seconds. `timeout`:
        of each request. Raises `MetadataError`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            try:
                return await self._marks.lock(ledger_id, timeout=timeout)
            except MetadataExists:
                left = until - loop.time()
                if left <= 0:
                    return None
            await asyncio.sleep(min(LOCK_POLL_SECONDS, left))

    async def holder(self, ledger_id: int) -> str:
        """Name the machine of the client that has a ledger's lock, for a person."""
        try:
            return await self._marks.locked_by(ledger_id) or "another machine"
        except PodkeeperError:
            return "another machine"

    async def take(self, rest: Rest) -> LedgerLock:
        """Wait for a marked ledger and lock it. `rest` returns the seconds for which such a ledger is skipped.

        Raises `MetadataError`.
        """
        return await self._marks.acquire(rest)

    async def give_back(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Give a lock back, once; never raises. `timeout`: seconds to wait for the metadata service."""
        await self._marks.release(lock, timeout=timeout)

    @asynccontextmanager
    async def holding(self, lock: LedgerLock) -> AsyncGenerator[None, None]:
        """Give the lock back in the end, however it comes."""
        try:
            yield
        finally:
            await self.give_back(lock)

    async def work(self, lock: LedgerLock, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns, or raise what it raises; `SessionEnded` if the lock's session ends before that,
        or has ended: then nothing is begun."""
        if not self._marks.is_held(lock):
            work.close()
            raise _ended()
        return await while_session(self._service.session, work)

    # --- the mark ---------------------------------------------------------------------------------------------

    async def remove_mark(self, lock: LedgerLock) -> bool:
        """Remove the mark of a ledger that was deleted or just checked whole. Return whether the mark is gone.

        The lock goes with the mark. A mark that has changed since the lock was taken remains.
        """
        return await self._marks.mark_replicated(lock)

    async def leave_mark(self, lock: LedgerLock, bookies: Collection[str]) -> None:
        """Take bookies that the metadata no longer name out of the mark. Remove the mark if it names no others."""
        if lock.mark is None:
            return
        await self._marks.withdraw(lock, bookies)
        mark = await self._marks.read(lock.ledger_id)
        if mark is not None and mark.replicas and set(bookies).issuperset(mark.replicas):
            await self.remove_mark(lock)

    async def note_failure(self, lock: LedgerLock, failure: Failure) -> None:
        """Note in the mark that an attempt to repair the ledger failed. Raises `MetadataError`."""
        await self._marks.note_failure(lock, failure)


async def while_session(session: Session, work: Coroutine[Any, Any, _T]) -> _T:
    """Return or raise what `work` does. If the current session ends, cancel it and raise `SessionEnded`."""
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
            raise _ended()
        return working.result()
    finally:
        stop_listening()
        working.cancel()
        await asyncio.wait({working})


def _ended() -> SessionEnded:
    return SessionEnded("the session with the metadata service has ended, and the ledger's lock with it")
