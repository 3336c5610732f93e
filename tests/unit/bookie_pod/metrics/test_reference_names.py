"""Names, types and labels are those of the reference implementation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.db_storage import DbStorageMetrics, FlushStage, ReadLevel, export_limits
from bookie_pod.metrics.gc import GcMetrics
from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.metrics.registry import ProcessCollector, Registry
from bookie_pod.metrics.requests import RequestMetrics

GOLDEN = Path(__file__).parents[3] / "golden" / "metrics-db-ledger-storage.json"
LEDGER_DIR = "/data/bk/gmeta/b0/ledgers"

ELSEWHERE = re.compile(
    r"jvm_\w+|bookie_bookie_zk_\w+|bookie_bookie_watcher_\w+"  # no JVM, not this ZooKeeper client
    r"|bookkeeper_server_thread_executor_\w+"  # no executors with a queue per thread
    r"|process_cpu_seconds|jvm_threads_started"  # the type lines of the text format that has _total names
)


class _Zero:
    def __call__(self) -> float:
        return 0


@pytest.fixture
def registry() -> Registry:
    zero = _Zero()
    registry = Registry()
    registry.add_collector(ProcessCollector())
    requests = RequestMetrics(registry)
    requests.bind_levels(adds_in_progress=zero, adds_blocked=zero, reads_in_progress=zero, reads_blocked=zero)
    for pool in ("BookieReadThreadPool", "BookieWriteThreadPool", "BookieHighPriorityThread"):
        requests.bind_pool(pool, 1, 10_000)
    bookie = BookieMetrics(registry)
    bookie.bind_status(zero)
    bookie.bind_journals(1, 10_000)
    bookie.bind_directories("ledger", zero, {LEDGER_DIR: zero})
    bookie.sync_thread_time.add(1)
    journal = JournalMetrics(registry, 0)
    journal.bind_levels(queue_size=zero, force_write_queue_size=zero, memory_used=zero, memory_max=zero)
    journal.callback_time.add(1)
    storage = DbStorageMetrics(registry, LEDGER_DIR, LEDGER_DIR)
    storage.bind_gauges(
        write_cache_size=zero,
        write_cache_count=zero,
        read_cache_size=zero,
        read_cache_count=zero,
        entries_count=zero,
        ledgers_count=zero,
    )
    storage.thread_time.add(1)
    export_limits(registry, 1, 100, 1)
    bind_collector(GcMetrics(registry, (LEDGER_DIR, LEDGER_DIR)))
    return registry


def bind_collector(instruments: GcMetrics) -> None:
    zero = _Zero()
    instruments.bind_levels(
        logs=zero,
        live_bytes=zero,
        total_bytes=zero,
        ledgers=zero,
        buckets=lambda: [0] * 10,
        quarantined=zero,
        waiting=zero,
        held=zero,
        oldest_age_s=zero,
        since_pass_s=zero,
        pass_errors=zero,
        yielded_s=zero,
    )


def exported(text: str) -> dict[str, tuple[str | None, list[str], list[str]]]:
    """Name to type, labels and series, as the golden file lists them."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {}
    series: dict[str, set[str]] = {}
    for sample, braces in re.findall(r"^([a-zA-Z_:][\w:]*)(\{.*\})? \S+$", text, re.MULTILINE):
        base = re.sub(r"_(count|sum)$", "", sample)
        name = sample if sample in types else base
        series.setdefault(name, set()).add(sample)
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', braces))
    return {name: (types.get(name), sorted(labels[name]), sorted(series[name])) for name in series}


def test_every_metric_of_the_reference_is_exported_alike(registry: Registry) -> None:
    ours = exported(registry.render())
    missing, different = [], []
    for golden in json.loads(GOLDEN.read_text()):
        name = golden["name"]
        if ELSEWHERE.fullmatch(name):
            continue
        if name not in ours:
            missing.append(name)
            continue
        wanted = (golden["type"] or ours[name][0], golden["labels"], golden["series"])
        if ours[name] != wanted:
            different.append((name, wanted, ours[name]))
    assert missing == []
    assert different == []


def test_no_help_and_one_type_line_per_name(registry: Registry) -> None:
    text = registry.render()
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names)) > 100
    assert "# HELP" not in text


def test_what_the_parts_count_is_exported() -> None:
    registry = Registry()
    server = RequestMetrics(registry)
    storage = DbStorageMetrics(registry, "/l", "/i")
    journal = JournalMetrics(registry, 0)
    server.adds_done(3, 1.5, True)
    for kind in ("read", "fence", "long_poll", "batch", "read_lac", "write_lac", "force", "bookie_info", "entry_list"):
        server.read_done(kind, 1.0, True)
    server.add_refused(0.1)
    server.add_rejected()
    server.read_rejected()
    for level in ReadLevel:
        storage.read_from(level)
    for stage in FlushStage:
        storage.flushed(stage, 0.25)
    storage.flush_failed()
    storage.looked_up(0.002)
    storage.read_ahead(0.1, 10, 1000)
    storage.flush_size(4096, 4)
    storage.last_entry(0.1)
    storage.read_log(0.003)
    journal.sync.observe_ms(3, 1)
    journal.write_bytes.add(512)
    text = registry.render()
    where = 'ledgerDir="/l/current",indexDir="/i/current"'
    for line in (
        'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"} 3',
        'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="false"} 1',
        'bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"} 2',
        "bookkeeper_server_READ_ENTRY_REJECTED 1",
        f"bookie_write_cache_hits{{{where}}} 2",
        f"bookie_write_cache_misses{{{where}}} 2",
        f"bookie_read_cache_hits{{{where}}} 1",
        f"bookie_read_cache_misses{{{where}}} 1",
        f'bookie_flush_sum{{success="true", {where}}} 250.0',
        f'bookie_flush_count{{success="false", {where}}} 1',
        f'bookie_flush_size_sum{{success="true", {where}}} 4096.0',
        'bookie_journal_JOURNAL_WRITE_BYTES{journalIndex="0"} 512',
    ):
        assert line in text.splitlines(), line


GC_COUNTERS = (
    "MAJOR_COMPACTION_TOTAL",
    "MINOR_COMPACTION_TOTAL",
    "ENTRY_LOCATION_COMPACTION_TOTAL",
    "RECLAIMED_COMPACTION_SPACE_BYTES",
    "RECLAIMED_DELETION_SPACE_BYTES",
    "RECLAIM_FAILED_TO_DELETE",
    "DELETED_LEDGER_TOTAL",
)
GC_SUMMARIES = ("THREAD_RUNTIME", "GC_LEDGER_RUNTIME", "COMPACT_RUNTIME", "EXTRACT_META_RUNTIME")
GC_GAUGES = (
    "ACTIVE_ENTRY_LOG_TOTAL",
    "ACTIVE_ENTRY_LOG_SPACE_BYTES",
    "ENTRY_LOG_SPACE_BYTES",
    "ACTIVE_LEDGER_TOTAL",
    "ENTRY_LOG_COMPACT_RATIO",
    *(f"entry_log_usage_buckets_le_{tenth * 10}" for tenth in range(1, 11)),
)


@pytest.mark.parametrize(
    ("directories", "labels"),
    [(("/l", "/i"), ["indexDir", "ledgerDir"]), (None, [])],
    ids=["DbLedgerStorage", "other engines"],
)
def test_garbage_collection_of_either_kind_of_engine(directories: tuple[str, str] | None, labels: list[str]) -> None:
    """The golden bookie exports some of them, and only those of DbLedgerStorage."""
    prefix = "bookie_"
    registry = Registry()
    bind_collector(GcMetrics(registry, directories))
    ours = exported(registry.render())
    for kind, names in (("counter", GC_COUNTERS), ("gauge", GC_GAUGES)):
        for name in names:
            assert ours[prefix + name] == (kind, labels, [prefix + name])
    for name in GC_SUMMARIES:
        full = prefix + name
        assert ours[full] == ("summary", [*labels, "quantile", "success"], [full, f"{full}_count", f"{full}_sum"])


def test_index_directories_are_named_as_ledger_directories_are() -> None:
    """The reference has the same gauges for both; the golden bookie had no index directory of its own."""
    golden = {each["name"]: each for each in json.loads(GOLDEN.read_text())}
    theirs = [name for name in golden if re.fullmatch(r"bookie_ledger_(writable_dirs|num_dirs|dir_\w+_usage)", name)]
    assert len(theirs) == 3
    registry = Registry()
    BookieMetrics(registry).bind_directories("index", _Zero(), {LEDGER_DIR: _Zero()})
    ours = exported(registry.render())
    for name in theirs:
        wanted = name.replace("bookie_ledger_", "bookie_index_", 1)
        assert ours[wanted] == (golden[name]["type"], golden[name]["labels"], [wanted])


def test_bookie_counts() -> None:
    registry = Registry()
    bookie = BookieMetrics(registry)
    bookie.added(4, 400, 1.0)
    bookie.added(1, 10, 1.0)
    bookie.was_read(2, 50, 0.5)
    text = registry.render().splitlines()
    assert "bookie_WRITE_BYTES 410" in text
    assert 'bookie_BOOKIE_ADD_ENTRY_count{success="true"} 5' in text
    assert 'bookie_BOOKIE_ADD_ENTRY_BYTES_sum{success="true"} 410.0' in text
    assert "bookie_READ_BYTES 50" in text
