"""One pass of garbage collection over one storage.

A pass
1. finishes compactions that a crash interrupted;
2. deletes ledgers that the metadata service no longer has, and now and then those that live elsewhere; a pass that a
   person asked for takes the second look at an empty listing itself, some seconds later;
3. closes the logs that are written at present, if they are garbage;
4. lists the logs that are rotated and synced, then flushes the storage: from then on every row that points into them is
   in the index, and the deletions are durable;
5. measures each of them; one in which nothing lives is removed;
6. compacts the emptiest logs, if a compaction is due or forced; on a full disk those with most garbage, as far as
   copies of what lives in them fit.

Invariants
- A part that fails ends that part for this pass, with one log line; the next pass starts from the beginning.
- What a restart must not forget is written before what follows from it becomes durable.

Threads: the collector's.

Source: docs/internals/bookie-behaviour.md, sections 6.2 and 6.5.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from bookie_pod.config.sections.gc import GcConfig
from bookie_pod.metrics.gc import GcMetrics, GcStage
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.ledger_collector import LedgerCollection, LedgerCollector
from bookie_pod.storage.gc.log_usage import LogUsages
from bookie_pod.storage.gc.reclaimer import SpaceReclaimer
from bookie_pod.storage.gc.reports import PassResult
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, Force, GcTimes
from bookie_pod.storage.gc.state_file import GcMemory, GcStateFile
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import MetadataError, StorageFailed, StorageFault

_log = structlog.get_logger(__name__)
COMPACTING_INDEX: Final = "compacting the location index"
SECOND_LOOK: Final = "waiting to look again: the metadata service lists no ledger"
SECOND_LOOK_S: Final = 3.0
"""Seconds between the two looks of a pass that a person asked for."""


class IndexCompaction:
    """The rewriting of the location index now and then (`entryLocationCompactionInterval`).

    Invariants
    - Times are spread, so that the directories of one bookie, and many bookies, do not compact at once.
    - The interval begins with the last rewriting, of whichever process: `GcTimes` is stored by the caller.

    Compacts the index of one storage.

    Threads: `run` on the collector's; `last_ms` and `count` may be read by any.
    """

    def __init__(
        self,
        storage: CollectedStorage,
        metrics: GcMetrics,
        times: GcTimes,
        interval_ms: int,
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        """`interval_ms` 0 or less: never."""
        self._storage = storage
        self._metrics = metrics
        self._times = times
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._random = random
        self.count = 0
        """The number of passes since the start of the process."""
        self._due_ms = self._next()

    @property
    def last_ms(self) -> int:
        """Return when the indexes were last rewritten, or when the storage was first collected."""
        return self._times.last_index_ms

    @property
    def is_due(self) -> bool:
        return self._due_ms is not None and self._now_ms() >= self._due_ms

    def run(self) -> None:
        """Rewrite it now. `StorageFault`."""
        self._storage.compact_index()
        self._metrics.index_compacted()
        self._times.last_index_ms = self._now_ms()
        self.count += 1
        self._due_ms = self._next()

    def _next(self) -> int | None:
        if self._interval_ms <= 0:
            return None
        return self._times.last_index_ms + self._interval_ms + self._random.randrange(self._interval_ms)


class CollectionPass:
    """See the module. `run` it as often as wanted, one at a time."""

    def __init__(
        self,
        storage: CollectedStorage,
        ledgers: LedgerCollector,
        deleted: DeletedLedgers,
        usages: LogUsages,
        reclaimer: SpaceReclaimer,
        index: IndexCompaction,
        schedule: CompactionSchedule,
        memory: GcMemory,
        state_file: GcStateFile,
        metrics: GcMetrics,
        options: Callable[[], GcConfig],
        usage_size_limit: Callable[[], int | None],
        now_ms: Callable[[], int],
        check_stopped: Callable[[], None],
        pause: Callable[[float], None],
    ) -> None:
        """`check_stopped`, and `pause`, which waits for so many seconds, raise `CollectionStopped`."""
        self._storage = storage
        self._ledgers = ledgers
        self._deleted = deleted
        self._usages = usages
        self._reclaimer = reclaimer
        self._index = index
        self._schedule = schedule
        self._memory = memory
        self._state_file = state_file
        self._metrics = metrics
        self._options = options
        self._usage_size_limit = usage_size_limit
        self._now_ms = now_ms
        self._check_stopped = check_stopped
        self._pause = pause

    def run(self, force: Force | None, result: PassResult) -> None:
        """Run the pass. Raises `CollectionStopped` and `StorageFailed`; all other errors are put into the result."""
        if not self._memory.stored:
            self._step("noting when the timers began", result, self._remember)
        recovered = self._step("finishing interrupted compactions", result, lambda: self._reclaimer.recover(result))
        with self._metrics.timed(GcStage.LEDGERS):
            self._step("deleting ledgers", result, lambda: self._delete_ledgers(force, result))
        compaction = self._schedule.choose(self._memory.times, self._now_ms(), force)
        asked_for = compaction is not None
        compaction = compaction or self._schedule.to_make_room()
        threshold = self._schedule.rule(compaction).threshold if compaction is not None else 0
        self._step("measuring entry logs", result, lambda: self._measure(threshold, result))
        # Each compaction that does not end leaves a copy of a log: none is begun before the last one is finished.
        if compaction is not None and recovered:
            with self._metrics.timed(GcStage.COMPACTION):
                self._step(
                    f"{compaction.value} compaction", result, lambda: self._compact(compaction, asked_for, result)
                )
        if self._index.is_due:
            self._step(COMPACTING_INDEX, result, self._compact_index)

    def _step(self, phase: str, result: PassResult, work: Callable[[], None]) -> bool:
        """Run one step and return whether it ended without an error.

        Raises `StorageFailed`: only a restart helps then.
        """
        self._reclaimer.phase, self._reclaimer.progress = phase, (0, 0)
        self._check_stopped()
        try:
            work()
        except (StorageFault, MetadataError) as error:
            result.errors.append(f"{phase}: {error}")
            _log.error("garbage collection", phase=phase, reason=str(error))
            if isinstance(error, StorageFailed):
                raise
            return False
        return True

    def _delete_ledgers(self, force: Force | None, result: PassResult) -> None:
        self._ledgers.begin_pass()
        by_a_person = force is not None and not force.by_disk
        at_once = force is not None or self._schedule.disk_full
        searches: list[Callable[[], LedgerCollection]] = [lambda: self._ledgers.collect_deleted(at_once=at_once)]
        interval = self._options().overreplicated_wait_time_ms
        if interval > 0 and self._now_ms() - self._memory.times.last_over_replicated_ms >= interval:
            searches.insert(0, self._search_elsewhere)
        try:
            for search in searches:
                found = search()
                if by_a_person and found.wants_second_look:
                    # The next scheduled pass may be hours away, and the person who asked for this one looks at its
                    # result.
                    self._reclaimer.phase = SECOND_LOOK
                    self._pause(SECOND_LOOK_S)
                    found = search()
                result.ledgers_deleted += found.deleted
                self._metrics.ledgers_deleted(found.deleted, found.failed)
                if found.failed:
                    result.errors.append(f"deleting ledgers: {found.failed} could not be deleted here")
                if found.doubt is not None:
                    result.errors.append(f"deleting ledgers: {found.doubt}")
        finally:
            self._write_deleted()
        if len(searches) > 1:
            self._remember()  # not sooner: a disk that takes no file shall not keep ledgers from being deleted

    def _search_elsewhere(self) -> LedgerCollection:
        found = self._ledgers.collect_over_replicated()
        if found.complete:  # or the next pass begins it again
            self._memory.times.last_over_replicated_ms = self._now_ms()
        return found

    def _write_deleted(self) -> None:
        """Before the deletions become durable, so that no restart forgets that a ledger was another one once."""
        self._deleted.seal(max(self._storage.logs.log_ids(), default=-1))
        self._deleted.write()
        self._ledgers.fenced.write()

    def _measure(self, threshold: float, result: PassResult) -> None:
        before = dict(self._usages.quarantined)
        try:
            with self._metrics.timed(GcStage.METADATA):
                self._reclaimer.measure(result, threshold)
        finally:
            self._write_deleted()
            if self._usages.quarantined != before:
                self._remember()

    def _compact(self, compaction: Compaction, asked_for: bool, result: PassResult) -> None:
        """Compact. `asked_for` says that the schedule or a person asked for it; else the disk is full."""
        try:
            complete = self._reclaimer.compact(
                compaction,
                self._schedule.rule(compaction),
                self._usage_size_limit(),
                result,
                to_make_room=self._schedule.short_of_space,
            )
            if not complete or not (asked_for or result.logs_compacted):
                return  # the schedule counts what came to its end: the next pass takes up the rest
            # Not when it was stopped: a bookie that is restarted in the middle of each compaction would never end one.
            self._memory.times.done(compaction, self._now_ms())
            self._metrics.compacted(compaction)
        finally:
            self._remember()

    def _compact_index(self) -> None:
        self._index.run()
        self._remember()

    def _remember(self) -> None:
        self._memory.quarantined = dict(self._usages.quarantined)
        self._state_file.write(self._memory)
