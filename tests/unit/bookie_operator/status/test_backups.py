"""Backups of the metadata in the status: what counts as the last one, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BackupStatus, BookieClusterStatus
from bookie_operator.planner.operations import written
from bookie_operator.status.backups import backup_status, health
from bookie_operator.world.model import BackupRun, BackupView, ClusterView, World

NOW = 1_800_000_000.0
YEAR = 365 * 86_400.0
SPEC = BookieClusterSpec.model_validate(
    {
        "version": "2",
        "metadataService": {"uri": "zk://a"},
        "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}},
        "backup": {"schedule": "0 * * * *"},
    }
)
GOOD = BackupRun(NOW - 3600, "6 /backups/metadata-x")


def world(view: BackupView | None, before: BackupStatus | None = None) -> World:
    status = BookieClusterStatus(backup=before)
    return World(NOW, ClusterView("d", "n", "u", 7, SPEC, status), backup=view)


def told(at: World) -> tuple[bool | None, str]:
    status = backup_status(at)
    assert status is not None
    return health(at, status)[:2]


def test_a_cluster_without_the_cron_job_is_not_told_to_be_backed_up() -> None:
    before = backup_status(world(BackupView(since=NOW - 7200, succeeded=GOOD)))
    assert before is not None
    at = world(BackupView(), before)
    assert told(at) == (None, "NotScheduled")
    after = backup_status(at)
    assert after is not None
    assert after.next_schedule_time == before.next_schedule_time, "an alert tells that it is overdue"
    assert (after.last_file, after.last_successful_time) == (before.last_file, before.last_successful_time)


def test_a_failure_without_the_cron_job_stays_a_failure() -> None:
    failed = backup_status(world(BackupView(since=NOW - 7200, failed=BackupRun(NOW - 60, message="full"))))
    assert told(world(BackupView(), failed)) == (False, "BackupFailed")


@pytest.mark.parametrize("there", [True, False])
def test_a_success_of_a_clock_that_was_ahead_hides_no_failure(there: bool) -> None:
    ahead = BackupRun(NOW + YEAR, "9 /backups/metadata-y")
    before = BackupStatus(last_successful_time=written(ahead.finished_at), last_file="/backups/metadata-y")
    view = BackupView(since=NOW - 60, succeeded=ahead if there else None, failed=BackupRun(NOW - 60, message="full"))
    assert told(world(view, before)) == (False, "BackupFailed")


def test_runs_of_now_take_the_place_of_those_of_a_clock_that_was_ahead() -> None:
    ahead = written(NOW + YEAR)
    before = BackupStatus(last_successful_time=ahead, last_failure_time=ahead, last_failure_message="full")
    at = world(BackupView(since=NOW - 60, succeeded=GOOD), before)
    status = backup_status(at)
    assert status is not None
    assert status.last_successful_time == written(GOOD.finished_at)
    assert (status.last_failure_time, status.last_failure_message) == ("", "")
    assert told(at) == (True, "BackedUp")


def test_what_is_written_has_bounds() -> None:
    run = BackupRun(NOW - 60, f"{'9' * 5000} /{'x' * 5000}")
    failed = BackupRun(NOW - 60, message="x" * 50_000)
    view = BackupView(since=NOW - 60, succeeded=run, failed=failed, message="y" * 50_000)
    status = backup_status(world(view))
    assert status is not None
    assert BackupStatus.model_validate(status.model_dump()) == status
    assert status.last_ledgers is None
    assert backup_status(replace(world(view), cluster=world(view, status).cluster)) == status
