"""What one client has seen of one bookie. See `health`, which draws the conclusions.

Invariants
- Successful adds are not counted: they are the hot path. With adaptive time-outs one add at a time is measured.
- Reads are measured (`latency`). Fencing reads and long polls are not: they wait for other things.
- An error counts towards the quarantine when it speaks against the bookie: not "no such entry", not "fenced",
  not "read-only", and "no connection" only if the options say so.

Event loop only.

Source: reference client protocol, section 17.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from bookie_client.connection.latency import LatencyEstimate
from bookie_client.options import ClientOptions
from bookie_protocol.errors import BookieReadOnly, LedgerFenced, NotThere, PodkeeperError

_INNOCENT: Final = (NotThere, LedgerFenced, BookieReadOnly)


class Counting(Protocol):
    """The part of a connection that is asked here."""

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
        "adds",
        "connections",
        "down_until",
        "quarantined_until",
        "reads",
        "slow_until",
    )

    def __init__(
        self, options: ClientOptions, clock: Callable[[], float], random: Random, on_quarantine: Callable[[], None]
    ) -> None:
        self._options = options
        self._on_quarantine = on_quarantine
        self._clock = clock
        self._random = random
        self.connections: set[Counting] = set()
        self.down_until = self.quarantined_until = self.slow_until = 0.0
        self.reads = LatencyEstimate()
        self.adds = LatencyEstimate()
        """With adaptive time-outs only."""
        self._errors = 0
        self._interval_end = 0.0

    # --- reads ----------------------------------------------------------------------------------------------

    def read_took(self, seconds: float, now: float) -> None:
        """A read was answered, well or ill, after this time; `now` is when."""
        self.reads.took(seconds, now, self._options.failure_history)

    def add_took(self, seconds: float, now: float) -> None:
        """An add was answered, well or ill, after this time."""
        self.adds.took(seconds, now, self._options.failure_history)

    def mark_slow(self) -> None:
        self.slow_until = self._clock() + self._options.failure_history

    # --- errors ---------------------------------------------------------------------------------------------

    def refused(self, error: type[PodkeeperError], *, was_read: bool) -> None:
        """The bookie answered with an error, or not in time."""
        if issubclass(error, _INNOCENT):
            return
        if was_read:
            self.mark_slow()
        self._count_error()

    def connection_failed(self, seconds: float) -> None:
        """A connection broke or could not be made; if none stands, the bookie counts as down for that long unless
        one is made."""
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
