"""Rebuilding the databases of a stopped bookie: beside the old ones, checked, then swapped in.

The old database stays as `<name>.BACKUP-<time>`. Until `commit` nothing of it was touched.

Threads: one. `step` does a bounded amount of work; this module neither sleeps nor prints, and keeps one batch of rows.

Source: docs/internals/bookie-behaviour.md, section 12 (`rebuild-db-ledger-locations-index`,
`rebuild-db-ledgers-index`); docs/internals/on-disk-formats.md, section 8.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import structlog

from bookie_pod.storage.engines.detection import find_log_with_entries
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.index.ledger_data import encode
from bookie_pod.storage.index.ledgers import FLAGS_KEY, NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.locations import KEY, NEGATIVE, LocationIndex
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
from bookie_pod.storage.index_rebuild.ledgers import LedgerRebuild, LedgerRebuildReport
from bookie_pod.storage.index_rebuild.locations import LocationRebuild, RebuildReport, put_chosen, used_places
from bookie_pod.storage.index_rebuild.swap import (
    BUILD_FOLDER,
    DiskStores,
    free_backup_suffix,
    open_new,
    remove_build_folder,
    swap,
)
from bookie_pod.storage.index_rebuild.torn_records import TornRecords
from bookie_pod.storage.inspect.index import LedgerRows
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.journal.survey import read_folders
from bookie_pod.storage.log_ids import is_before
from bookie_protocol.errors import InvalidConfiguration, ResourcesShort, StorageFault

_log = structlog.get_logger(__name__)
STEPPED_OVER: Final = 1024
"""Rows of one ledger that a list of ledgers reads before it seeks the next one."""
LIMBO_ROWS: Final = 4096
"""Records that are put in limbo in one batch."""


class _OldLocations:
    """The rows of an old location index, ledger by ledger, without a ledger index."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self._index = LocationIndex(store)

    def ledger_ids(self) -> Iterator[int]:
        begin: bytes | None = KEY.pack(0, 0)
        while begin is not None:
            last, seen, rows, begin = -1, 0, self._store.scan(begin, NEGATIVE), None
            for key, _ in rows:
                if len(key) != KEY.size:
                    raise StorageFault(f"location index {self._store.path}: key {key.hex()} does not have 16 bytes")
                ledger_id: int = KEY.unpack(key)[0]
                if ledger_id != last:
                    yield ledger_id
                    last, seen = ledger_id, 0
                seen += 1
                if seen > STEPPED_OVER:  # negative entry ids lie behind all others of a ledger
                    begin = (ledger_id + 1).to_bytes(8, "big")
                    break

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        return self._index.rows(ledger_id, first_entry)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self._index.get(ledger_id, entry_id)


class OfflineRebuild:
    """The common part of both rebuilds.

    It has a new database in `<index folder>/rebuilt.building`, and the old one, if it opens.
    """

    kind: StoreKind

    def __init__(self, files: Files, stores: DiskStores, readers: StoreFactory, index_folder: str) -> None:
        self._files = files
        self._stores = stores
        self._readers = readers
        self._folder = index_folder
        self._open = ExitStack()
        self.old_unreadable: str | None = None
        """The reason why the old database did not open."""
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
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            if kind is self.kind:
                self.old_unreadable = str(error)
            return None
        self._open.callback(store.close)
        return store

    def _lost_end(self, files: Files, ledger_folder: str, old: OrderedStore) -> bool:
        """Return whether the newest rows are gone, or may be; or all of them, and this database was made after that."""
        try:
            return not IndexSeal(files, ledger_folder).check({self.kind: old}) and not _has_rows(old)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            self.old_unreadable = str(error)
            return True

    def commit(self) -> None:
        """Put the new database in the place of the old one. `StorageFault`."""
        self.close()
        name = self.kind.value
        moves = [(f"{BUILD_FOLDER}/{name}", name)]
        if self._stores.is_there(f"{self._folder}/{name}"):
            self.backup = name + free_backup_suffix(self._stores, self._folder, [name])
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
        self, files: Files, stores: DiskStores, readers: StoreFactory, index_folder: str, logs: StoredLogs
    ) -> None:
        """`StorageFault` if the ledger database does not open, is lost, or has lost its end: rebuild that first,
        because entries of ledgers that it does not know are left out."""
        super().__init__(files, stores, readers, index_folder)
        try:
            ledgers = self._old(StoreKind.LEDGERS)
            if ledgers is None:
                raise StorageFault(
                    f"{index_folder}/{StoreKind.LEDGERS.value} cannot be opened, and it says which ledgers live: "
                    "run `bookie disk rebuild-ledgers` first"
                )
            self._check_ledgers(ledgers, logs.folders[0])
            rows = LedgerRows(ledgers)
            known = _Living(rows, DeletedLedgers(files, logs.folders[0]))
            store = self._old(StoreKind.LOCATIONS)
            lost_end = store is not None and self._lost_end(files, logs.folders[0], store)
            self._seal = IndexSeal(files, logs.folders[0])
            self._was_complete = (
                store is not None
                and self._seal.proves_complete(store)
                and not logs.has_foreign(self._seal.first_log)
                and all(record is not None and not record.limbo for _, record in rows.records())
            )
            self._had_old = store is not None
            self._target = self._new()
            index = LocationIndex(self._target)
        except BaseException:
            self.close()
            raise
        old = None if store is None else _OldLocations(store)
        # What an index names that has lost its end may be of before: then the newest copy counts.
        used = None if store is None or lost_end else used_places(LocationIndex(store))
        self._rebuild = LocationRebuild(
            logs,
            known,
            put_chosen(index, used),
            old=old,
            location_of=index.get,
            entries_end=logs.entries_end,
            torn=TornRecords(logs, index.get, old, known, complete=self._was_complete),
            may_be_earlier=known.may_be_earlier,
            used=used,
            known=rows.ids,
        )

    def _check_ledgers(self, ledgers: OrderedStore, folder: str) -> None:
        """Raise `StorageFault` if this database has lost its end, or was made in the place of one that was lost."""
        if IndexSeal(self._files, folder).check({StoreKind.LEDGERS: ledgers}) or _has_rows(ledgers):
            return
        try:
            log = find_log_with_entries(self._files, folder)
        except OSError as error:
            raise storage_fault(f"cannot look into {folder}", error) from error
        if log is not None:
            raise StorageFault(
                f"{ledgers.path} knows no ledger, but entry log {log} holds entries, which would all be left out: run"
                " `bookie disk rebuild-ledgers` first"
            )

    @property
    def report(self) -> RebuildReport:
        return self._rebuild.report

    @property
    def is_old_unread(self) -> bool:
        """Return whether the old index could not be read, wholly or in part."""
        return self.old_unreadable is not None or self.report.old_unreadable is not None

    def commit(self) -> None:
        """Put the new database in the place of the old one. `StorageFault`.

        It is sealed if it is surely complete: the old one was, no log is damaged, and no ledger gets into limbo. Then
        the next process knows that.
        Where the old one may have named entries that no log shows any more, their ledgers are in limbo before that.
        """
        damaged = bool(self.report.damaged_logs)
        whole = self._was_complete and not damaged and self.report.old_unreadable is None and not self.report.unread
        note_seal = self._seal.seal_new(self.kind, self._target) if whole else None
        everything = not self._had_old or self.old_unreadable is not None or (damaged and not self._was_complete)
        if everything or self.report.unread:
            self.close()
            self._put_in_limbo(None if everything else self.report.unread)
        super().commit()
        if note_seal is not None:
            try:
                note_seal()
            except StorageFault as error:  # the bookie's first checkpoint seals it
                _log.warning("the rebuilt index is not sealed yet", index=self._folder, error=str(error))

    def _put_in_limbo(self, ledger_ids: Collection[int] | None) -> None:
        """Put these ledgers in limbo, or all, and let everything be compared with other bookies. Durable on return.
        `StorageFault`."""
        store = self._stores.open(f"{self._folder}/{StoreKind.LEDGERS.value}", StoreKind.LEDGERS)
        try:
            rows = LedgerRows(store)
            flags = rows.flags_row()
            batch = store.batch()
            batch.put(FLAGS_KEY, (int.from_bytes(flags or b"", "big") | NEEDS_INTEGRITY_CHECK).to_bytes(8, "big"))
            for ledger_id, record in rows.records():
                if record is not None and not record.limbo and (ledger_ids is None or ledger_id in ledger_ids):
                    batch.put(KEY.pack(ledger_id, 0)[:8], encode(replace(record, limbo=True)))
                if len(batch) >= LIMBO_ROWS:
                    batch.commit(sync=False)
                    batch = store.batch()
            batch.commit(sync=False)
            store.sync()
        finally:
            store.close()

    def step(self) -> bool:
        """Do a little more; False when the new database is complete. `StorageFault`."""
        return self._rebuild.step()


def _has_rows(store: OrderedStore) -> bool:
    return next(store.scan(b"", NEGATIVE), None) is not None


class _Living:
    """See `IsLiving`; remembers the last record, as entries of a ledger lie together."""

    def __init__(self, rows: LedgerRows, deleted: DeletedLedgers) -> None:
        self._rows = rows
        self._deleted = deleted
        self._last: tuple[int, int | None] = (-1, None)
        """A ledger, and its first log; None: it has no row."""

    def __call__(self, ledger_id: int, log_id: int) -> bool:
        first_log = self._first_log(ledger_id)
        return first_log is not None and not is_before(log_id, first_log)

    def may_be_earlier(self, ledger_id: int, log_id: int) -> bool:
        """Return whether this log may hold entries from before a deletion that the ledger's record does not tell of."""
        return self._first_log(ledger_id) == 0 and self._deleted.may_be_earlier_life(ledger_id, log_id)

    def _first_log(self, ledger_id: int) -> int | None:
        if self._last[0] != ledger_id:
            self._last = (ledger_id, self._read(ledger_id))
        return self._last[1]

    def _read(self, ledger_id: int) -> int | None:
        try:
            record = self._rows.record(ledger_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return 0
        return None if record is None else record.first_log or 0


class OfflineLedgers(OfflineRebuild):
    """Rebuild of the `ledgers` database of one ledger directory, number `number` of `count`."""

    kind = StoreKind.LEDGERS

    def __init__(
        self,
        files: Files,
        stores: DiskStores,
        readers: StoreFactory,
        index_folder: str,
        logs: StoredLogs,
        journal_folders: Sequence[str],
        *,
        number: int,
        count: int,
        left_out: Collection[int] = (),
    ) -> None:
        """`left_out`: ledgers of other directories whose rows and entries here are strays."""
        super().__init__(files, stores, readers, index_folder)
        self._number, self._count, self._left_out = number, count, left_out
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
                belongs=self._belongs,
            )
        except BaseException:
            self.close()
            raise

    @property
    def may_lack(self) -> bool:
        """Return whether the new database may lack ledgers.

        These are ledgers that left neither entries nor journal records here, such as one fenced before its first entry.
        """
        return not self._old_whole or self.report.old_unreadable is not None

    @property
    def report(self) -> LedgerRebuildReport:
        return self._rebuild.report

    def step(self) -> bool:
        """Do a little more; False when the new database is complete. Raises `StorageFault`, and `InvalidConfiguration`
        if the directory is not the one of this number."""
        return self._rebuild.step()

    def _belongs(self, ledger_id: int) -> bool:
        return ledger_id % self._count == self._number

    def _check_belongs(self, ledger_id: int, place: str) -> None:
        """Raise `InvalidConfiguration` for a ledger of another directory: then those of this one would be left out."""
        if ledger_id >= 0 and not self._belongs(ledger_id) and ledger_id not in self._left_out:
            raise InvalidConfiguration(
                f"{place} names ledger {ledger_id}, which belongs to ledger directory {ledger_id % self._count + 1} of"
                f" {self._count}, not {self._number + 1}: name all ledger directories, in the order of the bookie's"
                f" configuration. If they are named like that, the ledger has strayed here: add --leave-out {ledger_id}"
            )

    def _ledgers_with_entries(self, logs: StoredLogs, locations: OrderedStore | None) -> Iterator[int]:
        for log_id in logs.log_ids():
            found = logs.ledgers_map(log_id)
            if not found.complete and found.end is not None:
                self.unreadable.append(found.end.detail)
            # One id of many may be damage, where no check sum proves what the log says.
            if found.checked or not any(map(self._belongs, found.ledgers)):
                for ledger_id in found.ledgers:
                    self._check_belongs(ledger_id, logs.path(log_id))
            yield from found.ledgers
        if locations is not None:
            try:
                for ledger_id in _OldLocations(locations).ledger_ids():
                    self._check_belongs(ledger_id, locations.path)
                    yield ledger_id
            except ResourcesShort:
                raise  # a lack of resources proves nothing
            except StorageFault as error:
                self.unreadable.append(str(error))
