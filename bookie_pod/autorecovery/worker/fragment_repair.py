"""Restoring the copies of one fragment: which bookies are filled again, and which are replaced.

- A bookie that is there, and says that its copies are gone (it came back with an empty disk), is filled again in place:
  that needs no spare. If it cannot be filled it is replaced.
- A bookie whose copies are damaged is replaced, because its disk is in doubt; without a spare it is filled in place.
- A segment that may still grow keeps its bookies. Those that lack confirmed entries, as one that was away while its
  ledger was written, or that damaged them, are filled in place; its writer notices nothing.
- With fewer spares than lost copies as many are restored as there are spares.
- An entry of which no copy can be read holds up its fragment, and nothing is exchanged there. So entries that may be of
  that kind are asked for before the first byte is copied: those that a look found missing or damaged somewhere, those
  that no bookie lists, and those that an earlier try of any worker noted in the mark.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 6.2, step 3, and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import structlog

from bookie_client.replication.check import FragmentReport, ReplicaVerdict
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import CopyProgress, ProgressListener, ReplicationResult
from bookie_pod.autorecovery.worker.progress import LedgerNote, WorkerProgress
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_protocol.errors import (
    BookieReadOnly,
    EntriesUnreadable,
    LedgerDeleted,
    MetadataUnavailable,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.metadata_service.under_replication import LedgerLock

_log = structlog.get_logger(__name__)


class Replicator(Protocol):
    """`FragmentReplicator`."""

    async def replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        *,
        in_place: Collection[int] = (),
        by_lists: bool = False,
        session_id: int | None = None,
        progress: ProgressListener | None = None,
    ) -> ReplicationResult: ...

    async def mend(
        self, fragment: Fragment, *, session_id: int | None = None, progress: ProgressListener | None = None
    ) -> ReplicationResult: ...

    async def ask_for(self, fragment: Fragment, entry_ids: Collection[int]) -> None: ...


class _Copying(NamedTuple):
    """The lock under which a fragment is copied, and the note that gets its progress."""

    lock: LedgerLock
    listener: ProgressListener


class FragmentRepair:
    """Repairs fragments, any number at a time."""

    def __init__(self, replicator: Replicator, progress: WorkerProgress, metrics: ReplicationWorkerMetrics) -> None:
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

        Raises what `FragmentReplicator.replicate` raises; `NotEnoughBookies` also when some copies found a place.
        """
        if doubtful:
            await self._replicator.ask_for(found.fragment, doubtful)
        await self._restore(found, bad, _Copying(lock, self._listener(note)), writable)

    async def fill(self, fragment: Fragment, lacking: Mapping[int, str], note: LedgerNote, lock: LedgerLock) -> None:
        """Fill bookies of a segment that may still grow. Raises what `FragmentReplicator.replicate` raises."""
        copying = _Copying(lock, self._listener(note))
        await self._replicate(fragment, lacking, set(lacking), copying, by_lists=True)

    async def mend(self, fragment: Fragment, note: LedgerNote, lock: LedgerLock) -> bool:
        """Exchange bookies so that the placement obeys its policy; whether any was exchanged."""
        done = await self._replicator.mend(fragment, session_id=lock.session_id, progress=self._listener(note))
        self._metrics.written(done.entries, done.nbytes)
        return done.ensemble != fragment.ensemble

    async def _restore(
        self, found: FragmentReport, bad: Mapping[int, str], copying: _Copying, writable: frozenset[str]
    ) -> None:
        verdicts = {each.position: each.verdict for each in found.findings}
        here = {position for position, bookie in bad.items() if bookie in writable}
        empty = {position for position in here if verdicts[position] is ReplicaVerdict.MISSING}
        fragment = found.fragment
        if not fragment.is_closed:
            if here:
                await self._replicate(fragment, _only(bad, here), here, copying, by_lists=here == empty)
            if here != bad.keys():
                names = ", ".join(sorted(bad[position] for position in bad.keys() - here))
                raise BookieReadOnly(f"no writes are taken by bookies of a segment that may still grow: {names}")
            return
        try:
            done = await self._replicate(fragment, bad, empty, copying, by_lists=True)
            fragment, left = replace(fragment, ensemble=done.ensemble), done.unfilled
        except NotEnoughBookies as error:
            left = {position: str(error) for position in bad if position not in empty}
            if empty:
                await self._replicate(fragment, _only(bad, empty), empty, copying, by_lists=True)
        except (EntriesUnreadable, LedgerDeleted, MetadataUnavailable):
            raise
        except PodkeeperError as error:
            if not empty:
                raise
            _log.warning("bookie cannot be filled again, it is replaced", ledger=fragment.ledger_id, reason=str(error))
            done = await self._replicate(fragment, bad, (), copying)
            fragment, left = replace(fragment, ensemble=done.ensemble), done.unfilled
        await self._without_a_spare(fragment, bad, left, here, copying)

    async def _without_a_spare(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        left: Mapping[int, str],
        here: Collection[int],
        copying: _Copying,
    ) -> None:
        """Fill in place what can be; raises `NotEnoughBookies` for the rest."""
        again = {position for position in left if position in here}
        if again:
            await self._replicate(fragment, _only(bad, again), again, copying)
        why = [f"{bad[position]}: {reason}" for position, reason in sorted(left.items()) if position not in again]
        if why:
            raise NotEnoughBookies("; ".join(dict.fromkeys(why)))

    async def _replicate(
        self,
        fragment: Fragment,
        bad: Mapping[int, str],
        in_place: Collection[int],
        copying: _Copying,
        *,
        by_lists: bool = False,
    ) -> ReplicationResult:
        done = await self._replicator.replicate(
            fragment,
            bad,
            in_place=in_place,
            by_lists=by_lists,
            session_id=copying.lock.session_id,
            progress=copying.listener,
        )
        self._metrics.written(done.entries, done.nbytes)
        return done

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


def _only(bad: Mapping[int, str], positions: Collection[int]) -> dict[int, str]:
    return {position: bookie for position, bookie in bad.items() if position in positions}
