"""Metrics of one journal: `bookie_journal_*`, label `journalIndex`.

Times are ms. The journal's threads observe once per group, never per entry. What the journal itself calls has
the names of the fields of its `JournalMetrics`: `JournalMetrics(**instruments.fields())`.

Source: reference bookie behaviour, section 11.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookie_pod.metrics.registry import Registry


class JournalInstruments:
    """Instruments of one journal."""

    def __init__(self, registry: Registry, index: int) -> None:
        scope = registry.scope("bookie").scope("journal", journalIndex=str(index))
        self._scope = scope
        self.add_entry = scope.op_stats("JOURNAL_ADD_ENTRY")
        """From the queue to the acknowledgement; count is entries."""
        self.queue_latency = scope.op_stats("JOURNAL_QUEUE_LATENCY")
        """From the queue to the journal thread."""
        self.process_time = scope.op_stats("JOURNAL_PROCESS_TIME_LATENCY")
        """One turn of the journal thread."""
        self.flush_latency = scope.op_stats("JOURNAL_FLUSH_LATENCY")
        """Writing one group to the operating system."""
        self.force_write_enqueue = scope.op_stats("JOURNAL_FORCE_WRITE_ENQUEUE")
        """From the write to the sync thread."""
        self.sync = scope.op_stats("JOURNAL_SYNC")
        """One sync."""
        self.creation_latency = scope.op_stats("JOURNAL_CREATION_LATENCY")
        """Making a new journal file."""
        self.force_ledger = scope.op_stats("JOURNAL_FORCE_LEDGER")
        """One force request."""
        self.force_write_grouping = scope.op_stats("JOURNAL_FORCE_WRITE_GROUPING_TOTAL")
        """Groups per sync."""
        self.force_write_batch_entries = scope.op_stats("JOURNAL_FORCE_WRITE_BATCH_ENTRIES")
        """Entries per group."""
        self.force_write_batch_bytes = scope.op_stats("JOURNAL_FORCE_WRITE_BATCH_BYTES")
        """Bytes per group."""
        self.flush_max_wait = scope.counter("JOURNAL_NUM_FLUSH_MAX_WAIT")
        """Groups that ended because a record had waited long enough."""
        self.flush_max_outstanding = scope.counter("JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES")
        """Groups that ended because they were large enough."""
        self.flush_empty_queue = scope.counter("JOURNAL_NUM_FLUSH_EMPTY_QUEUE")
        """Groups that ended because no record waited."""
        self.write_bytes = scope.counter("JOURNAL_WRITE_BYTES")
        """Bytes written."""
        self.slow_syncs = scope.counter("JOURNAL_SLOW_SYNC_TOTAL")
        """Syncs slower than `journalSlowSyncMs`. Not a metric of the reference implementation."""
        self.callback_time = scope.thread_counter("callback_time")
        """Time spent handing over acknowledgements, ms."""
        self.force_write_thread_time = scope.thread_counter("force_write_thread_time")
        """Time that the sync thread was busy, ms."""

    def fields(self) -> dict[str, Any]:
        """The instruments that the journal calls, by its names for them."""
        return {name: value for name, value in vars(self).items() if name != "_scope"}

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
