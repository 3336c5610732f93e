"""How many entries to read ahead behind an entry that came from disk.

A reader that goes through a ledger finds its next miss right behind what was read ahead for it (`NEAR`: of a striped
ledger other bookies hold what is between). Such a miss
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
NEAR: Final = 8
"""Ids that are closer to each other belong to one reader."""


class ReadAheadWindows:
    """The windows of the streams of one ledger directory."""

    def __init__(self, max_entries: int) -> None:
        """`max_entries` is `dbStorage_readAheadCacheBatchSize`; 0 reads nothing ahead."""
        self._max = max_entries
        self._streams: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._lock = threading.Lock()

    def window(self, ledger_id: int, entry_id: int) -> int:
        """Entries to read behind this one, which memory did not hold."""
        before = None
        with self._lock:
            for expected in range(entry_id, entry_id - NEAR, -1):
                before = self._streams.pop((ledger_id, expected), None)
                if before is not None:
                    break
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
