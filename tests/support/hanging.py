"""Processes that hang: stopped by SIGSTOP until they are continued. Any thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.until import until_true


@contextmanager
def hanging(pids: Iterable[int]) -> Iterator[None]:
    """These processes do nothing meanwhile; their connections stand. One that was killed in the body is fine."""
    stopped = list(pids)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in stopped:
            _until_still(pid)
        yield
    finally:
        for pid in stopped:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)


def hang(pid: int) -> None:
    """It does nothing any more when this returns, until it gets SIGCONT."""
    os.kill(pid, signal.SIGSTOP)
    _until_still(pid)


def _until_still(pid: int) -> None:
    # The signal takes effect when a thread of the process gets its turn, and then for one thread after another.
    until_true(lambda: _stands_still(pid), 30)


def _stands_still(pid: int) -> bool:
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # a thread ended while it was looked at
    return all(state in "TtZX" for state in states)
