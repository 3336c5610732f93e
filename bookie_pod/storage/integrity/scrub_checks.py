"""What the scrubber checks: one entry log, the index rows of one ledger, one journal file.

An entry log: its header; that every byte belongs to a record; that the ledgers map counts no less than the records do
(garbage collection goes by the map); of every entry that the index points to, its digest, if the ledger's digest type
needs no password. An entry to which no row points although its ledger lives gets its row back: without it the bookie
would answer "no such entry".

The index: that every row leads to its entry, and the digests of entries in logs whose framing is damaged.

A journal below the mark: its framing and group checks.

Invariants
- A fault is a finding only if the index still names that place afterwards: compaction and deletions go on meanwhile.
- Nothing raises for what is damaged; `ScrubStopped` ends a check, a `StorageFault` says that it could not be made.

Threads: the scrubber's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

import structlog

from bookie_pod.storage.entry_log.format import HEADER_SIZE, MAGIC, SIZE_BYTES, VERSION, decode_header, split_location
from bookie_pod.storage.entry_log.interface import ScanEnd, ScanOutcome
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.files import File, Files
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub_storage import DigestTypes, ScrubbedStorage
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.survey import survey_journal
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import DigestMismatch, StorageFault

_log = structlog.get_logger(__name__)

ROWS_AT_ONCE: Final = 256

Report = Callable[[Damage], None]
Pay = Callable[[int, int], None]
"""`pay(entries, bytes)` waits until that much may be read; raises `ScrubStopped`."""


@dataclass(slots=True)
class ScrubCounts:
    """What one pass did so far."""

    entries: int = 0
    """Entries that were read."""
    digests: int = 0
    """Of them those whose digest was checked."""
    restored: int = 0
    """Index rows that were put back."""
    logs: int = 0
    journals: int = 0
    rows: int = 0
    faults: int = 0
    """Checks that could not be made."""


class EntryCheck:
    """The digest of one entry, as far as it can be checked without the ledger's password."""

    def __init__(self, digests: DigestTypes, counts: ScrubCounts) -> None:
        self._digests = digests
        self._counts = counts

    def problem(self, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """What is wrong with the entry; None: nothing that can be seen."""
        digest_type = self._digests.digest_type(ledger_id)
        if digest_type is None or digest_type is DigestType.MAC:
            return None
        try:
            digest_manager(digest_type, b"").verify(entry, ledger_id, entry_id)
        except DigestMismatch as error:
            return str(error)
        self._counts.digests += 1
        return None


class LogCheck:
    """Checks entry logs of one storage."""

    def __init__(
        self,
        storage: ScrubbedStorage,
        files: Files,
        entries: EntryCheck,
        report: Report,
        pay: Pay,
        counts: ScrubCounts,
    ) -> None:
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
        if scan.end.clean or (scan.end.outcome is ScanOutcome.TORN and not closed):
            return sound
        self._found(DamageKind.LOG, log_id, scan.end.detail)
        return False

    def _header(self, log_id: int) -> bool:
        path = self._storage.logs.path(log_id)
        try:
            file = self._files.open(path)
            try:
                header = decode_header(file.pread(HEADER_SIZE, 0))
            finally:
                file.close()
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            raise StorageFault(f"cannot read entry log {path}: {error}") from error
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
            row = self._restore(location, ledger_id, entry_id)
        if row != location:
            return
        problem = self._entries.problem(ledger_id, entry_id, entry)
        if problem is not None:
            self._report(_entry_damage(problem, ledger_id, entry_id, location))

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


class IndexCheck:
    """Checks that the index leads to the entries."""

    def __init__(
        self, storage: ScrubbedStorage, entries: EntryCheck, report: Report, pay: Pay, counts: ScrubCounts
    ) -> None:
        self._storage = storage
        self._entries = entries
        self._report = report
        self._pay = pay
        self._counts = counts

    def check(
        self, ledger_id: int, first_entry: int, is_sound: Callable[[int], bool], checked: Callable[[int], None]
    ) -> None:
        """Check the rows of one ledger from `first_entry` on. `is_sound(log id)`: this pass saw that log whole, so its
        digests are known. `StorageFault` if the index cannot be read."""
        for rows in _chunks(self._storage, ledger_id, first_entry):
            for entry_id, location in rows:
                if not self._storage.has_ledger(ledger_id):
                    return
                size = self._row(ledger_id, entry_id, location, is_sound)
                self._pay(1, SIZE_BYTES + size)
                self._counts.rows += 1
                checked(entry_id)

    def _row(self, ledger_id: int, entry_id: int, location: int, is_sound: Callable[[int], bool]) -> int:
        """Check one row; the size of the entry, 0 if there is none."""
        while True:
            try:
                entry = self._storage.logs.read(location, ledger_id, entry_id)
            except StorageFault as error:
                now = self._storage.location_of(ledger_id, entry_id)
                if now not in (0, location):
                    location = now  # compaction moved it meanwhile
                    continue
                if now and self._storage.has_ledger(ledger_id):
                    self._report(_entry_damage(str(error), ledger_id, entry_id, location))
                return 0
            if not is_sound(split_location(location)[0]):
                problem = self._entries.problem(ledger_id, entry_id, entry)
                if problem is not None and self._storage.location_of(ledger_id, entry_id) == location:
                    self._report(_entry_damage(problem, ledger_id, entry_id, location))
            return len(entry)


def check_journal(files: Files, folder: str, journal_id: int, report: Report, pay: Pay) -> None:
    """Check one journal file; one that was trimmed meanwhile is fine. `StorageFault` if it cannot be read."""
    path = journal_path(folder, journal_id)
    try:
        file = files.open(path)
        try:
            survey = survey_journal(cast("File", PacedFile(file, pay)), journal_id)
        finally:
            file.close()
    except FileNotFoundError:
        return
    except OSError as error:
        if files.exists(path):
            raise StorageFault(f"cannot read journal {path}: {error}") from error
        return
    if survey.damage is not None and files.exists(path):
        report(Damage(DamageKind.JOURNAL, f"{path} at {survey.end}: {survey.damage}", file_id=journal_id))


class PacedFile:
    """A `File` for reading whose reads are paid for."""

    def __init__(self, file: File, pay: Pay) -> None:
        self._file = file
        self._pay = pay

    def pread(self, length: int, offset: int) -> bytes:
        self._pay(0, length)
        return self._file.pread(length, offset)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _chunks(storage: ScrubbedStorage, ledger_id: int, first_entry: int) -> Iterator[list[tuple[int, int]]]:
    """Rows in lists, so that no iteration of the index stays open while the scrubber waits."""
    while True:
        rows = list(islice(storage.rows(ledger_id, first_entry), ROWS_AT_ONCE))
        if rows:
            yield rows
        if len(rows) < ROWS_AT_ONCE:
            return
        first_entry = rows[-1][0] + 1


def _entry_damage(detail: str, ledger_id: int, entry_id: int, location: int) -> Damage:
    return Damage(
        DamageKind.ENTRY,
        detail,
        file_id=split_location(location)[0],
        ledger_id=ledger_id,
        entry_id=entry_id,
        location=location,
    )
