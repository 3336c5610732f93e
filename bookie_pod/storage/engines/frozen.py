"""The work of one flush: everything that has to become durable before the mark taken at its swap may move.

Invariants
- The order is: entry logs appended, entry logs synced, new ledgers, locations, other ledgers. Each step is done when
  the call returns. So a crash leaves no rows of a ledger that is not known, which the next one with its id would take
  for its own. For the same reason no record of a ledger is written, or removed, that was deleted since this work began:
  the rows of the life before are there still.
- `write` may be called again after it failed, and goes on where nothing is lost by it: with the same slice if
  that could not be written, with the locations if the entry logs are synced; after a failed sync with
  everything, in new logs.
- Entries lie in the logs in (ledger, entry) order; they are handed over in slices of about a millisecond, and
  other threads get the interpreter after each.
- Only this class calls `abandon_unsynced`: locations given out before it are void.

Threads: made on the event loop, written on the storage thread of its directory.

Source: docs/internals/on-disk-formats.md, section 13 (steps 2 to 5 of a checkpoint).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from bookie_pod.metrics.db_storage import DbStorageMetrics, FlushStage
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledgers import LedgerIndex
from bookie_pod.storage.index.locations import YIELD_SECONDS, LocationIndex, LocationRun
from bookie_pod.storage.write_cache import WriteCacheHalf
from bookie_protocol.errors import StorageFault

SLICE_ENTRIES: Final = 1024
SLICE_BYTES: Final = 1 << 20
"""Bytes that are handed to the entry logger in one call, at most, unless one entry is longer."""


class FrozenWork:
    """One frozen half with the ledgers and deletions that go with it."""

    def __init__(
        self,
        half: WriteCacheHalf | None,
        dirty_ledgers: set[int],
        deletions: dict[int, int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`half` is None if there was nothing in the write cache; the rest is flushed all the same."""
        self.half = half
        self._dirty_ledgers = dirty_ledgers
        self._deletions = deletions
        self._clock = clock
        self._slices: Iterator[_Slice] = self._cut()
        self._current: _Slice | None = None
        self._runs: list[LocationRun] = []
        self._logs_synced = half is None
        self._logs_failed = False
        self.nbytes = 0
        """Bytes of entries appended."""
        self.count = 0
        """Entries appended."""

    @property
    def is_empty(self) -> bool:
        return self.half is None and not self._dirty_ledgers and not self._deletions

    def write(
        self, logs: EntryLogger, locations: LocationIndex, ledgers: LedgerIndex, metrics: DbStorageMetrics
    ) -> None:
        """Make all of it durable. Raises what failed; the work stays whole."""
        if not self._logs_synced:
            with self._timed(metrics, FlushStage.ENTRY_LOG):
                self._write_logs(logs, ledgers)
        if new := ledgers.new_among(self._dirty_ledgers).difference(self._deletions):
            with self._timed(metrics, FlushStage.LEDGERS):
                self._write_ledgers(new, locations, ledgers)
        if self._runs or self._deletions:
            with self._timed(metrics, FlushStage.LOCATIONS):
                locations.write([run for run in self._runs if not self._is_deleted(run.ledger_id)], self._deletions)
        else:
            locations.settle()
        if others := self._dirty_ledgers.difference(new):
            with self._timed(metrics, FlushStage.LEDGERS):
                self._write_ledgers(others, locations, ledgers)

    def _write_ledgers(self, ledger_ids: Collection[int], locations: LocationIndex, ledgers: LedgerIndex) -> None:
        """Write what is known of these ledgers, but for those that were deleted since."""
        records = ledgers.records(ledger_ids)
        later = locations.pending_deletions().keys()  # behind that: a ledger is forgotten first, then its rows
        ledgers.write(
            {
                ledger_id: record
                for ledger_id, record in records.items()
                if ledger_id not in later and (record is not None or ledger_id in self._deletions)
            }
        )

    def _timed(self, metrics: DbStorageMetrics, stage: FlushStage) -> _Timer:
        return _Timer(self._clock, metrics, stage)

    def _is_deleted(self, ledger_id: int) -> bool:
        return self.half is not None and ledger_id in self.half.deleted

    # --- entry logs -----------------------------------------------------------------------------------------

    def _write_logs(self, logs: EntryLogger, ledgers: LedgerIndex) -> None:
        if self._logs_failed:
            logs.abandon_unsynced()
            self._start_over()
        try:
            self._append_all(logs, ledgers)
            logs.sync()
        except StorageFault:
            # Unless a sync failed, the appended entries remain valid: continue with the same slice. Starting again in
            # new logs would fill a full disk further with each try.
            self._logs_failed = logs.sync_failed
            raise
        except BaseException:
            self._logs_failed = True
            raise
        self._logs_synced = True

    def _start_over(self) -> None:
        self._slices, self._current = self._cut(), None
        self._runs.clear()
        self._logs_failed = False
        self.nbytes = self.count = 0

    def _append_all(self, logs: EntryLogger, ledgers: LedgerIndex) -> None:
        pending = 0
        while True:
            if self._current is None:
                self._current = next(self._slices, None)
                if self._current is None:
                    return
            pending += self._append(logs, ledgers, self._current)
            self._current = None
            if pending >= SLICE_ENTRIES:
                pending = 0
                time.sleep(YIELD_SECONDS)

    def _append(self, logs: EntryLogger, ledgers: LedgerIndex, piece: _Slice) -> int:
        """Append one slice; how much of a slice's time it took, in entries."""
        # Before the question: the ledger may be deleted and created again meanwhile.
        first_log = ledgers.first_log(piece.ledger_id)
        if self._is_deleted(piece.ledger_id):
            return 0
        locations = logs.append_run(piece.ledger_id, piece.entry_ids, piece.entries, first_log=first_log)
        self._runs.append(LocationRun(piece.ledger_id, piece.entry_ids, locations))
        nbytes = sum(map(len, piece.entries))
        self.nbytes += nbytes
        self.count += len(piece.entries)
        return len(piece.entries) + nbytes * SLICE_ENTRIES // SLICE_BYTES + 8

    def _cut(self) -> Iterator[_Slice]:
        """Slices of the half in (ledger, entry) order."""
        if self.half is None:
            return
        for ledger_id in sorted(self.half.ledgers):
            held = self.half.ledgers[ledger_id]
            entry_ids = sorted(held)
            for at in range(0, len(entry_ids), SLICE_ENTRIES):
                part = entry_ids[at : at + SLICE_ENTRIES]
                yield from _by_bytes(ledger_id, part, list(map(held.__getitem__, part)))


class _Slice(NamedTuple):
    """Entries of one ledger that are handed to the entry logger in one call."""

    ledger_id: int
    entry_ids: list[int]
    entries: list[bytes]


def _by_bytes(ledger_id: int, entry_ids: list[int], entries: list[bytes]) -> Iterator[_Slice]:
    """Cut further where the entries are long."""
    nbytes = sum(map(len, entries))
    if nbytes <= SLICE_BYTES:
        yield _Slice(ledger_id, entry_ids, entries)
        return
    step = max(1, len(entries) * SLICE_BYTES // nbytes)
    for at in range(0, len(entries), step):
        yield _Slice(ledger_id, entry_ids[at : at + step], entries[at : at + step])


class _Timer:
    """Reports how long a stage took, if it succeeded."""

    def __init__(self, clock: Callable[[], float], metrics: DbStorageMetrics, stage: FlushStage) -> None:
        self._clock = clock
        self._metrics = metrics
        self._stage = stage

    def __enter__(self) -> None:
        self._begin = self._clock()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._metrics.flushed(self._stage, self._clock() - self._begin)
