"""The thread that makes groups durable and acknowledges them.

It takes all waiting groups, syncs every file that any of them touched, oldest first, and only then moves the last
mark and acknowledges the lot with one call of `deliver`. (The reference syncs only the file of the last group before
it acknowledges; that is not enough across a rollover.)

Threads: `put` and `close` on the journal thread, `run` is the sync thread. `last_mark` from any thread.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.storage.journal.batch_queue import Deliver, JournalBatch
from bookie_pod.storage.journal.journal_file import JournalFile
from bookie_pod.storage.journal.marks import LogMark

_log = structlog.get_logger(__name__)

_SLOW_SYNC_LOG_INTERVAL = 10.0
"""Seconds between two lines about slow syncs."""


@dataclass(slots=True)
class WrittenGroup:
    """A group that was written to the OS: all of `file` up to `end`, and who waits for its sync."""

    file: JournalFile
    end: int
    batches: Sequence[JournalBatch]
    synced: threading.Event | None = None
    """Set once the group is synced (and, if the sync thread ends with an error, by the journal)."""
    closes_file: bool = False
    """True if nothing follows in this file: close it after the sync."""
    written_at: float = field(default_factory=time.monotonic)


class SyncThread:
    """Takes written groups in order; `run` ends after `close`, or with the error of a sync."""

    def __init__(self, options: JournalConfig, metrics: JournalMetrics, deliver: Deliver) -> None:
        self.last_mark = LogMark()
        self.slow_syncs = 0
        self.acknowledged_entries = 0
        self.acknowledged_bytes = 0
        self._options = options
        self._metrics = metrics
        self._deliver = deliver
        self._groups: queue.SimpleQueue[WrittenGroup | None] = queue.SimpleQueue()
        self._slow_logged_at = -math.inf
        self._slow_unlogged = 0

    def put(self, group: WrittenGroup) -> None:
        self._groups.put(group)

    def close(self) -> None:
        """Sync what waits, then end: no more groups follow."""
        self._groups.put(None)

    @property
    def waiting(self) -> int:
        """Groups that wait for the next sync (`JOURNAL_FORCE_WRITE_QUEUE_SIZE`)."""
        return self._groups.qsize()

    def run(self, failed: Callable[[], bool]) -> None:
        """Sync until `close`, or until `failed` says that the journal is broken."""
        closed = False
        while not closed:
            groups, closed = self._take_all()
            if failed():
                return
            if groups:
                self._sync(groups)

    def _take_all(self) -> tuple[list[WrittenGroup], bool]:
        groups: list[WrittenGroup] = []
        group = self._groups.get()
        while group is not None:
            groups.append(group)
            try:
                group = self._groups.get_nowait()
            except queue.Empty:
                return groups, False
        return groups, True

    def _sync(self, groups: list[WrittenGroup]) -> None:
        began = time.monotonic()
        ends = {group.file: group.end for group in groups}
        for file, end in ends.items():
            self._sync_file(file, end)
        last = groups[-1]
        self.last_mark = LogMark(last.file.journal_id, last.end)
        self._acknowledge([batch for group in groups for batch in group.batches])
        for group in groups:
            self._metrics.force_write_enqueue.observe_ms((began - group.written_at) * 1000)
            if group.closes_file:
                group.file.close()
            if group.synced is not None:
                group.synced.set()
        self._metrics.force_write_grouping.observe_ms(len(groups))
        self._metrics.force_write_thread_time.add((time.monotonic() - began) * 1000)

    def _sync_file(self, file: JournalFile, end: int) -> None:
        began = time.monotonic()
        try:
            file.sync(end)
        except OSError:
            self._metrics.sync.observe_ms((time.monotonic() - began) * 1000, success=False)
            raise
        took_ms = (time.monotonic() - began) * 1000
        self._metrics.sync.observe_ms(took_ms)
        if 0 < self._options.slow_sync_ms < took_ms:
            self._note_slow_sync(file, took_ms)

    def _note_slow_sync(self, file: JournalFile, took_ms: float) -> None:
        self.slow_syncs += 1
        self._slow_unlogged += 1
        self._metrics.slow_syncs.add(1)
        now = time.monotonic()
        if now - self._slow_logged_at >= _SLOW_SYNC_LOG_INTERVAL:
            _log.warning(
                "slow journal sync: adds wait for this disk",
                path=file.path,
                took_ms=round(took_ms, 1),
                threshold_ms=self._options.slow_sync_ms,
                slow_syncs_since_last_line=self._slow_unlogged,
            )
            self._slow_logged_at = now
            self._slow_unlogged = 0

    def _acknowledge(self, batches: list[JournalBatch]) -> None:
        if not batches:
            return
        entries, nbytes = observe_acknowledged(self._metrics, batches)
        # Counted first: the receiver checks whether there is room for more, and may not be called again.
        self.acknowledged_entries += entries
        self.acknowledged_bytes += nbytes
        began = time.monotonic()
        self._deliver(batches, None)
        self._metrics.callback_time.add((time.monotonic() - began) * 1000)
        self._metrics.force_write_batch_entries.observe_ms(entries)
        self._metrics.force_write_batch_bytes.observe_ms(nbytes)


def observe_acknowledged(metrics: JournalMetrics, batches: Sequence[JournalBatch]) -> tuple[int, int]:
    """Record the latency of acknowledged batches; gives their records and bytes."""
    now = time.monotonic()
    entries = nbytes = 0
    for batch in batches:
        stats = metrics.add_entry if batch.pieces else metrics.force_ledger
        stats.observe_ms((now - batch.queued_at) * 1000, batch.entries)
        entries += batch.entries
        nbytes += batch.nbytes
    return entries, nbytes
