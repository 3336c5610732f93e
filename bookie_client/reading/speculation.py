"""Speculative reads: the time at which the next replica is asked although the ones before may still answer.

Invariants
- A replica that goes on answering other reads of the range is given more time, until the first look after the longest
  delay: it is busy, not gone, and asking others as well would make all of them busier.
- One timer serves all reads of a range, and there is none while nothing waits.

`SpeculationPolicy` is pure; `Speculator` belongs to the event loop.

Source: docs/internals/client-protocol.md, sections 11.2 and 18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from bookie_client.options import ClientOptions

LEAST_ADAPTIVE_DELAY: Final = 0.1
"""Seconds. Below it other replicas are seldom faster, and the event loop's own pauses would count."""
LEAST_PAUSE: Final = 0.005
"""Seconds between two looks at a range."""


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """Delays in seconds. `first` None: adaptive; 0: never speculate."""

    first: float | None
    longest: float
    multiplier: float

    @classmethod
    def of(cls, options: ClientOptions) -> SpeculationPolicy:
        return cls(
            options.first_speculative_read_timeout,
            options.max_speculative_read_timeout,
            options.speculative_read_backoff_multiplier,
        )

    @property
    def is_off(self) -> bool:
        return self.first == 0

    def first_delay(self, expected: float) -> float:
        """Return the seconds that the first replica has. `expected`: seconds that its reads usually take at most."""
        if self.first is not None:
            return min(self.first, self.longest)
        return min(max(3 * expected, LEAST_ADAPTIVE_DELAY), self.longest)

    def next_delay(self, delay: float) -> float:
        """Return the seconds that the next replica has."""
        return min(delay * self.multiplier, self.longest)


class Waiting(Protocol):
    """Reads that wait for replicas. Times are those of the event loop's clock."""

    due: float
    """Time of the next look after them; `inf`: never again."""

    def speculate(self, now: float, alive: frozenset[str]) -> None:
        """Ask the next replica for each read that is due, and move `due`. `alive`: bookies that answered
        since the last look."""


class Speculator:
    """Calls `speculate` of waiting reads when they are due. `served` counts the answers of each bookie."""

    def __init__(self, timers: asyncio.AbstractEventLoop, served: Mapping[str, int]) -> None:
        self._timers = timers
        self._served = served
        self._seen: dict[str, int] = {}
        self._waiting: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf

    def watch(self, reads: Waiting) -> None:
        """Look after these reads until `forget`."""
        if not self._waiting:
            self._seen = dict(self._served)
        self._waiting.add(reads)
        self._look_at(reads.due)

    def forget(self, reads: Waiting) -> None:
        """They have ended. The timer ends by itself when nothing is left."""
        self._waiting.discard(reads)

    def stop(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._look_at(-inf)

    def _look_at(self, due: float) -> None:
        """Set the timer, unless it goes off earlier anyway; `-inf`: stop it."""
        if due >= self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._at = None, inf
        if due > -inf:
            self._timer, self._at = self._timers.call_at(due, self._look), due

    def _look(self) -> None:
        self._timer, self._at = None, inf
        if not self._waiting:
            return
        now = self._timers.time()
        served = dict(self._served)
        alive = frozenset(bookie for bookie, count in served.items() if count != self._seen.get(bookie, 0))
        self._seen = served
        for reads in list(self._waiting):
            if reads.due <= now:
                reads.speculate(now, alive)
        self._look_at(max(min((reads.due for reads in self._waiting), default=inf), now + LEAST_PAUSE))
