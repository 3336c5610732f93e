"""Copies what lives in one entry log and removes the log.

Invariants
- Order: copies durable, then the index points to them (durable), then the source is unlinked. A crash anywhere
  leaves the old place or the new one, both right.
- An entry is copied when the index points to *this* copy of it, or to none at all (then the copy becomes the one). A
  copy that the index does not point to is garbage.
- A scan that ends at damage ends the compaction: the log is quarantined, nothing of it is moved or unlinked.
- Only logs may be compacted whose rows are all in the index: the caller lists logs that are rotated and synced, and
  *then* flushes the storage.
- What waits in memory is bounded by `max_outstanding` entries.

Threads: the garbage collection thread.

Source: reference bookie behaviour, section 6.5; reference disk formats, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.interface import CompactionLog, Scan, ScanOutcome
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.index.locations import EntryMove
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

RUN_BYTES: Final = 1 << 20
RUN_ENTRIES: Final = 1024

Pay = Callable[[int, int], None]
"""`pay(entries, bytes)` waits until that much may be read or written; raises `CollectionStopped`."""


class LogDamaged(StorageFault):
    """The scan of a log met bytes that are no entry."""


class Compactor(Protocol):
    """Moves the live entries of one log away; the log may be deleted when it returns."""

    def compact(self, log_id: int, *, may_be_torn: bool) -> int:
        """Bytes that were copied. Raises `LogDamaged`, `StorageFault`, `CollectionStopped`; then the log stays."""
        ...

    def recover(self) -> list[int]:
        """Finish what a crash interrupted; the logs that may be deleted now. `StorageFault`."""
        ...


class _Run:
    """Consecutive live entries of one ledger."""

    __slots__ = ("entries", "entry_ids", "ledger_id", "locations", "nbytes")

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.entry_ids: list[int] = []
        self.locations: list[int] = []
        self.entries: list[bytes] = []
        self.nbytes = 0

    @property
    def full(self) -> bool:
        return self.nbytes >= RUN_BYTES or len(self.entries) >= RUN_ENTRIES


def live_runs(storage: CollectedStorage, scan: Scan[bytes], pay: Pay) -> Iterator[_Run]:
    """The live entries of a scan in runs. Reading is paid for here."""
    run: _Run | None = None
    for location, ledger_id, entry_id, entry in scan:
        pay(1, SIZE_BYTES + len(entry))
        if not storage.has_ledger(ledger_id):
            continue
        row = storage.location_of(ledger_id, entry_id)
        if row not in (0, location):
            continue
        if run is not None and (run.ledger_id != ledger_id or run.full):
            yield run
            run = None
        if run is None:
            run = _Run(ledger_id)
        run.entry_ids.append(entry_id)
        run.locations.append(row)
        run.entries.append(entry)
        run.nbytes += SIZE_BYTES + len(entry)
    if run is not None:
        yield run


def check_end(scan: Scan[bytes], log_id: int, *, may_be_torn: bool) -> None:
    """Raises `LogDamaged` unless the scan saw the whole log."""
    end = scan.end
    if end.clean or (end.outcome is ScanOutcome.TORN and may_be_torn):
        return
    raise LogDamaged(f"entry log {log_id:x}.log is damaged at {end.position}: {end.detail}")


class TransactionalCompactor:
    """Copies into a log of its own; what a crash leaves of it is either worthless or complete."""

    def __init__(self, storage: CollectedStorage, pay: Pay, max_outstanding: int) -> None:
        self._storage = storage
        self._pay = pay
        self._max_outstanding = max_outstanding

    def compact(self, log_id: int, *, may_be_torn: bool) -> int:
        logs = self._storage.logs
        target = logs.begin_compaction(log_id)
        copied = 0
        try:
            scan = logs.scan(log_id)
            for run in live_runs(self._storage, scan, self._pay):
                self._pay(len(run.entries), run.nbytes)
                target.append_run(run.ledger_id, run.entries)
                copied += run.nbytes
            check_end(scan, log_id, may_be_torn=may_be_torn)
            if copied:
                target.mark_compacted()
        except BaseException:
            target.abort()
            raise
        if copied:
            self._publish(target)
        else:
            target.abort()
        return copied

    def recover(self) -> list[int]:
        done = []
        for target in self._storage.logs.recover_compactions():
            _log.info("finishing a compaction that was interrupted", log_id=target.source_id, into=target.log_id)
            self._publish(target)
            done.append(target.source_id)
        return done

    def _publish(self, target: CompactionLog) -> None:
        """From a complete log to an index that points into it. Repeated as it is after a crash."""
        target.make_available()
        scan = self._storage.logs.scan_sizes(target.log_id)
        moves: list[EntryMove] = []
        for new, ledger_id, entry_id, _ in scan:
            if not self._storage.has_ledger(ledger_id):
                continue
            old = self._storage.location_of(ledger_id, entry_id)
            if old and split_location(old)[0] != target.source_id:
                continue  # written anew meanwhile, or moved before the crash
            moves.append(EntryMove(ledger_id, entry_id, old, new))
            if len(moves) >= self._max_outstanding:
                self._storage.move(moves)
                moves = []
        if not scan.end.clean:
            raise LogDamaged(
                f"compacted log {target.log_id:x}.log is damaged at {scan.end.position}: {scan.end.detail}"
            )
        self._storage.move(moves)
        target.finish()


class PlainCompactor:
    """Appends to the logs that everybody appends to: with one log per ledger the only way."""

    def __init__(self, storage: CollectedStorage, pay: Pay, max_outstanding: int) -> None:
        self._storage = storage
        self._pay = pay
        self._max_outstanding = max_outstanding

    def compact(self, log_id: int, *, may_be_torn: bool) -> int:
        logs = self._storage.logs
        scan = logs.scan(log_id)
        pending: list[EntryMove] = []
        generation = logs.generation
        copied = 0
        for run in live_runs(self._storage, scan, self._pay):
            self._pay(len(run.entries), run.nbytes)
            places = logs.append_run(run.ledger_id, run.entry_ids, run.entries)
            pending += _moves(run, places)
            copied += run.nbytes
            if len(pending) >= self._max_outstanding:
                self._settle(pending, generation)
                pending = []
        check_end(scan, log_id, may_be_torn=may_be_torn)
        self._settle(pending, generation)
        return copied

    def recover(self) -> list[int]:
        """Logs of the transactional form, from before its switch-off, are finished all the same."""
        return TransactionalCompactor(self._storage, self._pay, self._max_outstanding).recover()

    def _settle(self, moves: Sequence[EntryMove], generation: int) -> None:
        if not moves:
            return
        logs = self._storage.logs
        logs.sync()
        if logs.generation != generation:
            raise StorageFault("a log that compaction had appended to was given up after a failed sync")
        self._storage.move(moves)


def _moves(run: _Run, places: Sequence[int]) -> list[EntryMove]:
    return [
        EntryMove(run.ledger_id, entry_id, old, new)
        for entry_id, old, new in zip(run.entry_ids, run.locations, places, strict=True)
    ]
