"""Converting the index of a stopped bookie between databases (DbLedgerStorage) and index files (Sorted, Interleaved).

Entry logs and journals stay as they are: both sides point into the same logs. The new index is built beside the old
one, compared with it row by row, and then swapped in (`swap`); the old one stays as a backup.

Index files may run ahead of their logs: a power cut leaves rows of adds that were never acknowledged. Databases never
do, so there such a row would count as damage, and it is left out (`_SyncedRows`). A row is kept if the seal proves that
it was durable: its entry was acknowledged, and is lost here.

Only with one ledger directory: DbLedgerStorage numbers the logs of each directory by themselves and ties every ledger
to one of them, the others number all logs together and put a ledger's entries into any.

Threads: one. `step` does a bounded amount of work; this module neither sleeps nor prints.

Source: docs/internals/bookie-behaviour.md, section 12 (`convert-to-db-storage`, `convert-to-interleaved-storage`).
"""

from __future__ import annotations

import posixpath
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from bookie_pod.storage.engines.memtable_storage import StorageFlags
from bookie_pod.storage.entry_log.copies import NoCopy, look_at
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import ReadableLogs
from bookie_pod.storage.entry_log.scan import ScanOutcome
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.index.index_file import (
    CURRENT_VERSION,
    HEADER_BYTES,
    MAX_ENTRY_ID,
    SLOT_BYTES,
    decode_header,
    encode_header,
    relative_folder,
    relative_path,
    slot_offset,
)
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_pod.storage.index.ledger_cache.seal import IndexFilesSeal, drop_seals
from bookie_pod.storage.index.ledger_data import LedgerRecord, encode
from bookie_pod.storage.index.ledgers import FLAGS_KEY, checked_flags
from bookie_pod.storage.index.locations import KEY, LocationRun
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.swap import DiskStores, Move, free_backup_suffix, remove_empty, remove_tree, swap
from bookie_pod.storage.inspect.index import DatabaseIndex, FileIndex, StoredIndex
from bookie_pod.storage.inspect.layout import BUILDING_SUFFIX, DiskLayout, IndexKind
from bookie_protocol.errors import InvalidConfiguration, StorageFault

PAGE_BYTES: Final = 8192
"""`pageSize` of the reference: it cannot find the last entry of a file whose last page is not whole."""
_RUN: Final = PAGE_BYTES // SLOT_BYTES
FILES_FOLDER: Final = "index-files"
"""Top of a tree of index files that is built or was put aside."""
ROWS_PER_RUN: Final = 4096
_STAMP: Final = b"\xff" * 16


class IndexFileWriter:
    """Writing index files, each whole, beside the ones in use (reference on-disk formats, section 9).

    Invariants
    - A file is complete and synced, pages whole, when `finish` returns; its name is durable once its folder was
      synced.
    - Slots are put in runs; memory does not depend on the number of entries.

    One new index file at `path`; a context manager that closes it. `OSError`, `StorageFault`.

    Threads: one.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._file: File = files.overwrite(path)
        self._end = HEADER_BYTES
        self._first = 0
        self._run: list[int] = []

    def __enter__(self) -> IndexFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, entry_id: int, location: int) -> None:
        """Note where an entry lies; a later location of the same entry counts."""
        if not 0 <= entry_id <= MAX_ENTRY_ID:
            raise StorageFault(f"{self.path}: entry {entry_id} has no slot in an index file (at most {MAX_ENTRY_ID})")
        if not self._run or entry_id != self._first + len(self._run) or len(self._run) == _RUN:
            self.write_out()
            self._first = entry_id
        self._run.append(location)

    def write_out(self) -> None:
        """Hand what was noted to the operating system."""
        if self._run:
            offset = slot_offset(self._first)
            self._file.pwrite(struct.pack(f">{len(self._run)}q", *self._run), offset)
            self._end = max(self._end, offset + SLOT_BYTES * len(self._run))
            self._run = []

    def finish(self, record: LedgerRecord, version: int = CURRENT_VERSION) -> None:
        """Header, whole pages, sync."""
        self.write_out()
        self._file.pwrite(encode_header(record, version), 0)
        pages = -(-(self._end - HEADER_BYTES) // PAGE_BYTES)
        self._file.truncate(HEADER_BYTES + pages * PAGE_BYTES)
        self._file.sync()


def write_index_file(
    files: Files, folder: str, ledger_id: int, record: LedgerRecord, rows: Iterable[tuple[int, int]]
) -> int:
    """The file of a ledger below `folder`, durable but for its name; its entries. `OSError`, `StorageFault`."""
    path = f"{folder}/{relative_path(ledger_id)}"
    files.makedirs(posixpath.dirname(path))
    entries = 0
    with IndexFileWriter(files, path) as writer:
        for entry_id, location in rows:
            writer.put(entry_id, location)
            entries += 1
        writer.finish(record)
    return entries


@dataclass(slots=True)
class ConversionReport:
    """The progress of a conversion."""

    ledgers: int = 0
    entries: int = 0
    compared: int = 0
    """Ledgers whose new index was compared with the old one."""
    left_out: int = 0
    """Rows of index files that ran ahead of their logs."""
    backup: str = ""
    """The name of the old index below the index folder."""


class Conversion(ABC):
    """One conversion of the index in `folder`. Call `step` until it returns False, then `commit`.

    Until `commit` nothing of the old index was touched. Databases that were opened are closed again by `close`.
    """

    def __init__(self, files: Files, stores: DiskStores, folder: str, source: StoredIndex) -> None:
        self.report = ConversionReport()
        self._flags = StorageFlags(files, folder)
        self._files = files
        self._stores = stores
        self._folder = folder
        self._source = source
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when the new index is complete and equals the old one. `StorageFault`."""
        try:
            return next(self._work, None) is not None
        except OSError as error:
            raise storage_fault(f"cannot convert {self._folder}", error) from error

    def run(self) -> ConversionReport:
        """Do everything up to `commit`."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        self._prepare()
        for ledger_id in self._source.ledger_ids():
            yield from self._convert(ledger_id)
            self.report.ledgers += 1
            yield True
        target = self._reopen()
        for ledger_id in self._source.ledger_ids():
            yield from _compare(self._record(ledger_id), self._rows(ledger_id), target, ledger_id)
            self.report.compared += 1
            yield True
        if sum(1 for _ in target.ledger_ids()) != self.report.ledgers:
            raise StorageFault(f"the new index of {self._folder} does not hold as many ledgers as the old one")

    def _record(self, ledger_id: int) -> LedgerRecord:
        """Return the record that the new index gets. Raises `StorageFault`."""
        record = self._source.record(ledger_id)
        if record is None:
            raise StorageFault(f"ledger {ledger_id} has vanished from {self._folder}: is a bookie running?")
        return record

    def _rows(self, ledger_id: int) -> Iterator[tuple[int, int]]:
        """The rows that the new index gets."""
        return self._source.rows(ledger_id)

    @abstractmethod
    def _prepare(self) -> None: ...
    @abstractmethod
    def _convert(self, ledger_id: int) -> Iterator[bool]: ...
    @abstractmethod
    def _reopen(self) -> StoredIndex: ...
    @abstractmethod
    def commit(self) -> None:
        """Put the new index in the place of the old one. `StorageFault`."""
        ...

    @abstractmethod
    def close(self) -> None: ...


class ToDatabases(Conversion):
    """The conversion from index files to the databases of DbLedgerStorage. What the files have lost would be denied for
    good, so it ends with a `StorageFault` if the seal tells of any: the bookie is to be started first."""

    _target: DatabaseIndex | None = None

    def __init__(self, files: Files, stores: DiskStores, folder: str, source: FileIndex, logs: ReadableLogs) -> None:
        """`StorageFault`: the seal cannot be read."""
        super().__init__(files, stores, folder, source)
        self._index_files = source
        self._synced = _SyncedRows(logs)
        self._seal = IndexFilesSeal(files, [folder])
        self._lengths: dict[int, int] = {}
        self._headless: set[int] = set()

    def _building(self, kind: StoreKind) -> str:
        return f"{self._folder}/converted{BUILDING_SUFFIX}/{kind.value}"

    def _prepare(self) -> None:
        self._stores.remove(f"{self._folder}/converted{BUILDING_SUFFIX}")
        for kind in StoreKind:
            self._stores.remove(self._building(kind))
        self._files.makedirs(f"{self._folder}/converted{BUILDING_SUFFIX}")
        ledgers = self._stores.open(self._building(StoreKind.LEDGERS), StoreKind.LEDGERS)
        try:
            locations = self._stores.open(self._building(StoreKind.LOCATIONS), StoreKind.LOCATIONS)
        except BaseException:
            ledgers.close()
            raise
        self._target = DatabaseIndex(ledgers, locations)
        for store in (ledgers, locations):
            batch = store.batch()
            batch.delete(_STAMP)  # leaves no row, but an index without ledgers counts as written
            batch.commit()
        if flags := self._flags.read():
            batch = ledgers.batch()
            batch.put(FLAGS_KEY, KEY.pack(flags, 0)[:8])
            batch.commit()

    def _convert(self, ledger_id: int) -> Iterator[bool]:
        assert self._target is not None
        yield from self._check(ledger_id, self._record(ledger_id))
        for run in _runs(ledger_id, self._rows(ledger_id, self.report)):
            self._target.locations.write([run])
            self.report.entries += len(run.entry_ids)
            yield True
        batch = self._target.ledgers.store.batch()
        batch.put(KEY.pack(ledger_id, 0)[:8], encode(self._record(ledger_id)))
        batch.commit(sync=False)

    def _record(self, ledger_id: int) -> LedgerRecord:
        """See `Conversion`. A ledger whose header is gone may have been fenced."""
        record = super()._record(ledger_id)
        return replace(record, fenced=True) if ledger_id in self._headless else record

    def _rows(self, ledger_id: int, report: ConversionReport | None = None) -> Iterator[tuple[int, int]]:
        """See `Conversion`. Rows that are left out are counted in the report."""
        for entry_id, location in self._source.rows(ledger_id):
            if self._seal.has_held(ledger_id, entry_id) or not self._synced.is_ahead(ledger_id, entry_id, location):
                yield entry_id, location
            elif report is not None:
                report.left_out += 1

    def _check(self, ledger_id: int, record: LedgerRecord) -> Iterator[bool]:
        path = self._index_files.path(ledger_id)
        assert path is not None
        file = self._files.open(path)
        try:
            self._lengths[ledger_id] = file.size()
            if decode_header(file.pread(HEADER_BYTES, 0)) is None:
                self._headless.add(ledger_id)
            for page in () if record.limbo else self._seal.pages(ledger_id):
                if self._seal.has_lost(ledger_id, page, file):
                    raise self._lost([ledger_id])
                yield True
        finally:
            file.close()

    def _lost(self, ledgers: Sequence[int]) -> StorageFault:
        return StorageFault(
            f"index files in {self._folder} have lost what databases would deny (ledgers: {len(ledgers)}, the first: "
            f"{min(ledgers)}): start the bookie, and convert once they are healed; or rebuild-index-files"
        )

    def _reopen(self) -> StoredIndex:
        if lost := self._seal.check(self._lengths, self._headless):
            raise self._lost(lost)
        assert self._target is not None
        self._target.ledgers.store.sync()
        return self._target

    def commit(self) -> None:
        self.close()
        self.report.backup = FILES_FOLDER + free_backup_suffix(self._stores, self._folder, [FILES_FOLDER])
        trees = _top_folders(self._files, self._folder)
        moves: list[Move] = [
            (f"converted{BUILDING_SUFFIX}/{kind.value}", kind.value)
            for kind in (StoreKind.LEDGERS, StoreKind.LOCATIONS)
        ]
        moves += [(tree, f"{self.report.backup}/{tree}") for tree in trees]
        self._files.makedirs(f"{self._folder}/{self.report.backup}")
        swap(self._files, self._stores, self._folder, "convert to DbLedgerStorage", moves)
        remove_empty(self._files, f"{self._folder}/converted{BUILDING_SUFFIX}")

    def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()


class ToIndexFiles(Conversion):
    """The conversion from the databases of DbLedgerStorage to index files."""

    def __init__(
        self, files: Files, stores: DiskStores, folder: str, source: DatabaseIndex, ledger_folder: str
    ) -> None:
        """`IndexEndLost`: what the source has lost would be denied for good."""
        IndexSeal(files, ledger_folder).check(source.stores)
        super().__init__(files, stores, folder, source)
        row = source.ledgers.flags_row()
        self._new_flags = 0 if row is None else checked_flags(row, folder)

    def _tree(self) -> str:
        return f"{self._folder}/{FILES_FOLDER}{BUILDING_SUFFIX}"

    def _prepare(self) -> None:
        remove_tree(self._files, self._tree())
        self._files.makedirs(f"{self._tree()}/{relative_folder(0)}")  # stands for an index without ledgers

    def _convert(self, ledger_id: int) -> Iterator[bool]:
        record, rows = self._record(ledger_id), self._source.rows(ledger_id)
        self.report.entries += write_index_file(self._files, self._tree(), ledger_id, record, rows)
        yield True

    def _reopen(self) -> StoredIndex:
        for tree in index_folders(self._files, self._tree()):
            self._files.sync_directory(tree)
        return FileIndex(self._files, [self._tree()])

    def commit(self) -> None:
        if self._new_flags != self._flags.read():
            self._flags.write(self._new_flags)
        self._source.close()
        suffix = free_backup_suffix(self._stores, self._folder, [kind.value for kind in StoreKind])
        self.report.backup = f"{StoreKind.LEDGERS.value}{suffix} and {StoreKind.LOCATIONS.value}{suffix}"
        trees = _top_folders(self._files, self._tree())
        for tree in sorted({*_top_folders(self._files, self._folder), *trees}):
            remove_empty(self._files, f"{self._folder}/{tree}")  # such as the stamp of an engine that was begun with
        drop_seals(self._files, [self._folder])
        moves: list[Move] = [(f"{FILES_FOLDER}{BUILDING_SUFFIX}/{tree}", tree) for tree in trees]
        moves += [(kind.value, kind.value + suffix) for kind in (StoreKind.LEDGERS, StoreKind.LOCATIONS)]
        swap(self._files, self._stores, self._folder, "convert to index files", moves)
        remove_empty(self._files, self._tree())

    def close(self) -> None:
        """Do nothing: it keeps nothing of its own open."""


def conversion(
    files: Files, stores: DiskStores, layout: DiskLayout, source: StoredIndex, logs: ReadableLogs, target: IndexKind
) -> Conversion:
    """Return the conversion of a bookie's index. `InvalidConfiguration` for several ledger or index directories."""
    if len(layout.ledgers) > 1 or len(layout.index_folders) > 1:
        raise InvalidConfiguration(
            f"{len(layout.ledgers)} ledger and {len(layout.index_folders)} index directories: a conversion needs one "
            "of each, because the engines number entry logs differently. Let the cluster re-replicate this bookie: "
            "decommission it, and start it as a new bookie with the other ledgerStorageClass"
        )
    folder = layout.index_folders[0]
    if target is IndexKind.DATABASES:
        assert isinstance(source, FileIndex)
        return ToDatabases(files, stores, folder, source, logs)
    assert isinstance(source, DatabaseIndex)
    return ToIndexFiles(files, stores, folder, source, layout.ledgers[0])


class _SyncedRows:
    """The rows of index files that may lead to an entry. Memory holds a number for each log."""

    def __init__(self, logs: ReadableLogs) -> None:
        self._logs = logs
        self._ends: dict[int, int | None] = {}
        """The ends of logs that were never closed; None for any other log, and for one that is damaged."""

    def is_ahead(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Return whether only the row is left of an add whose bytes a power cut took: its log was never closed and ends
        before. Such an add was not acknowledged, or a journal gives it another place. Raises `StorageFault`."""
        log_id, position = split_location(location)
        if log_id not in self._ends:
            self._ends[log_id] = self._end(log_id)
        end = self._ends[log_id]
        if end is None or position < end:
            return False
        return look_at(self._logs, location, ledger_id, entry_id) is NoCopy.GONE

    def _end(self, log_id: int) -> int | None:
        if not self._logs.exists(log_id):
            return None  # its entries are lost, not absent
        found = self._logs.ledgers_map(log_id)
        if found.end is None or found.closed or found.end.outcome is ScanOutcome.DAMAGED:
            return None  # behind damage there may be entries
        return found.end.position


def _runs(ledger_id: int, rows: Iterator[tuple[int, int]]) -> Iterator[LocationRun]:
    ids: list[int] = []
    locations: list[int] = []
    for entry_id, location in rows:
        ids.append(entry_id)
        locations.append(location)
        if len(ids) == ROWS_PER_RUN:
            yield LocationRun(ledger_id, ids, locations)
            ids, locations = [], []
    if ids:
        yield LocationRun(ledger_id, ids, locations)


def _compare(
    record: LedgerRecord, rows: Iterator[tuple[int, int]], target: StoredIndex, ledger_id: int
) -> Iterator[bool]:
    """`StorageFault` unless the new index says this of a ledger."""
    if record != target.record(ledger_id):
        raise StorageFault(f"ledger {ledger_id}: the new index has another key, fence or LAC than the old one")
    new = target.rows(ledger_id)
    for at, row in enumerate(rows, 1):
        if next(new, None) != row:
            raise StorageFault(f"ledger {ledger_id} entry {row[0]}: the new index has another row than the old one")
        if at % ROWS_PER_RUN == 0:
            yield True
    if next(new, None) is not None:
        raise StorageFault(f"ledger {ledger_id}: the new index has more rows than the old one")


def _top_folders(files: Files, folder: str) -> list[str]:
    """First levels of a tree of index files."""
    return sorted({tree[len(folder) + 1 :].split("/")[0] for tree in index_folders(files, folder)})
