"""What a bookie knows of its ledgers besides their entries, in memory: key, fence, limbo, explicit LAC.

Every index keeps its ledgers here and adds the files behind it: the `ledgers` database (`ledgers`), or the headers of
the index files (`ledger_cache`).

Invariants
- All ledgers are in memory, so that the event loop may ask; the files follow at each checkpoint, and the journal covers
  the gap.
- `take_dirty` runs where changes are made, so no change falls between it and the write that follows.

Threads: changes and `take_dirty` on the event loop (or on the replaying thread, before the loop serves); `get` and
`ledger_ids` from any thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bookie_pod.storage.index.ledger_data import LedgerRecord, check_storable
from bookie_protocol.errors import Unauthorized
from bookie_protocol.keys import is_unknown_key, takes_the_place_of

_SHARED_RECORDS: Final = 4096
"""Distinct records that ledgers share; beyond that each ledger has its own."""


class LedgerRecords:
    """Ledger id to `LedgerRecord`, and which of them changed."""

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerRecord] = {}
        self._shared: dict[LedgerRecord, LedgerRecord] = {}
        self._dirty: set[int] = set()

    def _loaded(self, ledger_id: int, record: LedgerRecord) -> None:
        """Take a record that a file holds: known, not changed."""
        self._ledgers[ledger_id] = self._share(record)

    def _share(self, record: LedgerRecord) -> LedgerRecord:
        """One object for equal records: ledgers of one application differ in nothing but their ids."""
        if record.explicit_lac is not None:
            return record
        known = self._shared.get(record)
        if known is not None:
            return known
        if len(self._shared) < _SHARED_RECORDS:
            self._shared[record] = record
        return record

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> LedgerRecord | None:
        """The ledger's record, or None if it is not known here."""
        return self._ledgers.get(ledger_id)

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers, in no order."""
        return list(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, ledger_id: int, record: LedgerRecord) -> None:
        """Replace the record in memory; durable with the next checkpoint."""
        self._ledgers[ledger_id] = self._share(record)
        self._dirty.add(ledger_id)

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """Check or take note of the key that somebody presents; makes the ledger if it is unknown.

        An unknown stored key is replaced, an unknown given key changes nothing (but zeros replace no bytes), and
        two keys that differ raise `Unauthorized` (the reference's storage reports an I/O error there). `BadRequest`
        for a key that is longer than a bookie takes: nothing has changed.
        """
        check_storable(key)
        record = self._ledgers.get(ledger_id)
        if record is None:
            record = LedgerRecord(key)
        elif takes_the_place_of(key, record.key):
            record = replace(record, key=key)
        elif record.key == key or is_unknown_key(key):
            return record
        else:
            raise Unauthorized(f"ledger {ledger_id}: the master key differs from the ledger's")
        self.put(ledger_id, record)
        return record

    def delete(self, ledger_id: int) -> None:
        """Forget the ledger; what the files hold of it goes with the next checkpoint."""
        if self._ledgers.pop(ledger_id, None) is not None:
            self._dirty.add(ledger_id)

    def take_dirty(self) -> set[int]:
        """Ids of ledgers changed or deleted since the last call. Event loop."""
        dirty, self._dirty = self._dirty, set()
        return dirty
