"""Metrics of one directory of DbLedgerStorage: `bookie_*`, labels `ledgerDir` and `indexDir`.

Storage reports seconds; the reference implementation's time counters and summaries are ms. Every method is cheap, never
raises and never blocks; any thread may call it.

Source: docs/internals/bookie-behaviour.md, section 11.5.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from bookie_pod.metrics.registry import Registry


class ReadLevel(Enum):
    """The place in which a read found its entry."""

    WRITE_CACHE = "write_cache"
    """The active half."""
    FLUSHING_CACHE = "flushing_cache"
    """The half that is being flushed."""
    READ_CACHE = "read_cache"
    ENTRY_LOG = "entry_log"


class FlushStage(Enum):
    """Parts of a flush that are timed, by the metric's name."""

    WHOLE = "flush"
    ENTRY_LOG = "flush_entrylog"
    LOCATIONS = "flush_locations_index"
    LEDGERS = "flush_ledger_index"


class DbStorageMetrics:
    """Instruments of one pair of ledger and index directory. Any thread may call every method."""

    def __init__(self, registry: Registry, ledger_dir: str, index_dir: str) -> None:
        """The directories are those of the configuration; the labels add `/current`."""
        scope = registry.scope("bookie", ledgerDir=f"{ledger_dir}/current", indexDir=f"{index_dir}/current")
        self._scope = scope
        # Always zero: an add is a dict item set by the event loop, and reads are timed by the server, where their wait
        # for a thread counts too. Dashboards find the names.
        scope.for_thread("BookieWriteThreadPool", 0).op_stats("add_entry")
        scope.for_thread("BookieReadThreadPool", 0).op_stats("read_entry")
        self.read_locations_index_time = scope.thread_counter("read_locations_index_time")
        self.read_entrylog_time = scope.thread_counter("read_entrylog_time")
        self.readahead_time = scope.thread_counter("readahead_time")
        self.throttled_write_requests = scope.thread_counter("throttled_write_requests")
        self.rejected_write_requests = scope.thread_counter("rejected_write_requests")
        self.thread_time = scope.thread_counter("db_storage_thread_time")
        """Time that the flush thread was busy, ms."""
        self._write_cache_hits = scope.counter("write_cache_hits")
        self._write_cache_misses = scope.counter("write_cache_misses")
        self._read_cache_hits = scope.counter("read_cache_hits")
        self._read_cache_misses = scope.counter("read_cache_misses")
        self._readahead_batch_count = scope.op_stats("readahead_batch_count")
        self._readahead_batch_size = scope.op_stats("readahead_batch_size")
        self._flush_size = scope.op_stats("flush_size")
        self._lookup = scope.op_stats("lookup_entry_location")
        self._last_entry = scope.op_stats("get_last_entry_in_ledger")
        self._throttled_write = scope.op_stats("throttled_write")
        self._flush_stages = {stage: scope.op_stats(stage.value) for stage in FlushStage}

    def bind_gauges(
        self,
        *,
        write_cache_size: Callable[[], float],
        write_cache_count: Callable[[], float],
        read_cache_size: Callable[[], float],
        read_cache_count: Callable[[], float],
        entries_count: Callable[[], float],
        ledgers_count: Callable[[], float],
    ) -> None:
        """Export the directory's levels: bytes and entries in the caches, entries and ledgers in the
        index."""
        self._scope.gauge("write_cache_size", write_cache_size)
        self._scope.gauge("write_cache_count", write_cache_count)
        self._scope.gauge("read_cache_size", read_cache_size)
        self._scope.gauge("read_cache_count", read_cache_count)
        self._scope.gauge("entries_count", entries_count)
        self._scope.gauge("ledgers_count", ledgers_count)

    def bind_damaged_reads(self, damaged_reads: Callable[[], float]) -> None:
        """Export reads of entry logs that met damage since the start. Podkeeper's own."""
        self._scope.level_counter("entrylog_damaged_reads", damaged_reads)

    def read_from(self, level: ReadLevel, count: int = 1) -> None:
        """Entries were served from this level; the levels above it missed."""
        if level is ReadLevel.WRITE_CACHE or level is ReadLevel.FLUSHING_CACHE:
            self._write_cache_hits.add(count)
            return
        self._write_cache_misses.add(count)
        if level is ReadLevel.READ_CACHE:
            self._read_cache_hits.add(count)
        else:
            self._read_cache_misses.add(count)

    def looked_up(self, seconds: float) -> None:
        """One look-up in the location index."""
        self._lookup.observe_ms(seconds * 1000)
        self.read_locations_index_time.add(seconds * 1000)

    def read_log(self, seconds: float) -> None:
        """One read of an entry log."""
        self.read_entrylog_time.add(seconds * 1000)

    def read_ahead(self, seconds: float, entries: int, nbytes: int) -> None:
        """One read-ahead."""
        self.readahead_time.add(seconds * 1000)
        self._readahead_batch_count.observe(entries)
        self._readahead_batch_size.observe(nbytes)

    def last_entry(self, seconds: float) -> None:
        """One search for the last entry of a ledger."""
        self._last_entry.observe_ms(seconds * 1000)

    def flushed(self, stage: FlushStage, seconds: float) -> None:
        """A stage of a flush succeeded."""
        self._flush_stages[stage].observe_ms(seconds * 1000)
        if stage is FlushStage.WHOLE:
            self.thread_time.add(seconds * 1000)

    def flush_size(self, nbytes: int, entries: int) -> None:
        """Bytes (without overhead) and entries that one flush wrote."""
        self._flush_size.observe(nbytes)

    def flush_failed(self) -> None:
        """A flush failed."""
        self._flush_stages[FlushStage.WHOLE].observe_ms(0, success=False)

    def throttled(self, waited_seconds: float, adds: int, rejected: bool) -> None:
        """`adds` adds waited for room in the write cache, in vain if `rejected`."""
        self._throttled_write.observe_ms(waited_seconds * 1000, adds, success=not rejected)
        self.throttled_write_requests.add(adds)
        if rejected:
            self.rejected_write_requests.add(adds)


def export_limits(
    registry: Registry, write_cache_max_bytes: int, read_ahead_batch_size: int, read_cache_max_bytes: int
) -> None:
    """Export the limits that all directories share: write cache of one directory, entries per read-ahead; and that of
    all read caches together."""
    scope = registry.scope("bookie")
    scope.gauge("write_cache_max_size", lambda: write_cache_max_bytes)
    scope.gauge("read_cache_max_size", lambda: read_cache_max_bytes)
    scope.gauge("readahead_max_batch_size", lambda: read_ahead_batch_size)
