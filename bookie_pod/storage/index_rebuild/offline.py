"""Rebuilding the databases of a stopped bookie: beside the old ones, checked, then swapped in.

The old database stays as `<name>.BACKUP-<time>`. Until `commit` nothing of it was touched.

Threads: one. `step` does a bounded amount of work; this module neither sleeps nor prints.

Source: reference bookie behaviour, section 12 (`rebuild-db-ledger-locations-index`, `rebuild-db-ledgers-index`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.index.locations import KEY, MAX_ENTRY_ID, LocationIndex
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
from bookie_pod.storage.index_rebuild.ledgers import LedgerRebuild, LedgerRebuildReport
from bookie_pod.storage.index_rebuild.locations import LocationRebuild, RebuildReport, put_all
from bookie_pod.storage.index_rebuild.swap import (
    BUILD_FOLDER,
    ToolStores,
    free_backup_suffix,
    open_new,
    remove_build_folder,
    swap,
)
from bookie_pod.storage.inspect.index import LedgerRows
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.journal.survey import read_folders
from bookie_protocol.errors import ResourcesShort, StorageFault


class _OldLocations:
    """The rows of an old location index, ledger by ledger, without a ledger index."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self._index = LocationIndex(store)

    def ledger_ids(self) -> Iterator[int]:
        begin = KEY.pack(0, 0)
        while (row := next(self._store.scan(begin, b"\x80"), None)) is not None:
            if len(row[0]) != KEY.size:
                raise StorageFault(f"location index {self._store.path}: key {row[0].hex()} does not have 16 bytes")
            ledger_id: int = KEY.unpack(row[0])[0]
            yield ledger_id
            begin = KEY.pack(ledger_id, MAX_ENTRY_ID) + b"\0"

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        return self._index.rows(ledger_id, first_entry)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self._index.get(ledger_id, entry_id)


class OfflineRebuild:
    """What both rebuilds share: a new database in `<index folder>/rebuilt.building`, and the old one, if it opens."""

    kind: StoreKind

    def __init__(self, files: Files, stores: ToolStores, readers: StoreFactory, index_folder: str) -> None:
        self._files = files
        self._stores = stores
        self._readers = readers
        self._folder = index_folder
        self._open = ExitStack()
        self.old_unreadable: str | None = None
        """Why the old database did not open."""
        self.backup = ""

    def _new(self) -> OrderedStore:
        store = open_new(self._files, self._stores, self._folder, self.kind)
        self._open.callback(store.close)
        return store

    def _old(self, kind: StoreKind) -> OrderedStore | None:
        """An old database; None if there is none, or it does not open."""
        path = f"{self._folder}/{kind.value}"
        if not self._readers.exists(path):
            return None
        try:
            store = self._readers.open(path, kind)
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault as error:
            if kind is self.kind:
                self.old_unreadable = str(error)
            return None
        self._open.callback(store.close)
        return store

    def commit(self) -> None:
        """Put the new database in the place of the old one. `StorageFault`."""
        self.close()
        name = self.kind.value
        moves = [(f"{BUILD_FOLDER}/{name}", name)]
        if self._stores.exists(f"{self._folder}/{name}") or self._files.exists(f"{self._folder}/{name}"):
            self.backup = name + free_backup_suffix(self._files, self._folder)
            moves.insert(0, (name, self.backup))
        swap(self._files, self._stores, self._folder, f"rebuild of {name}", moves)
        self._remove_build_folder()

    def discard(self) -> None:
        """Remove what was built."""
        self.close()
        self._remove_build_folder()

    def _remove_build_folder(self) -> None:
        remove_build_folder(self._files, self._stores, self._folder)

    def close(self) -> None:
        """Close every database."""
        self._open.close()


class OfflineLocations(OfflineRebuild):
    """Rebuild of the `locations` database of one ledger directory."""

    kind = StoreKind.LOCATIONS

    def __init__(
        self, files: Files, stores: ToolStores, readers: StoreFactory, index_folder: str, logs: StoredLogs
    ) -> None:
        """`StorageFault` if the ledger database does not open, or has lost its end: rebuild that first, because entries
        of ledgers that it does not know are left out."""
        super().__init__(files, stores, readers, index_folder)
        try:
            ledgers = self._old(StoreKind.LEDGERS)
            if ledgers is None:
                raise StorageFault(
                    f"{index_folder}/{StoreKind.LEDGERS.value} cannot be opened, and it says which ledgers live: "
                    "run `bookie disk rebuild-ledgers` first"
                )
            IndexSeal(files, logs.folders[0]).check({StoreKind.LEDGERS: ledgers})
            known = _Known(LedgerRows(ledgers))
            old = self._old(StoreKind.LOCATIONS)
            index = LocationIndex(self._new())
        except BaseException:
            self.close()
            raise
        self._rebuild = LocationRebuild(
            logs,
            known,
            put_all(index),
            old=None if old is None else _OldLocations(old),
            may_be_earlier_life=DeletedLedgers(files, logs.folders[0]).may_be_earlier_life,
            location_of=index.get,
        )

    @property
    def report(self) -> RebuildReport:
        return self._rebuild.report

    def step(self) -> bool:
        """Do a little more; False when the new database is complete. `StorageFault`."""
        return self._rebuild.step()


class _Known:
    """Whether the ledger index has a ledger; remembers the last answer, as entries of a ledger lie together."""

    def __init__(self, rows: LedgerRows) -> None:
        self._rows = rows
        self._last: tuple[int, bool] = (-1, False)

    def __call__(self, ledger_id: int) -> bool:
        if self._last[0] != ledger_id:
            self._last = (ledger_id, self._rows.has(ledger_id))
        return self._last[1]


class OfflineLedgers(OfflineRebuild):
    """Rebuild of the `ledgers` database of one ledger directory, number `number` of `count`."""

    kind = StoreKind.LEDGERS

    def __init__(
        self,
        files: Files,
        stores: ToolStores,
        readers: StoreFactory,
        index_folder: str,
        logs: StoredLogs,
        journal_folders: Sequence[str],
        *,
        number: int,
        count: int,
    ) -> None:
        super().__init__(files, stores, readers, index_folder)
        self.damaged_journals: list[str] = []
        self.unreadable: list[str] = []
        """Other sources that could not be read to their end."""
        try:
            old, locations = self._old(StoreKind.LEDGERS), self._old(StoreKind.LOCATIONS)
            self._old_whole = old is not None and not self._lost_end(files, logs.folders[0], old)
            self._rebuild = LedgerRebuild(
                self._new(),
                old=None if old is None else LedgerRows(old),
                old_lost_end=old is not None and not self._old_whole,
                journal_records=read_folders(
                    files, journal_folders, lambda error: self.damaged_journals.append(str(error))
                ),
                ledgers_with_entries=self._ledgers_with_entries(logs, locations),
                belongs=lambda ledger_id: ledger_id % count == number,
            )
        except BaseException:
            self.close()
            raise

    @property
    def may_lack(self) -> bool:
        """Whether the new database may lack ledgers: those that left neither entries nor records in a journal here, as
        one that was fenced before its first entry came."""
        return not self._old_whole or self.report.old_unreadable is not None

    @property
    def report(self) -> LedgerRebuildReport:
        return self._rebuild.report

    def step(self) -> bool:
        """Do a little more; False when the new database is complete. `StorageFault`."""
        return self._rebuild.step()

    def _lost_end(self, files: Files, ledger_folder: str, old: OrderedStore) -> bool:
        """Whether the newest rows are gone, or nobody can tell."""
        try:
            IndexSeal(files, ledger_folder).check({self.kind: old})
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault as error:
            self.old_unreadable = str(error)
            return True
        return False

    def _ledgers_with_entries(self, logs: StoredLogs, locations: OrderedStore | None) -> Iterator[int]:
        for log_id in logs.log_ids():
            found = logs.ledgers_map(log_id)
            if not found.complete and found.end is not None:
                self.unreadable.append(found.end.detail)
            yield from found.ledgers
        if locations is not None:
            try:
                yield from _OldLocations(locations).ledger_ids()
            except ResourcesShort:
                raise  # nobody can tell just now
            except StorageFault as error:
                self.unreadable.append(str(error))
