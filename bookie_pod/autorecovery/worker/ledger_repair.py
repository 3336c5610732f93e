"""What is done to one marked ledger whose lock is held.

Look at every replica; copy what is lost, fragment by fragment; look again; only a ledger without a fault is reported as
repaired. What nobody can tell is no fault and no success: the mark stays.

- Lost, denied and damaged copies are made again (`fragment_repair`). An entry of which no copy can be read is told, and
  the ledger keeps its mark and its length.
- Copying a ledger may take hours. What was found `FRESH_SECONDS` ago is looked at again before its fragment is copied:
  the copies of a bookie that has come back meanwhile stay where they are.
- A mark without replicas asks for other bookies because the placement breaks the policy. Lost copies go first.

Which findings count depends on the bookies that the mark names. It names those whose copies an auditor found missing,
after the delay that protects restarts. So a bookie that is registered nowhere is replaced only if the mark names it;
one that went a moment ago is the auditor's business, which marks the ledger again when the delay is over. (The
reference replaces it at once, and fences writers for it.) What a bookie itself says is missing, or gives damaged, is
restored whoever the mark names: it holds no delay up. A mark may go when nothing of that kind is left, and everything
could be seen of the bookies that it names.

Only the writer, or a recovery, may change the last segment of an open ledger. A live writer replaces a lost bookie by
itself at its next add. So a ledger whose last segment lacks copies is left to its writer for the grace period, then
looked at again, and recovered only if nothing changed (`bookie_client.replication.check`). From then on it is
repaired like any other.

What counts is whether copies of the last segment are lost, or its bookie is. Here this differs from the reference: it
also fences a ledger that happens to be marked and has a merely read-only (or restarting) bookie in its last ensemble. A
read-only bookie serves what it has and has told the writer to leave: nothing is lost, nothing has to be copied, and the
mark can go. Fencing would end a sound application's writer for no gain. Bookies that are being emptied are the business
of their decommission, which closes the open ledgers in its way by itself. Nor is a bookie that is registered and does
not answer a reason: it may be back in a moment, and when its session has ended it is lost.

Invariants
- Nothing here touches a fragment that is not closed.
- The trouble of one fragment does not keep the others from being repaired.
- Whoever is filled in place is named by the mark first, so that every copy is looked for there before a mark goes: the
  worker may die while it fills, and the first and the last entry do not tell.

Event loop only.

Source: reference auto-recovery, sections 6.2 to 6.4 and 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

import structlog

from bookie_client.replication.check import FragmentReport, LedgerReport, ReplicaFinding, ReplicaVerdict
from bookie_pod.autorecovery.worker.fragment_repair import SHOWN_ENTRIES, FragmentRepair, Replicator
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
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger
from bookie_protocol.shown import one_line

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
        self.reasons.append(f"segment at entry {found.fragment.first_entry}: {one_line(error)}")
        if isinstance(error, EntriesUnreadable):
            lost = (entry for entry in error.entries if not may_be_read_later(found, entry))
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
        reason = waits_for(report, turn.named)
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
        waiting = waits_for(report, named)
        if waiting is not None:
            return RoundResult(Outcome.OPEN, waiting, tuple(trouble.lost_entries[:SHOWN_ENTRIES]))
        if trouble.reasons:
            return trouble.failed()
        moved = not named and await self._mend(turn, report)
        if copied is not None or moved:
            self._progress.enter(note, Phase.VERIFYING)
            report = await self._parts.checker.check(report.ledger_id, complete=named)
        left = what_is_left(report, named)
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
        work = [(each, bad) for each in closed if (bad := bad_positions(each, named))]
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
        return again, bad_positions(again, named)

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


_HOW: dict[ReplicaVerdict, str] = {
    ReplicaVerdict.LOST: "is registered nowhere",
    ReplicaVerdict.MISSING: "lost its copies",
    ReplicaVerdict.DAMAGED: "has damaged copies",
    ReplicaVerdict.UNREACHABLE: "does not answer, so nobody can tell what it has",
}


def is_bad(found: ReplicaFinding, named: Collection[str]) -> bool:
    """A new copy is wanted now."""
    return found.verdict.is_bad and (found.verdict is not ReplicaVerdict.LOST or found.bookie in named)


def bad_positions(report: FragmentReport, named: Collection[str]) -> dict[int, str]:
    """Positions that want a new copy now, and their bookies."""
    return {found.position: found.bookie for found in report.findings if is_bad(found, named)}


def waits_for(report: LedgerReport, named: Collection[str]) -> str | None:
    """Why only the writer of a ledger, or a recovery, can go on with it; None: nothing is wrong at its end."""
    for fragment in report.fragments:
        for found in fragment.findings:
            if not fragment.fragment.is_closed and is_bad(found, named):
                return f"the ledger is {report.metadata.value.state.name}, and {found.bookie} {_HOW[found.verdict]}"
    return None


def what_is_left(report: LedgerReport, named: Collection[str]) -> str | None:
    """Why the mark of a ledger must stay, in one line; None: it may go."""
    if report.lac_error is not None:
        return f"the end of the ledger is not known: {report.lac_error}"
    for fragment in report.fragments:
        for found in fragment.findings:
            unknown = found.verdict is ReplicaVerdict.UNREACHABLE and found.bookie in named
            if unknown or is_bad(found, named):
                where = f"segment at entry {fragment.fragment.first_entry}"
                return f"{where}: {found.bookie} {_HOW[found.verdict]} {found.detail}".rstrip()
    return None


def may_be_read_later(report: FragmentReport, entry_id: int) -> bool:
    """Whether a bookie that should have the entry did not answer: then nobody can say that the entry is lost."""
    return any(position in report.unknown for position in report.fragment.write_set(entry_id))
