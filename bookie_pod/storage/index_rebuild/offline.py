"""Rebuilding the databases of a stopped bookie: beside the old ones, checked, then swapped in.

The old database stays as `<name>.BACKUP-<time>`. Until `commit` nothing of it was touched.

Which ledgers a directory holds, with their keys and fences, is told by, the better first
1. the old `ledgers` database, as far as it can be read: its records are kept as they are, but fenced if it has lost its
   end (`index.seal`), where a fence may have been;
2. journals: keys, fences and explicit LACs of ledgers that were written lately;
3. entry logs and the location index: that a ledger is there.

A ledger whose old record is gone is *fenced*: nobody knows whether it was, and a fence that is forgotten lets a writer
add behind a recovery. Its writer, if there still is one, has to begin a new ledger. A key that nobody knows stays
empty, and the next client that presents one sets it. Ledgers that were deleted may come back; garbage collection
deletes them again.

Threads: one. `step` does a bounded amount of work; this module neither sleeps nor prints, and keeps one batch of rows.

Source: reference bookie behaviour, section 12 (`rebuild-db-ledger-locations-index`, `rebuild-db-ledgers-index`);
reference on-disk formats, section 8.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.index.ledger_data import LedgerRecord, decode, encode
from bookie_pod.storage.index.ledgers import FLAGS_KEY
from bookie_pod.storage.index.locations import KEY, MAX_ENTRY_ID, LocationIndex
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
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
from bookie_pod.storage.journal.format import RecordKind, tail_of_special_record
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_pod.storage.journal.survey import read_folders
from bookie_protocol.errors import ResourcesShort, StorageFault
from bookie_protocol.keys import is_unknown_key, takes_the_place_of

_LEDGER_ID: Final = struct.Struct(">q")
_STAMP: Final = b"\xff" * 16
"""Its deletion leaves no row, but the database counts as written (see `engines.detection`)."""
BATCH_ROWS: Final = 4096
STEP_RECORDS: Final = 1024


@dataclass(slots=True)
class LedgerRebuildReport:
    """What a rebuild did so far."""

    kept: int = 0
    """Ledgers with the record of the old database."""
    from_journals: int = 0
    """Ledgers that only a journal knew."""
    from_entries: int = 0
    """Ledgers of which only entries were left."""
    kept_in_doubt: int = 0
    """Those of them that were fenced, as the old database has lost its end."""
    without_key: int = 0
    """Ledgers whose key nobody knew."""
    old_unreadable: str | None = None
    """Why the old database could not be read to its end."""

    @property
    def ledgers(self) -> int:
        return self.kept + self.from_journals + self.from_entries

    @property
    def fenced_in_doubt(self) -> int:
        """Ledgers that were fenced because nobody knew."""
        return self.kept_in_doubt + self.from_journals + self.from_entries


class LedgerRebuild:
    """Fills an empty `ledgers` database. Call `step` until it returns False, or `run`."""

    def __init__(
        self,
        target: OrderedStore,
        *,
        old: LedgerRows | None,
        journal_records: Iterable[JournalRecord],
        ledgers_with_entries: Iterable[int],
        old_lost_end: bool = False,
        belongs: Callable[[int], bool] = lambda ledger_id: True,
    ) -> None:
        """`old_lost_end`: the newest rows of `old` are gone. `belongs`: whether a ledger is one of this directory's."""
        self.report = LedgerRebuildReport()
        self._target = target
        self._old = old
        self._journal_records = journal_records
        self._with_entries = ledgers_with_entries
        self._old_lost_end = old_lost_end
        self._belongs = belongs
        self._pending: dict[int, LedgerRecord] = {}
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when everything is done and durable. `StorageFault`."""
        return next(self._work, None) is not None

    def run(self) -> LedgerRebuildReport:
        """Everything at once."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        for source in (self._take_old, self._take_journals, self._take_entries):
            yield from source()
        self._flush()
        batch = self._target.batch()
        batch.delete(_STAMP)
        batch.commit(sync=False)
        self._target.sync()

    # --- sources --------------------------------------------------------------------------------------------

    def _take_old(self) -> Iterator[bool]:
        if self._old is None:
            return
        try:
            for ledger_id, record in self._old.records():
                if record is not None:
                    self._keep(ledger_id, record)
                else:
                    self.report.old_unreadable = f"ledger {ledger_id}: its record does not parse"
                yield True
            self._take_flags(self._old)
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault as error:
            self.report.old_unreadable = str(error)

    def _take_flags(self, old: LedgerRows) -> None:
        flags = old.flags_row()
        if flags is not None:
            batch = self._target.batch()
            batch.put(FLAGS_KEY, flags)
            batch.commit(sync=False)

    def _keep(self, ledger_id: int, record: LedgerRecord) -> None:
        if self._old_lost_end and not record.fenced:
            record = replace(record, fenced=True)
            self.report.kept_in_doubt += 1
        self._put(ledger_id, record)
        self.report.kept += 1
        self.report.without_key += is_unknown_key(record.key)

    def _take_journals(self) -> Iterator[bool]:
        for at, record in enumerate(self._journal_records):
            if record.ledger_id >= 0 and self._belongs(record.ledger_id):
                self._take_journal_record(record)
            if at % STEP_RECORDS == 0:
                yield True

    def _take_journal_record(self, record: JournalRecord) -> None:
        if record.kind not in (RecordKind.KEY, RecordKind.FENCE, RecordKind.EXPLICIT_LAC):
            return
        known = self._get(record.ledger_id)
        if known is None:
            known = self._make(record.ledger_id)
            if known is None:
                known = LedgerRecord(b"", fenced=True)
                self.report.from_journals += 1
                self.report.without_key += 1
        if record.kind is RecordKind.FENCE:
            changed = replace(known, fenced=True)
        elif record.kind is RecordKind.EXPLICIT_LAC:
            changed = replace(known, explicit_lac=tail_of_special_record(record.body))
        else:
            changed = self._with_key(known, tail_of_special_record(record.body))
        self._put(record.ledger_id, changed)

    def _with_key(self, known: LedgerRecord, key: bytes) -> LedgerRecord:
        if not takes_the_place_of(key, known.key):
            return known
        self.report.without_key -= not is_unknown_key(key)
        return replace(known, key=key)

    def _take_entries(self) -> Iterator[bool]:
        for ledger_id in self._with_entries:
            if ledger_id < 0 or not self._belongs(ledger_id) or self._get(ledger_id) is not None:
                continue
            if self._make(ledger_id) is None:
                self._put(ledger_id, LedgerRecord(b"", fenced=True))
                self.report.from_entries += 1
                self.report.without_key += 1
            yield True

    def _make(self, ledger_id: int) -> LedgerRecord | None:
        """What a damaged old database still says of one ledger when asked for it alone."""
        if self._old is None or self.report.old_unreadable is None:
            return None
        try:
            record = self._old.record(ledger_id)
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            return None
        if record is not None:
            self._keep(ledger_id, record)
        return record

    # --- the target -----------------------------------------------------------------------------------------

    def _get(self, ledger_id: int) -> LedgerRecord | None:
        record = self._pending.get(ledger_id)
        if record is not None:
            return record
        value = self._target.get(_LEDGER_ID.pack(ledger_id))
        return None if value is None else decode(value)

    def _put(self, ledger_id: int, record: LedgerRecord) -> None:
        self._pending[ledger_id] = record
        if len(self._pending) >= BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        batch = self._target.batch()
        for ledger_id in sorted(self._pending):
            batch.put(_LEDGER_ID.pack(ledger_id), encode(self._pending[ledger_id]))
        self._pending.clear()
        batch.commit(sync=False)


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
