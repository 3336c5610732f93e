"""The time at which a check is due, and the clock that all of the auditor goes by.

Invariants
- The clock never goes back: it is the wall clock at the start, moved on by the event loop's. Times that are stored and
  compared across processes are in ms since the epoch.
- A check is due one interval after its last complete run, at once if it never ran, and at once if it was requested
  since; an interval of 0 or less leaves only the last.
- A last run that lies in the future tells of an auditor whose clock was wrong, and of nothing else: the check counts as
  one that never ran. Clocks may differ by `SKEW_MS`.

Sources: docs/internals/auto-recovery.md, section 4; docs/internals/metadata-layout.md, section 10.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MS: Final = 1000
SKEW_MS: Final = 300_000


def wall_clock_ms() -> int:
    """Return the time of day, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Clock:
    """Made on the event loop that uses it; a simulation passes a wall clock of its own."""

    def __init__(self, wall_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._loop = asyncio.get_running_loop()
        self._offset_ms = wall_ms() - self._loop.time() * MS

    def now_ms(self) -> int:
        """Ms since the epoch."""
        return int(self._offset_ms + self._loop.time() * MS)

    def seconds_until(self, time_ms: int | None) -> float | None:
        """Seconds from now, 0 if it has passed; None for no time at all."""
        return None if time_ms is None else max(0.0, (time_ms - self.now_ms()) / MS)


@dataclass(frozen=True, slots=True)
class Due:
    """The past of a check. `last_complete_ms` None: it never ran to its end."""

    interval_s: int
    last_complete_ms: int | None
    requested_ms: int | None
    """Time of a request that no run has answered, by the clock of the process that asked; None: no such request."""

    def is_in_the_future(self, now_ms: int) -> bool:
        """Return whether the recorded time of the last run is in the future, which cannot be."""
        return self.last_complete_ms is not None and self.last_complete_ms > now_ms + SKEW_MS

    def at_ms(self, now_ms: int) -> int | None:
        """Return when to run next, in ms; 0: at once. None: only on request."""
        if self.requested_ms is not None:
            return 0
        if self.interval_s <= 0:
            return None
        if self.last_complete_ms is None or self.is_in_the_future(now_ms):
            return 0
        return self.last_complete_ms + self.interval_s * MS
