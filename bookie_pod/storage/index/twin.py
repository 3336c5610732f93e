"""A second store of location rows that is built beside the one in use, and becomes it.

Invariants
- Whatever changes the index in use changes the twin too, in the same turn of the index's write lock (`LocationIndex`).
- A row that a scan of the entry logs offers yields to one that both stores hold: that one was confirmed by its log, or
  is newer than the scan.
- A ledger that was deleted since the twin is there gets no row by an offer: what a scan finds of it is garbage, and
  what is new of it comes with the flushes.
- A fault of the twin ends the rebuild and nothing else.

Threads: as `LocationIndex`: everything under its write lock, but `deleted`, to which any thread may add.

Source: reference bookie behaviour, section 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookie_pod.storage.index.location_rows import KEY, VALUE
from bookie_pod.storage.index.store import OrderedStore
from bookie_protocol.errors import StorageFault


@dataclass(slots=True)
class Offered:
    """What became of rows that were offered."""

    put: int = 0
    """Rows that the twin has now from this offer."""
    same: int = 0
    """Of these, rows that the index in use has too."""


class Twin:
    """The store that is built. `failure`: why nothing more is written to it."""

    def __init__(self, store: OrderedStore) -> None:
        self.store = store
        self.deleted: set[int] = set()
        self.failure: StorageFault | None = None

    def check(self) -> None:
        """`StorageFault` if a change could not be followed."""
        if self.failure is not None:
            raise StorageFault(f"the new index could not follow a change: {self.failure}") from self.failure

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The location, or 0. `StorageFault`."""
        value = self.store.get(KEY.pack(ledger_id, entry_id))
        return 0 if value is None else int(VALUE.unpack(value)[0])

    def put(self, ledger_id: int, rows: Sequence[tuple[int, int]]) -> None:
        """(entry id, location) of one ledger; durable when the twin is adopted. `StorageFault`."""
        batch = self.store.batch()
        for entry_id, location in rows:
            batch.put(KEY.pack(ledger_id, entry_id), VALUE.pack(location))
        batch.commit(sync=False)
