"""The entries that one ledger directory keeps in memory: those flushed last, and those read from the entry logs.

Flushed entries stay in the dicts in which they were put, so that keeping them costs an add nothing, and readers that
are a little behind the writers need no disk. They take up to half of the cache, a single flush up to three quarters of
it; the rest is for entries that are read, and read ahead.

Invariants
- It holds at most `max_bytes`, overhead included. Of each kind the oldest goes first.
- A reader that fills it from a log takes `generation` before it looks up the location of the entry and passes it to
  `put`. If a flush or a deletion came in between, the entry is not taken: it may be an older copy than the one just
  flushed.
- Of flushed entries the newest is looked at first, and the oldest goes first: no copy is served in place of one that
  was flushed later. A flush that is too large to be kept leaves nothing older than itself.
- A ledger that is forgotten while a flush is under way (it was deleted, or an entry of it was found damaged) is not
  kept of that flush. What was kept of it before is not served from then on, and counts until its turn to go comes.
- A look-up takes no lock, only dict operations. The lock is held for one ledger or a few hundred entries, and a thread
  that needs it often sleeps between, so that the event loop gets it. Entries are freed by ledger of a flush.

Threads: look-ups, `put` and `forget_ledger` from any; `begin_flush` on the event loop; `keep` on the flushing thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from bookie_pod.storage.index.locations import YIELD_SECONDS
from bookie_pod.storage.write_cache import WriteCacheHalf

ENTRY_OVERHEAD: Final = 240
"""Bytes that an entry read from a log costs beyond its own length: object header, dict slot, key, place in the
queue."""
PIECES: Final = 16
"""A flush becomes one with the flush before it as long as both together are smaller than this part of what flushes may
take. So a ledger is looked for in twice as many dicts, at most."""
_TOGETHER: Final = 256
"""Entries, or ledgers, with which one does something before others have a turn."""


class _Flush:
    """The entries of one flush, or of several small ones, by ledger."""

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.nbytes = 0
        self.count = 0


class ReadCache:
    """A cache of entries, bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.generation = 0
        self._lock = threading.Lock()
        self._read: dict[int, dict[int, bytes]] = {}
        self._queue: deque[tuple[int, int, bytes]] = deque()
        self._read_bytes = 0
        self._room = max_bytes
        """The bytes that flushed entries leave to entries that are read."""
        self._flushes: deque[_Flush] = deque()
        """The newest first. Of the thread that flushes."""
        self._flushed: dict[int, tuple[dict[int, bytes], ...]] = {}
        """The flushed entries of each ledger, the newest flush first; without forgotten ledgers."""
        self._kept_bytes = 0
        self._kept_count = 0
        self._forgotten: set[int] = set()
        """Ledgers that were forgotten since the flush that is under way began."""

    @property
    def nbytes(self) -> int:
        """Bytes held, overhead included. Forgotten entries count until their turn to go comes."""
        return self._read_bytes + self._kept_bytes

    @property
    def count(self) -> int:
        """Entries held, forgotten ones included until their turn to go comes."""
        return len(self._queue) + self._kept_count

    def views(self, ledger_id: int) -> tuple[Mapping[int, bytes], ...]:
        """The ledger's entries, to look up and nothing else: what the first of them has holds."""
        flushed = self._flushed.get(ledger_id, ())
        read = self._read.get(ledger_id)
        return flushed if read is None else (*flushed, read)

    def put(self, ledger_id: int, entries: Iterable[tuple[int, bytes]], generation: int) -> None:
        """Take (entry id, entry) pairs of one ledger that were read from a log, unless `generation` is over."""
        for entry_id, entry in entries:
            while not self._put(ledger_id, entry_id, entry, generation):
                pass

    def _put(self, ledger_id: int, entry_id: int, entry: bytes, generation: int) -> bool:
        """Take it, or not; False: there was no end to what has to go for it yet."""
        cost = len(entry) + ENTRY_OVERHEAD
        with self._lock:
            if generation != self.generation or cost > self._room or entry_id in self._read.get(ledger_id, ()):
                return True
            if not self._evict_beyond(self._room - cost):
                return False
            self._read.setdefault(ledger_id, {})[entry_id] = entry
            self._queue.append((ledger_id, entry_id, entry))
            self._read_bytes += cost
            return True

    def _evict_beyond(self, nbytes: int) -> bool:
        """Evict some of what was read, as far as it takes more than so many bytes; whether it takes no more now."""
        for _ in range(_TOGETHER):
            if self._read_bytes <= nbytes:
                return True
            self._evict()
        return self._read_bytes <= nbytes

    def _evict(self) -> None:
        ledger_id, entry_id, entry = self._queue.popleft()
        self._read_bytes -= len(entry) + ENTRY_OVERHEAD
        held = self._read.get(ledger_id)
        if held is not None and held.get(entry_id) is entry:
            del held[entry_id]
            if not held:
                del self._read[ledger_id]

    def forget_ledger(self, ledger_id: int) -> None:
        """Serve nothing of it any more that is here now, or in the flush that is under way."""
        with self._lock:
            self.generation += 1
            self._read.pop(ledger_id, None)
            self._flushed.pop(ledger_id, None)
            self._forgotten.add(ledger_id)

    # --- what was flushed -----------------------------------------------------------------------------------

    def begin_flush(self) -> None:
        """Begin a flush: ledgers that are forgotten from now on are not kept of the half that is frozen now."""
        self._forgotten = set()

    def keep(self, half: WriteCacheHalf) -> None:
        """Take a half that was just flushed, and forget older copies of its entries. Until it returns, readers have to
        look into the half first."""
        with self._lock:
            self.generation += 1
        most = self.max_bytes // 2
        while self._flushes and self._kept_bytes + half.nbytes > most:
            self._drop_oldest()
        kept = half.nbytes <= self.max_bytes * 3 // 4
        self._leave_room(self.max_bytes - self._kept_bytes - (half.nbytes if kept else 0))
        if not self._flushes or self._flushes[0].nbytes + half.nbytes > most // PIECES:
            self._flushes.appendleft(_Flush())
        newest = self._flushes[0]
        for number, (ledger_id, entries) in enumerate(half.ledgers.items(), 1):
            self._forget_read(ledger_id, entries)
            with self._lock:
                if kept and ledger_id not in half.deleted and ledger_id not in self._forgotten:
                    self._add(newest, ledger_id, entries)
            if number % _TOGETHER == 0:
                time.sleep(YIELD_SECONDS)
        if kept:
            newest.nbytes += half.nbytes
            newest.count += half.count
            self._kept_bytes += half.nbytes
            self._kept_count += half.count

    def _forget_read(self, ledger_id: int, flushed: Iterable[int]) -> None:
        entry_ids = iter(flushed)
        while ledger_id in self._read and (some := list(islice(entry_ids, _TOGETHER))):
            with self._lock:
                held = self._read.get(ledger_id, {})
                for entry_id in some:
                    held.pop(entry_id, None)
                if not held:
                    self._read.pop(ledger_id, None)
            if len(some) == _TOGETHER:
                time.sleep(YIELD_SECONDS)

    def _add(self, flush: _Flush, ledger_id: int, entries: dict[int, bytes]) -> None:
        there = self._flushed.get(ledger_id, ())
        before = flush.ledgers.get(ledger_id)
        if before is not None and there and there[0] is before:
            entries = before | entries
            there = there[1:]
        flush.ledgers[ledger_id] = entries
        self._flushed[ledger_id] = (entries, *there)

    def _leave_room(self, nbytes: int) -> None:
        """Evict what was read beyond so many bytes, and take no more than these."""
        with self._lock:
            self._room = nbytes
        while True:
            with self._lock:
                if self._evict_beyond(nbytes):
                    return
            time.sleep(YIELD_SECONDS)

    def _drop_oldest(self) -> None:
        flush = self._flushes[-1]
        while flush.ledgers:
            self._drop_one(flush)
            if len(flush.ledgers) % _TOGETHER == 0:
                time.sleep(YIELD_SECONDS)
        self._flushes.pop()
        self._kept_bytes -= flush.nbytes
        self._kept_count -= flush.count

    def _drop_one(self, flush: _Flush) -> dict[int, bytes]:
        """Drop what it has of one ledger. Returned so that it is freed when the lock is not held."""
        with self._lock:
            ledger_id, entries = flush.ledgers.popitem()
            there = self._flushed.get(ledger_id, ())
            if there and there[-1] is entries:
                if len(there) > 1:
                    self._flushed[ledger_id] = there[:-1]
                else:
                    del self._flushed[ledger_id]
            return entries
