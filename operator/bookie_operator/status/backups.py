"""Backups of the metadata in the status, and the condition about them.

Invariants
- A backup counts once its Job is over: before that nothing is known of it.
- What was known of a run stays when its Job is gone, unless it is of a clock that was ahead: nothing tells which of two
  such runs was the last, so a failure counts.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from typing import Final

from bookie_operator.crds.cluster_status import BackupStatus
from bookie_operator.crds.cron import next_time
from bookie_operator.crds.model import MESSAGE_LENGTH, shortened
from bookie_operator.planner.operations import is_ahead, read_time, written
from bookie_operator.world.model import BackupRun, World

_FILE_LENGTH: Final = 1024
"""Characters of a `Text`."""


def backup_status(world: World) -> BackupStatus | None:
    """None: `spec` asks for no backups."""
    asked, view = world.cluster.spec.backup, world.backup
    if asked is None:
        return None
    before = world.cluster.status.backup or BackupStatus()
    if view is None:
        return before
    before = _believed(before, world.now)
    changes: dict[str, object] = {"message": shortened(view.message, MESSAGE_LENGTH)}
    if view.succeeded is not None and _is_newer(view.succeeded, before.last_successful_time):
        ledgers, _, file = view.succeeded.told.partition(" ")
        changes |= {
            "last_successful_time": written(view.succeeded.finished_at),
            "last_file": shortened(file, _FILE_LENGTH),
            "last_ledgers": int(ledgers) if re.fullmatch("[0-9]{1,18}", ledgers) else None,
        }
    if view.failed is not None and _is_newer(view.failed, before.last_failure_time):
        reasons = [view.failed.message or "the log of its pod tells why", before.message]
        changes |= {
            "last_failure_time": written(view.failed.finished_at),
            "last_failure_message": shortened(
                "; ".join(dict.fromkeys(each for each in reasons if each)), MESSAGE_LENGTH
            ),
        }
    if asked.suspend:
        changes["next_schedule_time"] = ""
    elif view.since is not None:  # without the CronJob the one that was due stays due
        due = next_time(asked.schedule, asked.time_zone, view.since)
        changes["next_schedule_time"] = written(due) if due is not None else ""
    return before.model_copy(update=changes)


def _believed(status: BackupStatus, now: float) -> BackupStatus:
    """The status without times that have not come yet."""
    good, bad = status.last_successful_time, status.last_failure_time
    changes: dict[str, object] = {}
    if good and is_ahead(read_time(good), now):
        changes |= {"last_successful_time": "", "last_file": "", "last_ledgers": None}
    if bad and is_ahead(read_time(bad), now):
        changes |= {"last_failure_time": "", "last_failure_message": ""}
    return status.model_copy(update=changes)


def _is_newer(run: BackupRun, known: str) -> bool:
    return not known or written(run.finished_at) > known


def health(world: World, told: BackupStatus) -> tuple[bool | None, str, str]:
    """Return whether the last backup succeeded (None: unknown), a reason and a message."""
    asked = world.cluster.spec.backup
    if world.backup is None:
        return None, "BackupUnknown", "the operator may not read CronJobs: give its Role the rights of this release"
    good, bad = (read_time(each) if each else 0.0 for each in (told.last_successful_time, told.last_failure_time))
    if bad and (bad >= good or is_ahead(good, world.now)):
        answer, reason, words = False, "BackupFailed", told.last_failure_message
    elif world.backup.since is None:
        answer, reason, words = None, "NotScheduled", "the CronJob of backups is not there: no backup begins"
    elif good:
        ledgers = "" if told.last_ledgers is None else f" with {told.last_ledgers} ledgers"
        answer, reason, words = True, "BackedUp", f"{told.last_file or 'the last backup'}{ledgers} was read back"
    else:
        answer, reason, words = None, "NoBackupYet", told.message or "no backup has ended yet"
    if asked is not None and asked.suspend:
        return answer, "Suspended", f"no backup begins while spec.backup.suspend is true; {words}"
    return answer, reason, words
