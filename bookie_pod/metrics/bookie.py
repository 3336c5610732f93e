"""Metrics of the bookie as a whole: `bookie_*`.

Source: docs/internals/bookie-behaviour.md, section 11.3.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count

from bookie_pod.metrics.registry import Registry


class BookieMetrics:
    """Instruments of one bookie. Any thread may observe; once per batch."""

    def __init__(self, registry: Registry) -> None:
        scope = registry.scope("bookie")
        self._scope = scope
        self.write_bytes = scope.counter("WRITE_BYTES")
        """Bytes of entries accepted."""
        self.read_bytes = scope.counter("READ_BYTES")
        """Bytes of entries handed out."""
        self.force_ledger = scope.counter("BOOKIE_FORCE_LEDGER")
        """Force requests."""
        self.add_entry = scope.op_stats("BOOKIE_ADD_ENTRY")
        """Adds, ms, until handed to the journal."""
        scope.op_stats("BOOKIE_RECOVERY_ADD_ENTRY")
        """Exported and always zero: the hot path does not tell copies and adds of recoveries from a writer's."""
        self.read_entry = scope.op_stats("BOOKIE_READ_ENTRY")
        """Reads, ms."""
        self.get_list_of_entries = scope.op_stats("BOOKIE_GET_LIST_OF_ENTRIES_OF_LEDGER")
        """Availability lists, ms."""
        self.add_entry_bytes = scope.op_stats("BOOKIE_ADD_ENTRY_BYTES")
        """Size of added entries."""
        self.read_entry_bytes = scope.op_stats("BOOKIE_READ_ENTRY_BYTES")
        """Size of read entries."""
        self.sync_thread_time = scope.thread_counter("sync_thread_time")
        """Time that the checkpoint thread was busy, ms."""

    def added(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        """A batch of `entries` adds with `nbytes` in all was handed to the journal."""
        self.write_bytes.add(nbytes)
        self.add_entry.observe_ms(elapsed_ms, entries)
        if entries:
            self.add_entry_bytes.observe(nbytes / entries, entries)

    def was_read(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        """`entries` entries with `nbytes` in all were read."""
        self.read_bytes.add(nbytes)
        self.read_entry.observe_ms(elapsed_ms, entries)
        if entries:
            self.read_entry_bytes.observe(nbytes / entries, entries)

    def bind_status(self, server_status: Callable[[], float]) -> None:
        """Export the state: 1 writable, 0 read-only, -1 not registered."""
        self._scope.gauge("SERVER_STATUS", server_status)

    def bind_slow_parts(self, slow: Callable[[], float]) -> None:
        """Export how many threads make no progress: half of the time after which they end the bookie has passed."""
        self._scope.gauge("STALLED_THREADS", slow)

    def bind_sanity(self, sanity: Callable[[], float]) -> None:
        """Export the last sanity test: 1 passed, 0 failed, -1 none yet."""
        self._scope.gauge("SERVER_SANITY", sanity)

    def bind_journals(self, directories: int, queue_max_size: int) -> None:
        """Export how many journals there are, and how many records may wait in each."""
        self._scope.gauge("JOURNAL_DIRS", lambda: directories)
        self._scope.gauge("JOURNAL_QUEUE_MAX_SIZE", lambda: queue_max_size)

    def bind_directories(
        self, kind: str, writable: Callable[[], float], usage_percent: dict[str, Callable[[], float]]
    ) -> None:
        """Export the directories of a kind (`ledger`, `index`): how many, how many writable, how full
        each."""
        self._scope.gauge(f"{kind}_writable_dirs", writable)
        directories = len(usage_percent)
        self._scope.gauge(f"{kind}_num_dirs", lambda: directories)
        self._bind_usage(kind, usage_percent)

    def bind_failed_directories(self, failed: Callable[[], float]) -> None:
        """Export how many ledger directories failed while the others go on."""
        self._scope.gauge("ledger_failed_dirs", failed)

    def bind_journal_disks(self, usage_percent: dict[str, Callable[[], float]]) -> None:
        """Export how full the disk of each journal directory is."""
        self._bind_usage("journal", usage_percent)

    def _bind_usage(self, kind: str, usage_percent: dict[str, Callable[[], float]]) -> None:
        """The reference's names; of paths that have one name (`a/b`, `a_b`) the later ones get a number."""
        taken: set[str] = set()
        for path, usage in usage_percent.items():
            plain = path.replace("/", "_")
            numbered = (f"{plain}_{number}" for number in count(2))
            name = next(name for name in chain([plain], numbered) if name not in taken)
            taken.add(name)
            self._scope.gauge(f"{kind}_dir_{name}_usage", usage)
