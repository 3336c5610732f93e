"""The latency of a bookie, and the time for which its answers are waited for, by a clock that all connections share.

The clock is one coarse counter for all connections of a client (`Ticker`). So a deadline in ticks means the same to
every connection, and one request object may wait in several. The counter moves by one at a time even when the event
loop was held up for long: answers that came meanwhile are read before their requests are given up.

Invariants
- Latencies are smoothed with the weights that TCP uses for round-trip times (RFC 6298): a mean and a mean deviation.
- A time-out that adapts is never below or above the bounds of the options. Without a recent measurement the fixed
  time-out applies.
- Requests that time out give no latency, so each tick with time-outs doubles what follows from the last ones measured,
  up to the bound, until an answer comes again: a bookie that became slow is found out to be slow, not called dead for
  ever.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import ceil
from typing import Final

from bookie_client.connection.request import BookieRequest, FramedRequest
from bookie_client.options import ClientOptions

_MEAN_WEIGHT: Final = 1 / 8
_DEVIATION_WEIGHT: Final = 1 / 4
_DEVIATIONS: Final = 4.0
MARGIN: Final = 10.0
"""An adaptive time-out is this many times what the bookie's answers take at most as a rule."""
_MOST_DOUBLINGS: Final = 10


class Ticker:
    """Runs while something is attached. `seconds`: length of a tick."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0
        self._callbacks: dict[Callable[[], None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, callback: Callable[[], None]) -> None:
        """Call this at every tick."""
        self._callbacks[callback] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._tick)

    def detach(self, callback: Callable[[], None]) -> None:
        """Stop calling it."""
        self._callbacks.pop(callback, None)
        if not self._callbacks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.now += 1
        self._timer = self._loop.call_later(self.seconds, self._tick)
        for callback in list(self._callbacks):
            callback()


class LatencyEstimate:
    """The expected duration of one kind of request to one bookie. Times are seconds of the event loop's clock."""

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
        """Return True if an answer came within the history."""
        return now < self._measured_until

    @property
    def expected(self) -> float:
        """Return the seconds that an answer usually takes at most."""
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
        """Return the current time-out of requests of this kind, in seconds."""
        if not estimate.is_measured(now):
            return self.fixed
        return min(max(MARGIN * estimate.doubled, self.least), self.most)


class _Kind(Enum):
    ADD = auto()
    READ = auto()
    """A read whose duration is measured."""
    OTHER = auto()


class Lateness:
    """The adaptive time-outs of one connection: how much earlier or later than the fixed ones its requests are given
    up.

    Invariants
    - Only pipelined adds and plain reads adapt; any other request keeps the time-out that it was sent with.
    - At most one add of a connection is measured at a time, and nothing is done for the others: they are the hot path.
    - How long a request waits is decided at each tick, by what is known of the bookie then.

    `adds` and `reads`: the estimates for this bookie, which its connections share; `clock`: the event loop's."""

    def __init__(
        self,
        options: ClientOptions,
        ticker: Ticker,
        adds: LatencyEstimate,
        reads: LatencyEstimate,
        clock: Callable[[], float],
    ) -> None:
        self._add_policy = TimeoutPolicy.of(options, options.add_timeout)
        self._read_policy = TimeoutPolicy.of(options, options.read_timeout)
        self._history = options.failure_history
        self._ticker = ticker
        self._adds = adds
        self._reads = reads
        self._clock = clock
        self._measured: bytes | None = None
        self._sent = 0.0
        self._add_shift = self._read_shift = 0

    # --- measuring ------------------------------------------------------------------------------------------

    def adds_sent(self, key: bytes) -> None:
        """Adds went out; `key` is that of the last one."""
        if self._measured is None:
            self._measured, self._sent = key, self._clock()

    def answers_came(self, outstanding: Collection[bytes]) -> None:
        """Something was received; `outstanding`: keys that still have no answer."""
        if self._measured is not None and self._measured not in outstanding:
            now = self._clock()
            self._adds.took(now - self._sent, now, self._history)
            self._measured = None

    def timed_out(self, expired: Iterable[tuple[bytes, BookieRequest]]) -> None:
        """Record the requests that were given up at this tick."""
        kinds = set()
        for key, request in expired:
            kinds.add(_kind(request))
            if key == self._measured:
                self._measured = None
        if _Kind.ADD in kinds:
            self._adds.timed_out()
        if _Kind.READ in kinds:
            self._reads.timed_out()

    # --- time-outs ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Update the shifts; called at each tick, before `of`."""
        self._add_shift = self._shift(self._add_policy, self._adds)
        self._read_shift = self._shift(self._read_policy, self._reads)

    def of(self, request: BookieRequest) -> int:
        """Return how many ticks after its deadline the request is given up; negative means before."""
        kind = _kind(request)
        return self._add_shift if kind is _Kind.ADD else self._read_shift if kind is _Kind.READ else 0

    @property
    def of_adds(self) -> int:
        """Return how many ticks after their deadline adds are given up; negative means before."""
        return self._add_shift

    def _shift(self, policy: TimeoutPolicy, estimate: LatencyEstimate) -> int:
        tick = self._ticker.seconds
        return ceil(policy.seconds(estimate, self._clock()) / tick) - ceil(policy.fixed / tick)


def _kind(request: BookieRequest) -> _Kind:
    if isinstance(request, FramedRequest):
        return _Kind.ADD
    return _Kind.READ if hasattr(request, "sent") else _Kind.OTHER
