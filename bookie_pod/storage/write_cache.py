"""The write cache: entries that the journal covers and the entry logs do not hold yet.

It consists of halves; the memtable is made of such halves too.

A half is `ledgers: dict[ledger id, dict[entry id, entry bytes]]` with `nbytes` and `count`. The reference copies
entries into buffers and chunks; here an entry is the immutable `bytes` object that the connection parsed, and
`ENTRY_OVERHEAD` is what Python adds to it. So `skipListArenaChunkSize` and `skipListArenaMaxAllocSize` are checked and
have no effect.

Invariants of a half
- A second put of an entry replaces the first.
- While a half is active only the event loop puts, straight into the dict that `entries_of` handed out, and then reports
  to `account` what it put. Once frozen, a half never changes but for `deleted`.
- Each look-up is one dict operation, so any thread may read at any time.
- `nbytes` counts what was put, not what is left after replacements: it never under-counts.

The memtable is in front of the entry logs of SortedLedgerStorage (and, drained all the time, of Interleaved): two
halves, active and frozen; the flush takes the frozen one in the order of (ledger, entry). Sorting once at the flush
costs less in Python than keeping a map sorted, and leaves the same logs.

Invariants of the memtable
- At most `limit` bytes, overhead included, in each map (beyond it by what one chunk of a connection holds): 2 x limit
  in all. A full active map takes no more until it is frozen, and it is frozen only once the frozen one is empty: adds
  wait, none fails.
- The newest copy of an entry wins, as in every other place of an engine. (In the reference's memtable the first one
  stays: a copy of the next ledger of an id would be acknowledged, and an entry of the former one served for it.)
- The maps are one tuple, replaced whole: a reader never misses an entry on its way from active to frozen, and the
  frozen map goes only after the index has its entries.

Threads: puts, `freeze` and `delete` on the event loop; `release` on the flushing thread; look-ups from any. The event
loop and the interpreter lock take the place of the reference's readers-writer lock.

Source: docs/internals/bookie-behaviour.md, sections 3.1, 4 and 13.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

ENTRY_OVERHEAD: Final = 144
"""Bytes that an entry costs beyond its own length: header and rounding of the `bytes` object (33 to 48), its
`int` key (32), its slot in a dict (36 to 110, after growth). CPython 3.11 allocates 112 to 118, the allocator
rounds that up."""

LEDGER_OVERHEAD: Final = 360
"""Bytes that a ledger's first entry in a half costs: the dict, the key, the slot."""


class WriteCacheHalf:
    """Entries of many ledgers, up to `max_bytes` (payload plus overhead, in bytes)."""

    __slots__ = ("_highest", "count", "deleted", "ledgers", "max_bytes", "nbytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.nbytes = 0
        """Bytes put, overhead included. May pass `max_bytes` by what one chunk of a connection holds."""
        self.count = 0
        """Entries put."""
        self.deleted: set[int] = set()
        """Ledgers deleted after this half was frozen: the flush leaves their entries out, readers do not see
        them."""
        self._highest: dict[int, tuple[dict[int, bytes], int, int]] = {}

    def entries_of(self, ledger_id: int) -> dict[int, bytes]:
        """Return the dict to put this ledger's entries into, made if missing. Event loop, active half only."""
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            entries = self.ledgers[ledger_id] = {}
            self.nbytes += LEDGER_OVERHEAD
        return entries

    def account(self, nbytes: int, count: int) -> bool:
        """Take note of `count` entries of `nbytes` together; True if the half is full now."""
        self.count += count
        self.nbytes += nbytes + count * ENTRY_OVERHEAD
        return self.nbytes >= self.max_bytes

    @property
    def is_full(self) -> bool:
        """True once `max_bytes` is reached. An empty half is never full, so any entry fits into one."""
        return self.nbytes >= self.max_bytes and self.count > 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, or None if this half does not hold it. Any thread."""
        entries = self.ledgers.get(ledger_id)
        if entries is None or ledger_id in self.deleted:
            return None
        return entries.get(entry_id)

    def view(self, ledger_id: int) -> Mapping[int, bytes]:
        """The ledger's entries, to look up and nothing else; empty if this half holds none. Any thread."""
        entries = self.ledgers.get(ledger_id)
        return {} if entries is None or ledger_id in self.deleted else entries

    def highest(self, ledger_id: int) -> int | None:
        """The highest entry id of the ledger in this half. Any thread; cost grows with what is new since the
        last call."""
        entries = self.ledgers.get(ledger_id)
        if not entries or ledger_id in self.deleted:
            return None
        while True:
            known, seen, highest = self._highest.get(ledger_id, (entries, 0, -1))
            if known is not entries:  # an earlier incarnation of a deleted ledger
                seen, highest = 0, -1
            size = len(entries)
            try:
                # New keys are at the end of a dict. One C call: the event loop cannot put in the middle of it.
                newest = max(islice(reversed(entries), size - seen), default=-1)
            except RuntimeError:
                continue
            if len(entries) == size:  # else keys came in since `size` was taken, and older ones were missed
                highest = max(highest, newest)
                self._highest[ledger_id] = (entries, size, highest)
                return highest

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All entry ids of the ledger in this half, in no order. Any thread."""
        entries = self.ledgers.get(ledger_id)
        if entries is None or ledger_id in self.deleted:
            return []
        return list(entries)

    def drop_ledger(self, ledger_id: int) -> bool:
        """Forget a deleted ledger's entries at once; whether it had a dict here. Event loop, active half only.

        If so, the caller must take that dict back from everybody. The bytes stay counted until the swap.
        """
        self._highest.pop(ledger_id, None)
        return self.ledgers.pop(ledger_id, None) is not None


class EntryMemTable:
    """The active and the frozen map."""

    def __init__(self, limit: int) -> None:
        """`limit` is `skipListSizeLimit`, in bytes."""
        self.limit = limit
        self.active = WriteCacheHalf(limit)
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
        self.active = WriteCacheHalf(self.limit)
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
