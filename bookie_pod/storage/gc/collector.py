"""The garbage collection of one storage: one thread that makes one pass after the other.

What a pass does, `collection_pass` says.

Invariants
- While a forced pass waits or runs, further requests are part of it.
- `stop` ends every wait; work that is done is kept.

Threads: `gc-<n>` runs the passes; everything public may be called by any thread.

Source: docs/internals/bookie-behaviour.md, sections 6.1 and 6.6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final

import structlog

from bookie_pod.config.sections.gc import GcConfig
from bookie_pod.metrics.gc import GcMetrics, GcStage
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.gc.absent_ledgers import AbsentLedgers
from bookie_pod.storage.gc.collection_pass import COMPACTING_INDEX, CollectionPass, IndexCompaction
from bookie_pod.storage.gc.compactor import Compactor, PlainCompactor, TransactionalCompactor
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.gc.index_check import IndexedRows
from bookie_pod.storage.gc.ledger_collector import LedgerCollector
from bookie_pod.storage.gc.live_entries import Pay
from bookie_pod.storage.gc.log_usage import DEFAULT_MAX_BYTES, LogUsage, LogUsages
from bookie_pod.storage.gc.reclaimer import SpaceReclaimer
from bookie_pod.storage.gc.reports import (
    BUCKETS,
    Forecast,
    GcState,
    Inspection,
    LogReport,
    LogSummary,
    PassResult,
    bucket_of,
)
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, Force, steady_now_ms
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import CollectedStorage, GcMetadata
from bookie_pod.storage.gc.throttle import CollectionStopped, Throttle
from bookie_pod.storage.index.locations import YIELD_SECONDS
from bookie_protocol.errors import StorageFailed, StorageFault

_log = structlog.get_logger(__name__)

WAITING: Final = "waiting"


class GarbageCollector:
    """See the module. `index` numbers the `collectors` of one bookie from 0: their first passes are spread over one
    more wait time."""

    def __init__(
        self,
        storage: CollectedStorage,
        metadata: GcMetadata,
        state_file: GcStateFile,
        options: GcConfig,
        *,
        index: int = 0,
        collectors: int = 1,
        fenced: FencedAndDeleted | None = None,
        under_pressure: Callable[[], bool] = lambda: False,
        metrics: GcMetrics | None = None,
        now_ms: Callable[[], int] = steady_now_ms,
        random: Random | None = None,
        usage_memory_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self.options = options
        self.schedule = CompactionSchedule.of(options)
        self._storage = storage
        self._index, self._collectors = index, collectors
        self._now_ms = now_ms
        self._metrics = metrics or GcMetrics(Registry(), None)
        self._memory = state_file.read(now_ms())
        self._stopped = threading.Event()
        self._wake = threading.Condition()
        self._force: Force | None = None
        self._forced_running = False
        self._last: PassResult | None = None
        self._last_ms = now_ms()
        self._pass_lock = threading.Lock()
        self._breaths = 0
        self._thread: threading.Thread | None = None
        rate = self._rate = Throttle(
            options.compaction_rate, self._stopped, by_bytes=options.throttle_by_bytes, under_pressure=under_pressure
        )
        metadata_rate = self._metadata_rate = Throttle(options.metadata_op_rate_limit, self._stopped, by_bytes=False)
        self._deleted = state_file.deleted_ledgers()
        storage.remember_deaths(self._deleted.may_be_earlier_life)
        self._absent = AbsentLedgers(lambda: self.options, now_ms)
        self._ledgers = LedgerCollector(
            storage,
            metadata,
            lambda: metadata_rate.pay(1, 0),
            self._deleted,
            fenced or FencedAndDeleted(),
            self._absent,
            verify=options.verify_metadata,
        )
        rows = IndexedRows(storage, self._breathe)
        self._usages = LogUsages(
            storage,
            self._ledgers,
            pay_scan=rate.pay,
            rows=rows,
            quarantined=self._memory.quarantined,
            max_bytes=usage_memory_bytes,
        )
        self._reclaimer = self._make_reclaimer(rate.pay, rows)
        self._index_compaction = IndexCompaction(
            storage,
            self._metrics,
            self._memory.times,
            options.entry_location_compaction_interval_s * 1000,
            now_ms,
            random or Random(),
        )
        self._collection_pass = self._make_pass(state_file)
        self._inspection = Inspection(
            storage,
            self._usages,
            self.schedule,
            self._memory.times,
            lambda: self._reclaimer.excluded(),
            lambda: self._ledgers.doubt,
        )

    def _make_reclaimer(self, pay: Pay, rows: IndexedRows) -> SpaceReclaimer:
        kind = TransactionalCompactor if self.options.transactional_compaction else PlainCompactor
        compactor: Compactor = kind(self._storage, pay, self.options.compaction_max_outstanding, rows)
        reclaimer = SpaceReclaimer(
            self._storage, self._usages, self._deleted, compactor, self._metrics, self._check_stopped
        )
        reclaimer.phase = WAITING
        return reclaimer

    def _make_pass(self, state_file: GcStateFile) -> CollectionPass:
        return CollectionPass(
            self._storage,
            self._ledgers,
            self._deleted,
            self._usages,
            self._reclaimer,
            self._index_compaction,
            self.schedule,
            self._memory,
            state_file,
            self._metrics,
            lambda: self.options,
            lambda: self._usage_size_limit,
            self._now_ms,
            self._check_stopped,
            self._pause,
        )

    @property
    def excluded(self) -> Callable[[], Mapping[int, str]]:
        """Return the logs that other parts found damaged, and the damage.

        They are neither compacted nor removed while that is so. Any thread.
        """
        return self._reclaimer.excluded

    @excluded.setter
    def excluded(self, held_logs: Callable[[], Mapping[int, str]]) -> None:
        self._reclaimer.excluded = held_logs

    @property
    def is_idle(self) -> bool:
        """Return whether no pass is running. Any thread."""
        return self._reclaimer.phase == WAITING

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise CollectionStopped

    def _pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)
        self._check_stopped()

    def step(self) -> tuple[str, object | None]:
        """Its thread, and what a pass is at: another one with everything that it does, or waits for on purpose; None:
        none goes on, or one compacts the index, which tells nothing until its end. Any thread."""
        reclaimer = self._reclaimer
        at = (reclaimer.phase, reclaimer.progress, self._breaths, self._rate.turns, self._metadata_rate.turns)
        return f"gc-{self._index}", None if reclaimer.phase in (WAITING, COMPACTING_INDEX) else at

    def _breathe(self) -> None:
        """Let others have the interpreter in the middle of a long search."""
        self._check_stopped()
        self._breaths += 1
        time.sleep(YIELD_SECONDS)

    @property
    def _usage_size_limit(self) -> int | None:
        """The size that a log's usage is measured against (`useTargetEntryLogSizeForGc`); None: its own."""
        return self._storage.logs.log_size_limit if self.options.use_target_entry_log_size else None

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: the first pass after the wait time, later for the second directory and so on."""
        for name in Compaction:
            rule = self.schedule.rule(name)
            _log.info(
                f"{name.value} compaction",
                enabled=rule.periodic,
                threshold=rule.threshold,
                interval_s=rule.interval_s,
            )
        self._thread = threading.Thread(target=self._run, name=f"gc-{self._index}", daemon=True)
        self._thread.start()

    def begin_stop(self) -> None:
        """End at the next safe place."""
        self._stopped.set()
        with self._wake:
            self._wake.notify_all()

    def stop(self) -> None:
        """End at the next safe place and wait for it."""
        self.begin_stop()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        wait = self.options.wait_time_ms / 1000
        share = (self._index + 1) / self._collectors
        due = wait + wait * share
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._force is not None or self._stopped.is_set(), timeout=due)
            if self._stopped.is_set():
                return
            try:
                self.run_pass()
            except CollectionStopped:
                return
            except StorageFailed:
                pass  # the next checkpoint reports it and stops the bookie
            except Exception as error:  # the thread must outlive an internal error
                _log.exception("garbage collection pass failed", reason=str(error))
            due = self.options.wait_time_ms / 1000

    # --- requests -------------------------------------------------------------------------------------------

    def request(self, force: Force) -> bool:
        """Ask for a pass now. False: one that was asked for before has not ended."""
        with self._wake:
            if self._force is not None or self._forced_running:
                return False
            self._force = force
            self._wake.notify_all()
        return True

    def allow_deletions(self, ledgers: int) -> None:
        """Let the next pass delete up to so many ledgers that the metadata service does not have, also if that is an
        unusual part of what is here."""
        self._absent.allow(ledgers)

    def cancel_request(self) -> None:
        """Forget a request that a full disk has made, if it has not begun."""
        with self._wake:
            if self._force is not None and self._force.by_disk:
                self._force = None

    def reconfigure(self, options: GcConfig) -> None:
        """Take other thresholds, intervals and rates from now on; how a compaction works counts from the next start."""
        self.options = options
        self.schedule.reconfigure(options)
        self._rate.change(options.compaction_rate, by_bytes=options.throttle_by_bytes)
        self._metadata_rate.change(options.metadata_op_rate_limit, by_bytes=False)

    @property
    def force_pending(self) -> bool:
        """A forced pass waits or runs."""
        return self._force is not None or self._forced_running

    # --- one pass -------------------------------------------------------------------------------------------

    def run_pass(self) -> PassResult:
        """Make one pass on the calling thread. Raises `CollectionStopped`, `StorageFailed`."""
        with self._pass_lock:
            with self._wake:
                force, self._force = self._force, None
                self._forced_running = force is not None
            result = PassResult()
            try:
                with self._metrics.timed(GcStage.WHOLE):
                    self._collection_pass.run(force, result)
            finally:
                self._forced_running = False
                self._reclaimer.phase, self._reclaimer.progress = WAITING, (0, 0)
                self._last, self._last_ms = result, self._now_ms()
            return result

    @property
    def since_pass_s(self) -> float:
        """Seconds since the last pass ended, or since there is a collector."""
        return (self._now_ms() - self._last_ms) / 1000

    @property
    def yielded_s(self) -> float:
        """Seconds in which it went at a tenth of its rate because clients waited for the disks, since the start."""
        return self._rate.yielded_s

    def candidates(self, threshold: float) -> list[LogUsage]:
        """Logs below the threshold, the emptiest tenth first. Logs in doubt are left alone."""
        return self._reclaimer.candidates(threshold, self._usage_size_limit)

    # --- what can be asked ----------------------------------------------------------------------------------

    def state(self) -> GcState:
        """Return what the collector is doing, and what the last pass did."""
        times, last = self._memory.times, self._last
        return GcState(
            force_compacting=self.force_pending,
            major_compacting=self._reclaimer.running is Compaction.MAJOR,
            minor_compacting=self._reclaimer.running is Compaction.MINOR,
            last_major_ms=times.last_major_ms,
            last_minor_ms=times.last_minor_ms,
            major_count=times.major_count,
            minor_count=times.minor_count,
            major_suspended=self.schedule.major_suspended,
            minor_suspended=self.schedule.minor_suspended,
            phase=self._reclaimer.phase,
            quarantined=dict(self._usages.quarantined),
            held=dict(self._reclaimer.excluded()),
            last_errors=tuple(last.errors) if last is not None else (),
            last_index_ms=self._index_compaction.last_ms,
            index_count=self._index_compaction.count,
            done=self._reclaimer.progress[0],
            total=self._reclaimer.progress[1],
            last_pass=last,
            last_pass_ms=self._last_ms,
            deletions_held=self._absent.held,
            ledgers_waiting=self._absent.waiting,
        )

    def usages(self) -> list[LogUsage]:
        """Every log that the last pass measured."""
        return sorted(self._usages.usages.values(), key=lambda each: each.log_id)

    def current_usages(self) -> list[LogUsage]:
        """Every log that was written during the last pass, as far as the index here knows what lives."""
        return self._usages.current

    def oldest_age_s(self) -> float:
        """Seconds since the log that was written longest ago was written last, of all logs here: those that are
        written at present and those that are left alone for damage count too. 0: there is none. Reads the directory."""
        return self._inspection.oldest_age_s(self._now_ms())

    def quarantined_bytes(self) -> int:
        """Bytes of the files of logs that are left alone for damage. Looks at each of them."""
        found = 0
        for log_id in list(self._usages.quarantined):
            with suppress(StorageFault):  # another process removed it
                found += self._storage.logs.size(log_id)
        return found

    def has_log(self, log_id: int) -> bool:
        """Return whether there is such a log here. Reads the directory."""
        return self._storage.logs.exists(log_id)

    def report(self, log_id: int) -> LogReport:
        """Return why this log is still there, and when it will go. `StorageFault` if there is no such log. Reads
        files."""
        return self._inspection.report(log_id, self._usage_size_limit, self._now_ms())

    def logs(self) -> list[LogSummary]:
        """Every log here, the one that was written longest ago first. Reads the directory."""
        return self._inspection.logs(self._usage_size_limit, self._now_ms())

    def forecast(self) -> Forecast:
        """Return what compaction could give back. Reads the directory."""
        return self._inspection.forecast(self._usage_size_limit, self._now_ms())

    def buckets(self) -> list[int]:
        """Return how many logs are in each tenth of usage."""
        counts = [0] * BUCKETS
        for each in (*list(self._usages.usages.values()), *self._usages.current):
            counts[bucket_of(each.usage(self._usage_size_limit))] += 1
        return counts
