"""What is done to one marked ledger whose lock is held.

Look at every replica; copy what is lost, fragment by fragment; look again; only a ledger without a fault is reported as
repaired. What nobody can tell is no fault and no success: the mark stays. `judgement` says what counts.

- Lost, denied and damaged copies are made again (`fragment_repair`). An entry of which no copy can be read is told, and
  the ledger keeps its mark and its length.
- Copying a ledger may take hours. What was found `FRESH_SECONDS` ago is looked at again before its fragment is copied:
  the copies of a bookie that has come back meanwhile stay where they are.
- A mark without replicas asks for other bookies because the placement breaks the policy. Lost copies go first.

Invariants
- Nothing here touches a fragment that is not closed; `judgement` says what becomes of those.
- The trouble of one fragment does not keep the others from being repaired.
- Whoever is filled in place is named by the mark first, so that every copy is looked for there before a mark goes: the
  worker may die while it fills, and the first and the last entry do not tell.

Event loop only.

Source: reference auto-recovery, sections 6.2, 6.4 and 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import structlog

from bookie_client.replication.check import FragmentReport, LedgerReport
from bookie_pod.autorecovery.worker import judgement
from bookie_pod.autorecovery.worker.fragment_repair import SHOWN_ENTRIES, FragmentRepair, Replicator
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress
from bookie_pod.autorecovery.worker.worker import Outcome, RoundResult
from bookie_pod.metrics.replication_worker import ReplicationWorkerMetrics
from bookie_protocol.errors import (
    EntriesUnreadable,
    LedgerDeleted,
    MetadataUnavailable,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger

_log = structlog.get_logger(__name__)

FRESH_SECONDS: Final = 5.0
"""For so long a finding is acted upon without a second look."""


class Checker(Protocol):
    """`LedgerChecker`. Of the bookies that a mark names every copy is looked for: a check of replicas may have found
    holes between the first and the last entry."""

    async def check(self, ledger_id: int, *, complete: Collection[str] = ()) -> LedgerReport: ...

    async def check_again(
        self,
        metadata: LedgerMetadata,
        found: FragmentReport,
        positions: Collection[int],
        *,
        complete: Collection[str] = (),
    ) -> FragmentReport: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairParts:
    """What a repair needs. `writable`: bookies that take writes now. `mark`: a ledger's mark now; `mark_lost`: marks it
    again, for these bookies. `recover`: fences and closes an open ledger."""

    checker: Checker
    replicator: Replicator
    writable: Callable[[], Awaitable[frozenset[str]]]
    mark: Callable[[int], Awaitable[UnderreplicatedLedger | None]]
    mark_lost: Callable[[int, Collection[str]], Awaitable[None]]
    recover: Callable[[LedgerReport], Awaitable[None]]
    progress: WorkerProgress
    metrics: ReplicationWorkerMetrics


@dataclass(slots=True)
class _Trouble:
    """What went wrong in a round."""

    reasons: list[str] = field(default_factory=list)
    lost_entries: list[int] = field(default_factory=list)

    def add(self, found: FragmentReport, error: PodkeeperError) -> None:
        self.reasons.append(f"segment at entry {found.fragment.first_entry}: {' '.join(str(error).split())}")
        if isinstance(error, EntriesUnreadable):
            lost = (entry for entry in error.entries if not judgement.may_be_read_later(found, entry))
            self.lost_entries += islice(lost, SHOWN_ENTRIES)

    def failed(self) -> RoundResult:
        reason = "; ".join(self.reasons[:3])
        if len(self.reasons) > 3:
            reason += f"; and {len(self.reasons) - 3} more segments"
        return RoundResult(Outcome.FAILED, reason, tuple(self.lost_entries[:SHOWN_ENTRIES]))


@dataclass(frozen=True, slots=True)
class _Round:
    """One turn of a ledger. `named`: the bookies that its mark names; `looked_at`: when the report was begun."""

    lock: LedgerLock
    named: frozenset[str]
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
            return await act(*await self._look(lock, frozenset(mark.replicas), note))
        except LedgerDeleted:
            return self._gone(lock.ledger_id)

    async def _look(self, lock: LedgerLock, named: frozenset[str], note: LedgerNote) -> tuple[_Round, LedgerReport]:
        turn = _Round(lock, named, note, self._progress.clock())
        return turn, await self._parts.checker.check(lock.ledger_id, complete=named)

    async def _recover(self, turn: _Round, report: LedgerReport) -> RoundResult:
        ledger_id, note = turn.lock.ledger_id, turn.note
        reason = judgement.waits_for(report, turn.named)
        if reason is None:
            _log.info("open ledger: its writer went on", ledger=ledger_id)
            return await self._repair(turn, report)
        _log.warning("open ledger is fenced and recovered", ledger=ledger_id, reason=reason)
        self._progress.enter(note, Phase.RECOVERING, reason=reason)
        await self._parts.recover(report)
        self._parts.metrics.recovered()
        self._progress.ledgers_recovered += 1
        self._progress.enter(note, Phase.CHECKING)
        return await self._repair(*await self._look(turn.lock, turn.named, note))

    # --- one round --------------------------------------------------------------------------------------------

    async def _repair(self, turn: _Round, report: LedgerReport) -> RoundResult:
        trouble, named, note = _Trouble(), turn.named, turn.note
        copied = await self._restore(turn, report, trouble)
        waiting = judgement.waits_for(report, named)
        if waiting is not None:
            return RoundResult(Outcome.OPEN, waiting, tuple(trouble.lost_entries[:SHOWN_ENTRIES]))
        if trouble.reasons:
            return trouble.failed()
        moved = not named and await self._mend(turn, report)
        if copied is not None or moved:
            self._progress.enter(note, Phase.VERIFYING)
            report = await self._parts.checker.check(report.ledger_id, complete=named)
        left = judgement.what_is_left(report, named)
        if left is not None:
            return RoundResult(Outcome.FAILED, left)
        if copied:
            self._parts.metrics.repaired()
        if moved:
            self._parts.metrics.moved()
        if copied or moved:
            _log.info("ledger is repaired", ledger=note.ledger_id, entries=note.entries_copied, bytes=note.bytes_copied)
        return RoundResult(Outcome.REPAIRED)

    async def _restore(self, turn: _Round, report: LedgerReport, trouble: _Trouble) -> bool | None:
        """Whether copies were made, or names of dead bookies exchanged; None: no fragment asked for it."""
        named, note = turn.named, turn.note
        closed = [each for each in report.fragments if each.fragment.is_closed]
        work = [(each, bad) for each in closed if (bad := judgement.bad_positions(each, named))]
        note.bad_fragments, note.done_fragments = len(work), 0
        note.entries_copied, note.bytes_copied = 0, 0
        note.entries_to_copy = sum(each.fragment.count for each, _ in work)
        if not work:
            return None
        unnamed = {bookie for _, bad in work for bookie in bad.values()} - named
        if unnamed:
            await self._parts.mark_lost(report.ledger_id, unnamed)
        self._progress.enter(note, Phase.COPYING)
        writable, back = await self._parts.writable(), 0
        for found, were_bad in work:
            each, bad = found, were_bad
            try:
                if self._progress.clock() - turn.looked_at > FRESH_SECONDS:
                    each, bad = await self._look_again(report, found, were_bad, named)
                    writable = await self._parts.writable()
                if bad:
                    await self._fragments.restore(each, bad, note, writable, turn.lock)
                else:
                    note.entries_to_copy -= each.fragment.count
                    back += 1
            except (LedgerDeleted, MetadataUnavailable):
                raise
            except PodkeeperError as error:
                self._parts.metrics.failed_with(error)
                trouble.add(each, error)
                if isinstance(error, EntriesUnreadable):
                    self._parts.metrics.unreadable(len(error.entries))
            else:
                note.done_fragments += 1
        if back:
            _log.info("copies are back, and were not made again", ledger=report.ledger_id, segments=back)
        return back < len(work)

    async def _look_again(
        self, report: LedgerReport, found: FragmentReport, bad: Collection[int], named: frozenset[str]
    ) -> tuple[FragmentReport, dict[int, str]]:
        """What is to be said of the bad positions of a fragment now, and which of them are bad still."""
        again = await self._parts.checker.check_again(report.metadata.value, found, bad, complete=named)
        return again, judgement.bad_positions(again, named)

    # --- placement --------------------------------------------------------------------------------------------

    async def _mend(self, turn: _Round, report: LedgerReport) -> bool:
        """Whether copies were moved for the sake of the placement."""
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

    def _gone(self, ledger_id: int) -> RoundResult:
        self._fragments.forget(ledger_id)
        return RoundResult(Outcome.DELETED)
