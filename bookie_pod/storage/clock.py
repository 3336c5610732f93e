"""The time by which the rare work of a storage becomes due: garbage collection, scrubbing.

Invariant: it is the time of day when the process began, moved on by a clock that nobody sets and that does not stand
still while the machine sleeps. So a time of day that is set back puts nothing off, and one that is set forward for a
moment leaves nothing behind that lies in the future. What is stored is in ms since the epoch; whoever reads it at the
next start takes nothing for later than now.

Any thread.
"""

from __future__ import annotations

import time
from typing import Final

_OFFSET_NS: Final = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def steady_now_ms() -> int:
    """Milliseconds since the epoch."""
    return (_OFFSET_NS + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000
