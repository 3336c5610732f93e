"""The scrub of a ledger directory: every entry log that is rotated and synced, then every row of the index.

Invariants
- Logs are listed before the storage is flushed: whatever lies in them has its row afterwards, or has none.
- Nothing raises for what is damaged; `ScrubStopped` ends a check, a `StorageFault` says that it could not be made.

Threads: the scrubber's; `state` and `met` any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import structlog

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.entry_log.format import HEADER_SIZE, MAGIC, SIZE_BYTES, VERSION, decode_header, split_location
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.entry_log.scan import ScanEnd
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.gc.deleted_ledgers import MayBeEarlierLife
from bookie_pod.storage.gc.index_check import find_row_behind
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.integrity.entry_check import (
    DigestTypes,
    EntryCheck,
    Pay,
    ReadCheck,
    Report,
    ScrubCounts,
    entry_damage,
)
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub_part import ScrubPart, ScrubPhase
from bookie_protocol.errors import EntryDamaged, ResourcesShort, StorageFault

ROWS_AT_ONCE: Final = 256

_log = structlog.get_logger(__name__)


class LogCheck:
    """What the scrubber checks of one entry log: its header; that every byte belongs to a record; that the ledgers map
    counts no less than the records do (garbage collection goes by the map); of every entry that the index points to,
    its digest, if the ledger's digest type needs no password. An entry to which no row points although its ledger lives
    gets its row back, unless it may be of an earlier ledger of that id: without it the bookie would answer "no such
    entry".

    Invariant: a fault is a finding only if the log, or the index's word for the place, is still there afterwards:
    compaction and deletions go on meanwhile.
    """

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


class IndexCheck:
    """What the scrubber checks of the index: that every row of a ledger leads to its entry, and the digests of entries
    in logs whose framing is damaged.

    Invariant: a fault is a finding only if the index still names that place afterwards.
    """

    def __init__(
        self, storage: CollectedStorage, entries: EntryCheck, report: Report, pay: Pay, counts: ScrubCounts
    ) -> None:
        self._storage = storage
        self._entries = entries
        self._report = report
        self._pay = pay
        self._counts = counts
        self._open_ends: dict[int, int | None] = {}
        """Where logs end that were never closed; None for one that was."""

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
            except ResourcesShort:
                raise
            except StorageFault as error:
                now = self._storage.location_of(ledger_id, entry_id)
                if now not in (0, location):
                    location = now  # compaction moved it meanwhile
                    continue
                if now and self._storage.has_ledger(ledger_id) and not self._was_never_synced(error, location):
                    self._report(entry_damage(str(error), ledger_id, entry_id, location))
                return 0
            if not is_sound(split_location(location)[0]):
                problem = self._entries.problem(ledger_id, entry_id, entry)
                if problem is not None and self._storage.location_of(ledger_id, entry_id) == location:
                    self._report(entry_damage(problem, ledger_id, entry_id, location))
            return len(entry)

    def _was_never_synced(self, error: StorageFault, location: int) -> bool:
        """Whether nothing but the row is left of an add whose bytes a power cut took: it was not acknowledged, or the
        replay would have given it another place."""
        if not self._storage.index_may_run_ahead or not isinstance(error, EntryDamaged):
            return False
        log_id, position = split_location(location)
        if not self._storage.logs.exists(log_id):
            return False
        if log_id not in self._open_ends:
            found = self._storage.logs.ledgers_map(log_id, self._pay)
            self._open_ends[log_id] = None if found.end is None or found.closed else found.end.position
        end = self._open_ends[log_id]
        return end is not None and position >= end


def _chunks(storage: CollectedStorage, ledger_id: int, first_entry: int) -> Iterator[list[tuple[int, int]]]:
    """Rows in lists, so that no iteration of the index stays open while the scrubber waits."""
    while True:
        rows = list(islice(storage.rows(ledger_id, first_entry), ROWS_AT_ONCE))
        if rows:
            yield rows
        if len(rows) < ROWS_AT_ONCE:
            return
        first_entry = rows[-1][0] + 1


class LedgerScrub(ScrubPart):
    """One ledger directory, or the whole of an engine with one space of logs."""

    def __init__(
        self,
        storage: CollectedStorage,
        files: Files,
        folder: str,
        pace: ScrubPace,
        digests: DigestTypes,
        *,
        may_be_earlier_life: MayBeEarlierLife,
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(files, folder, pace, metrics or ScrubMetrics(Registry()), now_ms)
        self._storage = storage
        self._digests = digests
        self._may_be_earlier_life = may_be_earlier_life
        self._sound: set[int] = set()
        """Logs that this pass, in this process, saw whole."""
        storage.refuse(self.register.locations)
        storage.logs.check_with(ReadCheck(self._digests, self.met))
        self._forget_cached = storage.forget_cached

    def met(self, damage: Damage) -> None:
        """A read found an entry damaged. Any thread."""
        # Compaction and deletions go on meanwhile.
        if self._storage.logs.exists(damage.file_id) and self._storage.has_ledger(damage.ledger_id):
            self._found(damage, "a read found damage")
            self.on_met()

    def _is_gone(self, damage: Damage) -> bool:
        if damage.kind is not DamageKind.ENTRY:
            return False
        return not self._storage.has_ledger(damage.ledger_id) or not self._storage.logs.exists(damage.file_id)

    def _first_phase(self) -> ScrubPhase:
        return ScrubPhase.LOGS

    def _check(self) -> None:
        failure = self._storage.failure
        if failure is not None:
            self._not_checked(f"directory {self.folder}", failure)
            return
        entries = EntryCheck(self._digests, self.counts)
        if self.position.phase is ScrubPhase.LOGS:
            self._sound.clear()
            self._check_logs(
                LogCheck(
                    self._storage, self._files, entries, self._found, self._pay, self.counts, self._may_be_earlier_life
                ),
            )
            self.position.phase, self.position.ledger_id, self.position.entry_id = ScrubPhase.INDEX, -1, -1
            self._save()
        self._check_index(IndexCheck(self._storage, entries, self._found, self._pay, self.counts))

    def _end_pass(self) -> list[Damage]:
        return self.register.end_pass(self.position.number, self._is_superseded, self._storage.logs.exists)

    def _is_superseded(self, damage: Damage) -> bool:
        try:
            return self._storage.location_of(damage.ledger_id, damage.entry_id) != damage.location
        except StorageFault:
            return True

    def _check_logs(self, check: LogCheck) -> None:
        logs, at = self._storage.logs, self.position
        try:
            found = [log_id for log_id in logs.log_ids() if logs.is_flushed(log_id)]
            # After the list: whatever lies in these logs has its row now, or has none.
            self._storage.flush()
        except StorageFault as error:
            self._not_checked(f"the entry logs of {self.folder}", error)
            return
        for done, log_id in enumerate(found):
            self._progress = (done, len(found))
            if log_id < at.log_id:
                continue
            after = at.location if log_id == at.log_id else 0
            at.log_id, at.location = log_id, after
            try:
                if check.check(log_id, after, self._log_checked):
                    self._sound.add(log_id)
            except ResourcesShort as error:
                self._not_checked(f"entry log {log_id:x}.log", error)
            except StorageFault as error:
                if logs.exists(log_id):
                    self._found(Damage(DamageKind.LOG, str(error), file_id=log_id))

    def _log_checked(self, location: int) -> None:
        self.position.location = location
        self._save_now_and_then()

    def _check_index(self, check: IndexCheck) -> None:
        ledgers, at = sorted(self._storage.ledger_ids()), self.position
        for done, ledger_id in enumerate(ledgers):
            self._progress = (done, len(ledgers))
            if ledger_id < at.ledger_id:
                continue
            first = at.entry_id + 1 if ledger_id == at.ledger_id else 0
            at.ledger_id, at.entry_id = ledger_id, first - 1
            try:
                check.check(ledger_id, first, self._sound.__contains__, self._row_checked)
            except StorageFault as error:
                if self._storage.has_ledger(ledger_id):
                    self._not_checked(f"the index of ledger {ledger_id}", error)
                    if isinstance(error, ResourcesShort):
                        continue
                    self._found(Damage(DamageKind.INDEX, str(error), ledger_id=ledger_id))

    def _row_checked(self, entry_id: int) -> None:
        self.position.entry_id = entry_id
        self._save_now_and_then()
