"""What a journal counts (reference bookie behaviour, section 11.4).

`JournalMetrics` holds objects that the journal calls once per batch, group or sync; whoever exposes metrics passes
real ones. What is a level rather than an event (`JOURNAL_QUEUE_SIZE`, `JOURNAL_FORCE_WRITE_QUEUE_SIZE`,
`JOURNAL_MEMORY_USED`, `JOURNAL_MEMORY_MAX`) is a property of `Journal`, to be read when metrics are collected.

Threads: `queue_latency`, `process_time`, `flush_latency`, `creation_latency`, `write_bytes` and the flush reasons are
called on the journal thread, `creation_latency` also on the thread that prepares the next file, all others on the sync
thread; `add_entry` and `force_ledger` on both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from bookie_pod.storage.journal.group_commit import FlushReason


class OpStats(Protocol):
    """A summary of latencies (or of sizes: then the value is the size)."""

    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None: ...


class Counter(Protocol):
    """A sum that only grows."""

    def add(self, n: float) -> None: ...


class _NoStats:
    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None:
        pass


class _NoCounter:
    def add(self, n: float) -> None:
        pass


def _no_stats() -> OpStats:
    return _NoStats()


def _no_counter() -> Counter:
    return _NoCounter()


@dataclass(slots=True)
class JournalMetrics:
    """One object per metric; the default of each does nothing."""

    add_entry: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_ADD_ENTRY`: from `append` to the acknowledgement, counted per record."""
    force_ledger: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_FORCE_LEDGER`: the same for force markers."""
    sync: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_SYNC`: one sync of one file."""
    force_write_enqueue: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_FORCE_WRITE_ENQUEUE`: a group's wait for the sync thread."""
    creation_latency: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_CREATION_LATENCY`: making a new file."""
    flush_latency: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_FLUSH_LATENCY`: writing one group to the OS."""
    queue_latency: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_QUEUE_LATENCY`: from `append` until the journal thread takes the batch."""
    process_time: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_PROCESS_TIME_LATENCY`: one round of the journal thread."""
    force_write_grouping: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_FORCE_WRITE_GROUPING_TOTAL`: groups per sync."""
    force_write_batch_entries: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_FORCE_WRITE_BATCH_ENTRIES`: records per sync."""
    force_write_batch_bytes: OpStats = field(default_factory=_no_stats)
    """`JOURNAL_FORCE_WRITE_BATCH_BYTES`: bytes per sync."""
    flush_max_wait: Counter = field(default_factory=_no_counter)
    """`JOURNAL_NUM_FLUSH_MAX_WAIT`: groups written because the oldest record had waited long enough."""
    flush_max_outstanding: Counter = field(default_factory=_no_counter)
    """`JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES`: because of their size."""
    flush_empty_queue: Counter = field(default_factory=_no_counter)
    """`JOURNAL_NUM_FLUSH_EMPTY_QUEUE`: because nothing else was there."""
    write_bytes: Counter = field(default_factory=_no_counter)
    """`JOURNAL_WRITE_BYTES`: bytes written, padding included."""
    callback_time: Counter = field(default_factory=_no_counter)
    """`callback_time`: ms spent handing over acknowledgements."""
    force_write_thread_time: Counter = field(default_factory=_no_counter)
    """`force_write_thread_time`: ms that the sync thread was busy."""
    slow_syncs: Counter = field(default_factory=_no_counter)
    """Podkeeper's own: syncs slower than `JournalOptions.slow_sync_ms`."""

    def count_flush(self, reason: FlushReason) -> None:
        """One group was written, for this reason."""
        if reason is FlushReason.MAX_WAIT:
            self.flush_max_wait.add(1)
        elif reason is FlushReason.MAX_OUTSTANDING:
            self.flush_max_outstanding.add(1)
        else:
            self.flush_empty_queue.add(1)
