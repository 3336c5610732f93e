"""The rewriting of the location index now and then (`entryLocationCompactionInterval`).

Invariants
- Times are spread, so that the directories of one bookie, and many bookies, do not compact at once.
- The interval begins with the last rewriting, of whichever process: `GcTimes` is stored by the caller.

Threads: `run` on the collector's; `last_ms` and `count` may be read by any.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bookie_pod.metrics.gc import GcMetrics
from bookie_pod.storage.gc.schedule import GcTimes
from bookie_pod.storage.gc.storage import CollectedStorage


class IndexCompaction:
    """Compacts the index of one storage."""

    def __init__(
        self,
        storage: CollectedStorage,
        metrics: GcMetrics,
        times: GcTimes,
        interval_ms: int,
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        """`interval_ms` 0 or less: never."""
        self._storage = storage
        self._metrics = metrics
        self._times = times
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._random = random
        self.count = 0
        """Since the start of the process."""
        self._due_ms = self._next()

    @property
    def last_ms(self) -> int:
        """When it was rewritten last, or when the storage was first collected."""
        return self._times.last_index_ms

    @property
    def is_due(self) -> bool:
        return self._due_ms is not None and self._now_ms() >= self._due_ms

    def run(self) -> None:
        """Rewrite it now. `StorageFault`."""
        self._storage.compact_index()
        self._metrics.index_compacted()
        self._times.last_index_ms = self._now_ms()
        self.count += 1
        self._due_ms = self._next()

    def _next(self) -> int | None:
        if self._interval_ms <= 0:
            return None
        return self._times.last_index_ms + self._interval_ms + self._random.randrange(self._interval_ms)
