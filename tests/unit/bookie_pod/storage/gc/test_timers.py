"""What comes rarely comes in spite of restarts: each interval begins when the work was last done, by any process."""

from __future__ import annotations

import errno
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest

from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.schedule import steady_now_ms
from bookie_pod.storage.gc.state_file import NAME
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_protocol.errors import MetadataUnavailable
from tests.support.gc_rig import FAST, GcRig

DAY = 86_400_000
HOUR = 3_600_000
OTHER = ("other:3181",)
HERE = 99
"""A ledger that stays."""


def lives(rig: GcRig, hours: int, done: Callable[[], bool]) -> int:
    """How many lives of so many hours, each of one pass, end before it is done."""
    count = 0
    while not done():
        rig.now += hours * HOUR
        assert rig.gc.run_pass().errors == []
        rig.gc.stop()
        rig.restart()
        count += 1
        assert count < 20
    return count


def test_ledgers_that_live_elsewhere_go_although_no_process_lives_for_an_interval() -> None:
    rig = GcRig(replace(FAST, overreplicated_wait_time_ms=DAY))
    rig.write([1, HERE], 3)
    rig.metadata.ledgers[1] = OTHER
    assert lives(rig, 7, lambda: 1 not in rig.storage.ledger_ids()) == 4  # 28 hours
    # The next interval begins there, not with the process.
    rig.write([2], 3)
    rig.metadata.ledgers[2] = OTHER
    assert lives(rig, 7, lambda: 2 not in rig.storage.ledger_ids()) == 4


def test_a_search_that_a_restart_or_the_service_has_ended_is_due_at_once() -> None:
    rig = GcRig(replace(FAST, overreplicated_wait_time_ms=DAY))
    rig.write([1, HERE], 3)
    rig.gc.run_pass()
    rig.metadata.ledgers[1] = OTHER
    rig.now += DAY

    def unavailable(ledger_id: int) -> NoReturn:
        raise MetadataUnavailable("no answer")

    rig.metadata.re_replication_lock = unavailable  # type: ignore[method-assign]
    assert rig.gc.run_pass().ledgers_deleted == 0
    del rig.metadata.re_replication_lock
    rig.restart()
    assert rig.gc.run_pass().ledgers_deleted == 1


def test_the_location_index_is_rewritten_although_no_process_lives_for_an_interval() -> None:
    """After one to two intervals: times are spread."""
    rig = GcRig(replace(FAST, entry_location_compaction_interval_s=DAY // 1000))
    rig.write([HERE], 3)
    began = rig.now
    assert 3 < lives(rig, 7, lambda: rig.gc.state().last_index_ms != began) <= 7
    assert began + DAY < rig.gc.state().last_index_ms <= began + 2 * DAY + 7 * HOUR


def test_a_disk_that_takes_no_state_keeps_no_ledger_from_being_deleted() -> None:
    rig = GcRig(replace(FAST, overreplicated_wait_time_ms=DAY))
    rig.write([1, 2, HERE], 3)
    rig.gc.run_pass()
    rig.metadata.ledgers[1] = OTHER
    rig.delete(2)
    rig.now += DAY
    rig.bookie.faults.fail("write", path=NAME, errno=errno.ENOSPC)
    result = rig.gc.run_pass()
    assert result.ledgers_deleted == 2
    assert NAME in result.errors[0]
    assert rig.gc.run_pass().errors == []  # nothing is due


def test_whoever_sets_the_time_of_day_puts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a machine that was asleep."""
    for timed in (GarbageCollector, Scrubber):
        assert inspect.signature(timed).parameters["now_ms"].default is steady_now_ms
    before, asleep = steady_now_ms(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) + HOUR * 1_000_000
    assert abs(before - time.time() * 1000) < HOUR
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "clock_gettime_ns", {time.CLOCK_BOOTTIME: asleep}.__getitem__)
    assert HOUR <= steady_now_ms() - before < 2 * HOUR


@pytest.mark.parametrize("hours", [1, 30])
def test_nothing_comes_sooner_because_of_a_restart(hours: int) -> None:
    rig = GcRig(replace(FAST, overreplicated_wait_time_ms=DAY, entry_location_compaction_interval_s=DAY // 1000))
    rig.write([1, HERE], 3)
    rig.gc.run_pass()
    rig.metadata.ledgers[1] = OTHER
    began = rig.gc.state().last_index_ms
    rig.restart()
    rig.now += hours * HOUR
    assert rig.gc.run_pass().ledgers_deleted == (hours > 24)
    if hours == 1:
        assert rig.gc.state().last_index_ms == began
