"""The steps of work on a locked ledger: take the lock, end with the session, settle the mark, give the lock back.

    guard = LedgerGuard(service)
    lock = await guard.lock(ledger_id, wait=60.0)
    if lock is not None:
        async with guard.holding(lock):
            await guard.work(lock, copy_and_exchange())
            await guard.settle(lock, checker)

Invariants
- `work` neither begins nor goes on under a lock that has ended: it is cancelled when the lock's session ends
  (`SessionEnded`). What was sent under the lock is carried out in its session or not at all (`LedgerLock.session_id`).
- After `holding` the lock is given back; what the metadata service does not answer it removes later by itself.
- A mark goes only by the rule (`rule.what_is_left`), after what its bookies have shown is durable there, and only if it
  has not changed since the lock was taken.

Event loop only.

Source: docs/internals/metadata-layout.md, section 10.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from bookie_client.healing.rule import what_is_left
from bookie_client.replication.check import LedgerReport
from bookie_client.replication.tail import Tail
from bookie_protocol.errors import MetadataExists, SessionEnded
from bookie_protocol.metadata_service.findings import Finding
from bookie_protocol.metadata_service.interface import MetadataService, Session, SessionState
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger

LOCK_POLL_SECONDS: Final = 0.5

_T = TypeVar("_T")


class Checks(Protocol):
    """`LedgerChecker`, as far as settling needs it."""

    async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport: ...
    async def make_durable(self, report: LedgerReport, bookies: Collection[str]) -> str | None: ...
    async def tail(self, report: LedgerReport, doubts: Collection[Finding]) -> Tail: ...


class LedgerGuard:
    """Guards work on ledgers, any number at a time."""

    def __init__(self, service: MetadataService) -> None:
        self._marks = service.under_replication
        self._service = service

    async def lock(self, ledger_id: int, wait: float = 0.0) -> LedgerLock | None:
        """Lock a ledger, marked or not. Return None if another client held the lock for `wait` seconds. Raises
        `MetadataError`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            try:
                return await self._marks.lock(ledger_id)
            except MetadataExists:
                left = until - loop.time()
                if left <= 0:
                    return None
            await asyncio.sleep(min(LOCK_POLL_SECONDS, left))

    @asynccontextmanager
    async def holding(self, lock: LedgerLock) -> AsyncGenerator[None, None]:
        """Give the lock back in the end, however it comes."""
        try:
            yield
        finally:
            await asyncio.shield(self._marks.release(lock))

    async def work(self, lock: LedgerLock, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns, or raise what it raises; `SessionEnded` if the lock's session ends before that,
        or has ended: then nothing is begun."""
        if not self._marks.is_held(lock):
            work.close()
            raise _ended()
        return await while_session(self._service.session, work)

    async def settle(
        self,
        lock: LedgerLock,
        checker: Checks,
        may_go: Callable[[UnderreplicatedLedger], bool] = lambda mark: True,
    ) -> bool:
        """Look at what the ledger's mark asks for, and remove the mark if all of it is answered; whether it is gone.

        The lock goes with the mark. A mark without bookies is about the placement, which no look answers. `may_go`:
        asked before the look, and after it. Raises what the checker raises, and `MetadataError`.
        """
        if lock.mark is None:
            return False
        mark = await self._marks.read(lock.ledger_id)
        if mark is None or not mark.replicas or not may_go(mark):
            return False
        report = await checker.check(lock.ledger_id, findings=mark.doubts)
        if await what_is_unsettled(report, mark.doubts, checker) is not None or not may_go(mark):
            return False
        return await self._marks.mark_replicated(lock)

    async def remove_mark(self, lock: LedgerLock) -> bool:
        """Remove the mark of a ledger that was deleted, or that was looked at whole just now; whether it is gone."""
        return await self._marks.mark_replicated(lock)


async def what_is_unsettled(report: LedgerReport, doubts: Collection[Finding], checker: Checks) -> str | None:
    """Return why the mark of a ledger must stay; None: it may go.

    The reasons are those of `what_is_left`; acknowledged entries behind the last add confirmed that a bookie may have
    lost (`replication.tail`); and copies that are not durable: a look also sees what an add has put into memory whose
    answer is still out.
    """
    left = what_is_left(report, doubts) or (await checker.tail(report, doubts)).left
    if left is not None:
        return left
    members = {bookie for each in report.fragments for bookie in each.fragment.ensemble}
    return await checker.make_durable(report, members.intersection(each.bookie for each in doubts))


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
