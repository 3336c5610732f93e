"""The check of all ledgers: read from every replica what it should hold, and mark what is missing.

| the replica | what follows |
|---|---|
| denied or damaged, and so again at the second look | the ledger is marked with that bookie |
| its bookie is registered nowhere, past the delay | marked at once, as the audit of bookies does |
| its bookie is registered nowhere, within the delay | nothing; the delay is noted if nobody knew the bookie |
| its bookie is registered and does not answer | counted: unreachable is not missing |

Invariant: a ledger that cannot be checked is counted and named in the log; it neither ends the pass nor is it marked.

Event loop only.

Source: reference auto-recovery, sections 4.1, 5 and 17.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from bookie_client.replication.check import LedgerReport, ReplicaVerdict
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.lost_bookies import LostBookies
from bookie_pod.autorecovery.auditor.marking import Marked, Marker
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_protocol.errors import MetadataUnavailable, NotThere, PodkeeperError

_log = structlog.get_logger(__name__)

MISSING = frozenset({ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED})


class Checker(Protocol):
    """`bookie_client.replication.check.LedgerChecker`."""

    async def check(self, ledger_id: int, *, complete: Collection[str] = ()) -> LedgerReport: ...


class LedgersCheck:
    """One pass; see `sweep`. `pace`: reads of metadata; the checker holds back those of entries."""

    def __init__(
        self,
        checker: Checker,
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
        suspects, unreachable = missing(report), _with(report, lambda verdict: verdict is ReplicaVerdict.UNREACHABLE)
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
        report = await self._report(ledger_id)
        if isinstance(report, Look):
            return Look({name: count for name, count in report.counts.items() if name != "ledgers"})
        confirmed = sorted({bookie for _, bookie in suspects & missing(report)})
        if not confirmed:
            return Look({"withdrawn": 1})
        outcome = await self._marker.mark(ledger_id, confirmed)
        if outcome is Marked.NEW:
            _log.warning("a ledger lost copies", ledger=ledger_id, bookies=confirmed, details=_details(report))
        return Look({"marked": 1} if outcome is Marked.NEW else {}, later=outcome is Marked.LOCKED)

    async def finish(self) -> Mapping[str, int]:
        return {}

    async def _report(self, ledger_id: int) -> LedgerReport | Look:
        await self._pace.read(0)
        try:
            return await self._checker.check(ledger_id)
        except MetadataUnavailable:
            raise
        except NotThere:
            return Look({"deleted": 1})
        except PodkeeperError as error:
            _log.warning("a ledger could not be checked", ledger=ledger_id, reason=str(error))
            return Look({"ledgers": 1, "could_not_tell": 1})

    async def _mark_lost(self, report: LedgerReport) -> bool:
        absent = {bookie for _, bookie in _with(report, lambda verdict: verdict is ReplicaVerdict.LOST)}
        self._known.expect(absent)
        lost = [bookie for bookie in absent if self._known.is_lost(bookie)]
        return bool(lost) and await self._marker.mark_lost(report.ledger_id, lost) is Marked.NEW


def missing(report: LedgerReport) -> frozenset[Suspect]:
    """Copies that their bookies denied, or that are damaged."""
    return _with(report, lambda verdict: verdict in MISSING)


def _with(report: LedgerReport, chosen: Callable[[ReplicaVerdict], bool]) -> frozenset[Suspect]:
    return frozenset(
        (each.fragment.first_entry, finding.bookie)
        for each in report.fragments
        for finding in each.findings
        if chosen(finding.verdict)
    )


def _details(report: LedgerReport) -> list[str]:
    return [finding.detail for each in report.fragments for finding in each.findings if finding.verdict in MISSING][:10]
