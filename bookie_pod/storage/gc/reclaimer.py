"""Gives back the space of entry logs: those in which nothing lives go, mostly dead ones are compacted.

Invariants
- A log that is written at present, and in which nothing lives, or little enough for the compaction of this pass, takes
  no more entries: it is closed, and goes the way of all others.
- A log goes only when `LogUsages` is certain that nothing lives in it, or after the compactor has moved what does.
- A log is compacted only after a flush of the storage that began when it was rotated and synced already: then all its
  rows are in the index.
- Without a flush (a full disk takes none) dead logs go all the same: space comes back, and a ledger whose deletion a
  crash forgets is deleted again.
- Logs that the scrubber or a rebuild found damaged or holds (`excluded`) are left alone.

Threads: the garbage collection thread; `progress`, `phase` and `running` may be read by any.

Source: docs/internals/bookie-behaviour.md, sections 6.2 and 6.5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from bookie_pod.metrics.gc import GcMetrics
from bookie_pod.storage.entry_log.compaction import CopyOutgrown
from bookie_pod.storage.gc.compactor import Compactor, IndexNotMoved
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.live_entries import LogDamaged, Source
from bookie_pod.storage.gc.log_usage import LogUsage, LogUsages
from bookie_pod.storage.gc.reports import PassResult, candidates
from bookie_pod.storage.gc.schedule import Compaction, CompactionRule
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import NoWritableDirectory, StorageFailed, StorageFault

_log = structlog.get_logger(__name__)


def _none() -> Mapping[int, str]:
    return {}


class SpaceReclaimer:
    """The part of a pass that touches entry logs."""

    def __init__(
        self,
        storage: CollectedStorage,
        usages: LogUsages,
        deleted: DeletedLedgers,
        compactor: Compactor,
        metrics: GcMetrics,
        check_stopped: Callable[[], None],
    ) -> None:
        """`check_stopped` raises `CollectionStopped`."""
        self.excluded: Callable[[], Mapping[int, str]] = _none
        self.phase = ""
        self.progress = (0, 0)
        self.running: Compaction | None = None
        self._storage = storage
        self._usages = usages
        self._deleted = deleted
        self._compactor = compactor
        self._metrics = metrics
        self._check_stopped = check_stopped
        self._indexed: set[int] = set()

    def recover(self, result: PassResult) -> None:
        """Finish compactions that a crash interrupted. `StorageFault`."""
        found = self._compactor.recover(self._usages.quarantined)
        for log_id, detail in found.damaged.items():
            self._usages.quarantine(log_id, detail)
            result.errors.append(detail)
        for log_id, copied in found.emptied.items():
            if self._storage.logs.is_flushed(log_id) and log_id not in self.excluded():
                self._delete_log(log_id, result, copied=copied)

    # --- measuring ------------------------------------------------------------------------------------------

    def measure(self, result: PassResult, threshold: float = 0) -> None:
        """Look at every log that is complete; remove those in which nothing lives. `threshold`: what the compaction of
        this pass goes by."""
        logs = self._storage.logs
        self._usages.measure_current()
        self._close_current(threshold, result)
        present = logs.log_ids()
        flushed = [log_id for log_id in present if logs.is_flushed(log_id)]
        self._indexed.intersection_update(flushed)
        self._usages.begin_pass(present)
        try:
            # After the list, not before: a log that was synced in the middle of a flush lacks rows until its end.
            self._storage.flush()
            self._indexed.update(flushed)
            self._usages.measure_current()  # a memtable has become a log only now
        except StorageFailed:
            raise
        except StorageFault as error:
            result.errors.append(f"measuring entry logs: {error}")
            _log.warning("flush failed: only logs in which nothing lives are removed", reason=str(error))
        for done, log_id in enumerate(flushed):
            self._check_stopped()
            self.progress = (done, len(flushed))
            if log_id in self.excluded():
                self._usages.skip(log_id)
                continue
            usage = self._usages.refresh(log_id)
            if usage is not None and usage.is_dead:
                self._delete_log(log_id, result)
        unreadable = self._usages.unreadable
        if unreadable:
            log_id, reason = next(iter(unreadable.items()))
            result.errors.append(
                f"measuring entry logs: {len(unreadable)} could not be read, {log_id:x}.log for one: {reason}"
            )
        if self._usages.all_seen:
            not_looked_at = (set(present) - set(flushed)).union(self._usages.quarantined)
            self._deleted.retain(
                self._usages.seen_deleted.ascending(), min(not_looked_at, default=logs.least_unflushed_log_id())
            )

    def _close_current(self, threshold: float, result: PassResult) -> None:
        """Before the logs are listed, so that the flush behind it has put what rows these still lack."""
        logs = self._storage.logs
        wanted = {each.log_id for each in self._usages.current if each.is_dead or each.usage() < threshold}
        if not wanted:
            return
        try:
            logs.rotate(wanted)
            logs.checkpoint()
        except StorageFailed:
            raise
        except StorageFault as error:
            result.errors.append(f"closing entry logs that are mostly garbage: {error}")
            _log.warning("entry logs not closed, will be tried again", logs=len(wanted), reason=str(error))
        self._usages.measure_current()

    def _delete_log(self, log_id: int, result: PassResult, *, copied: int | None = None) -> None:
        """`copied`: bytes of it that compaction wrote elsewhere, so that they did not come free; None: it was dead."""
        logs = self._storage.logs
        try:
            nbytes = logs.size(log_id)
            logs.delete(log_id)
        except StorageFault as error:
            self._metrics.delete_failed()
            result.errors.append(f"entry log {log_id:x}.log: {error}")
            _log.error("entry log not deleted, will be tried again", log_id=log_id, reason=str(error))
            return
        self._usages.forget(log_id)
        result.logs_deleted += 1
        nbytes = max(0, nbytes - (copied or 0))
        result.reclaimed_bytes += nbytes
        self._metrics.reclaimed(nbytes, compacted=copied is not None)
        _log.info("entry log deleted", log_id=log_id, reclaimed_bytes=nbytes, compacted=copied is not None)

    # --- compaction -----------------------------------------------------------------------------------------

    def candidates(self, threshold: float, size_limit: int | None) -> list[LogUsage]:
        """Logs that a compaction would take, in its order."""
        return candidates(self._usages, threshold, size_limit, self._indexed.__contains__)

    def compact(
        self,
        compaction: Compaction,
        rule: CompactionRule,
        size_limit: int | None,
        result: PassResult,
        *,
        to_make_room: bool = False,
    ) -> bool:
        """Make one compaction; whether it came to its end, or to that of its time. `to_make_room`: the disk is full.
        Then the logs with most garbage come first, and one whose live entries fit nowhere is tried again when others
        have made room. Raises `CollectionStopped`."""
        self.running = result.compaction = compaction
        until = time.monotonic() + rule.max_time_ms / 1000 if rule.max_time_ms > 0 else None
        found = self.candidates(rule.threshold, size_limit)
        if to_make_room:
            found.sort(key=lambda each: -each.garbage_bytes)
        try:
            while found:
                before = result.logs_compacted
                found, error = self._compact_those_that_fit(found, until, result, go_on=to_make_room)
                if error is not None and (not to_make_room or result.logs_compacted == before):
                    result.errors.append(str(error))
                    _log.warning("compaction ends: no room for what lives in a log", reason=str(error))
                    return False
        except IndexNotMoved as error:
            result.errors.append(str(error))
            _log.error("compaction ends", reason=str(error))
            return False
        finally:
            self.running = None
            self._usages.measure_current()  # what was copied is counted now, and not after the next pass
        return True

    def _compact_those_that_fit(
        self, found: Sequence[LogUsage], until: float | None, result: PassResult, *, go_on: bool
    ) -> tuple[list[LogUsage], NoWritableDirectory | None]:
        """Compact the logs for which a directory has room.

        Return the logs left over for lack of room, and the error for the smallest of them. Without `go_on`, stop at the
        first of them.
        """
        too_big: list[LogUsage] = []
        missing: NoWritableDirectory | None = None
        for done, usage in enumerate(found):
            self.progress = (done, len(found))
            if until is not None and time.monotonic() >= until:
                _log.info("compaction ends: its time is used up")
                return [], None
            try:
                self._compact_log(usage, result)
            except NoWritableDirectory as error:
                if isinstance(error, CopyOutgrown):
                    usage = self._usages.outgrown(usage)
                if all(usage.live_bytes < each.live_bytes for each in too_big):
                    missing = error
                too_big.append(usage)
                if not go_on:
                    break
        return too_big, missing

    def _compact_log(self, usage: LogUsage, result: PassResult) -> None:
        """Compact one log. Raises `NoWritableDirectory`, `IndexNotMoved`: going on makes no sense."""
        log_id = usage.log_id
        self.phase = f"compacting entry log {log_id:x}.log"
        try:
            source = self._source(usage)
            if source is None:
                return
            copied = self._compactor.compact(source)
        except LogDamaged as error:
            self._usages.quarantine(log_id, str(error))
            result.errors.append(str(error))
            return
        except (NoWritableDirectory, IndexNotMoved, StorageFailed):
            raise
        except StorageFault as error:
            result.errors.append(str(error))
            _log.error("entry log not compacted, will be tried again", log_id=log_id, reason=str(error))
            return
        result.logs_compacted += 1
        self._delete_log(log_id, result, copied=copied)

    def _source(self, usage: LogUsage) -> Source | None:
        """None: it must not be touched (any more)."""
        log_id = usage.log_id
        if log_id in self.excluded():
            return None
        sizes = self._usages.sizes(log_id)
        if sizes is None:
            return None
        return Source(
            log_id,
            sizes,
            usage.live_bytes,
            self._usages.ends.get(log_id),
            closed=log_id not in self._usages.scanned,
        )
