"""Defects in the background tasks of a handle: they are logged, and the waiting callers get an error.

Without it they would wait for ever.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookie_protocol.errors import CouldNotTell
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)


def fail_on_defect(task: asyncio.Task[None], ledger_id: int, work: str, fail: Callable[[CouldNotTell], None]) -> None:
    """Tell `fail` when the task ends with an exception; a task that is cancelled or returns is fine. `work`: what the
    task does, for the message."""

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled() or (defect := task.exception()) is None:
            return
        fail(defect_found(ledger_id, work, defect))

    task.add_done_callback(ended)


def defect_found(ledger_id: int, work: str, defect: BaseException) -> CouldNotTell:
    """Log a defect and return the error for the callers that wait for `work`."""
    _log.error("background work failed", ledger=ledger_id, work=work, error=repr(defect), exc_info=defect)
    error = CouldNotTell(f"ledger {ledger_id}: {work} failed: {defect!r}")
    error.__cause__ = defect
    return error
