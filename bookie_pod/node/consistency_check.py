"""`localConsistencyCheckOnStartup`: index against entry logs, after the replay and before the bookie serves.

A row that does not lead to its entry ends the start. An entry without a row does not: that is also what a ledger leaves
that was removed from this bookie and came back; it is told in the log.

Threads: a blocking step of the start.

Source: reference bookie behaviour, section 8.2; reference on-disk formats, section 14.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.integrity.consistency import ConsistencyCheck, ConsistencyReport, FindingKind
from bookie_pod.storage.integrity.scrub_storage import scrubbed
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

MAX_LOGGED = 20


class CheckCancelled(StorageFault):
    """The bookie was told to stop while it checked."""


def check_consistency(storage: LedgerStorage, cancelled: Callable[[], bool] = lambda: False) -> ConsistencyReport:
    """Check everything. `StorageFault` with one line if something is damaged."""
    check = ConsistencyCheck(scrubbed(storage), max_findings=MAX_LOGGED)
    while check.step():
        if cancelled():
            raise CheckCancelled("the consistency check was interrupted")
    report = check.report
    for finding in report.findings:
        _log.error("storage is inconsistent", kind=finding.kind.value, detail=finding.detail)
    _log.info(
        "storage checked",
        ledgers=report.ledgers,
        rows=report.rows,
        entries=report.entries,
        damages=report.damages,
        unindexed=report.unindexed,
    )
    if report.damages:
        first = next((found for found in report.findings if found.kind is not FindingKind.NO_ROW), None)
        raise StorageFault(
            f"localConsistencyCheckOnStartup found {report.damages} damages, such as: "
            f"{first.detail if first else 'see the log'}; see `bookie disk check`, and `bookie disk rebuild-locations` "
            "or let the cluster repair this bookie and start it with localConsistencyCheckOnStartup=false"
        )
    return report
