"""What came of a run.

The job says it in two ways: the exit code of its container (0; 2: it did its work and found something; else it failed),
and the result row, one line of JSON, the last line of its termination message.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.crds.job_status import ActiveRun, Run, RunOutcome
from bookie_operator.planner.operations import written
from bookie_operator.world.job_model import RunState, RunView

FINDINGS_EXIT: Final = 2
_MOST_KEYS: Final = 64
_MESSAGE: Final = 1000
_SILENT: Final = "its pod was deleted, and with it what it told"


def is_over(run: RunView) -> bool:
    return run.state is not RunState.RUNNING


def result_row(told: str) -> Mapping[str, Any] | None:
    """None: the message does not end in one. Keys without a value are left out."""
    line = told.strip().rpartition("\n")[2].strip()
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return {key: row[key] for key in list(row)[:_MOST_KEYS] if row[key] is not None}


def ended(run: RunView) -> Run:
    """How a run that is over stands in the history."""
    outcome, message = _outcome(run)
    return Run(
        job=run.name,
        uid=run.uid,
        started_at=written(run.created_at),
        finished_at=written(run.finished_at) if run.finished_at is not None else "",
        outcome=outcome,
        message=message[:_MESSAGE],
    )


def lost(run: ActiveRun, now: float, message: str) -> Run:
    """A run whose Job is not there any more, and whose end nobody saw."""
    return Run(
        job=run.job,
        uid=run.uid,
        started_at=run.started_at,
        finished_at=written(now),
        outcome=RunOutcome.UNKNOWN,
        message=message,
    )


def _outcome(run: RunView) -> tuple[RunOutcome, str]:
    row = result_row(run.told)
    if run.state is RunState.COMPLETE:
        return RunOutcome.SUCCEEDED, ""
    if run.exit_code == FINDINGS_EXIT and row is not None:
        return RunOutcome.FINDINGS, str(row.get("error") or "")
    if row is not None and row.get("error"):
        return RunOutcome.FAILED, str(row["error"])
    last_words = "" if row is not None else run.told.strip().rpartition("\n")[2].strip()
    code = f"exit code {run.exit_code}" if run.exit_code is not None else ""
    return RunOutcome.FAILED, "; ".join(part for part in (run.message, last_words or code) if part) or _SILENT
