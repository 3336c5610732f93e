"""Rebuilding index files of Sorted and Interleaved storage from the entry logs.

Each file is built as `<id>.idx.building`, synced, and renamed over the old one, of which a second name
`<id>.idx.BACKUP-<time>` stays: a crash leaves the old file or the new one, ledger by ledger.

Key, fence and explicit LAC come from the old file if its header can be read, else from what the caller gives. A ledger
whose header is gone is fenced and in limbo, because it is unknown whether it was (see `offline`).

Which rows a new file has is decided as for databases (`locations`): what its log confirms of the old file stays, and so
does what no log confirms.

What a power cut may have torn takes the place of no other copy of its entry (`torn_records`). It gets its row if there
is none, because an index file that is rebuilt does not tell what it has lost.

Threads: one. `step` does a bounded amount of work. At most `OPEN_FILES` files are open; memory holds nothing else per
ledger but its record.

Source: docs/internals/bookie-behaviour.md, section 12 (`regenerate-interleaved-storage-index-file`).
"""

from __future__ import annotations

import posixpath
import struct
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import ReadableLogs
from bookie_pod.storage.entry_log.scan import LogScan, ScanEnd, ScanOutcome
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.index.index_file import (
    HEADER_BYTES,
    MAX_ENTRY_ID,
    SLOT_BYTES,
    encode_header,
    relative_path,
    slot_offset,
)
from bookie_pod.storage.index.ledger_cache.seal import IndexFilesSeal
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.locations import chosen
from bookie_pod.storage.index_rebuild.locations import STEP_ENTRIES, ReadableScan, oldest_first, readable_end
from bookie_pod.storage.index_rebuild.torn_records import TornRecords
from bookie_pod.storage.inspect.index import FileIndex, IndexFileDamaged
from bookie_pod.storage.journal.format import RecordKind, next_log_of
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_pod.storage.log_ids import is_before
from bookie_protocol.errors import ResourcesShort, StorageFault

OPEN_FILES: Final = 64
BUILDING: Final = ".building"
PAGE_BYTES: Final = 8192
"""Pages of the reference, which cannot find the last entry of a file whose last page is not whole."""


@dataclass(slots=True)
class IndexFilesReport:
    """The progress of a rebuild."""

    ledgers: int = 0
    entries: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    fenced_in_doubt: int = 0
    """Ledgers that were fenced because their header was gone."""
    without_key: int = 0
    empty: int = 0
    """Ledgers without any entry in the logs."""
    damages: tuple[ScanEnd, ...] = ()
    salvaged: int = 0
    """Rows of old files behind damage in a log, whose entries are there."""
    lost: int = 0
    """Rows of old files that no log confirms. They are kept: what they lead to is lost here, not absent."""
    unread: int = 0
    """Old files that could not be read to their end. Their ledgers are in limbo."""


class IndexFilesRebuild:
    """Builds the files of `ledger_ids`. Call `step` until it returns False, then `commit`."""

    def __init__(
        self,
        files: Files,
        logs: ReadableLogs,
        old: FileIndex,
        folder: str,
        ledger_ids: Collection[int],
        keys: Mapping[int, bytes],
        *,
        died_before: Callable[[int, int], bool] = lambda ledger_id, log_id: False,
        next_logs: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`folder` takes the files of ledgers that have none; `keys` are those of ledgers without a readable header.

        Of earlier ledgers of an id: `died_before` says whether a log (the second number) may hold entries from before a
        deletion; `next_logs` are the first logs that may hold some of the life after it, as journals say.
        """
        self.report = IndexFilesReport()
        self._files = files
        self._logs = logs
        self._old = old
        self._folder = folder
        self._ledger_ids = frozenset(ledger_ids)
        self._keys = keys
        self._died_before = died_before
        self._next_logs = next_logs
        self._first_logs: dict[int, int] = {}
        """The first log that may hold entries of each ledger met."""
        self._built: dict[int, str] = {}
        self._seal: IndexFilesSeal | None = None
        self._unread: set[int] = set()
        """Ledgers whose old file could not be read to its end."""
        self._highest: dict[int, int] = {}
        self._open: OrderedDict[int, File] = OrderedDict()
        self._torn = TornRecords(logs, self._location_of, old, self._is_living, complete=False)
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when every file is built and synced. `StorageFault`."""
        try:
            return next(self._work, None) is not None
        except OSError as error:
            raise storage_fault("cannot build an index file", error) from error

    def run(self) -> IndexFilesReport:
        """Do everything up to `commit`."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        try:
            log_ids = oldest_first(self._logs.log_ids())
            self.report.bytes_total = sum(map(self._logs.size, log_ids))
            for log_id in log_ids:
                yield from self._take_log(log_id)
            for ledger_id in sorted(self._ledger_ids):
                yield from self._salvage(ledger_id)
                self._finish(ledger_id)
                yield True
        finally:
            self.close()

    def unknown(self) -> set[int]:
        """Return the ledgers that have neither a file nor an entry in the logs, once every file is built."""
        return {each for each in self._ledger_ids if each not in self._highest and self._old.path(each) is None}

    # --- entries --------------------------------------------------------------------------------------------

    def _take_log(self, log_id: int) -> Iterator[bool]:
        before = self.report.bytes_done
        self._logs.make_durable(log_id)
        entries_end = readable_end(self._logs.entries_end)(log_id)
        suspect = entries_end is None
        scan = self._scan(log_id, bodies=suspect)
        ledger, first, doubtful = -1, 0, 0
        run: list[int] = []
        for location, ledger_id, entry_id, entry in scan:
            if not self._is_own(ledger_id, entry_id, location):
                continue
            if suspect and not self._torn.is_sound(ledger_id, entry_id, entry):
                doubtful += 1
                continue
            if ledger_id != ledger or entry_id != first + len(run) or len(run) == STEP_ENTRIES:
                self._put(ledger, first, run)
                ledger, first, run = ledger_id, entry_id, []
                self.report.bytes_done = before + (location & 0xFFFFFFFF)
                yield True
            run.append(location)
        self._put(ledger, first, run)
        if doubtful:
            yield from self._take_doubtful(log_id)
        self.report.bytes_done = before + self._logs.size(log_id)
        damaged = scan.end.outcome is ScanOutcome.DAMAGED
        if damaged and suspect and not scan.is_cut:
            damaged = self._may_lead_behind(log_id, scan.end.position)  # else a crash has left it
        if damaged or scan.end.position < (entries_end or 0):
            self.report.damages = (*self.report.damages, scan.end)
        yield True

    def _may_lead_behind(self, log_id: int, position: int) -> bool:
        """Return whether the old files lead to this position of the log or behind it, as far as anything proves that
        they do not."""
        try:
            return any(
                not self._is_complete(ledger_id)
                or any(
                    split_location(location)[0] == log_id and split_location(location)[1] >= position
                    for _, location in self._old.rows(ledger_id)
                )
                for ledger_id in self._ledger_ids
            )
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return True

    def _is_complete(self, ledger_id: int) -> bool:
        path, record = self._old.path(ledger_id), self._old_record(ledger_id)
        if path is None or record is None or record.limbo:
            return False
        if self._seal is None:
            self._seal = IndexFilesSeal(self._files, self._old.folders)
            if self._logs.has_foreign(self._seal.first_log):
                self._seal.distrust()
        file = self._files.open(path)
        try:
            return self._seal.is_complete(ledger_id, file)
        finally:
            file.close()

    def _scan(self, log_id: int, *, bodies: bool) -> ReadableScan:
        scan: LogScan[Any] = (self._logs.scan if bodies else self._logs.scan_sizes)(log_id, self._ledger_ids)
        return ReadableScan(scan)

    def _take_doubtful(self, log_id: int) -> Iterator[bool]:
        """Look at the records of a log for which no digest vouches, once every other one has its row."""
        for seen, (location, ledger_id, entry_id, entry) in enumerate(self._scan(log_id, bodies=True), 1):
            if (
                self._is_own(ledger_id, entry_id, location)
                and not self._torn.is_sound(ledger_id, entry_id, entry)
                and self._torn.gets_row(ledger_id, entry_id, location, entry)
            ):
                self._put(ledger_id, entry_id, [location])
            if seen % STEP_ENTRIES == 0:
                yield True

    def _location_of(self, ledger_id: int, entry_id: int) -> int:
        """Return the place that the file that is built has for the entry, 0 if it has none."""
        if ledger_id not in self._built:
            return 0
        return int.from_bytes(self._file(ledger_id).pread(SLOT_BYTES, slot_offset(entry_id)), "big", signed=True)

    def _is_own(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Return whether the record counts as one of the living ledger. The old file has to name one that may be of an
        earlier ledger."""
        log_id = split_location(location)[0]
        first_log = self._first_log(ledger_id)
        if first_log or not self._died_before(ledger_id, log_id):
            return not is_before(log_id, first_log)
        return self._used(ledger_id, entry_id) == location

    def _is_living(self, ledger_id: int, log_id: int) -> bool:
        return not is_before(log_id, self._first_log(ledger_id))

    def _first_log(self, ledger_id: int) -> int:
        first_log = self._first_logs.get(ledger_id)
        if first_log is None:
            old = self._old_record(ledger_id)
            first_log = self._next_logs.get(ledger_id, 0) if old is None else old.first_log or 0
            self._first_logs[ledger_id] = first_log
        return first_log

    def _put(self, ledger_id: int, first: int, locations: list[int]) -> None:
        if not locations:
            return
        last = first + len(locations) - 1
        if last > MAX_ENTRY_ID:
            raise StorageFault(f"entry {last} of ledger {ledger_id} has no slot in an index file")
        used = [self._used(ledger_id, entry_id) for entry_id in range(first, last + 1)]
        taken = chosen(enumerate(locations, first), used, lambda entry_id: self._location_of(ledger_id, entry_id))
        slots = [taken.get(entry_id, place) for entry_id, place in enumerate(used, first)]
        self._file(ledger_id).pwrite(struct.pack(f">{len(slots)}q", *slots), slot_offset(first))
        self._highest[ledger_id] = max(last, self._highest.get(ledger_id, -1))
        self.report.entries += len(taken)

    def _used(self, ledger_id: int, entry_id: int) -> int:
        """Return the place that the old file names for the entry, 0 if it names none, or cannot be read there."""
        try:
            return self._old.location_of(ledger_id, entry_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return 0

    def _file(self, ledger_id: int) -> File:
        file = self._open.get(ledger_id)
        if file is not None:
            self._open.move_to_end(ledger_id)
            return file
        path = self._built.get(ledger_id)
        if path is None:
            path = self._target(ledger_id) + BUILDING
            self._files.makedirs(posixpath.dirname(path))
            file = self._files.overwrite(path)
            self._built[ledger_id] = path
        else:
            file = self._files.open(path, writable=True)
        self._open[ledger_id] = file
        if len(self._open) > OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file

    def _target(self, ledger_id: int) -> str:
        return self._old.path(ledger_id) or f"{self._folder}/{relative_path(ledger_id)}"

    def _salvage(self, ledger_id: int) -> Iterator[bool]:
        """Keep what the old file says of entries that no log confirmed: those that are there all the same, and those
        that are lost here, not absent. Of a file whose header is damaged only the former: its ledger is in limbo."""
        is_sound = self._old_record(ledger_id) is not None
        try:
            for at, (entry_id, location) in enumerate(self._old.rows(ledger_id), 1):
                if self._location_of(ledger_id, entry_id) == 0:
                    self._salvage_row(ledger_id, entry_id, location, is_sound=is_sound)
                if at % STEP_ENTRIES == 0:
                    yield True
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            self._unread.add(ledger_id)  # the old file cannot be read any further

    def _salvage_row(self, ledger_id: int, entry_id: int, location: int, *, is_sound: bool) -> None:
        if not self._is_living(ledger_id, split_location(location)[0]):
            return
        try:
            self._logs.read(location, ledger_id, entry_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            if not is_sound:
                return
            self.report.lost += 1
        else:
            self.report.salvaged += 1
        self._put(ledger_id, entry_id, [location])

    # --- headers --------------------------------------------------------------------------------------------

    def _finish(self, ledger_id: int) -> None:
        record = self._record(ledger_id)
        file = self._file(ledger_id)
        file.pwrite(encode_header(record), 0)
        slots = (self._highest.get(ledger_id, -1) + 1) * SLOT_BYTES
        file.truncate(HEADER_BYTES + -(-max(slots, self._old_slots(ledger_id)) // PAGE_BYTES) * PAGE_BYTES)
        file.sync()
        self.report.ledgers += 1
        self.report.unread += ledger_id in self._unread and self._old_record(ledger_id) is not None
        self.report.without_key += not record.key
        self.report.empty += slots == 0

    def _old_slots(self, ledger_id: int) -> int:
        """The bytes of the old file behind its header: the seal takes one that is shorter for one that was cut."""
        path = self._old.path(ledger_id)
        return 0 if path is None or self._old_record(ledger_id) is None else self._files.size(path) - HEADER_BYTES

    def _record(self, ledger_id: int) -> LedgerRecord:
        given, old = self._keys.get(ledger_id, b""), self._old_record(ledger_id)
        if old is None:
            self.report.fenced_in_doubt += 1
            return LedgerRecord(given, fenced=True, limbo=True, first_log=self._first_log(ledger_id))
        if ledger_id in self._unread or self.report.damages:
            old = replace(old, limbo=True)  # it may have had entries here that nothing names any more
        return old if old.key or not given else replace(old, key=given)

    def _old_record(self, ledger_id: int) -> LedgerRecord | None:
        """Return the record in the old file; None if it is damaged, or was never written. `StorageFault`: unknown."""
        try:
            record = self._old.record(ledger_id)
        except IndexFileDamaged:
            return None
        except ResourcesShort:
            raise
        except StorageFault as error:
            # Its key, fence and first log may be there.
            raise StorageFault(f"{error}. Try again; to do without its key and fence, move the file away") from error
        return None if record is None or record.first_log is None else record

    # --- names ----------------------------------------------------------------------------------------------

    def commit(self, backup_suffix: str) -> None:
        """Give every file its name. `StorageFault`.

        The seal of the index files stays: it goes on to ask for what the file before held and this one lacks.
        """
        try:
            for path in self._built.values():
                self._replace(path, backup_suffix)
        except OSError as error:
            raise storage_fault("cannot put an index file in its place (repeat the command)", error) from error

    def _replace(self, path: str, backup_suffix: str) -> None:
        target = path.removesuffix(BUILDING)
        if self._files.exists(target) and not self._files.exists(target + backup_suffix):
            self._files.link(target, target + backup_suffix)
        self._files.rename(path, target)
        self._files.sync_directory(posixpath.dirname(path))

    def discard(self) -> None:
        """Remove what was built. `OSError`."""
        self.close()
        for path in self._built.values():
            self._files.unlink(path)

    def close(self) -> None:
        """Close every file."""
        while self._open:
            self._open.popitem()[1].close()


def next_logs(records: Iterable[JournalRecord]) -> dict[int, int]:
    """Return the first log that may hold entries of each ledger after its last deletion, as journals say."""
    return {each.ledger_id: next_log_of(each.body) for each in records if each.kind is RecordKind.DELETION}
