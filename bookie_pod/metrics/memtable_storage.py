"""Metrics of InterleavedLedgerStorage and SortedLedgerStorage: `bookie_*`, without labels.

What these engines have in common with DbLedgerStorage has the names that it has there too, beside those of the
reference, so that alerts and dashboards are about every engine: the memtable is their write cache, a drain their flush.
They have no read cache.

Storage reports seconds; the reference implementation's summaries are ms. Every method is cheap, never raises and never
blocks; any thread may call it.

Source: docs/internals/bookie-behaviour.md, section 11.7.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.metrics.registry import Registry


class LedgerCacheMetrics:
    """Instruments of the index files and their pages."""

    def __init__(self, registry: Registry) -> None:
        scope = self._scope = registry.scope("bookie")
        self._cache_hit = scope.counter("LEDGER_CACHE_HIT")
        self._cache_miss = scope.counter("LEDGER_CACHE_MISS")
        self._read_page = scope.op_stats("LEDGER_CACHE_READ_PAGE")
        self._evicted = scope.counter("LEDGER_CACHE_NUM_EVICTED_LEDGERS")
        self._pending_opens = scope.counter("PENDING_GET_FILE_INFO")
        self._illegal_delete = scope.counter("INDEX_INMEM_ILLEGAL_STATE_DELETE")
        # Pages are never put back while in use here, but dashboards ask for the name.
        scope.counter("INDEX_INMEM_ILLEGAL_STATE_RESET")
        self._pages_scanned = scope.op_stats("STORAGE_SCRUB_PAGES_SCANNED")
        self._scrub_retries = scope.counter("STORAGE_SCRUB_PAGE_RETRIES")

    def page_hit(self) -> None:
        """A page was in memory."""
        self._cache_hit.add()

    def page_miss(self) -> None:
        """A page was not in memory."""
        self._cache_miss.add()

    def page_read(self, seconds: float) -> None:
        """A page was read from its file."""
        self._read_page.observe_ms(seconds * 1000)

    def ledger_evicted(self) -> None:
        """An index file was closed to stay within the limit."""
        self._evicted.add()

    def opening(self, change: int) -> None:
        """Note that more or fewer threads wait for an index file to be opened."""
        self._pending_opens.add(change)

    def deleted_in_use(self) -> None:
        """A page was in use when its ledger was deleted."""
        self._illegal_delete.add()

    def scanned(self, pages: int, retries: int) -> None:
        """Pages of a ledger were scanned."""
        self._pages_scanned.observe(pages)
        self._scrub_retries.add(retries)


class MemTableMetrics(LedgerCacheMetrics):
    """Instruments of the one storage."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        scope = self._scope
        self._get_offset = scope.op_stats("STORAGE_GET_OFFSET")
        self._get_entry = scope.op_stats("STORAGE_GET_ENTRY")
        self._memtable_get = scope.op_stats("SKIP_LIST_GET_ENTRY")
        self._memtable_put = scope.op_stats("SKIP_LIST_PUT_ENTRY")
        self._snapshot = scope.op_stats("SKIP_LIST_SNAPSHOT")
        self._throttling_latency = scope.op_stats("SKIP_LIST_THROTTLING_LATENCY")
        self._flush_bytes = scope.counter("SKIP_LIST_FLUSH_BYTES")
        self._throttling = scope.counter("SKIP_LIST_THROTTLING")
        self._write_cache_hits = scope.counter("write_cache_hits")
        self._write_cache_misses = scope.counter("write_cache_misses")
        for absent in ("read_cache_hits", "read_cache_misses"):
            scope.counter(absent)
        self._throttled_write = scope.op_stats("throttled_write")
        self._flush = scope.op_stats("flush")

    def bind_gauges(
        self,
        *,
        pages: Callable[[], float],
        handles: Callable[[], tuple[int, int]],
        memtable: Callable[[], tuple[int, int]],
        memtable_max_bytes: int,
        ledgers: Callable[[], float],
        damaged_reads: Callable[[], float],
    ) -> None:
        """Export levels: index pages in memory; open index files that were written to, and that were only read; bytes
        and entries in the memtable; ledgers; reads of entry logs that met damage since the start."""
        self._scope.gauge("write_cache_size", lambda: memtable()[0])
        self._scope.gauge("write_cache_count", lambda: memtable()[1])
        self._scope.gauge("write_cache_max_size", lambda: memtable_max_bytes)
        self._scope.gauge("ledgers_count", ledgers)
        self._scope.level_counter("entrylog_damaged_reads", damaged_reads)
        self._scope.gauge("NUM_INDEX_PAGES", pages)
        self._scope.gauge("WRITE_FILE_INFO_CACHE_SIZE", lambda: handles()[0])
        self._scope.gauge("READ_FILE_INFO_CACHE_SIZE", lambda: handles()[1])

    def got_offset(self, seconds: float) -> None:
        """One look-up in the index."""
        self._get_offset.observe_ms(seconds * 1000)

    def got_entry(self, seconds: float, success: bool) -> None:
        """One read of an entry log."""
        self._get_entry.observe_ms(seconds * 1000, success=success)

    def memtable_get(self, found: bool) -> None:
        """One look-up in the memtable; it takes no time worth measuring."""
        self._memtable_get.observe_ms(0, success=found)
        (self._write_cache_hits if found else self._write_cache_misses).add()

    def memtable_put(self, count: int) -> None:
        """Count so many entries that were put."""
        self._memtable_put.observe_ms(0, count)

    def frozen(self, seconds: float) -> None:
        """A map was frozen."""
        self._snapshot.observe_ms(seconds * 1000)

    def throttled(self, seconds: float) -> None:
        """The memtable was full for so long."""
        self._throttling.add()
        self._throttling_latency.observe_ms(seconds * 1000)
        self._throttled_write.observe_ms(seconds * 1000)

    def flushed(self, seconds: float, nbytes: int) -> None:
        """One drain wrote so many bytes of entries."""
        self._flush.observe_ms(seconds * 1000)
        self._flush_bytes.add(nbytes)

    def flush_failed(self) -> None:
        """A drain failed."""
        self._flush.observe_ms(0, success=False)
