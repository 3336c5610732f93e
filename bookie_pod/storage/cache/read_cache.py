"""Entries that were read from the entry logs, and the ones behind them that were read ahead.

Invariants
- At most `max_bytes`, overhead included; the entry that came first goes first.
- Whoever fills the cache takes `generation` before it looks up where the entry lies and gives it to `put`. If
  a flush or a deletion came in between, the entry is not taken: it may be an older copy than the one just
  flushed.
- A look-up takes no lock: two dict operations. Filling and forgetting take a short one.

Threads: any.

Source: reference bookie behaviour, section 3.3 (there a ring of segments).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

ENTRY_OVERHEAD: Final = 240
"""Bytes that a cached entry costs beyond its own length: object header, dict slot, key, place in the
queue."""


class ReadCache:
    """A cache of entries, bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.generation = 0
        self.nbytes = 0
        """Bytes held, overhead included. Forgotten entries count until their turn to go comes."""
        self._ledgers: dict[int, dict[int, bytes]] = {}
        self._queue: deque[tuple[int, int, bytes]] = deque()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Entries held, forgotten ones included until their turn to go comes."""
        return len(self._queue)

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        entries = self._ledgers.get(ledger_id)
        return None if entries is None else entries.get(entry_id)

    def view(self, ledger_id: int) -> Mapping[int, bytes]:
        """The ledger's entries, to look up and nothing else."""
        return self._ledgers.get(ledger_id, {})

    def put(self, ledger_id: int, entries: Iterable[tuple[int, bytes]], generation: int) -> None:
        """Take (entry id, entry) pairs of one ledger, unless `generation` is over."""
        with self._lock:
            if generation != self.generation:
                return
            for entry_id, entry in entries:
                self._put(ledger_id, entry_id, entry)

    def _put(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        cost = len(entry) + ENTRY_OVERHEAD
        if cost > self.max_bytes:
            return
        held = self._ledgers.setdefault(ledger_id, {})
        if entry_id in held:
            return
        while self.nbytes + cost > self.max_bytes:
            self._evict()
        self._ledgers.setdefault(ledger_id, held)[entry_id] = entry  # evicting may have emptied the ledger
        self._queue.append((ledger_id, entry_id, entry))
        self.nbytes += cost

    def _evict(self) -> None:
        ledger_id, entry_id, entry = self._queue.popleft()
        self.nbytes -= len(entry) + ENTRY_OVERHEAD
        held = self._ledgers.get(ledger_id)
        if held is not None and held.get(entry_id) is entry:
            del held[entry_id]
            if not held:
                del self._ledgers[ledger_id]

    def forget(self, flushed: Mapping[int, Mapping[int, object]]) -> None:
        """Forget entries of which a newer copy was flushed: ledger id to a dict whose keys are entry ids."""
        with self._lock:
            self.generation += 1
            for ledger_id in self._ledgers.keys() & flushed.keys():
                held = self._ledgers[ledger_id]
                for entry_id in held.keys() & flushed[ledger_id].keys():
                    del held[entry_id]
                if not held:
                    del self._ledgers[ledger_id]

    def forget_ledger(self, ledger_id: int) -> None:
        with self._lock:
            self.generation += 1
            self._ledgers.pop(ledger_id, None)
