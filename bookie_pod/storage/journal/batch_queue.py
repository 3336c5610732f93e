"""The queue between whoever appends and the journal thread.

Invariants
- `append` never blocks. It wakes the journal thread only if that sleeps without a limit or a threshold is
  passed; else the thread wakes by itself when the last group has left long enough ago. So a busy journal
  costs one wake-up per group, not one per batch.
- No wake-up is lost: the thread says that it sleeps, then looks at the queue; `append` fills the queue,
  then looks whether the thread sleeps.
- Each counter is written by one side only; a difference of two may lag for a moment.

Threads: `append` on one thread (the event loop), `wait_for_group` and `take_group` on the journal thread,
`wake` and the levels on any.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from bookie_pod.metrics.journal import FlushReason, JournalMetrics
from bookie_pod.storage.journal.batch import JournalBatch
from bookie_pod.storage.journal.group_commit import flush_reason, group_wait_ms, over_threshold
from bookie_pod.storage.journal.group_pace import GroupPace
from bookie_pod.storage.journal.options import JournalOptions


class BatchQueue:
    """Batches in order; the bound on it is `Journal.has_room`, which the appender watches."""

    def __init__(self, options: JournalOptions, metrics: JournalMetrics) -> None:
        self.appended_entries = 0
        self.appended_bytes = 0
        self._taken_entries = 0
        self._taken_bytes = 0
        self._options = options
        self._metrics = metrics
        self._batches: deque[JournalBatch] = deque()
        self._wake = threading.Event()
        self._sleeping = False
        self._left_at = -math.inf
        """When the last group was taken."""
        self._due_at = 0.0
        """When `append` woke the thread for a threshold; 0: it did not."""
        self.pace = GroupPace(options)

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def entries(self) -> int:
        """Records not taken yet."""
        return self.appended_entries - self._taken_entries

    @property
    def nbytes(self) -> int:
        """Bytes not taken yet."""
        return self.appended_bytes - self._taken_bytes

    def append(self, batch: JournalBatch) -> None:
        batch.queued_at = time.monotonic()
        self.appended_entries += batch.entries
        self.appended_bytes += batch.nbytes
        self._batches.append(batch)
        if self._sleeping:
            self._wake.set()
        elif not self._due_at and over_threshold(self._options, self.entries, self.nbytes, self.pace.stretch):
            self._due_at = batch.queued_at
            self._wake.set()

    def wake(self) -> None:
        """Make `wait_for_group` look again at what it was given."""
        self._wake.set()

    def wait_for_group(self, ending: Callable[[], bool], idle_seconds: Callable[[], float]) -> FlushReason | None:
        """Sleep until a trigger fires.

        None if nothing is queued and `ending` turned true or `idle_seconds` have passed. While `ending`,
        whatever is queued makes a group at once.
        """
        while True:
            self._wake.clear()
            self._due_at = 0.0
            if self._batches:
                # What comes after a while without groups need not wait for others: nobody was served meanwhile.
                since = min(self._left_at, self._batches[0].queued_at)
                age_ms = (time.monotonic() - since) * 1000
                reason = flush_reason(self._options, max(1, self.entries), self.nbytes, age_ms, self.pace.stretch)
                if reason is None and ending():
                    return FlushReason.EMPTY_QUEUE
                if reason is not None:
                    return reason
                wait_ms = group_wait_ms(self._options, self.entries, self.pace.stretch)
                self._wait_for_company(max(0.0, wait_ms - age_ms) / 1000)
            elif ending() or (limit := idle_seconds()) <= 0:
                return None
            else:
                self._sleep_while_empty(ending, limit)

    def _wait_for_company(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        self._wake.wait(seconds)
        due = self._due_at or limit
        self.pace.woke(max(0.0, time.monotonic() - due) * 1000)

    def _sleep_while_empty(self, ending: Callable[[], bool], limit: float) -> None:
        self._sleeping = True
        if not self._batches and not ending():
            self._wake.wait(None if limit == math.inf else limit)
        self._sleeping = False

    def take_group(self, now: float) -> list[JournalBatch]:
        """Everything queued, up to the thresholds (but the first batch whatever its size)."""
        self._left_at = now
        group: list[JournalBatch] = []
        entries = nbytes = 0
        while self._batches and not over_threshold(self._options, entries, nbytes, self.pace.stretch):
            batch = self._batches.popleft()
            group.append(batch)
            entries += batch.entries
            nbytes += batch.nbytes
            self._metrics.queue_latency.observe_ms((now - batch.queued_at) * 1000, batch.entries)
        self._taken_entries += entries
        self._taken_bytes += nbytes
        return group
