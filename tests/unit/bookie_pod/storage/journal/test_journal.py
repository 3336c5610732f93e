"""`Journal`: when it acknowledges, and what its marks and group checks claim to be synced."""

from __future__ import annotations

import time

from bookie_pod.storage.journal import JournalBatch, LogMark
from bookie_pod.storage.journal import format as fmt
from tests.support.journal_rig import (
    DIRECTORY,
    FOREVER,
    JournalRig,
    an_add,
    an_entry,
    in_its_sync,
    records_of,
    small_options,
)
from tests.support.memory_files import MemoryFiles


def test_what_is_acknowledged_is_replayed_in_order() -> None:
    with JournalRig() as rig:
        rig.add(*[an_add(7, i) for i in range(100)])
        assert len(rig.acknowledged.batches) == 100
        assert records_of(rig) == [(7, i) for i in range(100)]
    assert records_of(rig) == [(7, i) for i in range(100)]
    assert rig.files.open_files == 0


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
        writes = files.faults.counts["pwrite"]
        for i in range(1, 6):
            rig.journal.append(an_add(7, i))
            while files.faults.counts["pwrite"] < writes + i:
                time.sleep(0.0005)
        rig.wait_for_written(5)
        gate.open()
        rig.acknowledged.wait_for(6)
    assert [len(call) for call in rig.acknowledged.calls] == [1, 5]


def test_the_mark_is_the_end_of_what_was_written_before_the_sync() -> None:
    files = MemoryFiles()
    with in_its_sync(files) as (rig, gate):
        marks: list[LogMark] = []
        rig.acknowledged.deliver = lambda batches, error: marks.append(rig.journal.last_mark())  # type: ignore[method-assign]
        rig.journal._sync._deliver = rig.acknowledged.deliver
        gate.open()
    assert [mark.offset for mark in marks] == [1024, 1536]


def test_a_group_check_claims_no_more_than_was_synced() -> None:
    files = MemoryFiles()
    with in_its_sync(files) as (rig, gate):
        files.faults.clear()
        following = files.faults.hold("datasync")
        gate.open()
        following.reached()
        rig.journal.append(an_add(7, 2))
        rig.wait_for_written(1)
        data = files.read_bytes(f"{DIRECTORY}/{rig.journals()[0]}")
        following.open()
    journal_id = int(rig.journals()[0].split(".")[0], 16)
    checks = []
    for start in (512, 1024, 1536):
        padding = start + 4 + len(an_entry(7, 0))
        check = fmt.parse_group_check(data[padding:], fmt.Checks.CHAINED, journal_id, padding)
        assert check is not None
        checks.append((check.start, check.synced))
    assert checks == [(512, 512), (1024, 512), (1536, 1024)]


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
        assert not force.pieces
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
