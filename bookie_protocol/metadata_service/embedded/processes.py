"""The process that holds a session, and whether it is certainly gone.

A process is named by the boot of its machine, its pid namespace, its pid and its start time; so a name is never used
again. Only if the first two are our own can it be checked; elsewhere, and where the system has no `/proc`, a process
counts as alive.

Any thread.
"""

from __future__ import annotations

import os
from typing import Final

UNKNOWN: Final = ""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_STATE_FIELD: Final = 0
_START_FIELD: Final = 19
_DEAD_STATES: Final = "ZXx"


def this_process() -> str:
    """Return the name of the calling process; `UNKNOWN` if it has none."""
    place = _place()
    started = _started(os.getpid())
    return UNKNOWN if place is None or started is None else f"{place} {os.getpid()} {started}"


def is_gone(name: str) -> bool:
    """Return True if this process certainly runs no more."""
    place, _, rest = name.rpartition(" ")[0].rpartition(" ") if name else ("", "", "")
    if not place or place != _place() or not rest.isdecimal():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is another user's
    started = _started(int(rest))
    return started is not None and started != name.rpartition(" ")[2]


def this_boot() -> str:
    """Return the id of this machine's boot, which all its containers have; `UNKNOWN` if the system does not tell it."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return UNKNOWN


def _place() -> str | None:
    boot = this_boot()
    try:
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}" if boot else None
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return the start of a process, in ticks since the boot; "dead" for one that only waits to be reaped; None:
    unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    if len(fields) <= _START_FIELD:
        return None
    return "dead" if fields[_STATE_FIELD] in _DEAD_STATES else fields[_START_FIELD]
