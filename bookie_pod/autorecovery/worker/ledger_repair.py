"""The repair of one marked ledger whose lock is held.

Look at every replica; copy what is lost, fragment by fragment; look again; only a ledger without a fault is reported as
repaired. An unknown state is neither a fault nor a success: the mark stays.

- Lost, denied and damaged copies are made again (`fragment_repair`). An entry of which no copy can be read is reported,
  and the ledger keeps its mark and its length.
- Copying a ledger may take hours. What was found `FRESH_SECONDS` ago is looked at again before its fragment is copied:
  the copies of a bookie that has come back meanwhile stay where they are.
- A mark without replicas asks for other bookies because the placement breaks the policy. Lost copies go first.

What is looked at, and what counts, depends on the findings in the mark (`bookie_client.healing.rule`). (The reference
replaces at once a bookie that is registered nowhere, and fences writers for it.)

Only the writer, or a recovery, may change the last segment of an open ledger. What a bookie that is there lacks of the
confirmed entries is filled in, which changes no metadata. If it cannot be filled now the round has failed, and another
one tries again. A live writer replaces a lost bookie by itself at its next add. So a ledger whose last segment names a
lost bookie, or has fewer good copies than its ack quorum, is left to its writer for the grace period. Then it is filled
and looked at again, and recovered only if this is still so (`bookie_client.replication.check`). From then on it is
repaired like any other.

Here this differs from the reference: it also fences a ledger that happens to be marked and has a merely read-only (or
restarting) bookie in its last ensemble. A read-only bookie serves its copies, and its answers made the writer leave.
Fencing would end a sound application's writer for no gain. Bookies that are being emptied are the business of their
decommission, which closes the open ledgers in its way by itself. Nor is a bookie a reason that is registered and does
not answer: it may be back in a moment, and when its session has ended it is lost.

Invariants
- A fragment that is not closed keeps its bookies: those that are there are filled again with its confirmed entries,
  and those that the mark names also with what others have behind these (`bookie_client.replication.tail`).
- The trouble of one fragment does not keep the others from being repaired.
- A bookie that is filled in place is named by the mark first, as one that lost entries. So every copy is looked for
  there before a mark goes: the worker may die while it fills, and the first and the last entry do not tell. And the
  bookie is not believed about other entries if the ledger is closed meanwhile.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 6.2 to 6.4 and 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Protocol

import structlog

from bookie_client.healing.guard import Checks, what_is_unsettled
from bookie_client.healing.rule import (
    bad_positions,
    faulty_entries,
    findings_of,
    may_be_read_later,
    registered,
    trouble_of,
    waits_for,
)
from bookie_client.replication.check import FAULTS, FragmentReport, LedgerReport
from bookie_client.replication.fragments import Fragment
from bookie_pod.autorecovery.worker.fragment_repair import FragmentRepair, Replicator
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress
from bookie_pod.autorecovery.worker.worker import Outcome, RoundResult
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_protocol.errors import (
    EntriesUnreadable,
    LedgerDeleted,
    MetadataUnavailable,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason, Trouble, distrusted
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger
from bookie_protocol.shown import one_line

_log = structlog.get_logger(__name__)

SHOWN_ENTRIES: Final = 20
FRESH_SECONDS: Final = 5.0
"""Seconds for which a finding is acted upon without a second look."""


class Checker(Checks, Protocol):
    """`LedgerChecker`."""

    async def holes(self, fragment: Fragment, positions: Collection[int]) -> tuple[int, ...]: ...

    async def check_again(
        self,
        metadata: LedgerMetadata,
        found: FragmentReport,
        positions: Collection[int],
        *,
        findings: Collection[Finding] = (),
    ) -> FragmentReport: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairParts:
    """The parts that a repair needs.

    `writable`: bookies that take writes now. `mark`: a ledger's mark now; `mark_more`: adds findings to it. `recover`:
    looks at an open ledger, fences and closes it.
    """

    checker: Checker
    replicator: Replicator
    writable: Callable[[], Awaitable[frozenset[str]]]
    mark: Callable[[int], Awaitable[UnderreplicatedLedger | None]]
    mark_more: Callable[[int, Collection[Finding]], Awaitable[None]]
    recover: Callable[[int], Awaitable[None]]
    progress: WorkerProgress
    metrics: ReplicationWorkerMetrics


@dataclass(slots=True)
class _Setbacks:
    """The failures of a round."""

    reasons: list[str] = field(default_factory=list)
    lost_entries: list[int] = field(default_factory=list)

    def add(self, found: FragmentReport, error: PodkeeperError) -> None:
        self.reasons.append(f"segment at entry {found.fragment.first_entry}: {one_line(error)}")
        if isinstance(error, EntriesUnreadable) and not registered(found) & (error.silent | error.untold):
            lost = (entry for entry in error.entries if not may_be_read_later(found, entry))
            self.lost_entries += islice(lost, SHOWN_ENTRIES)

    def failed(self, report: LedgerReport) -> RoundResult:
        reason = "; ".join(self.reasons[:3])
        if len(self.reasons) > 3:
            reason += f"; and {len(self.reasons) - 3} more segments"
        trouble = Trouble.NO_COPY if self.lost_entries else trouble_of(report)
        return RoundResult(Outcome.FAILED, reason, tuple(self.lost_entries[:SHOWN_ENTRIES]), trouble)


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of a ledger. `doubts`: what its mark asks for; `lost`: entries that were without a copy before;
    `looked_at`: when the report was begun."""

    lock: LedgerLock
    doubts: tuple[Finding, ...]
    lost: tuple[int, ...]
    note: LedgerNote
    looked_at: float


class LedgerRepair:
    """Implements `worker.Repair`, for any number of ledgers at a time."""

    def __init__(self, parts: RepairParts) -> None:
        self._parts = parts
        self._progress = parts.progress
        self._fragments = FragmentRepair(parts.replicator, parts.progress, parts.metrics)

    async def repair(self, lock: LedgerLock, note: LedgerNote) -> RoundResult:
        return await self._turn(lock, note, self._repair)

    async def recover(self, lock: LedgerLock, note: LedgerNote) -> RoundResult:
        return await self._turn(lock, note, self._recover)

    async def _turn(
        self, lock: LedgerLock, note: LedgerNote, act: Callable[[_Round, LedgerReport], Awaitable[RoundResult]]
    ) -> RoundResult:
        try:
            mark = await self._parts.mark(lock.ledger_id)
            if mark is None:
                return RoundResult(Outcome.WITHDRAWN)
            lost = sorted({entry for failure in mark.failures for entry in failure.entries})
            turn = _Round(lock, mark.doubts, tuple(lost), note, self._progress.clock())
            note.take(mark.failures)
            return await act(*await self._look(turn))
        except LedgerDeleted:
            return RoundResult(Outcome.DELETED)

    async def _look(self, turn: _Round) -> tuple[_Round, LedgerReport]:
        turn = replace(turn, looked_at=self._progress.clock())
        return turn, await self._parts.checker.check(turn.lock.ledger_id, findings=turn.doubts)

    async def _recover(self, turn: _Round, report: LedgerReport) -> RoundResult:
        result = await self._repair(turn, report)
        if result.outcome is not Outcome.OPEN:
            return result
        ledger_id, note = turn.lock.ledger_id, turn.note
        self._progress.enter(note, Phase.CHECKING)
        turn, report = await self._look(turn)
        reason = waits_for(report, turn.doubts)
        if reason is None:
            return result
        _log.warning("open ledger is fenced and recovered", ledger=ledger_id, reason=reason)
        self._progress.enter(note, Phase.RECOVERING, reason=reason)
        await self._parts.recover(report.ledger_id)
        self._parts.metrics.recovered()
        self._progress.ledgers_recovered += 1
        self._progress.enter(note, Phase.CHECKING)
        return await self._repair(*await self._look(turn))

    # --- one round --------------------------------------------------------------------------------------------

    async def _repair(self, turn: _Round, report: LedgerReport) -> RoundResult:
        setbacks, doubts, note = _Setbacks(), turn.doubts, turn.note
        copied = await self._restore(turn, report, setbacks)
        if copied and waits_for(report, doubts) is not None:
            report = await self._parts.checker.check(report.ledger_id, findings=doubts)
        waiting = waits_for(report, doubts)
        if waiting is not None:
            return RoundResult(Outcome.OPEN, waiting, tuple(setbacks.lost_entries[:SHOWN_ENTRIES]))
        if setbacks.reasons:
            return setbacks.failed(report)
        moved = not doubts and await self._mend(turn, report)
        copied = await self._fill_tail(turn, report) or copied
        if copied is not None or moved:
            self._progress.enter(note, Phase.VERIFYING)
            report = await self._parts.checker.check(report.ledger_id, findings=doubts)
        left = await what_is_unsettled(report, doubts, self._parts.checker)
        if left is not None:
            return RoundResult(Outcome.FAILED, left, trouble=trouble_of(report))
        if copied:
            self._parts.metrics.repaired()
        if moved:
            self._parts.metrics.moved()
        if copied or moved:
            _log.info("ledger is repaired", ledger=note.ledger_id, entries=note.entries_copied, bytes=note.bytes_copied)
        return RoundResult(Outcome.REPAIRED)

    async def _restore(self, turn: _Round, report: LedgerReport, setbacks: _Setbacks) -> bool | None:
        """Restore lost copies; return whether copies were made, or names of dead bookies exchanged; None: no fragment
        asked for it."""
        doubts, note = turn.doubts, turn.note
        work = [(each, bad) for each in report.fragments if (bad := _repairable(each, doubts))]
        note.bad_fragments, note.done_fragments = len(work), 0
        note.entries_copied, note.bytes_copied = 0, 0
        note.entries_to_copy = sum(each.fragment.count for each, _ in work)
        if not work:
            return None
        told = {(each.bookie, each.reason) for each in doubts}
        self._progress.enter(note, Phase.COPYING)
        writable, back = await self._parts.writable(), 0
        for found, were_bad in work:
            each, bad = found, were_bad
            try:
                if self._progress.clock() - turn.looked_at > FRESH_SECONDS:
                    each, bad = await self._look_again(report, found, were_bad, doubts)
                    writable = await self._parts.writable()
                if bad:
                    faults = [new for new in findings_of(each, bad) if new.reason.is_fault]
                    more = [new for new in faults if (new.bookie, new.reason) not in told]
                    if more:
                        await self._parts.mark_more(report.ledger_id, more)
                        told |= {(new.bookie, new.reason) for new in more}
                    doubtful = {*turn.lost, *faulty_entries(each), *await self._parts.checker.holes(each.fragment, bad)}
                    await self._fragments.restore(each, bad, doubtful, note, writable, turn.lock)
                else:
                    note.entries_to_copy -= each.fragment.count
                    back += 1
            except (LedgerDeleted, MetadataUnavailable):
                raise
            except PodkeeperError as error:
                self._parts.metrics.failed_with(error)
                setbacks.add(each, error)
                if isinstance(error, EntriesUnreadable):
                    self._parts.metrics.unreadable(len(error.entries))
            else:
                note.done_fragments += 1
        if back:
            _log.info("copies are back, and were not made again", ledger=report.ledger_id, segments=back)
        return back < len(work)

    async def _fill_tail(self, turn: _Round, report: LedgerReport) -> bool:
        """Fill bookies that may have lost entries behind the last add confirmed, and return whether any was filled. A
        copy more of an entry that a bookie has already decides nothing: a recovery that finds that one keeps it."""
        tail = await self._parts.checker.tail(report, turn.doubts)
        if tail.fragment is None or not tail.lacking:
            return False
        writable = await self._parts.writable()
        lacking = {position: bookie for position, bookie in tail.lacking.items() if bookie in writable}
        if lacking:
            self._progress.enter(turn.note, Phase.COPYING)
            run = (tail.fragment.last_entry, tail.fragment.last_entry)
            told = distrusted(turn.doubts)
            more = [Finding(each, Reason.MISSING, (run,)) for each in sorted(lacking.values()) if each not in told]
            if more:
                await self._parts.mark_more(report.ledger_id, more)
            await self._fragments.fill(tail.fragment, lacking, turn.note, turn.lock)
        return bool(lacking)

    async def _look_again(
        self, report: LedgerReport, found: FragmentReport, bad: Collection[int], doubts: Collection[Finding]
    ) -> tuple[FragmentReport, dict[int, str]]:
        """Look again at the bad positions of a fragment; return the report, and the positions that are bad still, with
        reasons."""
        again = await self._parts.checker.check_again(report.metadata.value, found, bad, findings=doubts)
        return again, _repairable(again, doubts)

    # --- placement --------------------------------------------------------------------------------------------

    async def _mend(self, turn: _Round, report: LedgerReport) -> bool:
        """Move copies for the sake of the placement; return whether any were moved."""
        if not report.metadata.value.is_closed:
            return False
        self._progress.enter(turn.note, Phase.MOVING)
        moved = False
        for each in report.fragments:
            try:
                moved = await self._fragments.mend(each.fragment, turn.note, turn.lock) or moved
            except NotEnoughBookies as error:
                # Not for lack of trying: the next check of placements marks it again.
                _log.warning("placement cannot be mended", ledger=report.ledger_id, reason=str(error))
        return moved


def _repairable(report: FragmentReport, doubts: Collection[Finding]) -> dict[int, str]:
    """Positions of a fragment that want a new copy, and that may get one while the ledger is as it is."""
    bad = bad_positions(report, doubts)
    if report.fragment.is_closed:
        return bad
    faults = {found.position for found in report.findings if found.verdict in FAULTS}
    return {position: bookie for position, bookie in bad.items() if position in faults}
