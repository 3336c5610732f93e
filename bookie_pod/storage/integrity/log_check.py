"""What the scrubber checks of one entry log.

Its header; that every byte belongs to a record; that the ledgers map counts no less than the records do (garbage
collection goes by the map); of every entry that the index points to, its digest, if the ledger's digest type needs no
password. An entry to which no row points although its ledger lives gets its row back, unless it may be of an earlier
ledger of that id: without it the bookie would answer "no such entry".

Invariants
- A fault is a finding only if the log, or the index's word for the place, is still there afterwards: compaction and
  deletions go on meanwhile.
- Nothing raises for what is damaged; `ScrubStopped` ends a check, a `StorageFault` says that it could not be made.

Threads: the scrubber's.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from bookie_pod.storage.entry_log.format import HEADER_SIZE, MAGIC, SIZE_BYTES, VERSION, decode_header, split_location
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.entry_log.scan import ScanEnd
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.gc.deleted_ledgers import MayBeEarlierLife
from bookie_pod.storage.gc.index_check import find_row_behind
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.integrity.entry_check import EntryCheck, Pay, Report, ScrubCounts, entry_damage
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)


class LogCheck:
    """Checks entry logs of one storage."""

    def __init__(
        self,
        storage: CollectedStorage,
        files: Files,
        entries: EntryCheck,
        report: Report,
        pay: Pay,
        counts: ScrubCounts,
        may_be_earlier_life: MayBeEarlierLife,
    ) -> None:
        self._may_be_earlier_life = may_be_earlier_life
        self._storage = storage
        self._files = files
        self._entries = entries
        self._report = report
        self._pay = pay
        self._counts = counts

    def check(self, log_id: int, after: int, checked: Callable[[int], None]) -> bool:
        """Check one log that is rotated and synced, from behind the location `after` (0: all of it).

        `checked(location)` is told how far it is. Returns whether the framing is sound. `StorageFault` if the log
        cannot be read and is still there.
        """
        sound = self._header(log_id)
        scan = self._storage.logs.scan(log_id)
        sizes = LedgerSizesBuilder()
        for location, ledger_id, entry_id, entry in scan:
            sizes.add(ledger_id, SIZE_BYTES + len(entry))
            if location <= after:
                self._pay(0, SIZE_BYTES + len(entry))
                continue
            self._pay(1, SIZE_BYTES + len(entry))
            self._counts.entries += 1
            self._entry(location, ledger_id, entry_id, entry)
            checked(location)
        self._counts.logs += 1
        closed = self._map(log_id, sizes, scan.end)
        if scan.end.clean or not (closed or self._has_row_behind(log_id, scan.end)):
            return sound
        self._found(DamageKind.LOG, log_id, scan.end.detail)
        return False

    def _has_row_behind(self, log_id: int, end: ScanEnd) -> bool:
        """Whether the index places an entry behind the end of a log that was never closed. If not, it was being written
        when the process or the power failed, and ends there: the rule of garbage collection."""
        found = find_row_behind(self._storage, log_id, end.position, closed=False, breathe=lambda: self._pay(0, 0))
        return found is not None

    def _header(self, log_id: int) -> bool:
        path = self._storage.logs.path(log_id)
        try:
            file = self._files.open(path)
            try:
                if file.data_from(0) is None:
                    return True  # made ahead, and never written to
                header = decode_header(file.pread(HEADER_SIZE, 0))
            finally:
                file.close()
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            raise storage_fault(f"cannot read entry log {path}", error) from error
        else:
            if header.magic != MAGIC or not 0 <= header.version <= VERSION:
                problem = f"its header begins with {header.magic.hex()} and version {header.version}"
            elif not header.has_map and (header.map_offset or header.ledger_count):
                problem = (
                    f"its header has version {header.version}, a map at {header.map_offset} and"
                    f" {header.ledger_count} ledgers, which do not go together"
                )
            else:
                return True
        self._found(DamageKind.LOG, log_id, f"{path} at 0: {problem}")
        return False

    def _map(self, log_id: int, sizes: LedgerSizesBuilder, end: ScanEnd) -> bool:
        """Compare the ledgers map with what was counted; whether the log was closed."""
        found = self._storage.logs.ledgers_map(log_id, self._pay)
        path = self._storage.logs.path(log_id)
        if found.end is not None:
            if found.closed:
                self._found(DamageKind.LEDGERS_MAP, log_id, f"{path}: its ledgers map cannot be read")
            return found.closed
        for ledger_id, nbytes in sizes.build().pairs():
            if found.ledgers.get(ledger_id, 0) < nbytes:
                self._found(
                    DamageKind.LEDGERS_MAP,
                    log_id,
                    f"{path}: {nbytes} bytes of ledger {ledger_id} are in it, its ledgers map counts"
                    f" {found.ledgers.get(ledger_id, 0)}",
                )
                break
        return True

    def _entry(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> None:
        storage = self._storage
        if not storage.has_ledger(ledger_id):
            return
        try:
            row = storage.location_of(ledger_id, entry_id)
        except StorageFault:
            return  # the index's fault, not the log's: the check of the index tells
        if row == 0:
            if self._may_be_earlier_life(ledger_id, split_location(location)[0]):
                return  # garbage of a ledger that was deleted and made anew
            row = self._restore(location, ledger_id, entry_id)
        if row != location:
            return
        problem = self._entries.problem(ledger_id, entry_id, entry)
        if problem is not None:
            self._report(entry_damage(problem, ledger_id, entry_id, location))

    def _restore(self, location: int, ledger_id: int, entry_id: int) -> int:
        try:
            if not self._storage.restore(ledger_id, entry_id, location):
                return 0
        except StorageFault as error:
            detail = f"entry {entry_id} of ledger {ledger_id} has no row in the index and gets none: {error}"
            self._report(Damage(DamageKind.INDEX, detail, ledger_id=ledger_id, entry_id=entry_id, location=location))
            return 0
        self._counts.restored += 1
        _log.warning(
            "an entry in an entry log had no row in the index, which has one again",
            ledger=ledger_id,
            entry=entry_id,
            location=location,
        )
        return location

    def _found(self, kind: DamageKind, log_id: int, detail: str) -> None:
        if self._storage.logs.exists(log_id):
            self._report(Damage(kind, detail, file_id=log_id))
