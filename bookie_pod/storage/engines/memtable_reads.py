"""Reads of InterleavedLedgerStorage and SortedLedgerStorage: memtable, ledger cache, entry log.

Invariants
- "No such entry" needs: both maps of the memtable and the index looked at, in this order, without a fault, no location
  that was ever durable, and no limbo, neither before the look nor now. The frozen map goes only after the index has its
  entries, so an entry on its way is found in one of them.
- A ledger may be deleted during a look-up, and created again. Faults that the look-up found in it do not count then,
  and the deleted entries are reported as missing.

Threads: any.

Source: docs/internals/bookie-behaviour.md, section 4.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from heapq import merge
from itertools import chain, groupby

from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.write_cache import EntryMemTable
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import EntryDamaged, LedgerStateUnknown, NoSuchEntry, StorageFault


class MemTableReads:
    """The reading half of an engine with a memtable."""

    def __init__(
        self, memtable: EntryMemTable, cache: LedgerCache, logs: EntryLogger, metrics: MemTableMetrics
    ) -> None:
        self._memtable = memtable
        self._cache = cache
        self._logs = logs
        self._metrics = metrics
        self.damaged: Collection[int] = frozenset()
        """Locations of entries that are known to be damaged: they are not served."""

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        """See `LedgerStorage.read`."""
        if entry_id == LAST_ENTRY:
            entry_id = self.last_entry_id(ledger_id)
        limbo = self._is_in_limbo(ledger_id)
        entry = self.in_memory(ledger_id, entry_id)
        if entry is not None:
            return entry
        location = self._locate(ledger_id, entry_id)
        if not location:
            raise self._absent(ledger_id, entry_id, limbo, lost=location is None)
        begin = time.perf_counter()
        while True:
            try:
                entry = self._read_at(location, ledger_id, entry_id)
                break
            except StorageFault:
                # Compaction may have moved the entry and removed the log between the look-up and the read.
                moved = self._locate(ledger_id, entry_id)
                if moved in (0, None, location):  # 0: lost, or the ledger was created again
                    self._metrics.got_entry(time.perf_counter() - begin, False)
                    raise
                location = moved
        self._metrics.got_entry(time.perf_counter() - begin, True)
        return entry

    def _read_at(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        if location in self.damaged:
            raise EntryDamaged(f"entry {entry_id} of ledger {ledger_id} is damaged here, as the scrubber found")
        return self._logs.read_run(location, ledger_id, entry_id, 0, 0)[0][1]

    def in_memory(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if the memtable holds it."""
        entry = self._memtable.get(ledger_id, entry_id)
        self._metrics.memtable_get(entry is not None)
        return entry

    def _locate(self, ledger_id: int, entry_id: int) -> int | None:
        begin = time.perf_counter()
        location = self._cache.locate(ledger_id, entry_id)
        self._metrics.got_offset(time.perf_counter() - begin)
        return location

    def _is_in_limbo(self, ledger_id: int) -> bool:
        record = self._cache.records.get(ledger_id)
        return record is not None and record.limbo

    def _absent(self, ledger_id: int, entry_id: int, limbo: bool, lost: bool) -> Exception:
        """The answer when nothing was found and nothing failed. `limbo`: as it was before the search, in the middle of
        which the missing entries may have come back and the ledger have left its limbo. `lost`: the entry's location
        is."""
        if limbo or self._is_in_limbo(ledger_id):
            return LedgerStateUnknown(f"ledger {ledger_id} is in limbo: entry {entry_id} may have been lost here")
        if lost:
            return EntryDamaged(f"entry {entry_id} of ledger {ledger_id} is among those that its index file lost")
        return NoSuchEntry(f"ledger {ledger_id} has no entry {entry_id} here")

    def last_entry_id(self, ledger_id: int) -> int:
        """See `LedgerStorage.last_entry_id`."""
        if self._is_in_limbo(ledger_id):
            raise LedgerStateUnknown(f"ledger {ledger_id} is in limbo: its last entry may be lost")
        life = self._cache.life(ledger_id)
        held = self._cache.last_held(ledger_id)
        in_memory = self._memtable.highest(ledger_id)
        stored = self._cache.last_entry_id(ledger_id)
        self._cache.check_life(ledger_id, life)
        known = [entry_id for entry_id in (in_memory, stored) if entry_id is not None]
        if held > max(known, default=-1):
            raise EntryDamaged(f"the last entry of ledger {ledger_id} is among those that its index file lost")
        if known:
            return max(known)
        if self._is_in_limbo(ledger_id):  # since a moment ago
            raise LedgerStateUnknown(f"ledger {ledger_id} is in limbo: its entries may be lost")
        raise NoSuchEntry(f"ledger {ledger_id} has no entries here")

    def entry_ids(self, ledger_id: int, *, in_logs: bool = False) -> Iterator[int]:
        """See `LedgerStorage.entry_ids`."""
        life = self._cache.life(ledger_id)
        in_memory = self._memtable.entry_ids(ledger_id)
        if in_logs:
            stored = self._logs.only_there(chain.from_iterable(self._cache.scan(ledger_id)))
        else:
            stored = self._cache.entry_ids(ledger_id)
        self._cache.check_life(ledger_id, life)
        if not in_memory:
            return stored
        return (entry_id for entry_id, _ in groupby(merge(sorted(in_memory), stored)))
