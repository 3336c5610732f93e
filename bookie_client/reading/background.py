"""What becomes of a defect in a background task of a handle: it is logged, and whoever waits for the task's work gets
an error instead of waiting for ever.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookie_client.logs import get_logger
from bookie_protocol.errors import CouldNotTell

_log = get_logger(__name__)


def fail_on_defect(task: asyncio.Task[None], ledger_id: int, work: str, fail: Callable[[CouldNotTell], None]) -> None:
    """Tell `fail` when the task ends with an exception; a task that is cancelled or returns is fine. `work`: what the
    task does, for the message."""

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled() or (defect := task.exception()) is None:
            return
        _log.error("background task failed", ledger=ledger_id, work=work, error=repr(defect), exc_info=defect)
        error = CouldNotTell(f"ledger {ledger_id}: {work} failed: {defect!r}")
        error.__cause__ = defect
        fail(error)

    task.add_done_callback(ended)
