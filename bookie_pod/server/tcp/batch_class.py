"""Reads of the traffic class `batch`: those of jobs, which may wait and must not make anybody else wait.

Invariants
- They run on lanes of their own (unless there are none), never on the event loop, whatever the caches hold: they pass
  nobody, and nobody stands behind them.
- While clients wait for the disks they go at a tenth of their speed: after a piece of work its lane rests for nine
  times as long, at most `REST_MAX_S`. The rest ends with the pressure.
- Giving way is bounded: a read that was given `PATIENCE_S` ago or earlier waits for nobody, so that it is answered long
  before its client gives it up. The limit in bytes per second is an operator's word and holds for it too.
- Every wait ends at once when the lanes are stopped.

Threads: `BatchPace` belongs to the lanes' threads; any thread may read its totals and stop it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from bookie_protocol.pace import Pace

REST_FACTOR: Final = 9.0
"""Seconds of rest for a second of work while clients wait: a tenth of the speed, as garbage collection has it."""
REST_MAX_S: Final = 0.25
PATIENCE_S: Final = 1.0
"""Seconds after which a read gives way no more; the clients' time-out of reads is 5 s."""
LOOK_S: Final = 0.01
"""How often a lane that rests looks whether somebody waits still, in seconds."""
BURST_S: Final = 0.1
"""Seconds' worth of bytes that may be read at once after a pause, beside one piece of work."""


class BatchPace:
    """How fast the lanes of the class go. `bytes_per_second`: of all of them together; 0: no limit."""

    def __init__(
        self,
        under_pressure: Callable[[], bool] = lambda: False,
        bytes_per_second: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        self._under_pressure = under_pressure
        self._clock = clock
        self._stopped = stopped or threading.Event()
        self._of_lane = _OfLane()
        self._lock = threading.Lock()
        self._bytes = Pace(bytes_per_second, BURST_S, clock())
        self.entries = 0
        """Entries read since the start."""
        self.nbytes = 0
        """Bytes of these."""
        self.yielded_s = 0.0
        """Seconds that lanes rested while clients waited, since the start."""
        self.limited_s = 0.0
        """Seconds that lanes waited for the limit in bytes, since the start."""

    def must_wait(self, given: float) -> bool:
        """Whether a read that was given at `given` may not begin yet."""
        return not self._stopped.is_set() and (self._rests(given) or self._clock() < self._bytes.free_at)

    def wait(self, given: float) -> None:
        """Until that read may begin."""
        began = self._clock()
        while self._rests(given) and not self._stopped.wait(LOOK_S):
            pass
        rested = self._clock()
        while (left := self._bytes.free_at - self._clock()) > 0 and not self._stopped.wait(left):
            pass
        with self._lock:
            self.yielded_s += rested - began
            self.limited_s += self._clock() - rested

    def worked(self, seconds: float) -> None:
        """A lane has done a piece of work."""
        self._of_lane.rest_until = self._clock() + min(REST_FACTOR * seconds, REST_MAX_S)

    def has_read(self, entries: int, nbytes: int) -> None:
        """Count what was read; what comes next may have to wait for it."""
        with self._lock:
            self.entries += entries
            self.nbytes += nbytes
            self._bytes.use(nbytes, self._clock())

    def stop(self) -> None:
        """Nothing waits any more."""
        self._stopped.set()

    def _rests(self, given: float) -> bool:
        now = self._clock()
        return now < min(self._of_lane.rest_until, given + PATIENCE_S) and self._under_pressure()


class _OfLane(threading.local):
    """What each lane's thread has of its own."""

    rest_until = 0.0
