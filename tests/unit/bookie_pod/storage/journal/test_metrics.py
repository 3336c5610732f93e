"""What a journal measures, and how much it lets wait."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from bookie_pod.metrics.journal import FlushReason, JournalMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.journal import JournalBatch, sync_thread
from bookie_pod.storage.journal import format as fmt
from tests.support.journal_rig import DIRECTORY, Counting, JournalRig, an_add, an_entry, small_options
from tests.support.memory_files import MemoryFiles


def test_room_is_what_was_not_acknowledged() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(queue_size=3, max_memory_bytes=1000)) as rig:
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
    metrics = JournalMetrics(Registry(), 0)
    counting = {name: Counting() for name in vars(metrics) if name not in ("_scope", "groups")}
    vars(metrics).update(counting)
    with JournalRig(options=small_options(max_group_wait_ms=20.0), metrics=metrics) as rig:
        rig.add(JournalBatch.of(fmt.entry_record(an_entry(7, 0))))
        batch = JournalBatch.of(*[fmt.entry_record(an_entry(7, i)) for i in range(1, 6)])
        rig.add(batch, JournalBatch.of())
    assert [count for _, count, _ in counting["add_entry"].values] == [1, 5]
    assert sum(count for _, count, _ in counting["force_ledger"].values) == 1
    alone, together = (value for value, _, _ in counting["add_entry"].values)
    assert 0 < alone < together
    assert counting["write_bytes"].total == 2 * 512
    assert metrics.groups[FlushReason.MAX_WAIT].value == 2
    assert len(counting["sync"].values) >= 2
    assert all(ok for _, _, ok in counting["sync"].values)
    assert [value for value, _, _ in counting["force_write_batch_bytes"].values] == [35, 5 * 35]
    assert [value for value, _, _ in counting["force_write_batch_entries"].values] == [1, 6]
    assert len(counting["creation_latency"].values) == 1
    assert counting["force_write_thread_time"].total >= counting["callback_time"].total > 0


def test_a_failed_sync_is_counted_as_failed() -> None:
    files, metrics = MemoryFiles(), JournalMetrics(Registry(), 0)
    counting = metrics.sync = Counting()  # type: ignore[assignment]
    with JournalRig(files, metrics=metrics) as rig:
        rig.add(an_add(7, 0))
        files.faults.fail("datasync")
        rig.journal.append(an_add(7, 1))
        rig.acknowledged.wait_for_failure()
    assert [ok for _, _, ok in counting.values] == [True, False]


def test_a_journal_whose_adds_wait_is_at_some_step() -> None:
    files = MemoryFiles()
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        assert rig.journal.step() is None, "nobody waits"
        rig.journal.append(an_add(7, 0, sync=False))
        rig.journal.append(an_add(7, 1))
        rig.journal.append(an_add(7, 2))
        gate.reached()
        rig.acknowledged.wait_for(1)
        assert rig.journal.step() == 1
        gate.open()
        rig.acknowledged.wait_for(3)
        assert rig.journal.step() is None


def test_slow_syncs_are_counted_and_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    files, registry = MemoryFiles(), Registry()
    metrics = JournalMetrics(registry, 3)

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
