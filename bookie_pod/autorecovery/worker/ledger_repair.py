"""The repair of one marked ledger whose lock is held.

Look at every replica; copy what is lost, fragment by fragment; look again; only a ledger without a fault is reported as
repaired. An unknown state is neither a fault nor a success: the mark stays.

- Lost, denied and damaged copies are made again (`healing.fragment_repair`). An entry of which no copy can be read is
  reported, and the ledger keeps its mark and its length. It holds up its fragment, and nothing is exchanged there. So
  entries that may be of that kind are asked for before the first byte is copied: those that a look found missing or
  damaged somewhere, those that no bookie lists, and those that an earlier try of any worker noted in the mark.
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

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import structlog

from bookie_client.healing.fragment_repair import FragmentRepair
from bookie_client.healing.rule import (
    bad_positions,
    faulty_entries,
    findings_of,
    may_be_read_later,
    registered,
    trouble_of,
    waits_for,
)
from bookie_client.healing.settling import what_is_unsettled
from bookie_client.replication.check import FAULTS, FragmentReport, LedgerChecker, LedgerReport
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import CopyProgress, FragmentReplicator, ProgressListener, ReplicationResult
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_protocol.errors import (
    EntriesUnreadable,
    LedgerDeleted,
    MetadataUnavailable,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.metadata_service.findings import Finding, Reason, Trouble, distrusted
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger
from bookie_protocol.shown import one_line
from bookie_protocol.versioned import LedgerLife

_log = structlog.get_logger(__name__)

SHOWN_ENTRIES: Final = 20
FRESH_SECONDS: Final = 5.0
"""Seconds for which a finding is acted upon without a second look."""


class Outcome(Enum):
    """The end of a round with a ledger."""

    REPAIRED = "repaired"
    """Every copy is there; the mark may go."""
    DELETED = "deleted"
    WITHDRAWN = "withdrawn"
    """Its mark is gone; there is nothing to do."""
    OPEN = "open"
    """Its writer has to replace a lost bookie first, or the ledger has to be recovered."""
    FAILED = "failed"


class RoundResult(NamedTuple):
    """`reason`: why not, for people. `lost_entries`: entries of which no copy is left, the first few. `trouble`: the
    kind of a failure. `life`: the ledger of the id that is open."""

    outcome: Outcome
    reason: str = ""
    lost_entries: tuple[int, ...] = ()
    trouble: Trouble = Trouble.OTHER
    life: LedgerLife | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairParts:
    """The parts that a repair needs.

    `writable`: bookies that take writes now. `mark`: a ledger's mark now; `mark_more`: adds findings to it. `recover`:
    looks at an open ledger, fences and closes it.
    """

    checker: LedgerChecker
    replicator: FragmentReplicator
    writable: Callable[[], Awaitable[frozenset[str]]]
    mark: Callable[[int], Awaitable[UnderreplicatedLedger | None]]
    mark_more: Callable[[int, Collection[Finding]], Awaitable[None]]
    recover: Callable[[LedgerLife], Awaitable[None]]
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
    """The work on ledgers whose lock is held, any number at a time. Raises `PodkeeperError` for a round that failed."""

    def __init__(self, parts: RepairParts) -> None:
        self._parts = parts
        self._progress = parts.progress
        self._fragments = CountedRepair(parts.replicator, parts.progress, parts.metrics)

    async def repair(self, lock: LedgerLock, note: LedgerNote) -> RoundResult:
        """Look at it and restore what can be restored without disturbing a writer."""
        return await self._turn(lock, note, self._repair)

    async def recover(self, lock: LedgerLock, note: LedgerNote, life: LedgerLife | None) -> RoundResult:
        """Look again at a ledger whose writer had its time, recover it if it still has to be, then repair it. The next
        ledger of its id is open like any other."""
        return await self._turn(lock, note, partial(self._recover, life=life))

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

    async def _recover(self, turn: _Round, report: LedgerReport, life: LedgerLife | None) -> RoundResult:
        result = await self._repair(turn, report)
        if result.outcome is not Outcome.OPEN or result.life != life:
            return result
        ledger_id, note = turn.lock.ledger_id, turn.note
        self._progress.enter(note, Phase.CHECKING)
        turn, report = await self._look(turn)
        reason, found = waits_for(report, turn.doubts), LedgerLife.of(report.metadata)
        if reason is None or found != life:
            return result._replace(life=found)
        _log.warning("open ledger is fenced and recovered", ledger=ledger_id, reason=reason)
        self._progress.enter(note, Phase.RECOVERING, reason=reason)
        await self._parts.recover(found)
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
            lost, life = tuple(setbacks.lost_entries[:SHOWN_ENTRIES]), LedgerLife.of(report.metadata)
            return RoundResult(Outcome.OPEN, waiting, lost, life=life)
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


class CountedRepair:
    """Repairs fragments, any number at a time, and counts copies in the worker's progress and metrics."""

    def __init__(
        self, replicator: FragmentReplicator, progress: WorkerProgress, metrics: ReplicationWorkerMetrics
    ) -> None:
        self._replicator = replicator
        self._progress = progress
        self._metrics = metrics

    async def restore(
        self,
        found: FragmentReport,
        bad: Mapping[int, str],
        doubtful: Collection[int],
        note: LedgerNote,
        writable: frozenset[str],
        lock: LedgerLock,
    ) -> None:
        """Make new copies for the bad positions. `doubtful`: entries of which there may be no copy; `writable`: bookies
        that can be filled in place.

        Raises as `FragmentRepair.restore`; `NotEnoughBookies` also when some copies found a place.
        """
        if doubtful:
            await self._replicator.ask_for(found.fragment, doubtful)
        lost = {each.position: each.verdict for each in found.findings if each.position in bad}
        left = (await self._repair(note, lock).restore(found.fragment, lost, writable)).left
        if left:
            why = [f"{bad[position]}: {reason}" for position, reason in sorted(left.items())]
            raise NotEnoughBookies("; ".join(dict.fromkeys(why)))

    async def fill(self, fragment: Fragment, lacking: Mapping[int, str], note: LedgerNote, lock: LedgerLock) -> None:
        """Fill bookies of a segment that may still grow. Raises what `FragmentReplicator.replicate` raises."""
        await self._repair(note, lock).copy(fragment, lacking, set(lacking), by_lists=True)

    async def mend(self, fragment: Fragment, note: LedgerNote, lock: LedgerLock) -> bool:
        """Exchange bookies so that the placement obeys its policy. Return whether any was exchanged."""
        done = await self._replicator.mend(fragment, session_id=lock.session_id, progress=self._listener(note))
        self._written(done)
        return done.ensemble != fragment.ensemble

    def _repair(self, note: LedgerNote, lock: LedgerLock) -> FragmentRepair:
        return FragmentRepair(
            replicator=self._replicator,
            session_id=lock.session_id,
            written=self._written,
            progress=self._listener(note),
        )

    def _written(self, done: ReplicationResult) -> None:
        self._metrics.written(done.entries, done.nbytes)

    def _listener(self, note: LedgerNote) -> ProgressListener:
        seen = [0, 0]
        clock = self._progress.clock
        told_at = clock()

        def listen(now: CopyProgress) -> None:
            nonlocal told_at
            # A fragment that is begun again counts from zero again.
            entries = now.entries - seen[0] if now.entries >= seen[0] else now.entries
            nbytes = now.nbytes - seen[1] if now.nbytes >= seen[1] else now.nbytes
            seen[:] = now.entries, now.nbytes
            self._progress.copied(note, entries, nbytes)
            self._metrics.copied(entries, nbytes, clock() - told_at)
            told_at = clock()

        return listen
