"""What is done to one marked ledger whose lock is held.

Look at every replica; copy what is lost, fragment by fragment; look again; only a ledger without a fault is reported as
repaired. What nobody can tell is no fault and no success: the mark stays. `judgement` says what counts.

- A bookie that is registered nowhere is replaced by another one.
- A bookie that is there, and says that its copies are gone (it came back with an empty disk), is filled again in place:
  that needs no spare. If it cannot be filled it is replaced.
- A bookie whose copies are damaged is replaced, because its disk is in doubt; without a spare it is filled in place.
- With fewer spares than lost copies as many are restored as there are spares.
- An entry of which no copy can be read holds up its fragment, and nothing is exchanged there: the entry is asked for
  again at each later round before anything is copied. The ledger keeps its mark and its length.
- A mark without replicas asks for other bookies because the placement breaks the policy. Lost copies go first.

Invariants
- Nothing here touches a fragment that is not closed; `open_ledgers` says what becomes of those.
- The trouble of one fragment does not keep the others from being repaired.
- What is remembered of unreadable entries is bounded by `REMEMBERED` fragments.

Event loop only.

Source: reference auto-recovery, sections 6.2, 6.4 and 7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import CopyProgress, ProgressListener, ReplicationResult
from bookie_client.replication.report import FragmentReport, LedgerReport, ReplicaVerdict
from bookie_pod.autorecovery.worker import judgement
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress
from bookie_pod.autorecovery.worker.worker import Outcome, RoundResult
from bookie_pod.metrics.replication_worker import ReplicationWorkerMetrics
from bookie_protocol.errors import (
    EntriesUnreadable,
    MetadataNotFound,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger

REMEMBERED: Final = 2000
SHOWN_ENTRIES: Final = 20

_log = structlog.get_logger(__name__)


class Checker(Protocol):
    """`LedgerChecker`."""

    async def check(self, ledger_id: int) -> LedgerReport: ...


class Replicator(Protocol):
    """`FragmentReplicator`."""

    async def replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        *,
        in_place: Collection[int] = (),
        progress: ProgressListener | None = None,
    ) -> ReplicationResult: ...

    async def mend(self, fragment: Fragment, *, progress: ProgressListener | None = None) -> ReplicationResult: ...

    async def unreadable(self, fragment: Fragment, entry_ids: Collection[int]) -> tuple[int, ...]: ...


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

    def add(self, fragment: Fragment, error: PodkeeperError) -> None:
        self.reasons.append(f"segment at entry {fragment.first_entry}: {' '.join(str(error).split())}")

    def failed(self) -> RoundResult:
        reason = "; ".join(self.reasons[:3])
        if len(self.reasons) > 3:
            reason += f"; and {len(self.reasons) - 3} more segments"
        return RoundResult(Outcome.FAILED, reason, tuple(self.lost_entries[:SHOWN_ENTRIES]))


class LedgerRepair:
    """Implements `worker.Repair`, for any number of ledgers at a time."""

    def __init__(self, parts: RepairParts) -> None:
        self._parts = parts
        self._progress = parts.progress
        self._unreadable: OrderedDict[tuple[int, int], tuple[int, ...]] = OrderedDict()

    async def repair(self, ledger_id: int, note: LedgerNote) -> RoundResult:
        try:
            named = await self._named(ledger_id)
            if named is None:
                return RoundResult(Outcome.WITHDRAWN)
            return await self._repair(await self._parts.checker.check(ledger_id), named, note)
        except (NoSuchLedger, MetadataNotFound):
            return self._gone(ledger_id)

    async def recover(self, ledger_id: int, note: LedgerNote) -> RoundResult:
        try:
            named = await self._named(ledger_id)
            if named is None:
                return RoundResult(Outcome.WITHDRAWN)
            report = await self._parts.checker.check(ledger_id)
            reason = judgement.waits_for(report, named)
            if reason is None:
                _log.info("open ledger: its writer went on", ledger=ledger_id)
                return await self._repair(report, named, note)
            _log.warning("open ledger is fenced and recovered", ledger=ledger_id, reason=reason)
            self._progress.enter(note, Phase.RECOVERING, reason=reason)
            await self._parts.recover(report)
            self._parts.metrics.recovered()
            self._progress.ledgers_recovered += 1
            self._progress.enter(note, Phase.CHECKING)
            return await self._repair(await self._parts.checker.check(ledger_id), named, note)
        except (NoSuchLedger, MetadataNotFound):
            return self._gone(ledger_id)

    async def _named(self, ledger_id: int) -> frozenset[str] | None:
        """The bookies that the mark names; None: it was withdrawn."""
        mark = await self._parts.mark(ledger_id)
        return None if mark is None else frozenset(mark.replicas)

    # --- one round --------------------------------------------------------------------------------------------

    async def _repair(self, report: LedgerReport, named: frozenset[str], note: LedgerNote) -> RoundResult:
        trouble = _Trouble()
        before = report.metadata.value.all_bookies()
        copied = await self._restore(report, named, note, trouble)
        waiting = judgement.waits_for(report, named)
        if waiting is not None:
            return RoundResult(Outcome.OPEN, waiting, tuple(trouble.lost_entries[:SHOWN_ENTRIES]))
        if trouble.reasons:
            return trouble.failed()
        moved = not named and await self._mend(report, note)
        if copied or moved:
            self._progress.enter(note, Phase.VERIFYING)
            report = await self._parts.checker.check(report.ledger_id)
            await self._mark_lost_targets(report, before)
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

    async def _mark_lost_targets(self, report: LedgerReport, before: Collection[str]) -> None:
        """A target that is gone already may have been audited before the metadata named it: nobody would mark it."""
        lost = judgement.new_and_lost(report, before)
        if lost:
            _log.warning("bookies that got new copies are gone", ledger=report.ledger_id, bookies=sorted(lost))
            await self._parts.mark_lost(report.ledger_id, lost)

    async def _restore(self, report: LedgerReport, named: frozenset[str], note: LedgerNote, trouble: _Trouble) -> bool:
        """Whether copies were made, or names of dead bookies exchanged."""
        closed = [each for each in report.fragments if each.fragment.is_closed]
        work = [(each, bad) for each in closed if (bad := judgement.bad_positions(each, named))]
        note.bad_fragments, note.done_fragments = len(work), 0
        note.entries_copied, note.bytes_copied = 0, 0
        note.entries_to_copy = sum(each.fragment.count for each, _ in work)
        if not work:
            return False
        self._progress.enter(note, Phase.COPYING)
        writable = await self._parts.writable()
        for each, bad in work:
            try:
                await self._restore_fragment(each, bad, note, writable)
            except (NoSuchLedger, MetadataNotFound, MetadataUnavailable):
                raise
            except EntriesUnreadable as error:
                self._note_unreadable(each, error, trouble)
            except PodkeeperError as error:
                self._parts.metrics.failed_with(error)
                trouble.add(each.fragment, error)
            else:
                self._unreadable.pop((each.fragment.ledger_id, each.fragment.first_entry), None)
                note.done_fragments += 1
        return True

    # --- one fragment -----------------------------------------------------------------------------------------

    async def _restore_fragment(
        self, found: FragmentReport, bad: Mapping[int, str], note: LedgerNote, writable: frozenset[str]
    ) -> None:
        await self._ask_again(found.fragment)
        listener = self._listener(note)
        verdicts = {each.position: each.verdict for each in found.findings}
        here = {position for position, bookie in bad.items() if bookie in writable}
        empty = {position for position in here if verdicts[position] is ReplicaVerdict.MISSING}
        fragment = found.fragment
        try:
            done = await self._replicate(fragment, bad, empty, listener)
            fragment, left = replace(fragment, ensemble=done.ensemble), done.unfilled
        except NotEnoughBookies as error:
            left = {position: str(error) for position in bad if position not in empty}
            if empty:
                await self._replicate(fragment, _only(bad, empty), empty, listener)
        except (EntriesUnreadable, NoSuchLedger, MetadataUnavailable, MetadataNotFound):
            raise
        except PodkeeperError as error:
            if not empty:
                raise
            _log.warning("bookie cannot be filled again, it is replaced", ledger=note.ledger_id, reason=str(error))
            done = await self._replicate(fragment, bad, (), listener)
            fragment, left = replace(fragment, ensemble=done.ensemble), done.unfilled
        await self._without_a_spare(fragment, bad, left, here, listener)

    async def _without_a_spare(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        left: Mapping[int, str],
        here: Collection[int],
        listener: ProgressListener,
    ) -> None:
        """Fill in place what can be; raises `NotEnoughBookies` for the rest."""
        again = {position for position in left if position in here}
        if again:
            await self._replicate(fragment, _only(bad, again), again, listener)
        why = [f"{bad[position]}: {reason}" for position, reason in sorted(left.items()) if position not in again]
        if why:
            raise NotEnoughBookies("; ".join(dict.fromkeys(why)))

    async def _replicate(
        self, fragment: Fragment, bad: Mapping[int, str], in_place: Collection[int], listener: ProgressListener
    ) -> ReplicationResult:
        done = await self._parts.replicator.replicate(fragment, bad, in_place=in_place, progress=listener)
        self._parts.metrics.written(done.entries, done.nbytes)
        return done

    async def _ask_again(self, fragment: Fragment) -> None:
        """Entries that could not be read before are asked for before everything else is copied again in vain."""
        known = self._unreadable.get((fragment.ledger_id, fragment.first_entry))
        if not known:
            return
        still = await self._parts.replicator.unreadable(fragment, known)
        if still:
            error = EntriesUnreadable(f"no copy of entries {list(still[:SHOWN_ENTRIES])} can be read, as before")
            error.entries = still
            raise error

    def _note_unreadable(self, found: FragmentReport, error: EntriesUnreadable, trouble: _Trouble) -> None:
        fragment = found.fragment
        self._parts.metrics.failed_with(error)
        self._parts.metrics.unreadable(len(error.entries))
        trouble.add(fragment, error)
        trouble.lost_entries += [entry for entry in error.entries if not judgement.may_be_read_later(found, entry)]
        self._unreadable[fragment.ledger_id, fragment.first_entry] = error.entries
        self._unreadable.move_to_end((fragment.ledger_id, fragment.first_entry))
        while len(self._unreadable) > REMEMBERED:
            self._unreadable.popitem(last=False)

    # --- placement --------------------------------------------------------------------------------------------

    async def _mend(self, report: LedgerReport, note: LedgerNote) -> bool:
        """Whether copies were moved for the sake of the placement."""
        if not report.metadata.value.is_closed:
            return False
        self._progress.enter(note, Phase.MOVING)
        moved = False
        for each in report.fragments:
            try:
                done = await self._parts.replicator.mend(each.fragment, progress=self._listener(note))
            except NotEnoughBookies as error:
                # Not for lack of trying: the next check of placements marks it again.
                _log.warning("placement cannot be mended", ledger=report.ledger_id, reason=str(error))
                continue
            self._parts.metrics.written(done.entries, done.nbytes)
            moved = moved or done.ensemble != each.fragment.ensemble
        return moved

    # --- telling ----------------------------------------------------------------------------------------------

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
            self._parts.metrics.copied(entries, nbytes, clock() - told_at)
            told_at = clock()

        return listen

    def _gone(self, ledger_id: int) -> RoundResult:
        for known in [key for key in self._unreadable if key[0] == ledger_id]:
            del self._unreadable[known]
        return RoundResult(Outcome.DELETED)


def _only(bad: Mapping[int, str], positions: Collection[int]) -> dict[int, str]:
    return {position: bookie for position, bookie in bad.items() if position in positions}
