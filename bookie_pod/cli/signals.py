"""Signals of commands that run an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys


def end_with_sigterm() -> None:
    """SIGTERM cancels the running task, so that what it started does not stay behind. SIGINT does so by itself."""
    end_with(signal.SIGTERM)


def end_with(*numbers: signal.Signals) -> None:
    """Any of these signals cancels the running task; a second one ends the process at once.

    Unlike Python's own handling of SIGINT this holds for a process that a shell started in the background too.
    """
    task = asyncio.current_task()
    if task is None or sys.platform == "win32":
        return
    seen: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        task.cancel()

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
