"""Metrics of the replication worker, with Apache BookKeeper's names: `replication_worker_*` in a process of its own,
`replication_replication_worker_*` inside a bookie.

`READ_DATA_LATENCY` and `WRITE_DATA_LATENCY` are those of pieces of entries, which are read and stored in one go. Ours
are the levels, and the counters of recovered ledgers and of marks of deleted ones.

Source: reference auto-recovery, section 16. Any thread may observe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_pod.metrics.registry import Registry

_MAX_CLASSES: Final = 64


class ReplicationWorkerMetrics:
    """Instruments of one worker."""

    def __init__(self, registry: Registry, *, embedded: bool) -> None:
        """`embedded`: inside a bookie."""
        self._scope = scope = registry.scope("replication_replication_worker" if embedded else "replication_worker")
        self._rereplicate = scope.op_stats("rereplicate")
        self._repaired = scope.counter("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED")
        self._moved = scope.counter("NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED")
        self._entries_read = scope.counter("NUM_ENTRIES_READ")
        self._entries_written = scope.counter("NUM_ENTRIES_WRITTEN")
        self._bytes_read = scope.op_stats("NUM_BYTES_READ")
        self._bytes_written = scope.op_stats("NUM_BYTES_WRITTEN")
        self._read_latency = scope.op_stats("READ_DATA_LATENCY")
        self._write_latency = scope.op_stats("WRITE_DATA_LATENCY")
        self._deferred = scope.counter("NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER")
        self._unreadable = scope.counter("NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION")
        self._recovered = scope.counter("NUM_OPEN_LEDGERS_RECOVERED")
        self._deleted = scope.counter("NUM_DELETED_LEDGERS_UNMARKED")
        self._classes: set[str] = set()

    def bind_levels(
        self,
        *,
        running: Callable[[], float],
        at_work: Callable[[], float],
        waiting: Callable[[], float],
        failing: Callable[[], float],
        losing: Callable[[], float],
        locks_not_released: Callable[[], float],
        rate_limit: Callable[[], float],
    ) -> None:
        """Export how much is going on. `losing`: ledgers at hand with entries of which no copy is left. `rate_limit`:
        bytes per second; 0: none."""
        self._scope.gauge("RUNNING", running)
        self._scope.gauge("LEDGERS_AT_WORK", at_work)
        self._scope.gauge("OPEN_LEDGERS_WAITING", waiting)
        self._scope.gauge("LEDGERS_BACKING_OFF", failing)
        self._scope.gauge("LEDGERS_WITH_LOST_ENTRIES", losing)
        self._scope.gauge("LOCKS_NOT_RELEASED", locks_not_released)
        self._scope.gauge("RATE_LIMIT_BYTES", rate_limit)

    # --- ledgers ----------------------------------------------------------------------------------------------

    def processed(self, seconds: float, *, success: bool) -> None:
        """One round with a ledger ended."""
        self._rereplicate.observe_ms(seconds * 1000, success=success)

    def repaired(self) -> None:
        """A ledger has all its copies again, and some were made for it."""
        self._repaired.add()

    def moved(self) -> None:
        """Copies of a ledger were moved for the sake of its placement."""
        self._moved.add()

    def recovered(self) -> None:
        """An open ledger was fenced and closed."""
        self._recovered.add()

    def deleted(self) -> None:
        """The ledger of a mark did not exist any more."""
        self._deleted.add()

    def deferred(self) -> None:
        """The lock of a ledger that failed is kept for a while."""
        self._deferred.add()

    def failed_with(self, error: BaseException) -> None:
        """A round ended with this error."""
        name = type(error).__name__
        if name not in self._classes:
            if len(self._classes) >= _MAX_CLASSES:
                name = "other"
            self._classes.add(name)
        self._scope.counter(f"exceptions_{name}").add()

    # --- entries ----------------------------------------------------------------------------------------------

    def copied(self, entries: int, nbytes: int, seconds: float) -> None:
        """A piece of a fragment was read, and stored by all its targets, so long after the piece before it."""
        if entries > 0:
            self._entries_read.add(entries)
            self._bytes_read.observe(nbytes / entries, entries)
            self._read_latency.observe_ms(seconds * 1000)
            self._write_latency.observe_ms(seconds * 1000)

    def written(self, entries: int, nbytes: int) -> None:
        """All copies of a fragment were stored: each entry as often as there were targets for it."""
        if entries > 0:
            self._entries_written.add(entries)
            self._bytes_written.observe(nbytes / entries, entries)

    def unreadable(self, entries: int) -> None:
        """Entries of which no copy could be read."""
        self._unreadable.add(entries)
