"""`Journal`: when it writes, when it acknowledges, what it leaves in the files."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from bookie_pod.metrics.journal import JournalInstruments
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.journal import Journal, JournalBatch, JournalMetrics, LogMark, sync_thread
from bookie_pod.storage.journal import format as fmt
from bookie_pod.storage.journal.metrics import Counter, OpStats
from bookie_protocol.errors import StorageFault
from tests.support.journal_rig import (
    DIRECTORY,
    Acknowledgements,
    JournalRig,
    an_add,
    an_entry,
    replayed,
    small_options,
)
from tests.support.memory_files import MemoryFiles

FOREVER = 3_600_000.0


def records_of(rig: JournalRig) -> list[tuple[int, int]]:
    return replayed(rig.files, directory=rig.directory)[0].entries()


class Counting:
    """An `OpStats` and a `Counter` that keep everything."""

    def __init__(self) -> None:
        self.values: list[tuple[float, int, bool]] = []
        self.total = 0.0

    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None:
        self.values.append((value, count, success))

    def add(self, n: float) -> None:
        self.total += n


def test_what_is_acknowledged_is_replayed_in_order() -> None:
    with JournalRig() as rig:
        rig.add(*[an_add(7, i) for i in range(100)])
        assert len(rig.acknowledged.batches) == 100
        assert records_of(rig) == [(7, i) for i in range(100)]
    assert records_of(rig) == [(7, i) for i in range(100)]
    assert rig.files.open_files == 0


def test_bytes_of_the_worked_example() -> None:
    key = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")
    entry = an_entry(7, 3, bytes(17))
    with JournalRig(options=small_options(group_checks=False)) as rig:
        rig.add(JournalBatch.of(fmt.key_record(7, key), fmt.entry_record(entry)))
        mark = rig.journal.last_mark()
    data = rig.files.read_bytes(f"{DIRECTORY}/{rig.journals()[0]}")
    expected = b"BKLG\0\0\0\6" + bytes(504) + b"\0\0\0\x28" + bytes.fromhex("0000000000000007fffffffffffff00000000014")
    expected += key + b"\0\0\0\x29" + entry + bytes.fromhex("ffffff000000019f") + bytes(415)
    assert data == expected.ljust(8192, b"\0")
    assert mark.offset == 1024


def test_ids_start_at_the_time_and_go_on_after_the_largest() -> None:
    files = MemoryFiles()
    before = time.time_ns() // 1_000_000
    with JournalRig(files) as rig:
        first = rig.journal.last_mark().journal_id
    assert before < first <= time.time_ns() // 1_000_000 + 1
    with JournalRig(files) as rig:
        assert rig.journal.last_mark().journal_id == first + 1
    files.create(f"{DIRECTORY}/ffffffffff0.txn").close()
    with JournalRig(files) as rig:
        assert rig.journal.last_mark() == LogMark(0xFFFFFFFFFF1, 512)
        assert f"{0xFFFFFFFFFF1:x}.txn" in rig.journals()


def test_a_new_file_is_durable_before_it_is_used() -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    log = files.faults.record()
    with JournalRig(files):
        names = [operation.name for operation in log if operation.name != "makedirs"]
        assert names == ["create", "allocate", "write", "sync", "sync_directory"]


def test_nothing_is_acknowledged_before_its_sync() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files) as rig:
        rig.journal.append(an_add(7, 0))
        gate.reached()
        assert rig.acknowledged.batches == []
        assert (rig.journal.queued_entries, rig.journal.queued_bytes) == (1, 35)
        assert rig.journal.last_mark().offset == 512
        gate.open()
        rig.acknowledged.wait_for(1)
        assert rig.journal.last_mark().offset == 1024


def test_one_sync_acknowledges_all_groups_that_waited() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        rig.journal.append(an_add(7, 0))
        gate.reached()
        writes = files.faults.counts["writev"]
        for i in range(1, 6):
            rig.journal.append(an_add(7, i))
            while files.faults.counts["writev"] < writes + i:
                time.sleep(0.0005)
        while rig.journal.force_write_queue_size < 5:
            time.sleep(0.0005)
        gate.open()
        rig.acknowledged.wait_for(6)
    assert [len(call) for call in rig.acknowledged.calls] == [1, 5]


def test_the_mark_is_the_end_of_what_was_written_before_the_sync() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        rig.journal.append(an_add(7, 0))
        gate.reached()
        rig.journal.append(an_add(7, 1))
        while rig.journal.force_write_queue_size < 1:
            time.sleep(0.0005)
        marks: list[LogMark] = []
        rig.acknowledged.deliver = lambda batches, error: marks.append(rig.journal.last_mark())  # type: ignore[method-assign]
        rig.journal._sync._deliver = rig.acknowledged.deliver
        gate.open()
    assert [mark.offset for mark in marks] == [1024, 1536]


def test_a_group_check_claims_no_more_than_was_synced() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        rig.journal.append(an_add(7, 0))
        gate.reached()
        rig.journal.append(an_add(7, 1))
        while rig.journal.force_write_queue_size < 1:
            time.sleep(0.0005)
        files.faults.clear()
        following = files.faults.hold("datasync")
        gate.open()
        following.reached()
        rig.journal.append(an_add(7, 2))
        while rig.journal.force_write_queue_size < 1:
            time.sleep(0.0005)
        data = files.read_bytes(f"{DIRECTORY}/{rig.journals()[0]}")
        following.open()
    checks = []
    for start in (512, 1024, 1536):
        padding = start + 4 + len(an_entry(7, 0))
        check = fmt.parse_group_check(data[padding + 8 :], int(rig.journals()[0].split(".")[0], 16), padding)
        assert check is not None
        checks.append((check.start, check.synced))
    assert checks == [(512, 512), (1024, 512), (1536, 1024)]


# --- triggers, at the journal itself -----------------------------------------------------------------------


def test_a_lone_record_waits_for_the_group_wait() -> None:
    waits = Counting()
    with JournalRig(options=small_options(max_group_wait_ms=40.0), metrics=JournalMetrics(flush_max_wait=waits)) as rig:
        began = time.monotonic()
        rig.add(an_add(7, 0))
        assert time.monotonic() - began >= 0.04
        assert waits.total == 1


def test_records_within_the_group_wait_share_a_write() -> None:
    with JournalRig(options=small_options(max_group_wait_ms=200.0)) as rig:
        rig.add(*[an_add(7, i) for i in range(50)])
        assert rig.files.faults.counts["writev"] == 1  # type: ignore[attr-defined]
        assert len(rig.acknowledged.calls) == 1


def test_too_many_bytes_are_written_at_once() -> None:
    reasons = Counting()
    options = small_options(max_group_wait_ms=FOREVER, group_bytes=1000)
    with JournalRig(options=options, metrics=JournalMetrics(flush_max_outstanding=reasons)) as rig:
        rig.journal.append(an_add(7, 0, bytes(900)))
        rig.journal.append(an_add(7, 1, bytes(900)))
        rig.acknowledged.wait_for(2)
        assert reasons.total == 1


def test_too_many_records_are_written_at_once() -> None:
    with JournalRig(options=small_options(max_group_wait_ms=FOREVER, group_entries=3)) as rig:
        for i in range(4):
            rig.journal.append(an_add(7, i))
        rig.acknowledged.wait_for(4)


def test_a_large_backlog_is_cut_into_groups() -> None:
    files = MemoryFiles()
    options = small_options(max_group_wait_ms=FOREVER, group_bytes=1000)
    with JournalRig(files, options) as rig:
        gate = files.faults.hold("writev")
        rig.journal.append(an_add(7, 0, bytes(2000)))
        gate.reached()
        for i in range(1, 11):
            rig.journal.append(an_add(7, i, bytes(476)))
        gate.open()
        rig.acknowledged.wait_for(10)
    assert files.faults.counts["writev"] >= 5
    assert records_of(rig) == [(7, i) for i in range(11)]


def test_an_empty_queue_is_reason_enough_if_allowed() -> None:
    reasons = Counting()
    options = small_options(max_group_wait_ms=FOREVER, flush_when_queue_empty=True)
    with JournalRig(options=options, metrics=JournalMetrics(flush_empty_queue=reasons)) as rig:
        rig.add(an_add(7, 0))
        assert reasons.total == 1


def test_an_idle_journal_does_nothing() -> None:
    with JournalRig() as rig:
        rig.add(an_add(7, 0))
        before = rig.files.faults.mutations  # type: ignore[attr-defined]
        time.sleep(0.05)
        assert rig.files.faults.mutations == before  # type: ignore[attr-defined]


# --- what needs no sync --------------------------------------------------------------------------------------


def test_deferred_sync_is_acknowledged_after_the_write_and_still_synced() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        deferred, ordinary = an_add(7, 0, sync=False), an_add(7, 1)
        rig.journal.append(deferred)
        rig.acknowledged.wait_for(1)
        rig.journal.append(ordinary)
        gate.reached()
        assert rig.acknowledged.batches == [deferred]
        assert rig.journal.queued_entries == 1
        gate.open()
        rig.acknowledged.wait_for(2)
        assert rig.acknowledged.batches == [deferred, ordinary]
    assert records_of(rig) == [(7, 0), (7, 1)]


def test_without_sync_data_all_is_acknowledged_after_the_write() -> None:
    files = MemoryFiles()
    options = small_options(sync_data=False, page_cache_flush_interval_ms=FOREVER)
    with JournalRig(files, options) as rig:
        rig.add(*[an_add(7, i) for i in range(10)])
        assert files.faults.counts["datasync"] == 0
        assert rig.journal.last_mark().offset == 512
    assert files.faults.counts["datasync"] >= 1
    assert records_of(rig) == [(7, i) for i in range(10)]


def test_without_sync_data_the_page_cache_is_flushed_even_if_nothing_follows() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(sync_data=False, page_cache_flush_interval_ms=20.0)) as rig:
        gate = files.faults.hold("datasync")
        rig.add(an_add(7, 0))
        gate.reached()
        gate.open()


def test_a_force_marker_waits_for_the_sync_of_what_came_before() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        rig.add(an_add(7, 0, sync=False))
        force = JournalBatch.of()
        assert force.is_force
        rig.journal.append(force)
        gate.reached()
        assert force not in rig.acknowledged.batches
        gate.open()
        rig.acknowledged.wait_for(2)
        assert rig.acknowledged.batches[-1] is force
    assert records_of(rig) == [(7, 0)]


def test_a_force_marker_alone_writes_nothing() -> None:
    with JournalRig() as rig:
        rig.add(JournalBatch.of())
        assert rig.journal.last_mark().offset == 512


# --- files -----------------------------------------------------------------------------------------------------


def test_a_full_file_is_followed_by_the_next() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_file_bytes=4096)) as rig:
        for i in range(40):
            rig.add(an_add(7, i, bytes(400)))
        first = int(rig.journals()[0].split(".")[0], 16)
        assert rig.journal.last_mark().journal_id > first
    names = rig.journals()
    assert len(names) >= 5
    assert [int(name.split(".")[0], 16) for name in names] == list(range(first, first + len(names)))
    assert records_of(rig) == [(7, i) for i in range(40)]
    assert files.open_files == 0


def test_the_next_file_is_ready_before_it_is_needed() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_file_bytes=8192)) as rig:
        created = files.faults.hold("create")
        for i in range(9):
            rig.add(an_add(7, i, bytes(400)))
        created.reached()
        rig.add(an_add(7, 9, bytes(400)))
        created.open()
        for i in range(10, 20):
            rig.add(an_add(7, i, bytes(400)))
    assert records_of(rig) == [(7, i) for i in range(20)]


def test_a_next_file_that_could_not_be_made_early_is_made_when_needed() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_file_bytes=8192)) as rig:
        files.faults.fail("create", times=1)
        for i in range(40):
            rig.add(an_add(7, i, bytes(400)))
    assert records_of(rig) == [(7, i) for i in range(40)]
    assert rig.acknowledged.failures == []


def test_a_file_is_synced_before_anything_is_written_to_the_next() -> None:
    files = MemoryFiles()
    log = files.faults.record()
    with JournalRig(files, small_options(max_file_bytes=4096, group_bytes=1000)) as rig:
        rig.add(*[an_add(7, i, bytes(400)) for i in range(60)])
    paths = sorted({op.path for op in log if op.path.endswith(".txn")})
    assert len(paths) > 2
    for earlier, later in itertools.pairwise(paths):
        writes = [i for i, op in enumerate(log) if op.path == later and op.name == "writev"]
        syncs = [i for i, op in enumerate(log) if op.path == earlier and op.name == "datasync"]
        last_write = max(i for i, op in enumerate(log) if op.path == earlier and op.name == "writev")
        if writes:
            assert any(last_write < sync < writes[0] for sync in syncs)


def test_an_unused_next_file_does_not_stay() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_file_bytes=8192)) as rig:
        for i in range(9):
            rig.add(an_add(7, i, bytes(400)))
    assert len(rig.journals()) == 1
    assert files.open_files == 0


def test_trimming_keeps_backups() -> None:
    with JournalRig(options=small_options(max_file_bytes=4096, max_backups=2)) as rig:
        for i in range(60):
            rig.add(an_add(7, i, bytes(400)))
        before = rig.journals()
        mark = rig.journal.last_mark()
        removed = rig.journal.remove_below(mark)
        below = [name for name in before if int(name.split(".")[0], 16) < mark.journal_id]
        assert [f"{i:x}.txn" for i in removed] == below[:-2]
        assert rig.journals()[:2] == below[-2:]


def test_preallocation_is_repeated() -> None:
    files = MemoryFiles()
    log = files.faults.record()
    with JournalRig(files, small_options(preallocate_bytes=8192)) as rig:
        path = f"{DIRECTORY}/{rig.journals()[0]}"
        assert files.size(path) == 8192
        rig.add(an_add(7, 0, bytes(20_000)))
        assert files.size(path) == 24_576
    assert [op.name for op in log].count("allocate") == 2


@pytest.mark.parametrize("alignment", [512, 4096])
def test_groups_start_aligned(alignment: int) -> None:
    with JournalRig(options=small_options(alignment=alignment)) as rig:
        ends = []
        for i in range(5):
            rig.add(an_add(7, i, bytes(i * 37)))
            ends.append(rig.journal.last_mark().offset)
    assert all(end % alignment == 0 for end in ends)
    assert sorted(set(ends)) == ends
    assert records_of(rig) == [(7, i) for i in range(5)]


@pytest.mark.parametrize("version", [4, 5])
def test_older_versions_leave_explicit_lacs_out_but_acknowledge_them(version: int) -> None:
    with JournalRig(options=small_options(version=version)) as rig:
        lac = JournalBatch.of(fmt.explicit_lac_record(7, bytes(20)))
        mixed = JournalBatch.of(
            fmt.fence_record(7), fmt.explicit_lac_record(7, bytes(20)), fmt.entry_record(an_entry(7, 1))
        )
        rig.add(lac, mixed)
        assert (rig.journal.queued_bytes, rig.journal.queued_entries) == (0, 0)
    events = replayed(rig.files)[0].events
    assert [(kind, ledger, entry) for kind, ledger, entry, _ in events] == [("fence", 7, 0), ("entry", 7, 1)]
    assert rig.files.read_bytes(f"{DIRECTORY}/{rig.journals()[0]}")[:8] == b"BKLG\0\0\0" + bytes([version])


def test_version_6_keeps_explicit_lacs() -> None:
    with JournalRig() as rig:
        rig.add(JournalBatch.of(fmt.explicit_lac_record(7, b"packet")))
    assert replayed(rig.files)[0].events == [("lac", 7, 0, b"packet")]


def test_synced_pages_are_dropped_8_mib_behind() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(preallocate_bytes=1 << 24)) as rig:
        for i in range(11):
            rig.add(an_add(7, i, bytes(1 << 20)))
    drops = [(offset, length) for _, offset, length in files.dropped]
    assert drops
    assert drops[0][0] == 0
    for (offset, length), (following, _) in itertools.pairwise(drops):
        assert offset + length == following
    assert sum(drops[-1]) <= rig.journal.last_mark().offset - (8 << 20)


def test_the_page_cache_is_left_alone_if_told_so() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(preallocate_bytes=1 << 24, remove_from_page_cache=False)) as rig:
        for i in range(9):
            rig.add(an_add(7, i, bytes(1 << 20)))
    assert files.dropped == []


# --- failing and stopping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["writev", "datasync"])
def test_an_io_error_ends_the_journal_and_acknowledges_nothing_more(operation: str) -> None:
    files = MemoryFiles()
    rig = JournalRig(files)
    with rig:
        rig.add(an_add(7, 0))
        files.faults.fail(operation)
        rig.journal.append(an_add(7, 1))
        error = rig.acknowledged.wait_for_failure()
        assert DIRECTORY in str(error)
        assert isinstance(error.__cause__, OSError)
        files.faults.clear()
        for _ in range(3):
            with pytest.raises(StorageFault, match="failed"):
                rig.journal.append(an_add(7, 2))
    assert rig.acknowledged.failures == [error]
    assert rig.journal.error is error
    assert len(rig.acknowledged.batches) == 1
    assert files.open_files == 0
    assert not any(thread.name.startswith("journal-0") for thread in threading.enumerate())


def test_a_next_file_that_cannot_be_made_at_all_ends_the_journal() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_file_bytes=4096)) as rig:
        files.faults.fail("create")
        for i in range(40):
            try:
                rig.journal.append(an_add(7, i, bytes(400)))
            except StorageFault:
                break
            time.sleep(0.0005)
        assert ".txn" in str(rig.acknowledged.wait_for_failure())
    acknowledged = len(rig.acknowledged.batches)
    assert records_of(rig)[:acknowledged] == [(7, i) for i in range(acknowledged)]
    assert files.open_files == 0


def test_a_failing_deliver_ends_the_journal() -> None:
    files = MemoryFiles()
    told = Acknowledgements()

    def deliver(batches: object, error: object) -> None:
        raise RuntimeError("loop is closed")

    files.makedirs(DIRECTORY)
    journal = Journal(DIRECTORY, 0, files, small_options(), deliver, told.failed)
    journal.start()
    journal.append(an_add(7, 0))
    assert "loop is closed" in str(told.wait_for_failure())
    journal.stop()


def test_start_fails_with_one_line_if_no_file_can_be_made() -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    files.faults.read_only()
    journal = Journal(DIRECTORY, 3, files, small_options(), lambda b, e: None, lambda e: None)
    with pytest.raises(StorageFault, match=r"cannot start journal 3 in /journal/current: .*Read-only"):
        journal.start()
    journal.stop()


def test_stop_writes_and_acknowledges_what_is_queued() -> None:
    rig = JournalRig(options=small_options(max_group_wait_ms=FOREVER))
    rig.journal.start()
    for i in range(100):
        rig.journal.append(an_add(7, i))
    rig.journal.stop()
    assert len(rig.acknowledged.batches) == 100
    assert records_of(rig) == [(7, i) for i in range(100)]
    with pytest.raises(StorageFault, match="is stopped"):
        rig.journal.append(an_add(7, 100))
    rig.journal.stop()


# --- bounds and metrics ------------------------------------------------------------------------------------------


def test_room_is_what_was_not_acknowledged() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(queue_entries=3, queue_bytes=1000)) as rig:
        assert rig.journal.has_room()
        for i in range(3):
            rig.journal.append(an_add(7, i))
        assert not rig.journal.has_room()
        gate.open()
        rig.acknowledged.wait_for(3)
        while not rig.journal.has_room():
            time.sleep(0.0005)
        files.faults.clear()
        gate = files.faults.hold("datasync")
        rig.journal.append(an_add(7, 3, bytes(1000)))
        assert not rig.journal.has_room()
        gate.open()
        rig.acknowledged.wait_for(4)


def test_metrics() -> None:
    counting = {name: Counting() for name in JournalMetrics.__slots__}
    metrics = JournalMetrics(**counting)  # type: ignore[arg-type]
    with JournalRig(options=small_options(max_group_wait_ms=20.0), metrics=metrics) as rig:
        batch = JournalBatch.of(*[fmt.entry_record(an_entry(7, i)) for i in range(5)])
        rig.add(batch, JournalBatch.of())
    assert sum(count for _, count, _ in counting["add_entry"].values) == 5
    assert sum(count for _, count, _ in counting["force_ledger"].values) == 1
    assert all(value >= 20.0 for value, _, _ in counting["add_entry"].values)
    assert counting["write_bytes"].total == 512
    assert counting["flush_max_wait"].total == 1
    assert all(ok for _, _, ok in counting["sync"].values)
    assert [value for value, _, _ in counting["force_write_batch_bytes"].values] == [5 * 35]
    assert [value for value, _, _ in counting["force_write_batch_entries"].values] == [6]
    assert len(counting["creation_latency"].values) == 1
    assert counting["force_write_thread_time"].total >= counting["callback_time"].total > 0


def test_the_protocols_fit_what_metrics_offer() -> None:
    stats: OpStats = Counting()
    counter: Counter = Counting()
    stats.observe_ms(1.0)
    counter.add(1)
    assert isinstance(counter, Counting)
    assert counter.total == 1


def test_slow_syncs_are_counted_and_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    files, registry = MemoryFiles(), Registry()
    metrics = JournalMetrics(**JournalInstruments(registry, 3).fields())

    def lines() -> list[dict[str, Any]]:
        return [each for each in logs if each["event"] == "slow journal sync: adds wait for this disk"]

    with capture_logs() as logs, JournalRig(files, small_options(slow_sync_ms=1.0), metrics=metrics) as rig:
        files.faults.delay(0.005, "datasync")
        monkeypatch.setattr(sync_thread, "_SLOW_SYNC_LOG_INTERVAL", math.inf)
        for entry_id in range(3):
            rig.add(an_add(7, entry_id))
        (line,) = lines()
        assert (line["log_level"], line["threshold_ms"], line["slow_syncs_since_last_line"]) == ("warning", 1.0, 1)
        assert line["path"] == f"{DIRECTORY}/{rig.journals()[0]}"
        assert line["took_ms"] >= 5
        monkeypatch.setattr(sync_thread, "_SLOW_SYNC_LOG_INTERVAL", 0)
        rig.add(an_add(7, 3))
        assert [each["slow_syncs_since_last_line"] for each in lines()] == [1, 3]
        assert rig.journal.slow_syncs == 4
        exported = registry.render().splitlines()
        (counted,) = [line for line in exported if line.startswith("bookie_journal_JOURNAL_SLOW_SYNC")]
        assert counted == 'bookie_journal_JOURNAL_SLOW_SYNC_TOTAL{journalIndex="3"} 4'


@pytest.mark.parametrize("threshold", [0.0, 3_600_000.0])
def test_syncs_that_are_fast_enough_are_not_told(threshold: float) -> None:
    files = MemoryFiles()
    with capture_logs() as logs, JournalRig(files, small_options(slow_sync_ms=threshold)) as rig:
        files.faults.delay(0.005, "datasync")
        rig.add(an_add(7, 0))
        assert rig.journal.slow_syncs == 0
    assert not [each for each in logs if "slow" in each["event"]]
