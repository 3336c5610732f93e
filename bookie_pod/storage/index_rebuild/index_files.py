"""Rebuilding index files of Sorted and Interleaved storage from the entry logs.

Each file is built as `<id>.idx.building`, synced, and renamed over the old one, of which a second name
`<id>.idx.BACKUP-<time>` stays: a crash leaves the old file or the new one, ledger by ledger.

Key, fence and explicit LAC come from the old file if its header can be read, else from what the caller gives. A ledger
whose header is gone is fenced: nobody knows whether it was (see `rebuild_ledgers`).

Threads: one. `step` does a bounded amount of work. At most `OPEN_FILES` files are open; memory holds nothing else per
ledger but its record.

Source: reference bookie behaviour, section 12 (`regenerate-interleaved-storage-index-file`).
"""

from __future__ import annotations

import posixpath
import struct
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from bookie_pod.storage.entry_log.scan import LogScan, ScanEnd, ScanOutcome
from bookie_pod.storage.files import File, Files
from bookie_pod.storage.gc.deleted_ledgers import MayBeEarlierLife
from bookie_pod.storage.index.index_file import (
    HEADER_BYTES,
    MAX_ENTRY_ID,
    SLOT_BYTES,
    encode_header,
    relative_path,
    slot_offset,
)
from bookie_pod.storage.index.ledger_cache.seal import drop_seals
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index_rebuild.locations import STEP_ENTRIES, oldest_first
from bookie_pod.storage.inspect.index import FileIndex
from bookie_protocol.errors import ResourcesShort, StorageFault

OPEN_FILES: Final = 64
BUILDING: Final = ".building"
PAGE_BYTES: Final = 8192
"""Pages of the reference, which cannot find the last entry of a file whose last page is not whole."""


class ScannedLogs(Protocol):
    """What is asked of entry logs."""

    def log_ids(self) -> list[int]: ...
    def size(self, log_id: int) -> int: ...
    def scan_sizes(self, log_id: int, ledgers: Collection[int]) -> LogScan[int]: ...
    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes: ...


@dataclass(slots=True)
class IndexFilesReport:
    """What a rebuild did so far."""

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


class IndexFilesRebuild:
    """Builds the files of `ledger_ids`. Call `step` until it returns False, then `commit`."""

    def __init__(
        self,
        files: Files,
        logs: ScannedLogs,
        old: FileIndex,
        folder: str,
        ledger_ids: Collection[int],
        keys: Mapping[int, bytes],
        may_be_earlier_life: MayBeEarlierLife,
    ) -> None:
        """`folder` takes the files of ledgers that have none; `keys` are those of ledgers without a readable header.

        What a log holds of a ledger of which `may_be_earlier_life` gets a slot only if the old file names that very
        place, is not there, or cannot be read.
        """
        self.report = IndexFilesReport()
        self._files = files
        self._logs = logs
        self._old = old
        self._folder = folder
        self._ledger_ids = frozenset(ledger_ids)
        self._keys = keys
        self._may_be_earlier_life = may_be_earlier_life
        self._built: dict[int, str] = {}
        self._highest: dict[int, int] = {}
        self._open: OrderedDict[int, File] = OrderedDict()
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when every file is built and synced. `StorageFault`."""
        try:
            return next(self._work, None) is not None
        except OSError as error:
            raise StorageFault(f"cannot build an index file: {error}") from error

    def run(self) -> IndexFilesReport:
        """Everything at once, up to `commit`."""
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
                if self.report.damages:
                    yield from self._salvage(ledger_id)
                self._finish(ledger_id)
                yield True
        finally:
            self.close()

    # --- entries --------------------------------------------------------------------------------------------

    def _take_log(self, log_id: int) -> Iterator[bool]:
        before = self.report.bytes_done
        scan = self._logs.scan_sizes(log_id, self._ledger_ids)
        ledger, first = -1, 0
        run: list[int] = []
        for location, ledger_id, entry_id, _ in scan:
            if self._may_be_earlier_life(ledger_id, log_id) and self._is_dropped(ledger_id, entry_id, location):
                continue
            if ledger_id != ledger or entry_id != first + len(run) or len(run) == STEP_ENTRIES:
                self._put(ledger, first, run)
                ledger, first, run = ledger_id, entry_id, []
                self.report.bytes_done = before + (location & 0xFFFFFFFF)
                yield True
            run.append(location)
        self._put(ledger, first, run)
        self.report.bytes_done = before + self._logs.size(log_id)
        if scan.end.outcome is ScanOutcome.DAMAGED:
            self.report.damages = (*self.report.damages, scan.end)
        yield True

    def _is_dropped(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Whether the old file knows that this copy is none of the ledger's."""
        try:
            return self._old.path(ledger_id) is not None and self._old.location_of(ledger_id, entry_id) != location
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            return False

    def _put(self, ledger_id: int, first: int, locations: list[int]) -> None:
        if not locations:
            return
        last = first + len(locations) - 1
        if last > MAX_ENTRY_ID:
            raise StorageFault(f"entry {last} of ledger {ledger_id} has no slot in an index file")
        self._file(ledger_id).pwrite(struct.pack(f">{len(locations)}q", *locations), slot_offset(first))
        self._highest[ledger_id] = max(last, self._highest.get(ledger_id, -1))
        self.report.entries += len(locations)

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
        """Keep what the old file says of entries that no scan reached and that are there all the same."""
        try:
            for at, (entry_id, location) in enumerate(self._old.rows(ledger_id), 1):
                if not any(self._file(ledger_id).pread(SLOT_BYTES, slot_offset(entry_id))):
                    self._salvage_row(ledger_id, entry_id, location)
                if at % STEP_ENTRIES == 0:
                    yield True
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            return  # the old file cannot be read any further

    def _salvage_row(self, ledger_id: int, entry_id: int, location: int) -> None:
        try:
            self._logs.read(location, ledger_id, entry_id)
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            return
        self._put(ledger_id, entry_id, [location])
        self.report.salvaged += 1

    # --- headers --------------------------------------------------------------------------------------------

    def _finish(self, ledger_id: int) -> None:
        record = self._record(ledger_id)
        file = self._file(ledger_id)
        file.pwrite(encode_header(record), 0)
        slots = (self._highest.get(ledger_id, -1) + 1) * SLOT_BYTES
        file.truncate(HEADER_BYTES + -(-slots // PAGE_BYTES) * PAGE_BYTES)
        file.sync()
        self.report.ledgers += 1
        self.report.without_key += not record.key
        self.report.empty += slots == 0

    def _record(self, ledger_id: int) -> LedgerRecord:
        given = self._keys.get(ledger_id, b"")
        try:
            old = self._old.record(ledger_id)
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            old = None
        if old is None or (old.limbo and not old.key):
            self.report.fenced_in_doubt += 1
            return LedgerRecord(given, fenced=True)
        return old if old.key or not given else replace(old, key=given)

    # --- names ----------------------------------------------------------------------------------------------

    def commit(self, backup_suffix: str) -> None:
        """Give every file its name. `StorageFault`."""
        try:
            drop_seals(self._files, self._old.folders)
            for path in self._built.values():
                self._replace(path, backup_suffix)
        except OSError as error:
            raise StorageFault(f"cannot put an index file in its place: {error}; repeat the command") from error

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
