"""The memtable in front of the entry logs of SortedLedgerStorage (and, drained all the time, of Interleaved).

Two maps, active and frozen, from ledger id to entry id to entry; the flush takes the frozen one in the order of
(ledger, entry). Sorting once at the flush costs less in Python than keeping a map sorted, and leaves the same logs.

Invariants
- At most `limit` bytes, overhead included, in each map (beyond it by what one chunk of a connection holds): 2 x limit
  in all. A full active map takes no more until it is frozen, and it is frozen only once the frozen one is empty: adds
  wait, none fails.
- With `first_copy_stays` a second put of an entry into the active map changes nothing. Its bytes stay counted until
  the map is frozen (the reference gives them back at once): the count errs on the safe side only.
- The maps are one tuple, replaced whole: a reader never misses an entry on its way from active to frozen, and the
  frozen map goes only after the index has its entries.

There is no arena. The reference copies entries into large chunks to have few objects with one life span; here an
entry is the immutable `bytes` object that the connection parsed, without another copy, and the map's dicts go as a
whole. `skipListArenaChunkSize` and `skipListArenaMaxAllocSize` are checked and have no effect.

Threads: puts, `freeze` and `delete` on the event loop; `release` on the flushing thread; look-ups from any. The event
loop and the interpreter lock take the place of the reference's readers-writer lock.

Source: reference bookie behaviour, sections 4 and 13.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import starmap

from bookie_pod.storage.cache.write_cache import LEDGER_OVERHEAD, WriteCacheHalf


class FirstCopies(dict[int, bytes]):
    """Entries of one ledger; assigning an entry that is there changes nothing. No Python code runs for one of them."""

    __slots__ = ()
    __setitem__ = dict.setdefault  # type: ignore[assignment]

    def update(self, entries: Iterable[tuple[int, bytes]]) -> None:  # type: ignore[override]
        """Assign many. (That of `dict` would replace those that are there.)"""
        deque(starmap(self.setdefault, entries), maxlen=0)


class FirstCopyHalf(WriteCacheHalf):
    """A map that keeps the first copy of each entry."""

    __slots__ = ()

    def entries_of(self, ledger_id: int) -> dict[int, bytes]:
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            entries = self.ledgers[ledger_id] = FirstCopies()
            self.nbytes += LEDGER_OVERHEAD
        return entries


class EntryMemTable:
    """The active and the frozen map."""

    def __init__(self, limit: int, *, first_copy_stays: bool) -> None:
        """`limit` is `skipListSizeLimit`, in bytes."""
        self.limit = limit
        self._kind = FirstCopyHalf if first_copy_stays else WriteCacheHalf
        self.active = self._kind(limit)
        self._halves: tuple[WriteCacheHalf, WriteCacheHalf | None] = (self.active, None)

    @property
    def frozen(self) -> WriteCacheHalf | None:
        return self._halves[1]

    @property
    def nbytes(self) -> int:
        """Bytes in both maps, overhead included."""
        active, frozen = self._halves
        return active.nbytes + (frozen.nbytes if frozen is not None else 0)

    @property
    def count(self) -> int:
        """Entries in both maps."""
        active, frozen = self._halves
        return active.count + (frozen.count if frozen is not None else 0)

    def freeze(self) -> bool:
        """Freeze the active map, if it holds anything and no other is frozen; whether it was done."""
        active, frozen = self._halves
        if frozen is not None or not active.count:
            return False
        self.active = self._kind(self.limit)
        self._halves = (self.active, active)
        return True

    def release(self) -> None:
        """The frozen map is flushed: forget it."""
        self._halves = (self.active, None)

    def delete(self, ledger_id: int) -> bool:
        """Forget a deleted ledger's entries; whether a dict of it was handed out, which is void now."""
        active, frozen = self._halves
        if frozen is not None:
            frozen.deleted.add(ledger_id)
        return active.drop_ledger(ledger_id)

    # --- any thread -----------------------------------------------------------------------------------------

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        active, frozen = self._halves
        entry = active.get(ledger_id, entry_id)
        if entry is None and frozen is not None:
            return frozen.get(ledger_id, entry_id)
        return entry

    def highest(self, ledger_id: int) -> int | None:
        """The highest entry id of the ledger in memory."""
        active, frozen = self._halves
        found = active.highest(ledger_id)
        other = frozen.highest(ledger_id) if frozen is not None else None
        return other if found is None else found if other is None else max(found, other)

    def entry_ids(self, ledger_id: int) -> set[int]:
        active, frozen = self._halves
        found = set(active.entry_ids(ledger_id))
        if frozen is not None:
            found.update(frozen.entry_ids(ledger_id))
        return found
