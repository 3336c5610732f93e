"""How much earlier or later than by the fixed time-outs the requests of one connection are given up, with time-outs
that adapt (`latency`).

Invariants
- Only pipelined adds and plain reads adapt; any other request keeps the time-out that it was sent with.
- At most one add of a connection is measured at a time, and nothing is done for the others: they are the hot path.
- What a request waits for is decided at each tick, by what is known of the bookie then.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from math import ceil

from bookie_client.connection.bookie_record import BookieRecord
from bookie_client.connection.latency import LatencyEstimate, TimeoutPolicy
from bookie_client.connection.request import BookieRequest, FramedRequest
from bookie_client.connection.ticker import Ticker
from bookie_client.options import ClientOptions


class _Kind(Enum):
    ADD = auto()
    READ = auto()
    """A read whose duration is measured."""
    OTHER = auto()


class Lateness:
    """The adapting time-outs of one connection. `clock`: the event loop's."""

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
