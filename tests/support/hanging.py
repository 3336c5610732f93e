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
            # The signal takes effect when a thread of the process gets its turn, and then for one thread after another.
            until_true(lambda pid=pid: _stands_still(pid), 10)
        yield
    finally:
        for pid in stopped:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] in "TtZX" for task in tasks)
