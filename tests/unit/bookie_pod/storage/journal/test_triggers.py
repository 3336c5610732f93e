"""When a running journal writes what it was given."""

from __future__ import annotations

import time

from bookie_pod.metrics.journal import FlushReason, JournalMetrics
from bookie_pod.metrics.registry import Registry
from tests.support.journal_rig import FOREVER, JournalRig, an_add, records_of, small_options
from tests.support.memory_files import MemoryFiles


def test_a_group_leaves_no_sooner_behind_another_than_the_group_wait() -> None:
    metrics = JournalMetrics(Registry(), 0)
    with JournalRig(options=small_options(max_group_wait_ms=40.0), metrics=metrics) as rig:
        began = time.monotonic()
        for entry_id in range(3):
            rig.add(an_add(7, entry_id))
        assert time.monotonic() - began >= 0.08
        assert metrics.groups[FlushReason.MAX_WAIT].value == 3


def test_records_within_the_group_wait_share_a_write() -> None:
    with JournalRig(options=small_options(max_group_wait_ms=200.0)) as rig:
        rig.add(an_add(7, 0))
        rig.add(*[an_add(7, i) for i in range(1, 51)])
        assert rig.files.faults.counts["writev"] == 2  # type: ignore[attr-defined]
        assert len(rig.acknowledged.calls) == 2


def test_too_many_bytes_are_written_at_once() -> None:
    metrics = JournalMetrics(Registry(), 0)
    options = small_options(max_group_wait_ms=FOREVER, group_bytes=1000)
    with JournalRig(options=options, metrics=metrics) as rig:
        rig.add(an_add(7, 0))
        rig.add(an_add(7, 1, bytes(900)), an_add(7, 2, bytes(900)))
        assert metrics.groups[FlushReason.MAX_OUTSTANDING].value == 1


def test_too_many_records_are_written_at_once() -> None:
    with JournalRig(options=small_options(max_group_wait_ms=FOREVER, group_entries=3)) as rig:
        rig.add(an_add(7, 0))
        rig.add(*[an_add(7, i) for i in range(1, 5)])


def test_a_large_backlog_is_cut_into_groups() -> None:
    files = MemoryFiles()
    options = small_options(max_group_wait_ms=FOREVER, group_bytes=1000)
    with JournalRig(files, options) as rig:
        gate = files.faults.hold("writev")
        rig.journal.append(an_add(7, 0, bytes(2000)))  # alone: it does not wait
        gate.reached()
        for i in range(1, 11):
            rig.journal.append(an_add(7, i, bytes(476)))
        gate.open()
        rig.acknowledged.wait_for(10)
    assert files.faults.counts["writev"] >= 5
    assert records_of(rig) == [(7, i) for i in range(11)]


def test_an_empty_queue_is_reason_enough_if_allowed() -> None:
    metrics = JournalMetrics(Registry(), 0)
    options = small_options(max_group_wait_ms=FOREVER, flush_when_queue_empty=True)
    with JournalRig(options=options, metrics=metrics) as rig:
        rig.add(an_add(7, 0))
        assert metrics.groups[FlushReason.EMPTY_QUEUE].value == 1


def test_an_idle_journal_does_nothing() -> None:
    with JournalRig() as rig:
        rig.add(an_add(7, 0))
        before = rig.files.faults.mutations  # type: ignore[attr-defined]
        time.sleep(0.05)
        assert rig.files.faults.mutations == before  # type: ignore[attr-defined]
