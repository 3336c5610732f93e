"""Copies what lives in one entry log and removes the log.

Invariants
- Order: copies durable, then the index points to them (durable), then the source is unlinked. A crash anywhere leaves
  the old place or the new one, both right. Where there is nothing to copy, it is because the index names other places.
  These rows are written once more, and made durable, before the source goes: a row that another process left may be in
  the page cache alone.
- What is copied, and what must be true of the log before it may go: see `live_entries`.
- A scan that ends at damage ends the compaction, and the log stays. The plain form, which has made copies by then,
  moves what the index names in the log.
- Only logs may be compacted whose rows are all in the index: the caller lists logs that are rotated and synced, and
  *then* flushes the storage.
- What waits in memory is bounded by `max_outstanding` entries.

Threads: the garbage collection thread.

Source: docs/internals/bookie-behaviour.md, section 6.5; docs/internals/on-disk-formats.md, section 5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from bookie_pod.storage.entry_log.compaction import CompactionLog
from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.interface import LedgerGone
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.gc.index_check import IndexedRows, is_there
from bookie_pod.storage.gc.live_entries import LogDamaged, Pay, Run, Source, live_runs
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.index.locations import EntryMove
from bookie_protocol.errors import StorageFailed, StorageFault

_log = structlog.get_logger(__name__)


class IndexNotMoved(StorageFault):
    """The index could not be pointed to copies, or not be settled before. The next logs would fare no better."""


@dataclass(slots=True)
class Recovered:
    """The result of compactions that a crash had interrupted."""

    emptied: dict[int, int] = field(default_factory=dict)
    """Sources that the index does not point to any more, and the bytes of their copies: they may be deleted."""
    damaged: dict[int, str] = field(default_factory=dict)
    """Compacted logs that are damaged, and how. Their sources stay, for what the index finds there."""


class Compactor(ABC):
    """Moves the live entries of one log away; the log may be deleted when it returns."""

    def __init__(
        self,
        storage: CollectedStorage,
        pay: Pay,
        max_outstanding: int,
        rows: IndexedRows,
    ) -> None:
        self._storage = storage
        self._pay = pay
        self._max_outstanding = max_outstanding
        self._rows = rows

    @abstractmethod
    def compact(self, source: Source) -> int:
        """Bytes that were copied. Raises `LogDamaged`, `IndexNotMoved`, another `StorageFault`, `CollectionStopped`;
        then the log stays."""

    @abstractmethod
    def recover(self, leave: Container[int]) -> Recovered:
        """Finish what a crash interrupted, but for these compacted logs. `StorageFault`."""


class TransactionalCompactor(Compactor):
    """Copies into a log of its own; what a crash leaves of it is either worthless or complete."""

    def compact(self, source: Source) -> int:
        with _changing_the_index():
            self._storage.settle()
        target = self._storage.logs.begin_compaction(source.log_id, source.live_bytes)
        copied = 0
        stay: list[EntryMove] = []
        try:
            for run in live_runs(self._storage, source, self._pay, self._rows):
                stay += run.stay
                if len(stay) >= self._max_outstanding:
                    _move(self._storage, stay, source.log_id)
                    stay = []
                if run.entries:
                    self._pay(len(run.entries), run.nbytes)
                    target.append_run(run.ledger_id, run.entries)
                    copied += run.nbytes
            # Before the copy counts as whole: a pass that finishes this after a crash looks at the copy alone.
            if stay or not copied:
                _move(self._storage, stay, source.log_id)
            if copied:
                target.mark_compacted()
        except BaseException:
            target.abort()
            raise
        if not copied:
            target.abort()
            return 0
        target.make_available()
        try:
            self._check_whole(target, _free)
        except StorageFault as error:  # nothing points to it yet
            self._storage.logs.delete(target.log_id)
            target.finish()  # last: a copy that is still there is looked at again
            raise StorageFault(f"{error}; it was thrown away") from error
        self._publish(target)
        return copied

    def recover(self, leave: Container[int]) -> Recovered:
        result = Recovered()
        for target in self._storage.logs.recover_compactions():
            if target.log_id in leave:
                continue
            _log.info("finishing a compaction that was interrupted", log_id=target.source_id, into=target.log_id)
            target.make_available()
            try:
                self._check_whole(target, self._pay)
            except LogDamaged as error:
                result.damaged[target.log_id] = str(error)
                continue
            self._publish(target)
            if self._is_empty(target.source_id):
                result.emptied[target.source_id] = self._storage.logs.size(target.log_id)
        return result

    def _is_empty(self, source_id: int) -> bool:
        """Return whether no row points to the source.

        The process that began this compaction may have stopped at damage without a report (the reference does).
        """
        if not self._storage.logs.exists(source_id):
            return False
        left = self._rows.behind_now(source_id, 0, closed=True)
        if left is not None:
            _log.warning(
                "an interrupted compaction had not copied everything; its source stays",
                log_id=source_id,
                ledger=left.ledger_id,
                entry=left.entry_id,
            )
        return left is None

    def _check_whole(self, target: CompactionLog, pay: Pay) -> None:
        """Raises `LogDamaged` unless a scan sees what the log's own map says. `pay` for reading it: nothing for a copy
        that was just written, since memory holds it."""
        logs = self._storage.logs
        counted = LedgerSizesBuilder()
        scan = logs.scan_sizes(target.log_id)
        for _, ledger_id, _, size in scan:
            pay(0, SIZE_BYTES + size)
            counted.add(ledger_id, SIZE_BYTES + size)
        if not scan.end.clean:
            raise LogDamaged(
                f"compacted log {target.log_id:x}.log is damaged at {scan.end.position}: {scan.end.detail}"
            )
        if not logs.ledgers_map(target.log_id).ledgers.same_as(counted.build()):
            raise LogDamaged(f"compacted log {target.log_id:x}.log does not hold what its ledgers map says")

    def _publish(self, target: CompactionLog) -> None:
        """Make the index point into a complete copy. Repeated unchanged after a crash."""
        moves: list[EntryMove] = []
        for new, ledger_id, entry_id, _ in self._storage.logs.scan_sizes(target.log_id):
            if not self._storage.has_ledger(ledger_id):
                continue
            old = self._storage.location_of(ledger_id, entry_id)
            if old != new and not self._is_void(old, target.source_id, ledger_id, entry_id):
                if not old:
                    continue
                new = old  # written again meanwhile
            moves.append(EntryMove(ledger_id, entry_id, old, new))
            if len(moves) >= self._max_outstanding:
                _move(self._storage, moves, target.source_id)
                moves = []
        _move(self._storage, moves, target.source_id)
        target.finish()

    def _is_void(self, location: int, source_id: int, ledger_id: int, entry_id: int) -> bool:
        """Return whether this place of an entry gives way to the copy."""
        if location and split_location(location)[0] == source_id:
            return True
        if self._storage.is_earlier_life(ledger_id, source_id):
            return False
        return not location or not is_there(self._storage, location, ledger_id, entry_id)


class PlainCompactor(Compactor):
    """Appends to the logs that everybody appends to: with one log per ledger the only way.

    Copies that the index does not name are garbage that nothing counts, for as long as their ledgers live. So whatever
    ends a compaction, the index is pointed to its copies; if that fails, the next compaction begins with it. It is
    done as well when a log is complete: `LogUsages` looks for such copies of a killed process only in a log that it was
    writing.
    """

    def __init__(self, storage: CollectedStorage, pay: Pay, max_outstanding: int, rows: IndexedRows) -> None:
        super().__init__(storage, pay, max_outstanding, rows)
        self._pending: list[EntryMove] = []
        """Moves of copies that the index does not name yet."""
        self._generation = 0
        """The generation of the logs before the first of these copies."""
        self._source_id = 0

    def compact(self, source: Source) -> int:
        with _changing_the_index():
            self._storage.settle()
        self._settle_earlier()
        self._source_id = source.log_id
        try:
            return self._copy(source)
        except (IndexNotMoved, StorageFailed):
            raise
        except Exception as error:
            if isinstance(error, LogDamaged):  # what the index does not name there may be no entry at all
                named = (move for move in self._pending if move.old)
                self._pending = [move for move in named if split_location(move.old)[0] == source.log_id]
            if self._pending:
                self._settle()
            raise

    def _copy(self, source: Source) -> int:
        logs = self._storage.logs
        rotated, copied = logs.stats.logs_rotated, 0
        for run in live_runs(self._storage, source, self._pay, self._rows):
            self._pending += run.stay
            if run.entries:
                self._pay(len(run.entries), run.nbytes)
                lives = partial(self._lives, run.ledger_id, run.first_log)
                with suppress(LedgerGone):
                    places = logs.append_run(run.ledger_id, run.entry_ids, run.entries, lives=lives)
                    self._pending += _moves(run, places)
                    copied += run.nbytes
            if len(self._pending) >= self._max_outstanding or rotated != logs.stats.logs_rotated:
                self._settle()
                rotated = logs.stats.logs_rotated
        self._settle()
        return copied

    def _lives(self, ledger_id: int, first_log: int | None) -> bool:
        """Return whether this is still the ledger's life: a copy in a log of the next one could count as an entry of
        it."""
        record = self._storage.record(ledger_id)
        return record is not None and record.first_log == first_log

    def recover(self, leave: Container[int]) -> Recovered:
        """Logs of the transactional form, from before its switch-off, are finished all the same."""
        transactional = TransactionalCompactor(self._storage, self._pay, self._max_outstanding, self._rows)
        return transactional.recover(leave)

    def _settle_earlier(self) -> None:
        """Point the index to the copies of an earlier compaction, before more are made."""
        generation = self._storage.logs.generation
        if self._generation != generation:
            self._pending = []
        if self._pending:
            self._settle()
        self._generation = generation

    def _settle(self) -> None:
        logs = self._storage.logs
        if self._pending:
            logs.sync()
        if logs.generation != self._generation:
            self._pending = []
            raise StorageFault("a log that compaction had appended to was given up after a failed sync")
        _move(self._storage, self._pending, self._source_id)
        self._pending = []


def _free(entries: int, nbytes: int) -> None:
    """Costs nothing."""


def _moves(run: Run, places: Sequence[int]) -> list[EntryMove]:
    return [
        EntryMove(run.ledger_id, entry_id, old, new)
        for entry_id, old, new in zip(run.entry_ids, run.rows, places, strict=True)
    ]


def _move(storage: CollectedStorage, moves: Sequence[EntryMove], source_id: int) -> None:
    """Move rows, and give rows to entries of the source that have none, unless their ledger has a successor by now."""

    def lives(ledger_id: int) -> bool:
        return storage.has_ledger(ledger_id) and not storage.is_earlier_life(ledger_id, source_id)

    with _changing_the_index():
        storage.move([move for move in moves if move.old or lives(move.ledger_id)])


@contextmanager
def _changing_the_index() -> Iterator[None]:
    try:
        yield
    except StorageFailed:
        raise
    except StorageFault as error:
        raise IndexNotMoved(f"the index could not be pointed to copies of entries: {error}") from error
