"""The garbage collection of one storage: one thread that makes one pass after the other.

A pass
1. finishes compactions that a crash interrupted;
2. deletes ledgers that the metadata service no longer has, and now and then those that live elsewhere;
3. lists the logs that are rotated and synced, then flushes the storage: from then on every row that points into them
   is in the index, and the deletions are durable;
4. measures each of them; one in which nothing lives is removed;
5. compacts the emptiest logs, if a compaction is due or forced.

Invariants
- A part that fails ends that part for this pass, with one log line; the next pass begins anew.
- While a forced pass waits or runs, further requests are part of it.
- `stop` ends every wait; what was done stands.

Threads: `gc-<n>` runs the passes; everything public may be called by any thread.

Source: reference bookie behaviour, sections 6.1, 6.2, 6.5 and 6.6.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import structlog

from bookie_pod.storage.gc.compactor import Compactor, LogDamaged, PlainCompactor, TransactionalCompactor
from bookie_pod.storage.gc.inspection import Inspection, candidates
from bookie_pod.storage.gc.ledger_collector import LedgerCollector
from bookie_pod.storage.gc.log_usage import LogUsage, LogUsages
from bookie_pod.storage.gc.metadata import GcMetadata
from bookie_pod.storage.gc.metrics import GcMetrics, GcStage, NoGcMetrics
from bookie_pod.storage.gc.options import GcOptions
from bookie_pod.storage.gc.reports import BUCKETS, Forecast, GcState, LogReport, PassResult, bucket_of
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, Force
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.gc.throttle import CollectionStopped, Throttle
from bookie_protocol.errors import MetadataError, NoWritableDirectory, StorageFault

_log = structlog.get_logger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _none(log_id: int) -> bool:
    return False


class GarbageCollector:
    """See the module. `index` numbers the collectors of one bookie from 0."""

    def __init__(
        self,
        storage: CollectedStorage,
        metadata: GcMetadata,
        state_file: GcStateFile,
        options: GcOptions,
        *,
        index: int = 0,
        under_pressure: Callable[[], bool] = lambda: False,
        metrics: GcMetrics | None = None,
        now_ms: Callable[[], int] = _now_ms,
        random: Random | None = None,
    ) -> None:
        self.options = options
        self.excluded: Callable[[int], bool] = _none
        """Logs that somebody else found damaged: neither compacted nor removed while that is so. Any thread."""
        self.schedule = CompactionSchedule(options.minor, options.major, options.force_allowed)
        self._storage = storage
        self._state_file = state_file
        self._index = index
        self._now_ms = now_ms
        self._random = random or Random()
        self._metrics: GcMetrics = metrics or NoGcMetrics()
        self._memory = state_file.read(now_ms())
        self._stopped = threading.Event()
        self._wake = threading.Condition()
        self._force: Force | None = None
        self._forced_running = False
        self._running: Compaction | None = None
        self._phase = "waiting"
        self._last: PassResult | None = None
        self._pass_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._progress = (0, 0)
        rate = self._rate = Throttle(
            options.compaction_rate, self._stopped, by_bytes=options.throttle_by_bytes, under_pressure=under_pressure
        )
        metadata_rate = self._metadata_rate = Throttle(options.metadata_rate, self._stopped, by_bytes=False)
        self._ledgers = LedgerCollector(
            storage, metadata, lambda: metadata_rate.pay(1, 0), verify=options.verify_metadata
        )
        self._usages = LogUsages(
            storage.logs,
            is_known=storage.has_ledger,
            is_dead=self._ledgers.is_dead,
            pay_scan=rate.pay,
            quarantined=self._memory.quarantined,
            max_bytes=options.usage_memory_bytes,
        )
        compactor = TransactionalCompactor if options.transactional else PlainCompactor
        self._compactor: Compactor = compactor(storage, rate.pay, options.max_outstanding)
        self._over_replicated_at = now_ms() + options.over_replicated_interval_ms
        self._index_compaction_at = self._next_index_compaction()
        self._last_index_ms, self._index_count = now_ms(), 0
        self._inspection = Inspection(storage, self._usages, self.schedule, self._memory.times)

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

    def stop(self) -> None:
        """End at the next safe place and wait for it."""
        self._stopped.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        wait = self.options.wait_ms / 1000
        share = (self._index + 1) / max(1, self.options.collectors)
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
            except Exception as error:  # the thread must outlive a fault of ours; the next pass begins anew
                _log.exception("garbage collection pass failed", reason=str(error))
            due = self.options.wait_ms / 1000

    # --- requests -------------------------------------------------------------------------------------------

    def request(self, force: Force) -> bool:
        """Ask for a pass now. False: one that was asked for before has not ended."""
        with self._wake:
            if self._force is not None or self._forced_running:
                return False
            self._force = force
            self._wake.notify_all()
        return True

    def cancel_request(self) -> None:
        """Forget a request that has not begun."""
        with self._wake:
            self._force = None

    def reconfigure(self, options: GcOptions) -> None:
        """From now on other thresholds, intervals and rates; what else is in `options` counts from the next start."""
        self.options = replace(
            self.options,
            minor=options.minor,
            major=options.major,
            wait_ms=options.wait_ms,
            force_allowed=options.force_allowed,
            throttle_by_bytes=options.throttle_by_bytes,
            compaction_rate=options.compaction_rate,
            metadata_rate=options.metadata_rate,
            use_target_log_size=options.use_target_log_size,
        )
        self.schedule.minor, self.schedule.major = options.minor, options.major
        self.schedule.force_allowed = options.force_allowed
        self._rate.change(options.compaction_rate, by_bytes=options.throttle_by_bytes)
        self._metadata_rate.change(options.metadata_rate, by_bytes=False)

    @property
    def force_pending(self) -> bool:
        """A forced pass waits or runs."""
        return self._force is not None or self._forced_running

    # --- one pass -------------------------------------------------------------------------------------------

    def run_pass(self) -> PassResult:
        """Make one pass on the calling thread. Raises `CollectionStopped`."""
        with self._pass_lock:
            with self._wake:
                force, self._force = self._force, None
                self._forced_running = force is not None
            result = PassResult()
            try:
                with self._metrics.timed(GcStage.WHOLE):
                    self._pass(force, result)
            finally:
                self._forced_running = False
                self._phase, self._progress = "waiting", (0, 0)
                self._running = None
                self._last = result
            return result

    def _pass(self, force: Force | None, result: PassResult) -> None:
        self._step("finishing interrupted compactions", result, lambda: self._recover(result))
        with self._metrics.timed(GcStage.LEDGERS):
            self._step("deleting ledgers", result, lambda: self._delete_ledgers(result))
        self._step("measuring entry logs", result, lambda: self._measure(result))
        compaction = self.schedule.choose(self._memory.times, self._now_ms(), force)
        if compaction is not None:
            with self._metrics.timed(GcStage.COMPACTION):
                self._step(f"{compaction.value} compaction", result, lambda: self._compact(compaction, result))
        if self._index_compaction_at is not None and self._now_ms() >= self._index_compaction_at:
            self._step("compacting the location index", result, self._compact_index)

    def _step(self, phase: str, result: PassResult, work: Callable[[], None]) -> None:
        self._phase, self._progress = phase, (0, 0)
        if self._stopped.is_set():
            raise CollectionStopped
        try:
            work()
        except (StorageFault, MetadataError) as error:
            result.errors.append(f"{phase}: {error}")
            _log.error("garbage collection", phase=phase, reason=str(error))

    def _recover(self, result: PassResult) -> None:
        for log_id in self._compactor.recover():
            if self._storage.logs.exists(log_id):
                self._delete_log(log_id, result, compacted=True)

    def _delete_ledgers(self, result: PassResult) -> None:
        searches = [self._ledgers.collect_deleted]
        interval = self.options.over_replicated_interval_ms
        if interval > 0 and self._now_ms() >= self._over_replicated_at:
            self._over_replicated_at = self._now_ms() + interval
            searches.insert(0, self._ledgers.collect_over_replicated)
        for search in searches:
            found = search()
            result.ledgers_deleted += found.deleted
            self._metrics.ledgers_deleted(found.deleted, found.failed)

    def _measure(self, result: PassResult) -> None:
        logs = self._storage.logs
        flushed = [log_id for log_id in logs.log_ids() if logs.is_flushed(log_id)]
        # After the list, not before: a log that was synced in the middle of a flush has rows that are not yet there.
        self._storage.flush()
        self._usages.keep_only(set(flushed))
        quarantined = len(self._usages.quarantined)
        with self._metrics.timed(GcStage.METADATA):
            for done, log_id in enumerate(flushed):
                if self._stopped.is_set():
                    raise CollectionStopped
                self._progress = (done, len(flushed))
                if self.excluded(log_id):
                    self._usages.forget(log_id)
                    continue
                usage = self._usages.refresh(log_id)
                if usage is not None and usage.is_dead:
                    self._delete_log(log_id, result, compacted=False)
        if len(self._usages.quarantined) != quarantined:
            self._remember()

    def _delete_log(self, log_id: int, result: PassResult, *, compacted: bool) -> None:
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
        result.reclaimed_bytes += nbytes
        self._metrics.reclaimed(nbytes, compacted=compacted)
        _log.info("entry log deleted", log_id=log_id, reclaimed_bytes=nbytes, compacted=compacted)

    # --- compaction -----------------------------------------------------------------------------------------

    def _compact(self, compaction: Compaction, result: PassResult) -> None:
        rule = self.schedule.rule(compaction)
        self._running = result.compaction = compaction
        began = time.monotonic()
        try:
            found = self.candidates(rule.threshold)
            for done, usage in enumerate(found):
                self._progress = (done, len(found))
                if rule.max_time_ms > 0 and (time.monotonic() - began) * 1000 >= rule.max_time_ms:
                    _log.info("compaction ends: its time is used up", kind=compaction.value)
                    break
                if not self._compact_log(usage, result):
                    break
        finally:
            self._running = None
            self._memory.times.done(compaction, self._now_ms())
            self._metrics.compacted(compaction)
            self._remember()

    def candidates(self, threshold: float) -> list[LogUsage]:
        """Logs below the threshold, the emptiest tenth first. Logs in doubt are left alone."""
        return candidates(self._usages, threshold, self.options.usage_size_limit)

    def _compact_log(self, usage: LogUsage, result: PassResult) -> bool:
        """Compact one log; False when going on makes no sense."""
        self._phase = f"compacting entry log {usage.log_id:x}.log"
        try:
            copied = self._compactor.compact(usage.log_id, may_be_torn=usage.log_id in self._usages.torn)
        except LogDamaged as error:
            self._usages.quarantine(usage.log_id, str(error))
            result.errors.append(str(error))
            return True
        except NoWritableDirectory as error:
            result.errors.append(str(error))
            _log.warning("compaction ends: no directory takes a new log", reason=str(error))
            return False
        except StorageFault as error:
            result.errors.append(str(error))
            _log.error("entry log not compacted, will be tried again", log_id=usage.log_id, reason=str(error))
            return True
        result.logs_compacted += 1
        self._delete_log(usage.log_id, result, compacted=True)
        result.reclaimed_bytes -= copied
        return True

    def _compact_index(self) -> None:
        self._storage.compact_index()
        self._metrics.index_compacted()
        self._last_index_ms, self._index_count = self._now_ms(), self._index_count + 1
        self._index_compaction_at = self._next_index_compaction()

    def _next_index_compaction(self) -> int | None:
        interval = self.options.index_compaction_interval_ms
        if interval <= 0:
            return None
        # Spread, so that the directories of one bookie, and many bookies, do not compact at once.
        return self._now_ms() + interval + self._random.randrange(interval)

    def _remember(self) -> None:
        self._memory.quarantined = dict(self._usages.quarantined)
        self._state_file.write(self._memory)

    # --- what can be asked ----------------------------------------------------------------------------------

    def state(self) -> GcState:
        """What goes on, and what the last pass did."""
        times, last = self._memory.times, self._last
        return GcState(
            force_compacting=self.force_pending,
            major_compacting=self._running is Compaction.MAJOR,
            minor_compacting=self._running is Compaction.MINOR,
            last_major_ms=times.last_major_ms,
            last_minor_ms=times.last_minor_ms,
            major_count=times.major_count,
            minor_count=times.minor_count,
            major_suspended=self.schedule.major_suspended,
            minor_suspended=self.schedule.minor_suspended,
            phase=self._phase,
            quarantined=dict(self._usages.quarantined),
            last_errors=tuple(last.errors) if last is not None else (),
            last_index_ms=self._last_index_ms,
            index_count=self._index_count,
            done=self._progress[0],
            total=self._progress[1],
            last_pass=last,
        )

    def usages(self) -> list[LogUsage]:
        """Every log that the last pass measured."""
        return sorted(self._usages.usages.values(), key=lambda each: each.log_id)

    def has_log(self, log_id: int) -> bool:
        """Whether there is such a log here. Reads the directory."""
        return self._storage.logs.exists(log_id)

    def report(self, log_id: int) -> LogReport:
        """Why this log is still there, and when it will go. `StorageFault` if there is no such log. Reads files."""
        return self._inspection.report(log_id, self.options, self._now_ms())

    def forecast(self) -> Forecast:
        """What compaction could give back. Reads the directory."""
        return self._inspection.forecast(self.options, self._now_ms())

    def buckets(self) -> list[int]:
        """How many logs are in each tenth of usage."""
        counts = [0] * BUCKETS
        for each in list(self._usages.usages.values()):
            counts[bucket_of(each.usage(self.options.usage_size_limit))] += 1
        return counts
