"""The runs of the CronJob of backups, as the planner sees them."""

from __future__ import annotations

from typing import Any

from bookie_operator.observe.backups import backup_view
from bookie_operator.observe.workloads import JobView

NOW = 1_800_000_000.0
AHEAD = "2050-01-01T00:00:00Z"


def cron_job(**status: str) -> dict[str, Any]:
    pod: dict[str, Any] = {"template": {"spec": {"containers": []}}}
    metadata = {"name": "a-backup", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"jobTemplate": {"spec": pod}}, "status": status}


def test_runs_of_a_clock_that_was_ahead_do_not_hide_those_of_now() -> None:
    now, ahead = JobView("Complete", "", NOW - 60, "6 /b"), JobView("Complete", "", NOW + 1e9, "5 /a")
    for runs in ([now, ahead], [ahead, now]):
        view = backup_view(cron_job(lastSuccessfulTime=AHEAD), [({}, each) for each in runs], NOW)
        assert view.succeeded is not None
        assert view.succeeded.told == "6 /b"


def test_a_time_in_the_future_is_not_when_the_next_one_is_counted_from() -> None:
    created = backup_view(cron_job(), [], NOW).since
    assert backup_view(cron_job(lastScheduleTime=AHEAD), [], NOW).since == created
