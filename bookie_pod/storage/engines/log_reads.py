"""Reading entries of one ledger directory from its entry logs, and reading ahead into the read cache.

Invariants
- What is known to be damaged is never served, neither when it is asked for nor as read-ahead.
- An entry that compaction moved between the look-up and the read is found at its new place; any other fault is told.
- The index of a disk that failed is not read: the answer is that the disk failed, also where it did so during a read.
- What `read` read goes to the read cache only if nothing was forgotten there since `generation` was taken.

Threads: any number of reader threads. `damaged` may be set, and the collection in it may change, at any time: a reader
only asks whether it holds a location, or any.

Source: reference bookie behaviour, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from itertools import takewhile
from typing import TypeVar

from bookie_pod.storage.cache.read_ahead import ReadAheadWindows
from bookie_pod.storage.cache.read_cache import ReadCache
from bookie_pod.storage.engines.metrics import ReadLevel, StorageMetrics
from bookie_pod.storage.entry_log.format import SIZE_BYTES
from bookie_pod.storage.entry_log.interface import EntryLogger, Row
from bookie_pod.storage.index.locations import LocationIndex
from bookie_protocol.errors import EntryDamaged, StorageFault

Read = TypeVar("Read", bytes, list[bytes])


class LogReads:
    """`window_entries`, `window_bytes`: the most that is read ahead behind one entry. `check_usable` raises
    `StorageFault` once the disk has failed."""

    def __init__(
        self,
        logs: EntryLogger,
        locations: LocationIndex,
        cache: ReadCache,
        metrics: StorageMetrics,
        window_entries: int,
        window_bytes: int,
        check_usable: Callable[[], None],
    ) -> None:
        self.damaged: Collection[int] = frozenset()
        """Locations of entries that are known to be damaged."""
        self._logs = logs
        self._locations = locations
        self._cache = cache
        self._metrics = metrics
        self._windows = ReadAheadWindows(window_entries)
        self._window_bytes = window_bytes
        self._check_usable = check_usable

    def read(self, ledger_id: int, entry_id: int, generation: int) -> bytes | None:
        """The entry; None: the index does not know it. Raises `StorageFault`, `EntryDamaged`.

        `generation`: that of the read cache before memory was looked at.
        """
        return self._found(ledger_id, entry_id, lambda at: self._read_at(at, ledger_id, entry_id, generation))

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        """The entry, and of the `count - 1` behind it those that lie behind it in the log, about `max_bytes`; nothing
        if the index does not know it. Leaves the cache alone. Raises as `read`."""
        return (
            self._found(ledger_id, first, lambda at: self._read_apart_at(at, ledger_id, first, count, max_bytes)) or []
        )

    def _found(self, ledger_id: int, entry_id: int, read_at: Callable[[int], Read]) -> Read | None:
        """What `read_at` gives for the entry's location; None: the index does not know it."""
        location = self._locate(ledger_id, entry_id)
        if not location:
            return None
        self._metrics.read_from(ReadLevel.ENTRY_LOG)
        try:
            return read_at(location)
        except StorageFault:
            # Compaction may have moved the entry and removed the log between the look-up and the read.
            moved = self._locate(ledger_id, entry_id)
            if moved in (0, location):
                raise
            return read_at(moved)

    def _locate(self, ledger_id: int, entry_id: int) -> int:
        self._check_usable()
        begin = time.perf_counter()
        location = self._locations.get(ledger_id, entry_id)
        self._metrics.looked_up(time.perf_counter() - begin)
        return location

    def _read_at(self, location: int, ledger_id: int, entry_id: int, generation: int) -> bytes:
        entry = self._read_one(location, ledger_id, entry_id)
        rows = [(entry_id, entry)]
        window = self._windows.window(ledger_id, entry_id)
        if window:
            behind = self._read_behind(location, entry, ledger_id, entry_id, window, self._window_bytes)
            rows += [row[:2] for row in behind]
            self._windows.done(ledger_id, rows[-1][0] + 1, window)
        self._cache.put(ledger_id, rows, generation)
        return entry

    def _read_apart_at(self, location: int, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        entry = self._read_one(location, ledger_id, first)
        run = [entry]
        if count > 1 and len(entry) < max_bytes:
            behind = self._read_behind(location, entry, ledger_id, first, count - 1, max_bytes - len(entry))
            run += [row[1] for row in behind]
        return run

    def _read_one(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        if location in self.damaged:
            raise EntryDamaged(f"entry {entry_id} of ledger {ledger_id} is damaged here, as the scrubber found")
        begin = time.perf_counter()
        entry = self._logs.read_checked(location, ledger_id, entry_id)
        self._metrics.read_log(time.perf_counter() - begin)
        return entry

    def _read_behind(
        self, location: int, entry: bytes, ledger_id: int, entry_id: int, count: int, max_bytes: int
    ) -> list[Row]:
        """What lies behind the entry at `location`, up to what is known to be damaged."""
        begin = time.perf_counter()
        behind = location + len(entry) + SIZE_BYTES
        ahead = self._logs.read_ahead(behind, ledger_id, entry_id + 1, count, max_bytes)
        self._metrics.read_ahead(time.perf_counter() - begin, len(ahead), sum([len(row[1]) for row in ahead]))
        damaged = self.damaged
        return list(takewhile(lambda row: row[2] not in damaged, ahead)) if damaged else ahead
