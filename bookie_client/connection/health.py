"""The health of each bookie as this client sees it (`BookieRecord`): failures, slowness, overload; and what follows.

Invariants
- Everything here is a preference. Nothing is refused because of it: a caller that has no other bookie uses
  this one.
- Every mark ends by itself: failures and slowness after `failure_history`, quarantine after `quarantine_time`. A
  quarantine ends earlier when the bookie answers a probe, and by the cluster's switch (`quarantine`). A bookie that is
  not asked because of a mark is asked again when it ends.
- One event is counted once, however many requests meet it: time-outs that follow each other within `add_timeout` are
  one *stall*, and one stall counts for at most a third of `quarantine_errors`.
- While requests time out on a connection and nothing is heard there, the bookie counts as one that cannot be reached.
- Successful adds are not counted: they are the hot path. With adaptive time-outs one add at a time is measured.
- Reads are measured (`latency`). Fencing reads and long polls are not: they wait for other things.
- An error counts towards the quarantine when it speaks against the bookie: not "no such entry", not "fenced",
  not "read-only", and "no connection" only if the options say so.
- The clock is the event loop's. `random` decides whether this client takes part in a quarantine, so that not
  all clients of a cluster leave a bookie at once when `quarantine_ratio` is below 1.

Event loop only.

Source: docs/internals/client-protocol.md, sections 17 and 18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import ceil, inf
from random import Random
from statistics import median, median_low
from typing import Final, NamedTuple, Protocol

from bookie_client.connection.latency import LatencyEstimate
from bookie_client.options import ClientOptions
from bookie_protocol.errors import BookieReadOnly, BookieTimeout, LedgerFenced, NotThere, PodkeeperError

UNKNOWN_READ_SECONDS: Final = 2.0
"""Expected duration of a read before any was measured: the reference's `speculativeReadTimeout`."""
FAR_SLOWER: Final = 4.0
"""A bookie is slow when its reads take this many times as long as the median bookie's (of two, the faster one)."""
SLOW_SECONDS: Final = 0.02
"""Reads that are faster than this never make a bookie slow."""
FEW: Final = 16
"""Up to this number of bookies, the usual latency is calculated again each time it is needed."""
KEPT_SECONDS: Final = 20e-6
"""Among more it is kept for so long for each of them, some forty times what it takes to find."""


STALLS: Final = 3
"""A quarantine takes at least so many stalls, if nothing but time-outs speaks against the bookie."""


_INNOCENT: Final = (NotThere, LedgerFenced, BookieReadOnly)


class Counting(Protocol):
    """The part of a `BookieConnection`, which imports this module, that is asked here."""

    @property
    def outstanding(self) -> int: ...


class BookieRecord:
    """Times are seconds of the event loop's clock."""

    __slots__ = (
        "_clock",
        "_errors",
        "_interval_end",
        "_on_quarantine",
        "_options",
        "_random",
        "_stall_errors",
        "_stall_until",
        "adds",
        "connections",
        "down_until",
        "quarantined_until",
        "reads",
        "slow_until",
        "stalled",
    )

    def __init__(
        self, options: ClientOptions, clock: Callable[[], float], random: Random, on_quarantine: Callable[[], None]
    ) -> None:
        self._options = options
        self._on_quarantine = on_quarantine
        self._clock = clock
        self._random = random
        self.connections: set[Counting] = set()
        self.stalled: set[Counting] = set()
        """Connections on which requests timed out and nothing was heard since, or that are behind."""
        self.down_until = self.quarantined_until = self.slow_until = 0.0
        self.reads = LatencyEstimate()
        self.adds = LatencyEstimate()
        """Latency of adds, measured with adaptive time-outs only."""
        self._errors = 0
        self._interval_end = 0.0
        self._stall_errors = 0
        self._stall_until = 0.0

    # --- reads ----------------------------------------------------------------------------------------------

    def read_took(self, seconds: float, now: float) -> None:
        """A read was answered, well or ill, after this time; `now` is when."""
        self.reads.took(seconds, now, self._options.failure_history)

    def mark_slow(self) -> None:
        self.slow_until = self._clock() + self._options.failure_history

    # --- errors ---------------------------------------------------------------------------------------------

    def refused(self, error: type[PodkeeperError], *, was_read: bool) -> None:
        """The bookie answered with an error, or not in time."""
        if issubclass(error, _INNOCENT):
            return
        if was_read:
            self.mark_slow()
        if not issubclass(error, BookieTimeout) or self._counts_in_stall():
            self._count_error()

    def connection_failed(self, seconds: float) -> None:
        """Record a connection that broke or could not be made. Without another open connection, the bookie counts as
        down for `seconds`, or until one is made."""
        if not self.connections:
            self.down_until = self._clock() + seconds
        if self._options.quarantine_connection_errors:
            self._count_error()

    def connected(self, connection: Counting) -> None:
        self.down_until = 0.0
        self.connections.add(connection)

    def release(self) -> None:
        self.quarantined_until = 0.0
        self._errors = 0

    def _counts_in_stall(self) -> bool:
        """Return whether a time-out counts, or is one of a stall that has counted enough."""
        now = self._clock()
        if now >= self._stall_until:
            self._stall_errors, self._stall_until = 0, now + self._options.add_timeout
        self._stall_errors += 1
        return self._stall_errors <= ceil(self._options.quarantine_errors / STALLS)

    def _count_error(self) -> None:
        options, now = self._options, self._clock()
        if now >= self._interval_end:
            self._errors, self._interval_end = 0, now + options.quarantine_interval
        self._errors += 1
        # Equal, not greater: the dice are thrown once in an interval.
        due = options.quarantine and self._errors == options.quarantine_errors and now >= self.quarantined_until
        if due and self._random.random() < options.quarantine_ratio:
            self.quarantined_until = now + options.quarantine_time
            self._on_quarantine()


class Troubles(NamedTuple):
    """Recent problems of some bookies; see the methods of `BookieHealth` of these names."""

    failed_lately: frozenset[str]
    quarantined: frozenset[str]
    slow: frozenset[str]


class _Usual(NamedTuple):
    """Figures over the recently measured reads of all bookies."""

    slow_from: float
    """Seconds from which on the mean of a bookie's reads makes it slow."""
    expected: float


class BookieHealth:
    """The records of one client, by bookie id; connections feed them."""

    def __init__(self, options: ClientOptions, clock: Callable[[], float], random: Random | None = None) -> None:
        self._options = options
        self._clock = clock
        self._random = random or Random()
        self._records: dict[str, BookieRecord] = {}
        self._usual = _Usual(inf, UNKNOWN_READ_SECONDS)
        self._usual_until = 0.0
        self.quarantine_began = asyncio.Event()
        """Set when a bookie is put into quarantine; who waits for it clears it."""

    def record(self, bookie: str) -> BookieRecord:
        """Return the record of one bookie, for the connections to it."""
        record = self._records.get(bookie)
        if record is None:
            record = self._records[bookie] = BookieRecord(
                self._options, self._clock, self._random, self.quarantine_began.set
            )
        return record

    def failed_lately(self) -> frozenset[str]:
        """Return the bookies that could not be reached recently and have not been connected to since, and the stalled
        ones."""
        return self.troubles(self._records).failed_lately

    def quarantined(self) -> frozenset[str]:
        """Bookies with too many errors and stalls lately: not for new ensembles while others that obey the placement
        rule suffice."""
        return self.troubles(self._records).quarantined

    def release(self, bookie: str) -> None:
        """End a bookie's quarantine, and forget the errors that would begin the next one."""
        self.record(bookie).release()

    def slow(self) -> frozenset[str]:
        """Bookies that failed a read lately, were overtaken in one, or read far slower than their peers: asked
        last."""
        return self.troubles(self._records).slow

    def troubles(self, bookies: Iterable[str]) -> Troubles:
        """All of this for some bookies: it costs a read as much as it has replicas, whatever else this client knows."""
        now, records = self._clock(), self._records
        slow_from = self._peers(now).slow_from
        failed, quarantined, slow = [], [], []
        for bookie in bookies:
            record = records.get(bookie)
            if record is None:
                continue
            if now < record.down_until or record.stalled:
                failed.append(bookie)
            if now < record.quarantined_until:
                quarantined.append(bookie)
            if now < record.slow_until or (record.reads.mean > slow_from and record.reads.is_measured(now)):
                slow.append(bookie)
        return Troubles(frozenset(failed), frozenset(quarantined), frozenset(slow))

    def mark_slow(self, bookie: str) -> None:
        """Another bookie that was asked later was faster (speculative reads)."""
        self.record(bookie).mark_slow()

    def expected_read_seconds(self, bookie: str) -> float:
        """Return the seconds that a read of this bookie usually takes at most: the mean of its reads plus four times
        their mean deviation.

        Before any read was measured, return the median of its peers, else `UNKNOWN_READ_SECONDS`."""
        record, now = self._records.get(bookie), self._clock()
        is_measured = record is not None and record.reads.is_measured(now)
        expected = record.reads.expected if record is not None and is_measured else self._peers(now).expected
        return min(expected, self._options.read_timeout)

    def outstanding(self, bookie: str) -> int:
        """Requests to this bookie that wait for their answer."""
        record = self._records.get(bookie)
        return 0 if record is None else sum(connection.outstanding for connection in record.connections)

    def _peers(self, now: float) -> _Usual:
        """Return the figures over all records. With many bookies they are cached, not calculated for each read."""
        if now >= self._usual_until:
            reads = [record.reads for record in self._records.values() if record.reads.is_measured(now)]
            slow_from = (
                max(SLOW_SECONDS, FAR_SLOWER * median_low(each.mean for each in reads)) if len(reads) > 1 else inf
            )
            self._usual = _Usual(slow_from, median(each.expected for each in reads) if reads else UNKNOWN_READ_SECONDS)
            self._usual_until = now + len(self._records) * KEPT_SECONDS if len(self._records) > FEW else 0.0
        return self._usual
