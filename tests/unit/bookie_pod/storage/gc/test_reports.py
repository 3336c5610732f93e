"""Why a log is still there, when it will go, and what compaction could give back: from figures alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_pod.storage.gc import reports
from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.reports import BUCKETS, bucket_of, due_in_s, explain
from bookie_pod.storage.gc.schedule import Compaction, CompactionRule, CompactionSchedule, GcTimes
from tests.support.gc_rig import GcRig

NOW = 1_000_000_000
SCHEDULE = CompactionSchedule(CompactionRule(0.2, 100), CompactionRule(0.8, 1000))
TIMES = GcTimes(NOW - 30_000, NOW - 400_000)
SOUND = LogUsage(7, 1000, 100, 3)


def why(usage: LogUsage | None = SOUND, **facts: Any) -> str:
    known: dict[str, Any] = {
        "flushed": True,
        "quarantined": None,
        "held": None,
        "unreadable": None,
        "schedule": SCHEDULE,
        "times": TIMES,
        "now_ms": NOW,
        "size_limit": None,
    }
    return explain(usage, **{**known, **facts})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"quarantined": "cut", "held": "bits", "flushed": False}, "quarantined: damaged (cut); it is kept until"),
        ({"held": "bits", "flushed": False}, "held: the scrubber found damage in it (bits); it is left alone"),
        ({"flushed": False, "unreadable": "EIO", "usage": None}, "it is being written, or was not rotated and synced"),
        ({"unreadable": "EIO", "usage": None}, "the last pass could not read it (EIO); the next one tries again"),
        ({"usage": None}, "not looked at yet: the next pass will"),
        ({"usage": replace(SOUND, in_doubt=50)}, "50 bytes belong to ledgers that are not in the index here, but"),
        ({}, "100 of 1000 bytes live (10%), of 3 ledgers: the next minor compaction takes it, due in 70 s"),
        ({"doubt": "down"}, "100 of 1000 bytes live (10%), of 3 ledgers, as far as is known (down): the next minor"),
        (
            {"usage": replace(SOUND, remaining=200)},
            "200 of 1000 bytes live (20%), of 3 ledgers: the next major compaction takes it, due in 600 s",
        ),
        (
            {"usage": replace(SOUND, remaining=800)},
            "800 of 1000 bytes live (80%), of 3 ledgers: above every compaction threshold (80%); it goes when",
        ),
        ({"size_limit": 10_000}, "100 of 1000 bytes live (1%), of 3 ledgers: the next minor compaction takes it"),
        (
            {"schedule": replace(SCHEDULE, minor_suspended=True)},
            "100 of 1000 bytes live (10%), of 3 ledgers: the next major compaction takes it, due in 600 s",
        ),
        (
            {"schedule": replace(SCHEDULE, minor_suspended=True, major_suspended=True)},
            "of 3 ledgers: minor and major compaction would take it, but is off or suspended",
        ),
        (
            {"usage": replace(SOUND, remaining=300), "schedule": replace(SCHEDULE, major_suspended=True)},
            "of 3 ledgers: major compaction would take it, but is off or suspended",
        ),
    ],
)
def test_why_a_log_is_still_there(facts: dict[str, Any], said: str) -> None:
    assert said in why(**facts)


MINOR, MAJOR = Compaction.MINOR, Compaction.MAJOR


@pytest.mark.parametrize(
    ("changes", "minor", "major"),
    [
        ({}, 70, 600),
        ({"minor_suspended": True}, None, 600),
        ({"major_suspended": True}, 70, None),
        ({"minor": CompactionRule(0.2, 0), "major": CompactionRule(0.0, 1000)}, None, None),
        ({"minor": CompactionRule(0.2, 30), "major": CompactionRule(0.8, 399)}, 0, 0),
        ({"minor": CompactionRule(0.2, 31), "major": CompactionRule(0.8, 401)}, 1, 1),
        ({"short_of_space": True, "major_suspended": True, "minor_suspended": True}, None, 0),
        ({"short_of_space": True, "minor_suspended": True, "held": {MAJOR}}, 0, 600),
        ({"short_of_space": True, "held": {MAJOR, MINOR}}, 70, 600),
    ],
)
def test_when_a_compaction_is_due(changes: dict[str, Any], minor: int | None, major: int | None) -> None:
    schedule = replace(SCHEDULE, **changes)
    assert (due_in_s(MINOR, schedule, TIMES, NOW), due_in_s(MAJOR, schedule, TIMES, NOW)) == (minor, major)


def test_tenths_of_usage() -> None:
    assert [bucket_of(share) for share in (0, 0.09, 0.1, 0.55, 0.99, 1.0)] == [0, 0, 1, 5, 9, 9]


def test_usage_of_a_log() -> None:
    assert LogUsage(1, 0, 0, 0).usage() == LogUsage(1, 0, 0, 0).usage(100) == 0
    assert LogUsage(1, 10, 5, 1).usage() == 0.5
    assert LogUsage(1, 10, 5, 1).usage(20) == 0.25
    assert LogUsage(1, 10, 5, 1).usage(8) == 0.5
    assert LogUsage(1, 10, 10, 1).usage(20) == 1.0, "nothing would be gained"
    assert [LogUsage(1, 10, left, 1).is_dead for left in (0, 1)] == [True, False]


def test_a_forecast_and_the_report_on_each_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORT_LEDGERS", 2)
    rig = GcRig()
    logs = [rig.write(range(first, first + 10), 4) for first in (0, 10, 20)]
    rig.write([30, 31, 32], 3)
    rig.delete(*range(9), *range(10, 15))
    rig.gc.run_pass()
    rig.now += 5_000
    later = rig.write(range(40, 42), 1)
    forecast = rig.gc.forecast()
    assert [bucket.logs for bucket in forecast.buckets] == [0, 1, 0, 0, 0, 1, 0, 0, 0, 2]
    entry_bytes = 104
    assert forecast.buckets[1].total_bytes == 40 * entry_bytes
    assert forecast.buckets[1].reclaimable_bytes == 36 * entry_bytes
    assert forecast.buckets[5].reclaimable_bytes == 20 * entry_bytes
    assert forecast.buckets[9].reclaimable_bytes == 0
    assert (forecast.minor.logs, forecast.minor.threshold) == (1, 0.2)
    assert (forecast.minor.rewritten_bytes, forecast.minor.reclaimable_bytes) == (4 * entry_bytes, 36 * entry_bytes)
    assert (forecast.major.logs, forecast.major.rewritten_bytes) == (2, 24 * entry_bytes)
    assert forecast.major.reclaimable_bytes == 56 * entry_bytes
    assert (forecast.minor.due_in_s, forecast.major.due_in_s) == (3595, 86_395)
    assert forecast.unmeasured == 1
    assert rig.gc.buckets() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 2]
    assert len(forecast.buckets) == BUCKETS
    report = rig.gc.report(logs[0])
    assert (report.owners, report.log_id) == ([(9, 4 * entry_bytes)], logs[0])
    assert (report.path, report.size) == (rig.path(logs[0]), rig.logs.size(logs[0]))
    assert report.usage is not None
    assert report.usage.remaining == 4 * entry_bytes
    assert rig.gc.report(logs[2]).owners == [(29, 4 * entry_bytes), (28, 4 * entry_bytes)]
    assert rig.gc.report(rig.flushed[3]).owners == [(32, 3 * entry_bytes), (31, 3 * entry_bytes)]
    fresh = rig.gc.report(later)
    assert (fresh.usage, fresh.owners) == (None, [(41, entry_bytes), (40, entry_bytes)])
    assert "not looked at yet" in fresh.reason
    assert [usage.log_id for usage in rig.gc.usages()] == sorted(usage.log_id for usage in rig.gc.usages())
    assert rig.gc.has_log(later)
    assert not rig.gc.has_log(later + 50)


def test_logs_that_nobody_will_compact_are_not_unmeasured() -> None:
    rig = GcRig()
    damaged, held, _ = (rig.write([ledger], 2) for ledger in (1, 2, 3))
    rig.gc.excluded = lambda: {held: "its bits"}
    rig.gc._usages.quarantine(damaged, "it is cut")
    rig.gc.run_pass()
    forecast = rig.gc.forecast()
    assert forecast.unmeasured == 0
    assert sum(bucket.logs for bucket in forecast.buckets) == 1
    assert rig.gc.excluded() == {held: "its bits"}
    assert "it is cut" in rig.gc.report(damaged).reason
    assert rig.gc.report(damaged).owners is None
    assert "its bits" in rig.gc.report(held).reason
    state = rig.gc.state()
    assert (state.quarantined, state.held) == ({damaged: "it is cut"}, {held: "its bits"})
