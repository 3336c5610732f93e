"""Reading entries of one ledger directory from its entry logs, and reading ahead into the read cache.

Invariants
- What is known to be damaged is never served, neither when it is asked for nor as read-ahead.
- An entry that compaction moved between the look-up and the read is found at its new place, and one whose ledger was
  deleted meanwhile is one that the index does not know; any other fault is raised, also where the index has lost the
  entry.
- The index of a disk that failed is not read: the answer is that the disk failed, also where it did so during a read.
- What `read_each` read goes to the read cache only if nothing was forgotten there since `generation` was taken.
- An entry that was read with the one before it is given only if it lies where the index says.

Threads: any number of reader threads. `damaged` may be set, and the collection in it may change, at any time: a reader
only asks whether it holds a location, or any.

Source: docs/internals/bookie-behaviour.md, section 3.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from typing import Final

from bookie_pod.metrics.db_storage import DbStorageMetrics, ReadLevel
from bookie_pod.storage.engines.read_cache import ReadCache
from bookie_pod.storage.entry_log.interface import Row
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.locations import LocationIndex
from bookie_protocol.errors import EntryDamaged, StorageFault

FIRST_WINDOW: Final = 4
"""Entries read ahead behind the second read of a stream."""
GROWTH: Final = 4
MAX_STREAMS: Final = 1024
NEAR: Final = 8
"""Ids that are closer to each other belong to one reader."""
NEAR_BYTES: Final = 1 << 18
"""Entries that lie farther apart in a log are read one by one."""
ReadAt = Callable[[int, int, int], list[Row]]
"""Location, ledger id, entry id: the entry, and what was read with it from behind it."""


class ReadAheadWindows:
    """The read-ahead windows of the streams of one ledger directory.

    A window says how many entries to read ahead behind an entry that came from disk. A reader that goes through a
    ledger finds its next miss exactly behind what it read last, or, of a striped ledger, whose ids have gaps here,
    close behind it. Such a miss continues a stream: the first one reads a few entries ahead, and each makes the
    stream's window four times as wide, up to the configured batch. Any other read begins a new stream, and reads
    nothing ahead: what a random read brings along costs more than the read itself (the reference always reads a full
    batch).

    Invariants: at most `MAX_STREAMS` streams are remembered, the oldest is forgotten first.

    Threads: any.
    """

    def __init__(self, max_entries: int) -> None:
        """`max_entries` is `dbStorage_readAheadCacheBatchSize`; 0 reads nothing ahead."""
        self._max = max_entries
        self._streams: OrderedDict[tuple[int, int], tuple[int, bool]] = OrderedDict()
        """The window, and whether the ids have gaps, by ledger and next entry id."""
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
        """Note that everything before `next_entry_id` is in memory now.

        A miss at that id, or with `gaps` close behind it, continues the stream.
        """
        if self._max <= 0:
            return
        with self._lock:
            self._streams[(ledger_id, next_entry_id)] = window, gaps
            while len(self._streams) > MAX_STREAMS:
                self._streams.popitem(last=False)


class LogReads:
    """`window_entries`, `window_bytes`: the most that is read ahead behind one entry. `check_usable` raises
    `StorageFault` once the disk has failed. `is_known`: whether the ledger is here."""

    def __init__(
        self,
        logs: EntryLogger,
        locations: LocationIndex,
        cache: ReadCache,
        metrics: DbStorageMetrics,
        window_entries: int,
        window_bytes: int,
        check_usable: Callable[[], None],
        is_known: Callable[[int], bool],
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
        self._is_known = is_known

    def read_each(
        self, ledger_id: int, entry_ids: Sequence[int], generation: int | None
    ) -> Iterator[bytes | Exception | None]:
        """Yield each entry in turn, or the error that prevents reading it, or None if the index does not know it.

        All are looked up in the index together, and those that lie close to each other are read together. `generation`
        is that of the read cache before memory was looked at; None leaves the cache alone and reads nothing ahead.
        """
        try:
            locations: Sequence[int | None] = self._locate(ledger_id, entry_ids)
        except StorageFault:
            locations = [None] * len(entry_ids)  # each alone: what is wrong with one concerns that one
        known = dict(zip(entry_ids, locations, strict=True))
        read: dict[tuple[int, int], bytes] = {}
        result: bytes | Exception | None
        for place, (entry_id, location) in enumerate(zip(entry_ids, locations, strict=True)):
            try:
                if location is None:
                    location = self._locate(ledger_id, (entry_id,))[0]
                result = read.get((location, entry_id))
                if result is not None:
                    self._metrics.read_from(ReadLevel.READ_CACHE)
                elif location:
                    wanted = _span(entry_ids, locations, place)
                    rows = self._found(location, ledger_id, entry_id, self._read_at(wanted, generation, known))
                    result = rows[0][1] if rows else None
                    if wanted:
                        read |= {(row[2], row[0]): row[1] for row in rows[1 : 1 + wanted]}
            except Exception as error:
                result = error
            yield result

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        """The entry, and of the `count - 1` behind it those that lie behind it in the log, about `max_bytes`; nothing
        if the index does not know it. Leaves the cache alone. Raises `StorageFault`, `EntryDamaged`."""
        location = self._locate(ledger_id, (first,))[0]
        if not location:
            return []

        def read_at(at: int, ledger_id: int, entry_id: int) -> list[Row]:
            return self._rows(at, ledger_id, entry_id, count - 1, max_bytes)

        rows = self._current(ledger_id, self._found(location, ledger_id, first, read_at), {})
        return [row[1] for place, row in enumerate(rows) if row[0] == first + place]

    def _found(self, location: int, ledger_id: int, entry_id: int, read_at: ReadAt) -> list[Row]:
        """Return what `read_at` reads at the location in the index; nothing if the index has none any more."""
        self._metrics.read_from(ReadLevel.ENTRY_LOG)
        while True:
            try:
                return read_at(location, ledger_id, entry_id)
            except StorageFault:
                # Compaction may have moved the entry and removed the log between the look-up and the read.
                moved = self._locate(ledger_id, (entry_id,))[0]
                if moved == location or (
                    not moved and self._is_known(ledger_id)
                ):  # lost, or of a ledger's earlier life
                    raise
                if not moved:
                    return []
                location = moved

    def _locate(self, ledger_id: int, entry_ids: Sequence[int]) -> list[int]:
        self._check_usable()
        begin = time.perf_counter()
        locations = self._locations.get_each(ledger_id, entry_ids)
        self._metrics.looked_up(time.perf_counter() - begin)
        return locations

    def _read_at(self, wanted: int, generation: int | None, known: dict[int, int | None]) -> ReadAt:
        """`wanted`: among so many behind it are others that are asked for. `known`: see `_current`."""

        def read_at(location: int, ledger_id: int, entry_id: int) -> list[Row]:
            if generation is None:
                return self._rows(location, ledger_id, entry_id, wanted, self._window_bytes)
            window = max(wanted, self._windows.window(ledger_id, entry_id))
            rows = self._rows(location, ledger_id, entry_id, window, self._window_bytes)
            last = rows[-1][0]
            gaps = len(rows) == 1 or last - entry_id >= len(rows)  # one alone does not tell
            self._windows.done(ledger_id, last + 1, window, gaps=gaps)
            self._cache.put(ledger_id, [row[:2] for row in self._current(ledger_id, rows, known)], generation)
            return rows

        return read_at

    def _current(self, ledger_id: int, rows: list[Row], known: dict[int, int | None]) -> list[Row]:
        """The first, which was looked up, and of the others those that lie where the index says: behind an entry may
        lie a copy that was replaced since, by one that lies elsewhere. `known`: locations of some of them; those of
        the others are added."""
        unknown = [row[0] for row in rows[1:] if row[0] not in known]
        if unknown:
            try:
                known.update(zip(unknown, self._locate(ledger_id, unknown), strict=True))
            except StorageFault:
                pass  # what was asked for is there
        return rows[:1] + [row for row in rows[1:] if row[2] == known.get(row[0])]

    def _rows(self, location: int, ledger_id: int, entry_id: int, more: int, max_bytes: int) -> list[Row]:
        """The entry, and what lies behind it, up to what is known to be damaged."""
        damaged = self.damaged
        if location not in damaged:
            begin = time.perf_counter()
            rows = self._logs.read_run(location, ledger_id, entry_id, more, max_bytes)
            elapsed = time.perf_counter() - begin
            self._metrics.read_log(elapsed)
            if more:
                self._metrics.read_ahead(elapsed, len(rows) - 1, sum([len(row[1]) for row in rows[1:]]))
            # The scrubber may have found the damage meanwhile.
            if sound := list(takewhile(lambda row: row[2] not in damaged, rows)) if damaged else rows:
                return sound
        raise EntryDamaged(f"entry {entry_id} of ledger {ledger_id} is damaged here, as the scrubber found")


def _span(entry_ids: Sequence[int], locations: Sequence[int | None], place: int) -> int:
    """Return how many entries after the one at `place` may be read with it: up to the last that follows closely."""
    last = place
    for behind in range(place + 1, len(entry_ids)):
        here, there = locations[last], locations[behind]
        if here is None or there is None or not (0 < there - here <= NEAR_BYTES):
            break
        if not 0 < entry_ids[behind] - entry_ids[last] <= NEAR:
            break
        last = behind
    return entry_ids[last] - entry_ids[place]
