"""Bytes per second of one task.

Tasks of one read do not know of each other, so each gets a share of the whole rate (`share`). Unused budget is not
saved up beyond a second's worth.

One thread uses a throttle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bookie_protocol.pace import Pace

SLICE_SECONDS: Final = 0.5
"""The longest sleep at a time, so that an interrupted task ends soon."""


def share(bytes_per_second: float | None, concurrent_tasks: int) -> float | None:
    """The rate of one of so many tasks that may run at the same time; None: no limit."""
    return None if bytes_per_second is None else bytes_per_second / max(1, concurrent_tasks)


class Throttle:
    """`bytes_per_second` None: no limit."""

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pace = Pace(bytes_per_second, burst_s=1.0)
        self._clock = clock
        self._sleep = sleep

    def take(self, nbytes: int) -> None:
        """Account for bytes that were read or written; returns when the rate allows to go on."""
        self._pace.use(nbytes, self._clock())
        while (wait := self._pace.free_at - self._clock()) > 0:
            self._sleep(min(wait, SLICE_SECONDS))
