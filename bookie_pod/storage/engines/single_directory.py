"""One ledger directory of `DbLedgerStorage`: its write-cache halves, read cache, entry logs and indexes.

Invariants
- `_halves` is one tuple (active, frozen or None), replaced whole, so that a reader never misses an entry on its way
  from the active half to the frozen one. The frozen half is dropped only after the index holds its entries; readers
  that took the tuple before that still find the entry in it, those that come later find its location.
- At most one half is frozen. A flush that failed leaves it frozen, and the next flush begins with that same half: no
  mark can pass entries that only memory holds. (The reference swaps it back and may let the mark pass it.)
- A deleted ledger is unknown, and its rows are hidden, from the moment of the deletion; they are removed by the next
  flush before that flush's own rows are put, so a ledger that is created again keeps its new entries.
- "No such entry" needs: both halves, the read cache and the index looked at, without a fault, no limbo and no `doubt`
  about the index, neither before the look nor now.
- A directory whose disk failed takes no adds and is never flushed again in this process.

Threads: see `LedgerStorage`. The active half, `_swap` and `_delete` belong to the event loop, and to the replaying
thread until the replay is over; `flush` to one thread at a time (a lock sees to it).

Source: docs/internals/bookie-behaviour.md, sections 3 and 13.4.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, takewhile
from typing import Final

from bookie_pod.metrics.db_storage import DbStorageMetrics, FlushStage, ReadLevel
from bookie_pod.storage.engines.frozen import FrozenWork
from bookie_pod.storage.engines.interface import DirectoryGivenUp, ListenedStorage, OnLoop
from bookie_pod.storage.engines.log_reads import LogReads
from bookie_pod.storage.engines.read_cache import ReadCache
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledger_data import FirstLogs, LedgerRecord, LedgerRecords, Life
from bookie_pod.storage.index.ledgers import LedgerIndex
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.log_ids import is_before
from bookie_pod.storage.write_cache import WriteCacheHalf
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import LedgerStateUnknown, NoSuchEntry, NoSuchLedger, StorageFault

_LOOKED_UP_TOGETHER: Final = 512
_Levels = Sequence[tuple[ReadLevel, Mapping[int, bytes]]]


def _look_up(levels: _Levels, entry_ids: Sequence[int]) -> tuple[list[bytes | None], dict[ReadLevel, int]]:
    """Return each of these entries from the first level that has it, and the number that each level had."""
    found: list[bytes | None] = [None] * len(entry_ids)
    served: dict[ReadLevel, int] = {}
    missing: Sequence[int] = range(len(found))
    for level, entries in levels:
        if len(missing) == len(found):  # nearly always: no Python code runs for one entry
            found = list(map(entries.get, entry_ids))
        else:
            for place in missing:
                found[place] = entries.get(entry_ids[place])
        still = [place for place in missing if found[place] is None] if None in found else []
        served[level] = served.get(level, 0) + len(missing) - len(still)
        missing = still
        if not missing:
            break
    return found, served


class SingleDirectoryStorage(ListenedStorage):
    """The part of `LedgerStorage` that one ledger directory does, for the ledgers that belong to it."""

    def __init__(
        self,
        logs: EntryLogger,
        locations: LocationIndex,
        ledgers: LedgerIndex,
        seal: IndexSeal,
        on_loop: OnLoop,
        *,
        half_bytes: int,
        read_cache_bytes: int,
        read_ahead_entries: int = 100,
        read_ahead_bytes: int = -1,
        metrics: DbStorageMetrics,
    ) -> None:
        """Sizes are bytes of this directory's share; `read_ahead_bytes` <= 0 means a quarter of the read cache."""
        super().__init__(on_loop)
        self.logs = logs
        self.locations = locations
        self.ledgers = ledgers
        ledgers.name_logs(
            FirstLogs(logs.first_log_of_new_ledgers, lambda: logs.newest_log_id, logs.later_processes_begin_at)
        )
        self._seal = seal
        ledgers.on_limbo = lambda ledger_id: seal.withdraw()
        ledgers.before_write = locations.before_write = seal.tell_withdrawn
        if ledgers.has_limbo() or (seal.is_complete and logs.has_foreign(seal.first_log)):
            seal.withdraw()
        seal.later_logs = logs.later_logs_begin_at
        self.read_cache = ReadCache(read_cache_bytes)
        self.flush_wanted = False
        """A flush was asked for and has not swapped yet. Event loop."""
        self.flush_bytes = 0
        """A half that holds so much is due for a flush, though it could take more; 0: none is before it is full."""
        self.failure: StorageFault | None = None
        """Set once, by `fail`: the disk is gone or unusable."""
        self.doubt: str | None = None
        """The reason why entries that the index does not name may still be here, or None if the index is trusted.

        Any thread may ask; that of a rebuild sets it.
        """
        self._half_bytes = half_bytes
        self._metrics = metrics
        limit = read_cache_bytes // 4  # what flushes leave in the cache, at the least
        window_bytes = min(limit, read_ahead_bytes) if read_ahead_bytes > 0 else limit
        self._log_reads = LogReads(
            logs,
            locations,
            self.read_cache,
            self._metrics,
            read_ahead_entries,
            window_bytes,
            self._check_usable,
            lambda ledger_id: ledgers.get(ledger_id) is not None,
        )
        self._active = WriteCacheHalf(half_bytes)
        self._halves: tuple[WriteCacheHalf, WriteCacheHalf | None] = (self._active, None)
        self._frozen: FrozenWork | None = None
        self._flush_lock = threading.Lock()

    @property
    def is_index_complete(self) -> bool:
        """Return whether the index surely names every entry that was durable here. Any thread."""
        return self._seal.is_complete

    @property
    def index_withdrawals(self) -> int:
        """See `IndexSeal.withdrawals`."""
        return self._seal.withdrawals

    def may_lack_rows(self) -> None:
        """Take the index for incomplete: an entry was found that has no row. Durable before the index is written to
        again. Any thread."""
        self._seal.withdraw()

    # --- event loop -----------------------------------------------------------------------------------------

    def fail(self, failure: StorageFault) -> None:
        """The disk failed: from now on adds are refused, reads that memory does not answer are faults, and nothing is
        flushed. Event loop.

        Because every flush fails, no mark passes what this directory still owes the disk: the journals keep it.
        """
        self.failure = failure
        self._tell_swapped()

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise DirectoryGivenUp(str(self.failure))

    def active_entries(self, ledger_id: int) -> dict[int, bytes]:
        self._check_usable()
        self._untouched.discard(ledger_id)
        return self._active.entries_of(ledger_id)

    def account(self, nbytes: int, count: int) -> bool:
        return self._active.account(nbytes, count)

    @property
    def is_due(self) -> bool:
        """Return whether the active half holds enough for a flush, and none was requested yet. Event loop."""
        return 0 < self.flush_bytes <= self._active.nbytes and not self.flush_wanted

    @property
    def is_full(self) -> bool:
        return self._active.is_full and self.failure is None

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if memory holds it. Any thread."""
        for level, entries in self._levels(ledger_id):
            if (entry := entries.get(entry_id)) is not None:
                self._metrics.read_from(level)
                return entry
        return None

    def cached_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        """Return what `cached` returns for each of these entries, with one look-up of the ledger. Any thread."""
        found: list[bytes | None] = list(map(self._halves[0].view(ledger_id).get, entry_ids))
        if None in found:
            return self._from_memory(self._levels(ledger_id), entry_ids)
        self._metrics.read_from(ReadLevel.WRITE_CACHE, len(found))  # of who follows a writer, nothing else is looked at
        return found

    def cached_run(self, ledger_id: int, entry_ids: range) -> list[bytes]:
        """See `LedgerStorage.cached_run`; looks the ledger up once. Any thread."""
        return self._cached_run(self._levels(ledger_id), entry_ids)

    def _cached_run(self, levels: _Levels, entry_ids: range) -> list[bytes]:
        run: list[bytes] = []
        size = 1  # a look-up that finds nothing has looked for one
        while len(run) < len(entry_ids):
            part = entry_ids[len(run) : len(run) + size]
            found, served = _look_up(levels, part)
            if None in found:
                found, served = _look_up(levels, part[: found.index(None)])
            run += iter(iter(found).__next__, None)  # evicted meanwhile: then it ends here
            self._count(served)
            if len(found) < len(part):
                break
            size = min(8 * size, _LOOKED_UP_TOGETHER)
        return run

    def _from_memory(self, levels: _Levels, entry_ids: Sequence[int]) -> list[bytes | None]:
        found, served = _look_up(levels, entry_ids)
        self._count(served)
        return found

    def _count(self, served: Mapping[ReadLevel, int]) -> None:
        for level, count in served.items():
            self._metrics.read_from(level, count)

    def _levels(self, ledger_id: int, *, flushed: bool = True) -> _Levels:
        """Return the parts of memory that may hold the ledger, the newest first. `flushed`: also entries that are on
        disk.
        """
        active, frozen = self._halves
        levels = [(ReadLevel.WRITE_CACHE, active.view(ledger_id))]
        if frozen is not None:
            levels.append((ReadLevel.FLUSHING_CACHE, frozen.view(ledger_id)))
        if flushed:
            levels += [(ReadLevel.READ_CACHE, view) for view in self.read_cache.views(ledger_id)]
        return [level for level in levels if level[1]]

    def write_cache_usage(self) -> tuple[int, int]:
        """(bytes, entries) in both halves. Any thread."""
        active, frozen = self._halves
        if frozen is None:
            return active.nbytes, active.count
        return active.nbytes + frozen.nbytes, active.count + frozen.count

    def _swap(self) -> None:
        """Freeze what is to be flushed. An empty half stays active."""
        half = self._active if self._active.count else None
        self.read_cache.begin_flush()
        self._frozen = FrozenWork(half, self.ledgers.take_dirty(), self.locations.pending_deletions())
        self.flush_wanted = False
        if half is None:
            return
        self._active = WriteCacheHalf(self._half_bytes)
        self._halves = (self._active, half)
        self._tell_swapped()

    def _delete(self, ledger_id: int) -> None:
        record = self.ledgers.get(ledger_id)
        next_log = self.ledgers.delete(ledger_id)
        self.locations.delete_ledger(ledger_id)
        active, frozen = self._halves
        handed_out = active.drop_ledger(ledger_id)
        if frozen is not None:
            frozen.deleted.add(ledger_id)
        self.read_cache.forget_ledger(ledger_id)
        fenced = record is not None and record.fenced
        self._tell_deleted(ledger_id, handed_out=handed_out, fenced=fenced, next_log=next_log)

    def _records(self) -> LedgerRecords:
        return self.ledgers

    def _put_lately(self) -> Collection[int]:
        return self._active.ledgers

    # --- any thread -----------------------------------------------------------------------------------------

    def restore_ledger(self, ledger_id: int, record: LedgerRecord) -> bool:
        """Make a ledger known that is not; False if it is known meanwhile. Durable with the next flush."""
        made = False

        def restore() -> None:
            nonlocal made
            if self.ledgers.get(ledger_id) is None:
                self.ledgers.put(ledger_id, record)
                made = True

        self._on_loop(restore)
        return made

    def deleted_before(self, ledger_id: int, next_log: int) -> None:
        """See `LedgerStorage`."""
        self.ledgers.deleted_before(ledger_id, next_log)
        first_log = self.ledgers.first_log(ledger_id)
        if not first_log:
            return
        # The index has rows of both lives if a rebuild made the record again before a replay came to the deletion.
        rows = self.locations.rows(ledger_id)
        if older := [entry_id for entry_id, at in rows if is_before(split_location(at)[0], first_log)]:
            self.locations.drop(ledger_id, older)

    def refuse(self, locations: Collection[int]) -> None:
        """Serve no entries at these locations from now on; the collection may change later. Any thread."""
        self._log_reads.damaged = locations

    # --- reader threads -------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        if entry_id == LAST_ENTRY:
            entry_id = self.last_entry_id(ledger_id)
        found = next(self.read_each(ledger_id, (entry_id,)))
        if isinstance(found, bytes):
            return found
        try:
            raise found
        finally:
            del found  # else it would hold this frame, which holds it, until the collector of cycles comes

    def read_each(
        self, ledger_id: int, entry_ids: Sequence[int], *, apart: bool = False
    ) -> Iterator[bytes | Exception]:
        """See `LedgerStorage.read_each`."""
        generation, unsure = self.read_cache.generation, self._unsure(ledger_id)
        cached = self._from_memory(self._levels(ledger_id, flushed=not apart), entry_ids)
        missing = [entry_id for entry_id, entry in zip(entry_ids, cached, strict=True) if entry is None]
        from_log = self._log_reads.read_each(ledger_id, missing, None if apart else generation)
        for entry_id, entry in zip(entry_ids, cached, strict=True):
            found = next(from_log) if entry is None else entry
            yield self._absent(ledger_id, f"entry {entry_id}", unsure) if found is None else found

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        """See `LedgerStorage.read_apart`."""
        generation, unsure = self.read_cache.generation, self._unsure(ledger_id)
        run = self._cached_run(self._levels(ledger_id, flushed=False), range(first, first + count))
        if run:
            return run
        run = self._log_reads.read_apart(ledger_id, first, count, max_bytes)
        if not run:
            raise self._absent(ledger_id, f"entry {first}", unsure)
        # Read-ahead entries without a look-up are older than those in memory, and after a flush or a deletion their
        # state is unknown. The halves are looked at first, since a flush raises the generation before its half goes.
        active, frozen = self._halves
        if generation != self.read_cache.generation:
            return run[:1]
        newer = [view for half in (active, frozen) if half is not None and (view := half.view(ledger_id))]
        if not newer:
            return run
        ahead = takewhile(lambda entry: not any(entry[0] in each for each in newer), enumerate(run[1:], first + 1))
        return [run[0], *(entry for _, entry in ahead)]

    def _unsure(self, ledger_id: int) -> str | None:
        """Return why entries of the ledger that are not found may be here all the same, or may have been; else None."""
        if self.doubt is not None:
            return self.doubt
        record = self.ledgers.get(ledger_id)
        return (
            "the ledger is in limbo, entries may have been lost here" if record is not None and record.limbo else None
        )

    def _absent(self, ledger_id: int, what: str, unsure: str | None) -> Exception:
        """The answer when nothing was found and nothing failed. `unsure`: as it was before the search, in the middle of
        which the missing entries may have come back and the doubt have gone."""
        unsure = unsure or self._unsure(ledger_id)
        if unsure is not None:
            return LedgerStateUnknown(f"ledger {ledger_id}: {what} is not known to be absent: {unsure}")
        if self.ledgers.get(ledger_id) is None:
            return NoSuchLedger(f"ledger {ledger_id} is not known here")
        return NoSuchEntry(f"ledger {ledger_id} has no {what} here")

    def last_entry_id(self, ledger_id: int) -> int:
        self._check_usable()
        record = self.ledgers.get(ledger_id)
        if record is not None and record.limbo:
            raise LedgerStateUnknown(f"ledger {ledger_id} is in limbo: its last entry may be lost")
        self._check_no_doubt(ledger_id)
        begin = time.perf_counter()
        life = self.ledgers.life(ledger_id)
        active, frozen = self._halves
        found = [active.highest(ledger_id), frozen.highest(ledger_id) if frozen is not None else None]
        found.append(self.locations.last_entry_id(ledger_id))
        known = [entry_id for entry_id in found if entry_id is not None]
        self._metrics.last_entry(time.perf_counter() - begin)
        if not known or life is None or self.ledgers.life(ledger_id) is not life:  # deleted meanwhile
            raise self._absent(ledger_id, "entries", None)
        return max(known)

    def _check_no_doubt(self, ledger_id: int) -> None:
        if self.doubt is not None:
            raise LedgerStateUnknown(f"ledger {ledger_id}: which entries are here is not known now: {self.doubt}")

    def entry_ids(self, ledger_id: int, *, in_logs: bool = False) -> Iterator[int]:
        life = self._listed(ledger_id)
        active, frozen = self._halves
        in_memory = set(active.entry_ids(ledger_id))
        if frozen is not None:
            in_memory.update(frozen.entry_ids(ledger_id))
        locations = self.locations
        stored = self.logs.only_there(locations.rows(ledger_id)) if in_logs else locations.entry_ids(ledger_id)
        return self._list(ledger_id, life, sorted(in_memory), stored)

    def _list(self, ledger_id: int, life: Life, in_memory: Sequence[int], stored: Iterator[int]) -> Iterator[int]:
        yield from (entry_id for entry_id, _ in groupby(merge(in_memory, stored))) if in_memory else stored
        if self._listed(ledger_id) is not life:  # rows that went meanwhile did not come by
            raise NoSuchLedger(f"ledger {ledger_id} was deleted")

    def _listed(self, ledger_id: int) -> Life:
        """Return the current life of a ledger whose entries can be listed."""
        self._check_usable()
        self._check_no_doubt(ledger_id)
        life = self.ledgers.life(ledger_id)
        if life is None:
            raise NoSuchLedger(f"ledger {ledger_id} is not known here")
        return life

    # --- the storage thread of this directory ---------------------------------------------------------------

    def flush(self) -> None:
        """Make everything put, set or deleted before this call durable. See `LedgerStorage.flush`."""
        self._check_usable()
        with self._flush_lock:
            if self._frozen is not None:
                self._write(self._frozen)  # an earlier flush failed
            self._on_loop(self._swap)
            if self._frozen is not None:
                self._write(self._frozen)

    def prove_index(self, withdrawals: int) -> None:
        """The index surely names every entry that was durable here: see `IndexSeal.prove`. Durable with the next
        seal. Nothing is proved while a ledger is in limbo."""
        if not self.ledgers.has_limbo():
            self._seal.prove(withdrawals)

    def flush_and_seal(self) -> None:
        """Flush, and renew the seal, so that a later loss of the indexes' present rows is noticed. Called before a mark
        moves.
        """
        self.flush()
        self.logs.secure_next_process()
        self.seal()

    def seal(self) -> None:
        """Renew the seal, see `flush_and_seal`."""
        with self._flush_lock:
            self._seal.renew({StoreKind.LOCATIONS: self.locations, StoreKind.LEDGERS: self.ledgers})

    def _write(self, frozen: FrozenWork) -> None:
        begin = time.perf_counter()
        try:
            frozen.write(self.logs, self.locations, self.ledgers, self._metrics)
        except BaseException as error:
            self._metrics.flush_failed()
            if isinstance(error, StorageFault):
                self._check_usable()  # if the disk has failed meanwhile, only that is reported
            raise
        if frozen.half is not None:
            self.read_cache.keep(frozen.half)
            self._metrics.flush_size(frozen.nbytes, frozen.count)
        if not frozen.is_empty:
            self._metrics.flushed(FlushStage.WHOLE, time.perf_counter() - begin)
        self._halves = (self._active, None)
        self._frozen = None

    def close(self) -> None:
        """Close logs and databases; every one is tried, the first error is raised."""
        errors: list[Exception] = []
        for close in (self.logs.close, self.locations.close, self.ledgers.close):
            try:
                close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
