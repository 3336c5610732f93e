"""Settling the mark of a ledger: look at all that it asks for, and remove it if all of that is answered.

A mark goes only by the rule (`rule.what_is_left`), after what its bookies have shown is durable there, and only if it
has not changed since the lock was taken.

Event loop only.

Source: docs/internals/metadata-layout.md, section 10.4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bookie_client.healing.rule import what_is_left
from bookie_client.replication.check import LedgerChecker, LedgerReport
from bookie_protocol.metadata_service.findings import Finding
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger


async def settle(
    service: MetadataService,
    lock: LedgerLock,
    checker: LedgerChecker,
    may_go: Callable[[UnderreplicatedLedger], bool] = lambda mark: True,
) -> bool:
    """Check what a locked ledger's mark asks for, and remove the mark if all is answered. Return whether it is gone.

    The lock goes with the mark. A mark without bookies is about the placement, which no look answers. `may_go`: asked
    before the look, and after it. Raises what the checker raises, and `MetadataError`.
    """
    if lock.mark is None:
        return False
    mark = await service.under_replication.read(lock.ledger_id)
    if mark is None or not mark.replicas or not may_go(mark):
        return False
    report = await checker.check(lock.ledger_id, findings=mark.doubts)
    if await what_is_unsettled(report, mark.doubts, checker) is not None or not may_go(mark):
        return False
    return await LedgerGuard(service).remove_mark(lock)


async def what_is_unsettled(report: LedgerReport, doubts: Collection[Finding], checker: LedgerChecker) -> str | None:
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
