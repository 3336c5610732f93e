"""How many entries to read ahead behind an entry that came from disk.

A reader that goes through a ledger finds its next miss exactly behind what it read last, or, of a striped ledger, whose
ids have gaps here, close behind it. Such a miss continues a stream: the first one reads a few entries ahead, and each
makes the stream's window four times as wide, up to the configured batch. Any other read begins a new stream, and reads
nothing ahead: what a random read brings along costs more than the read itself (the reference always reads a full
batch).

Invariants: at most `MAX_STREAMS` streams are remembered, the oldest is forgotten first.

Threads: any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

FIRST_WINDOW: Final = 4
"""Entries read ahead behind the second read of a stream."""
GROWTH: Final = 4
MAX_STREAMS: Final = 1024
NEAR: Final = 8
"""Ids that are closer to each other belong to one reader."""


class ReadAheadWindows:
    """The windows of the streams of one ledger directory."""

    def __init__(self, max_entries: int) -> None:
        """`max_entries` is `dbStorage_readAheadCacheBatchSize`; 0 reads nothing ahead."""
        self._max = max_entries
        self._streams: OrderedDict[tuple[int, int], tuple[int, bool]] = OrderedDict()
        """By ledger and next entry id: the window, and whether the ids have gaps."""
        self._lock = threading.Lock()

    def window(self, ledger_id: int, entry_id: int) -> int:
        """Entries to read behind this one, which memory did not hold."""
        with self._lock:
            for expected in range(entry_id, entry_id - NEAR, -1):
                before = self._streams.get((ledger_id, expected))
                if before is not None and (expected == entry_id or before[1]):
                    del self._streams[(ledger_id, expected)]
                    return min(self._max, before[0] * GROWTH or FIRST_WINDOW)
        return 0

    def done(self, ledger_id: int, next_entry_id: int, window: int, *, gaps: bool = False) -> None:
        """Everything up to `next_entry_id` (exclusive) is in memory now: a miss there, or with `gaps` close behind it,
        continues the stream."""
        if self._max <= 0:
            return
        with self._lock:
            self._streams[(ledger_id, next_entry_id)] = window, gaps
            while len(self._streams) > MAX_STREAMS:
                self._streams.popitem(last=False)
