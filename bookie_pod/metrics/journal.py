"""Metrics of one journal: `bookie_journal_*`, label `journalIndex`.

Times are ms. The journal's threads observe once per group, never per entry. Threads: `queue_latency`, `process_time`,
`flush_latency`, `write_bytes` and the flush reasons are observed on the journal thread, `creation_latency` also on the
thread that prepares the next file, all others on the sync thread; `add_entry` and `force_ledger` on both.

Source: docs/internals/bookie-behaviour.md, section 11.4.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from bookie_pod.metrics.registry import Registry


class FlushReason(Enum):
    """The reason why a group was written, by the metric's name."""

    MAX_WAIT = "JOURNAL_NUM_FLUSH_MAX_WAIT"
    """A record had waited long enough."""
    MAX_OUTSTANDING = "JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES"
    """It was large enough."""
    EMPTY_QUEUE = "JOURNAL_NUM_FLUSH_EMPTY_QUEUE"
    """The queue was empty."""


class JournalMetrics:
    """Instruments of one journal."""

    def __init__(self, registry: Registry, index: int) -> None:
        scope = registry.scope("bookie").scope("journal", journalIndex=str(index))
        self._scope = scope
        self.add_entry = scope.op_stats("JOURNAL_ADD_ENTRY", summed=True)
        """Latency from the queue to the acknowledgement; count is entries."""
        self.queue_latency = scope.op_stats("JOURNAL_QUEUE_LATENCY")
        """Latency from the queue to the journal thread."""
        self.process_time = scope.op_stats("JOURNAL_PROCESS_TIME_LATENCY")
        """One turn of the journal thread."""
        self.flush_latency = scope.op_stats("JOURNAL_FLUSH_LATENCY")
        """Writing one group to the operating system."""
        self.force_write_enqueue = scope.op_stats("JOURNAL_FORCE_WRITE_ENQUEUE")
        """Latency from the write to the sync thread."""
        self.sync = scope.op_stats("JOURNAL_SYNC", summed=True)
        """One sync."""
        self.creation_latency = scope.op_stats("JOURNAL_CREATION_LATENCY")
        """Making a new journal file."""
        self.force_ledger = scope.op_stats("JOURNAL_FORCE_LEDGER")
        """One force request."""
        self.force_write_grouping = scope.op_stats("JOURNAL_FORCE_WRITE_GROUPING_TOTAL")
        """Groups per sync."""
        self.force_write_batch_entries = scope.op_stats("JOURNAL_FORCE_WRITE_BATCH_ENTRIES")
        """Entries per sync."""
        self.force_write_batch_bytes = scope.op_stats("JOURNAL_FORCE_WRITE_BATCH_BYTES")
        """Bytes per sync."""
        self.groups = {reason: scope.counter(reason.value) for reason in FlushReason}
        """Groups that were written for each reason."""
        self.write_bytes = scope.counter("JOURNAL_WRITE_BYTES")
        """Bytes written, padding included."""
        self.slow_syncs = scope.counter("JOURNAL_SLOW_SYNC_TOTAL")
        """Syncs slower than `journalSlowSyncMs`. Not a metric of the reference implementation."""
        self.callback_time = scope.thread_counter("callback_time")
        """Time spent handing over acknowledgements, ms."""
        self.force_write_thread_time = scope.thread_counter("force_write_thread_time")
        """Time that the sync thread was busy, ms."""

    def bind_levels(
        self,
        *,
        queue_size: Callable[[], float],
        force_write_queue_size: Callable[[], float],
        memory_used: Callable[[], float],
        memory_max: Callable[[], float],
    ) -> None:
        """Export what waits: records, groups, bytes; and how many bytes may. Once per journal."""
        self._scope.level_counter("JOURNAL_QUEUE_SIZE", queue_size)
        self._scope.level_counter("JOURNAL_FORCE_WRITE_QUEUE_SIZE", force_write_queue_size)
        self._scope.gauge("JOURNAL_MEMORY_USED", memory_used)
        self._scope.gauge("JOURNAL_MEMORY_MAX", memory_max)
