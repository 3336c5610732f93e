"""Exit codes of commands that use a cluster, and the effect of signals on those that run an event loop.

`bookie serve` has the exit codes of the reference implementation.

The codes tell apart what a script does next: nothing to be had, ask differently, or try again.
"""

from __future__ import annotations

import os
import signal
import sys
from enum import IntEnum

from bookie_protocol.errors import (
    ExitCode,
    InvalidConfiguration,
    NotThere,
    PodkeeperError,
    Refused,
    StartupError,
)


class CommandExit(IntEnum):
    """0 and 1 are those of every command."""

    OK = 0
    USAGE = 1
    """The command line or the configuration is wrong."""
    REFUSED = 10
    """The cluster understood and will not do it (fenced, wrong password, too few bookies)."""
    NOT_THERE = 11
    """There is no such ledger or entry."""
    COULD_NOT_TELL = 12
    """A fault: trying again, or looking at the cluster, may help."""
    DAMAGED = 13
    """A check, or a reading of files, met damage, or the cluster is not healthy; what is wrong was printed."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """The reader of the output went away, as `head` does."""
    TERMINATED = 143
    """SIGTERM, which is what Kubernetes and systemd stop a process with."""


class Terminated(Exception):
    """SIGTERM ended the command. What had to be said was said where it was stopped."""


def exit_code_of(error: PodkeeperError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, InvalidConfiguration):
        return ExitCode.INVALID_CONFIGURATION
    if isinstance(error, StartupError):
        return error.exit_code
    if isinstance(error, NotThere):
        return CommandExit.NOT_THERE
    return CommandExit.REFUSED if isinstance(error, Refused) else CommandExit.COULD_NOT_TELL


def end_with_sigterm() -> None:
    """SIGTERM cancels the running task, so that what it started does not stay behind. SIGINT does so by itself."""
    end_with(signal.SIGTERM)


def end_with(*numbers: signal.Signals) -> None:
    """Any of these signals cancels the running task; a second one ends the process at once.

    Unlike Python's own handling of SIGINT this holds for a process that a shell started in the background too.
    """
    import asyncio

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
