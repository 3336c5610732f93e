"""The check of placement: which closed ledgers break the placement policy, and which ledgers wait too long for repair.

A ledger is marked, with no replica named, only if asked for and only if the policy knows a better ensemble among the
bookies of now: a mark that no worker can do anything about would be tried for ever.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 4.2 and 17.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from random import Random
from typing import Final

import structlog

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, ClusterView, PlacementPolicy, ReplacementRequest
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.marking import Marked, Marker
from bookie_pod.autorecovery.auditor.schedule import MS
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger

_WHOLE: Final = Finding("", Reason.UNKNOWN)
"""The suspect that a ledger is which breaks the policy: no bookie in particular."""

_log = structlog.get_logger(__name__)

VIEW_SECONDS: Final = 30.0
"""Seconds for which one view of the cluster is used."""


class PlacementCheck:
    """One pass; see `sweep`. `marker` None: only count. `random`: what the policy draws with. `overdue`: the marks that
    are older than the grace period, counted at the end."""

    def __init__(
        self,
        ledgers: LedgerStore,
        policy: PlacementPolicy,
        view: Callable[[], Awaitable[ClusterView]],
        pace: ReplicationThrottle,
        marker: Marker | None,
        time: Callable[[], float],
        random: Random,
        overdue: Callable[[], Awaitable[int]],
    ) -> None:
        self._overdue = overdue
        self._ledgers = ledgers
        self._policy = policy
        self._ask_view = view
        self._pace = pace
        self._marker = marker
        self._time = time
        self._random = random
        self._view: tuple[float, ClusterView] | None = None

    async def look(self, ledger_id: int) -> Look:
        await self._pace.read(0)
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except MetadataNotFound:
            return Look({"deleted": 1})
        except MetadataDamaged:
            return Look({"ledgers": 1, "could_not_tell": 1})
        if not metadata.is_closed:
            return Look({"open": 1})
        quorums = Quorums.of(metadata)
        view = await self._cluster()
        reports = {e: self._policy.check(e, quorums, view).adherence for e in _with_entries(metadata)}
        failing = [ensemble for ensemble, adherence in reports.items() if adherence is Adherence.FAIL]
        if not failing:
            soft = Adherence.MEETS_SOFT in reports.values()
            return Look({"ledgers": 1, "softly_adhering": 1} if soft else {"ledgers": 1})
        counts = {"ledgers": 1, "not_adhering": 1}
        if not any(self._can_be_mended(ensemble, quorums, view) for ensemble in failing):
            return Look({**counts, "cannot_be_mended": 1})
        return Look(counts, frozenset({(0, _WHOLE)}) if self._marker is not None else frozenset())

    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look:
        look = await self.look(ledger_id)
        if not look.suspects or self._marker is None:
            return Look()  # mended, deleted, or topology is known better by now
        outcome = await self._marker.mark(ledger_id, ())
        return Look({"marked": 1} if outcome is Marked.NEW else {}, later=outcome is Marked.LOCKED)

    async def finish(self) -> Mapping[str, int]:
        return {"overdue": await self._overdue()}

    def _can_be_mended(self, ensemble: Ensemble, quorums: Quorums, view: ClusterView) -> bool:
        request = ReplacementRequest(ensemble=ensemble, failed={}, quorums=quorums, cluster=view, random=self._random)
        return self._policy.mend(request).report.adherence is not Adherence.FAIL

    async def _cluster(self) -> ClusterView:
        now = self._time()
        if self._view is None or now - self._view[0] > VIEW_SECONDS:
            self._view = now, await self._ask_view()
        return self._view[1]


async def count_overdue(marks: AsyncIterator[UnderreplicatedLedger], now_ms: int, grace_period_s: int) -> int:
    """Marks older than the grace period; 0 without one. Marks without a time are not counted."""
    if grace_period_s <= 0:
        return 0
    oldest = now_ms - grace_period_s * MS
    count = 0
    try:
        async for mark in marks:
            count += mark.ctime_ms is not None and mark.ctime_ms < oldest
    except MetadataDamaged as error:
        _log.error("marks could be counted in part only", reason=str(error))
    return count


def _with_entries(metadata: LedgerMetadata) -> set[Ensemble]:
    """Ensembles of a closed ledger that store something."""
    return {ensemble for first, ensemble in metadata.ensembles.items() if first <= metadata.last_entry_id}
