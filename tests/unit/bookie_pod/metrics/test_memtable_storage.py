"""Metrics of Sorted and Interleaved storage: the reference's names, fed by a real engine."""

from __future__ import annotations

import pytest

from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.detection import SORTED_LEDGER_STORAGE
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_protocol.errors import NoSuchEntry
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import memtable_options
from tests.support.production import changed
from tests.support.storage_engine import call_directly, entry, put

SUMMARIES = (
    "STORAGE_GET_OFFSET",
    "STORAGE_GET_ENTRY",
    "LEDGER_CACHE_READ_PAGE",
    "SKIP_LIST_GET_ENTRY",
    "SKIP_LIST_PUT_ENTRY",
    "SKIP_LIST_SNAPSHOT",
    "SKIP_LIST_THROTTLING_LATENCY",
    "STORAGE_SCRUB_PAGES_SCANNED",
)
COUNTERS = (
    "LEDGER_CACHE_HIT",
    "LEDGER_CACHE_MISS",
    "SKIP_LIST_FLUSH_BYTES",
    "SKIP_LIST_THROTTLING",
    "LEDGER_CACHE_NUM_EVICTED_LEDGERS",
    "PENDING_GET_FILE_INFO",
    "INDEX_INMEM_ILLEGAL_STATE_RESET",
    "INDEX_INMEM_ILLEGAL_STATE_DELETE",
    "STORAGE_SCRUB_PAGE_RETRIES",
)
GAUGES = ("NUM_INDEX_PAGES", "WRITE_FILE_INFO_CACHE_SIZE", "READ_FILE_INFO_CACHE_SIZE")


def read(registry: Registry) -> dict[str, str]:
    lines = registry.render().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_names_and_what_they_count() -> None:
    registry = Registry()
    metrics = MemTableMetrics(registry)
    config = changed(
        memtable_options(memtable_bytes=2000, page_bytes=64, page_limit=2), storage_class=SORTED_LEDGER_STORAGE
    )
    parts = StorageParts(MemoryFiles(), call_directly, ["/a"], memtable_metrics=lambda: metrics)
    storage = open_storage(config, parts)
    assert isinstance(storage, MemTableStorage)
    memtable = storage.memtable
    metrics.bind_gauges(
        pages=storage.cache.pages.__len__,
        handles=storage.cache.handles.counts,
        memtable=lambda: (memtable.nbytes, memtable.count),
        memtable_max_bytes=memtable.limit,
        ledgers=lambda: len(storage.ledger_ids()),
        damaged_reads=lambda: storage.logs.stats.damaged_reads,
    )
    put(storage, *(entry(1, n, 100) for n in range(20)))
    assert storage.is_full(1)
    lines = read(registry)
    assert (lines["bookie_write_cache_count"], lines["bookie_write_cache_max_size"]) == ("20", "2000")
    assert int(lines["bookie_write_cache_size"]) >= 2000
    storage.flush()
    assert [storage.read(1, n) for n in range(20)] == [entry(1, n, 100) for n in range(20)]
    assert len(list(storage.entry_ids(1))) == 20
    with pytest.raises(NoSuchEntry):
        storage.read(1, 20)
    text, lines = registry.render(), read(registry)
    assert lines["bookie_write_cache_size"] == lines["bookie_write_cache_count"] == "0"
    assert lines["bookie_ledgers_count"] == "1"
    assert lines['bookie_flush_count{success="true"}'] == lines['bookie_throttled_write_count{success="true"}'] == "1"
    assert (lines["bookie_write_cache_hits"], lines["bookie_write_cache_misses"]) == ("0", "21")
    assert lines["bookie_read_cache_hits"] == lines["bookie_entrylog_damaged_reads"] == "0"
    for name in SUMMARIES:
        assert f"# TYPE bookie_{name} summary" in text
    for name in COUNTERS:
        assert f"bookie_{name}" in lines
    assert lines["bookie_SKIP_LIST_FLUSH_BYTES"] == "2000"
    assert lines["bookie_SKIP_LIST_THROTTLING"] == "1"
    assert lines['bookie_SKIP_LIST_PUT_ENTRY_count{success="true"}'] == "20"
    assert lines['bookie_STORAGE_GET_ENTRY_count{success="true"}'] == "20"
    assert lines['bookie_STORAGE_GET_OFFSET_count{success="true"}'] == "21"
    assert lines['bookie_SKIP_LIST_GET_ENTRY_count{success="false"}'] == "21"
    assert int(lines["bookie_LEDGER_CACHE_MISS"]) >= 3
    assert int(lines["bookie_LEDGER_CACHE_HIT"]) >= 10
    assert lines["bookie_PENDING_GET_FILE_INFO"] == "0"
    assert lines["bookie_NUM_INDEX_PAGES"] == "2"
    assert [f"bookie_{name}" in lines for name in GAUGES] == [True] * 3
    storage.close()
