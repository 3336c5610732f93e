"""The storage engine of a virtual bookie: everything in memory, rebuilt from the journal after a crash.

The real engines have crash tests of their own; here the request handling above them counts. `swap` makes everything
cold, as a flush does: reads then take the slow way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bookie_pod.storage.engines.interface import OnDeleted, each_alone
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import LedgerStateUnknown, NoSuchEntry, NoSuchLedger, Unauthorized
from bookie_protocol.keys import is_unknown_key

OnPut = Callable[[int, int, bytes], None]
"""(ledger id, entry id, entry)."""


class _Active(dict[int, bytes]):
    """The active half of one ledger: tells what is put into it."""

    __slots__ = ("_ledger_id", "_storage")

    def __init__(self, storage: VirtualStorage, ledger_id: int) -> None:
        super().__init__()
        self._storage = storage
        self._ledger_id = ledger_id

    def __setitem__(self, entry_id: int, entry: bytes) -> None:
        super().__setitem__(entry_id, entry)
        self._storage.put(self._ledger_id, entry_id, entry)

    def update(self, entries: Iterable[tuple[int, bytes]]) -> None:  # type: ignore[override]
        """As a run of adds is admitted; a dictionary's own would pass by the storage."""
        for entry_id, entry in entries:
            self[entry_id] = entry


class VirtualStorage:
    """A `LedgerStorage`."""

    checkpoints_by_interval = False
    max_entry_id = (1 << 63) - 1
    write_caches = 1
    doubts = 0

    def __init__(self) -> None:
        self.on_put: OnPut = lambda ledger_id, entry_id, entry: None
        self.on_read: Callable[[bytes], bytes] = lambda entry: entry
        """What the disk makes of an entry that is read from it: it may damage it, or raise `StorageFault`."""
        self._records: dict[int, LedgerRecord] = {}
        self._entries: dict[int, dict[int, bytes]] = {}
        self._active: dict[int, _Active] = {}
        self._on_swap: list[Callable[[], None]] = []
        self._on_deleted: list[OnDeleted] = []

    def put(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        self._entries[ledger_id][entry_id] = entry
        self.on_put(ledger_id, entry_id, entry)

    def swap(self) -> None:
        """Memory forgets everything; the disk keeps it."""
        self._active.clear()
        for callback in self._on_swap:
            callback()

    def rot(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        """The disk gives this in the place of an entry from now on."""
        self._entries[ledger_id][entry_id] = entry
        self.swap()

    def drop_entries(self, ledger_id: int) -> None:
        """Forget what is stored of a ledger."""
        self._entries.pop(ledger_id, None)
        if ledger_id in self._records:
            self._entries[ledger_id] = {}
        self.swap()

    # --- LedgerStorage --------------------------------------------------------------------------------------

    def start(self, checkpointer: Any) -> None:
        return

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self._records.get(ledger_id)

    def set_ledger(self, ledger_id: int, record: LedgerRecord) -> None:
        self._records[ledger_id] = record
        self._entries.setdefault(ledger_id, {})

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        record = self._records.get(ledger_id) or LedgerRecord(key)
        if is_unknown_key(record.key):
            record = replace(record, key=key)
        elif not is_unknown_key(key) and record.key != key:
            raise Unauthorized(f"ledger {ledger_id}: another master key")
        self.set_ledger(ledger_id, record)
        return record

    def active_entries(self, ledger_id: int) -> dict[int, bytes]:
        active = self._active.get(ledger_id)
        if active is None:
            self._entries.setdefault(ledger_id, {})
            active = self._active[ledger_id] = _Active(self, ledger_id)
        return active

    def account(self, ledger_id: int, nbytes: int, count: int) -> bool:
        return False

    def is_full(self, ledger_id: int) -> bool:
        return False

    def request_flush(self, ledger_id: int) -> None:
        return

    def on_swap(self, callback: Callable[[], None]) -> None:
        self._on_swap.append(callback)

    def on_space(self, callback: Callable[[], None]) -> None:
        return

    def on_flush_failure(self, callback: Callable[[BaseException], None]) -> None:
        return

    def on_ledger_deleted(self, callback: OnDeleted) -> None:
        self._on_deleted.append(callback)

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        active = self._active.get(ledger_id)
        return None if active is None else active.get(entry_id)

    def cached_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        return [self.cached(ledger_id, entry_id) for entry_id in entry_ids]

    def cached_run(self, ledger_id: int, entry_ids: range) -> list[bytes]:
        run: list[bytes] = []
        for entry_id in entry_ids:
            entry = self.cached(ledger_id, entry_id)
            if entry is None:
                break
            run.append(entry)
        return run

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        entries = self._require(ledger_id)
        if entry_id == LAST_ENTRY:
            entry_id = self.last_entry_id(ledger_id)
        entry = entries.get(entry_id)
        if entry is None:
            raise self._missing(ledger_id, f"entry {entry_id} of ledger {ledger_id}")
        return self.on_read(entry)

    def read_each(
        self, ledger_id: int, entry_ids: Sequence[int], *, apart: bool = False
    ) -> Iterator[bytes | Exception]:
        return each_alone(self.read, ledger_id, entry_ids)

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        return [self.read(ledger_id, first)]

    def last_entry_id(self, ledger_id: int) -> int:
        entries = self._require(ledger_id)
        if not entries:
            raise self._missing(ledger_id, f"ledger {ledger_id} has no entry")
        return max(entries)

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        return iter(sorted(self._require(ledger_id)))

    def ledger_ids(self) -> list[int]:
        return list(self._records)

    def delete_ledger(self, ledger_id: int) -> None:
        record = self._records.pop(ledger_id, None)
        self._entries.pop(ledger_id, None)
        self._active.pop(ledger_id, None)
        for callback in self._on_deleted:
            callback(ledger_id, record is not None and record.fenced, 0)

    def flush(self) -> None:
        return

    def checkpoint(self, marks: Sequence[Any]) -> None:
        return

    def close(self) -> None:
        return

    def _require(self, ledger_id: int) -> dict[int, bytes]:
        if ledger_id not in self._records:
            raise NoSuchLedger(f"ledger {ledger_id}")
        return self._entries[ledger_id]

    def _missing(self, ledger_id: int, what: str) -> Exception:
        return LedgerStateUnknown(f"{what}: limbo") if self._records[ledger_id].limbo else NoSuchEntry(what)
