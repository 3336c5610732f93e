"""How long a bookie takes to answer, and how long its answers are waited for, by a clock that all connections share.

The clock is one coarse counter for all connections of a client (`Ticker`). So a deadline in ticks means the same to
every connection, and one request object may wait in several. The counter moves by one at a time even when the event
loop was held up for long: answers that came meanwhile are read before their requests are given up.

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

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from math import ceil
from typing import TYPE_CHECKING, Final

from bookie_client.connection.request import BookieRequest, FramedRequest
from bookie_client.options import ClientOptions

if TYPE_CHECKING:
    from bookie_client.connection.health import BookieRecord

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


class _Kind(Enum):
    ADD = auto()
    READ = auto()
    """A read whose duration is measured."""
    OTHER = auto()


class Lateness:
    """How much earlier or later than by the fixed time-outs the requests of one connection are given up, with time-outs
    that adapt (`latency`).

    Invariants
    - Only pipelined adds and plain reads adapt; any other request keeps the time-out that it was sent with.
    - At most one add of a connection is measured at a time, and nothing is done for the others: they are the hot
      path.
    - What a request waits for is decided at each tick, by what is known of the bookie then.

    The adapting time-outs of one connection. `clock`: the event loop's.
    """

    def __init__(
        self, options: ClientOptions, ticker: Ticker, record: BookieRecord, clock: Callable[[], float]
    ) -> None:
        self._adds = TimeoutPolicy.of(options, options.add_timeout)
        self._reads = TimeoutPolicy.of(options, options.read_timeout)
        self._ticker = ticker
        self._record = record
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
            self._record.add_took(now - self._sent, now)
            self._measured = None

    def timed_out(self, expired: Iterable[tuple[bytes, BookieRequest]]) -> None:
        """These were given up at this tick."""
        kinds = set()
        for key, request in expired:
            kinds.add(_kind(request))
            if key == self._measured:
                self._measured = None
        if _Kind.ADD in kinds:
            self._record.adds.timed_out()
        if _Kind.READ in kinds:
            self._record.reads.timed_out()

    # --- time-outs ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """To be called at each tick, before `of`."""
        self._add_shift = self._shift(self._adds, self._record.adds)
        self._read_shift = self._shift(self._reads, self._record.reads)

    def of(self, request: BookieRequest) -> int:
        """How many ticks behind its deadline the request is given up; before it, if negative."""
        kind = _kind(request)
        return self._add_shift if kind is _Kind.ADD else self._read_shift if kind is _Kind.READ else 0

    def _shift(self, policy: TimeoutPolicy, estimate: LatencyEstimate) -> int:
        tick = self._ticker.seconds
        return ceil(policy.seconds(estimate, self._clock()) / tick) - ceil(policy.fixed / tick)


def _kind(request: BookieRequest) -> _Kind:
    if isinstance(request, FramedRequest):
        return _Kind.ADD
    return _Kind.READ if hasattr(request, "sent") else _Kind.OTHER
