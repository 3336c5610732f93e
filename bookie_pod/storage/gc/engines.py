"""The storage engines as garbage collection sees them.

Threads: as `CollectedStorage` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import Consent, LedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.index.location_rows import EntryMove
from bookie_protocol.errors import NoLedgerIndex


class CollectedDirectory:
    """One ledger directory of `DbLedgerStorage`."""

    index_may_run_ahead = False

    def __init__(self, directory: SingleDirectoryStorage) -> None:
        self._directory = directory

    @property
    def logs(self) -> EntryLogger:
        return self._directory.logs

    def ledger_ids(self) -> Collection[int]:
        return self._directory.ledgers.ledger_ids()

    def has_ledger(self, ledger_id: int) -> bool:
        return self._directory.ledgers.get(ledger_id) is not None

    def is_fenced(self, ledger_id: int) -> bool:
        record = self._directory.ledgers.get(ledger_id)
        return record is not None and record.fenced

    def watch(self, ledger_ids: Collection[int]) -> None:
        self._directory.watch(ledger_ids)

    def delete_ledger(self, ledger_id: int, consent: Consent) -> None:
        self._directory.delete_ledger(ledger_id, consent)

    def flush(self) -> None:
        self._directory.flush()

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self._directory.locations.get(ledger_id, entry_id)

    def rows(self, ledger_id: int) -> Iterator[tuple[int, int]]:
        return self._directory.locations.rows(ledger_id)

    def move(self, moves: Sequence[EntryMove]) -> int:
        return self._directory.locations.move(moves)

    def settle(self) -> None:
        self._directory.locations.settle()

    def compact_index(self) -> None:
        self._directory.locations.compact()


class CollectedEngine:
    """`SortedLedgerStorage` or `InterleavedLedgerStorage`: one space over all directories."""

    index_may_run_ahead = True

    def __init__(self, storage: MemTableStorage) -> None:
        self._storage = storage

    @property
    def logs(self) -> EntryLogger:
        return self._storage.logs

    def ledger_ids(self) -> Collection[int]:
        return self._storage.ledger_ids()

    def has_ledger(self, ledger_id: int) -> bool:
        return self._storage.cache.records.get(ledger_id) is not None

    def is_fenced(self, ledger_id: int) -> bool:
        record = self._storage.cache.records.get(ledger_id)
        return record is not None and record.fenced

    def watch(self, ledger_ids: Collection[int]) -> None:
        self._storage.watch(ledger_ids)

    def delete_ledger(self, ledger_id: int, consent: Consent) -> None:
        self._storage.delete_ledger(ledger_id, consent)

    def flush(self) -> None:
        self._storage.flush()

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        try:
            return self._storage.cache.get(ledger_id, entry_id)
        except NoLedgerIndex:
            return 0

    def rows(self, ledger_id: int) -> Iterator[tuple[int, int]]:
        try:
            for page in self._storage.cache.scan(ledger_id):
                yield from page
        except NoLedgerIndex:
            return

    def move(self, moves: Sequence[EntryMove]) -> int:
        moved = sum(self._storage.cache.move(*each) for each in moves)
        self._storage.flush()
        return moved

    def settle(self) -> None:
        """Pages in memory stay as they are until they are written."""

    def compact_index(self) -> None:
        """Index files have a place for each entry; nothing to compact."""


def collected(storage: LedgerStorage) -> list[CollectedStorage]:
    """What is collected separately: each directory of `DbLedgerStorage`, or the whole of the other engines."""
    if isinstance(storage, DbLedgerStorage):
        return [CollectedDirectory(directory) for directory in storage.directories]
    if isinstance(storage, MemTableStorage):
        return [CollectedEngine(storage)]
    raise TypeError(f"{type(storage).__name__} has no garbage collection")
