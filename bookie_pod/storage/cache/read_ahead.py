"""How many entries to read ahead behind an entry that came from disk.

A reader that goes through a ledger finds its next miss exactly behind what was read ahead for it. Such a miss
continues a stream, and each one makes the stream's window four times as wide, up to the configured batch. Any
other read begins a new stream with a small window, so random reads cost next to nothing (the reference always
reads a full batch).

Invariants: at most `MAX_STREAMS` streams are remembered, the oldest is forgotten first.

Threads: any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

FIRST_WINDOW: Final = 4
"""Entries read ahead behind a read that continues no stream."""
GROWTH: Final = 4
MAX_STREAMS: Final = 1024


class ReadAheadWindows:
    """The windows of the streams of one ledger directory."""

    def __init__(self, max_entries: int) -> None:
        """`max_entries` is `dbStorage_readAheadCacheBatchSize`; 0 reads nothing ahead."""
        self._max = max_entries
        self._streams: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._lock = threading.Lock()

    def window(self, ledger_id: int, entry_id: int) -> int:
        """Entries to read behind this one, which memory did not hold."""
        with self._lock:
            before = self._streams.pop((ledger_id, entry_id), None)
        return min(self._max, FIRST_WINDOW if before is None else before * GROWTH)

    def done(self, ledger_id: int, next_entry_id: int, window: int) -> None:
        """Everything up to `next_entry_id` (exclusive) is in memory now: a miss there continues the
        stream."""
        if window <= 0:
            return
        with self._lock:
            self._streams[(ledger_id, next_entry_id)] = window
            while len(self._streams) > MAX_STREAMS:
                self._streams.popitem(last=False)
