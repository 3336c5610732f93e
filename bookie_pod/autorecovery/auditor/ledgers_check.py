"""The check of all ledgers: read from every replica what it should hold, and mark what is missing.

| the replica | what follows |
|---|---|
| denied or damaged, and so again when the same entries are read a second time | the ledger is marked with the finding |
| its bookie said twice that it cannot tell what it has of this ledger | the same: the other copies heal it |
| its bookie is registered nowhere, past the delay | marked at once, as the audit of bookies does |
| its bookie is registered nowhere, within the delay | nothing; the delay is noted if the bookie was unknown |
| its bookie is registered and does not answer | counted: unreachable is not missing |

Invariant: a ledger that cannot be checked is counted and named in the log; it neither ends the pass nor is it marked.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 4.1, 5 and 17.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from bookie_client.replication.check import LedgerChecker, LedgerReport, ReplicaVerdict
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.lost_bookies import LostBookies
from bookie_pod.autorecovery.auditor.marking import Marked, Marker
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_protocol.errors import LedgerDeleted, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.findings import Finding, Reason, joined

_log = structlog.get_logger(__name__)

SUSPICIOUS: Final = {
    ReplicaVerdict.MISSING: Reason.MISSING,
    ReplicaVerdict.DAMAGED: Reason.DAMAGED,
    ReplicaVerdict.UNTOLD: Reason.UNTOLD,
}
"""Verdicts that are marked when they are met twice."""
FINDER: Final = "check of ledgers"


class LedgersCheck:
    """One pass; see `sweep`. `pace`: reads of metadata; the checker holds back those of entries."""

    def __init__(
        self,
        checker: LedgerChecker,
        marker: Marker,
        known: LostBookies,
        metrics: AuditorInstruments,
        pace: ReplicationThrottle,
    ) -> None:
        self._checker = checker
        self._pace = pace
        self._marker = marker
        self._known = known
        self._metrics = metrics

    async def look(self, ledger_id: int) -> Look:
        report = await self._report(ledger_id)
        if isinstance(report, Look):
            return report
        metadata = report.metadata.value
        self._metrics.ledger_checked(len(metadata.ensembles), len(metadata.all_bookies()))
        suspects, unreachable = suspects_in(report), _bookies_with(report, ReplicaVerdict.UNREACHABLE)
        marked = await self._mark_lost(report)
        counts = {
            "ledgers": 1,
            "suspicious": bool(suspects),
            "unreachable": bool(unreachable),
            "could_not_tell": report.lac_error is not None,
            "marked": marked,
        }
        return Look({name: int(count) for name, count in counts.items() if count}, suspects)

    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look:
        report = await self._report(ledger_id, [finding for _, finding in suspects])
        if isinstance(report, Look):
            return Look({name: count for name, count in report.counts.items() if name != "ledgers"})
        doubted = {(first, finding.bookie) for first, finding in suspects}
        again = [(first, finding) for first, finding in suspects_in(report) if (first, finding.bookie) in doubted]
        if not again:
            return Look({"withdrawn": 1})
        confirmed = joined(sorted((finding for _, finding in again), key=lambda each: (each.bookie, each.runs)))
        outcome = await self._marker.mark(ledger_id, confirmed)
        if outcome is Marked.NEW:
            bookies = sorted({finding.bookie for finding in confirmed})
            _log.warning("a ledger lost copies", ledger=ledger_id, bookies=bookies, details=_details(report))
        return Look({"marked": 1} if outcome is Marked.NEW else {}, later=outcome is Marked.LOCKED)

    async def finish(self) -> Mapping[str, int]:
        return {}

    async def _report(self, ledger_id: int, findings: Collection[Finding] = ()) -> LedgerReport | Look:
        await self._pace.read(0)
        try:
            return await self._checker.check(ledger_id, findings=findings)
        except MetadataUnavailable:
            raise
        except LedgerDeleted:
            return Look({"deleted": 1})
        except PodkeeperError as error:
            _log.warning("a ledger could not be checked", ledger=ledger_id, reason=str(error))
            return Look({"ledgers": 1, "could_not_tell": 1})

    async def _mark_lost(self, report: LedgerReport) -> bool:
        absent = _bookies_with(report, ReplicaVerdict.LOST)
        self._known.expect(absent)
        lost = [bookie for bookie in absent if self._known.is_lost(bookie)]
        return bool(lost) and await self._marker.mark_lost(report.ledger_id, lost) is Marked.NEW


def suspects_in(report: LedgerReport) -> frozenset[Suspect]:
    """Copies that their bookies denied or cannot tell of, or that are damaged: the very entry that showed it."""
    return frozenset(
        (
            each.fragment.first_entry,
            Finding(
                found.bookie,
                SUSPICIOUS[found.verdict],
                () if found.entry_id is None else ((found.entry_id, found.entry_id),),
                FINDER,
            ),
        )
        for each in report.fragments
        for found in each.findings
        if found.verdict in SUSPICIOUS
    )


def _bookies_with(report: LedgerReport, verdict: ReplicaVerdict) -> set[str]:
    return {found.bookie for each in report.fragments for found in each.findings if found.verdict is verdict}


def _details(report: LedgerReport) -> list[str]:
    return [found.detail for each in report.fragments for found in each.findings if found.verdict in SUSPICIOUS][:10]
