"""How long a bookie takes to answer, and how long its answers are waited for.

Invariants
- Latencies are smoothed with the weights that TCP uses for round-trip times (RFC 6298): a mean and a mean deviation.
- A time-out that adapts is never below or above the bounds of the options. What nobody has measured lately has the
  fixed one.
- Requests that time out tell no latency, so each tick with time-outs doubles what follows from the last ones measured,
  up to the bound, until an answer comes again: a bookie that became slow is found out to be slow, not called dead for
  ever.

Event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie_client.options import ClientOptions

_MEAN_WEIGHT: Final = 1 / 8
_DEVIATION_WEIGHT: Final = 1 / 4
_DEVIATIONS: Final = 4.0
MARGIN: Final = 10.0
"""An adaptive time-out is this many times what the bookie's answers take at most as a rule."""
_MOST_DOUBLINGS: Final = 10


class LatencyEstimate:
    """What one kind of request to one bookie is expected to take. Times are seconds of the event loop's clock."""

    __slots__ = ("_deviation", "_doublings", "_measured_until", "mean")

    def __init__(self) -> None:
        self.mean = 0.0
        self._deviation = 0.0
        self._measured_until = 0.0
        self._doublings = 0

    def took(self, seconds: float, now: float, history: float) -> None:
        """An answer took so long; it counts for `history` seconds."""
        if now < self._measured_until:
            self._deviation += (abs(seconds - self.mean) - self._deviation) * _DEVIATION_WEIGHT
            self.mean += (seconds - self.mean) * _MEAN_WEIGHT
        else:
            self.mean, self._deviation = seconds, seconds / 2
        self._measured_until = now + history
        self._doublings = 0

    def timed_out(self) -> None:
        """Requests were given up in this tick."""
        self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)

    def is_measured(self, now: float) -> bool:
        """Whether an answer came within the history."""
        return now < self._measured_until

    @property
    def expected(self) -> float:
        """What an answer takes at most as a rule."""
        return self.mean + _DEVIATIONS * self._deviation

    @property
    def doubled(self) -> float:
        """The same, doubled for each tick with time-outs since the last answer."""
        return self.expected * (1 << self._doublings)


@dataclass(frozen=True, slots=True)
class TimeoutPolicy:
    """Bounds of time-outs that adapt, in seconds."""

    fixed: float
    least: float
    most: float

    @classmethod
    def of(cls, options: ClientOptions, fixed: float) -> TimeoutPolicy:
        return cls(fixed, options.min_adaptive_timeout, options.max_adaptive_timeout)

    def seconds(self, estimate: LatencyEstimate, now: float) -> float:
        """How long requests of this kind are waited for now."""
        if not estimate.is_measured(now):
            return self.fixed
        return min(max(MARGIN * estimate.doubled, self.least), self.most)
