"""When a check is due, and the clock that all of the auditor goes by.

Invariants
- The clock never goes back: it is the wall clock at the start, moved on by the event loop's. Times that are stored and
  compared across processes are in ms since the epoch.
- A check is due one interval after its last complete run, at once if it never ran, and at once if somebody asked for it
  since; an interval of 0 or less leaves only the last.

Sources: reference auto-recovery, section 4; reference metadata layout, section 10.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MS: Final = 1000


def wall_clock_ms() -> int:
    """The time of day, in ms since the epoch."""
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
    """What is known of a check's past. `last_complete_ms` None: it never ran to its end."""

    interval_s: int
    last_complete_ms: int | None
    requested_ms: int | None
    """When somebody asked for a run, by that one's clock, and no run has answered it; None: nobody."""

    def at_ms(self) -> int | None:
        """When to run next; 0: at once. None: not unless somebody asks."""
        if self.requested_ms is not None:
            return 0
        if self.interval_s <= 0:
            return None
        return 0 if self.last_complete_ms is None else self.last_complete_ms + self.interval_s * MS
