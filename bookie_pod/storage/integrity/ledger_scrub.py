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

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.entry_log.format import (
    HEADER_SIZE,
    MAGIC,
    SIZE_BYTES,
    VERSION,
    decode_header,
    encode_header,
    split_location,
)
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.gc.index_check import IndexedRows
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
    unread_entry,
)
from bookie_pod.storage.integrity.lost_rows import LostRows
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub_part import ScrubPart, ScrubPhase
from bookie_protocol.errors import EntryDamaged, ResourcesShort, StorageFault

ROWS_AT_ONCE: Final = 256


class LogCheck:
    """The scrubber's check of one entry log.

    It checks its header; that every byte belongs to a record; that the ledgers map counts no less than the records do
    (garbage collection goes by the map); of every entry that the index points to, its digest, if the ledger's digest
    type needs no password. An entry to which no row points although its ledger lives gets its row back (`LostRows`),
    unless it is of an earlier ledger of that id, or was never synced.

    Invariants
    - What lies behind an entry of which it is unknown whether it was synced is not passed by the position.
    - A fault is a finding only if the log, or the index's word for the place, is still there afterwards: compaction and
      deletions go on meanwhile.
    """

    def __init__(
        self,
        storage: CollectedStorage,
        files: Files,
        entries: EntryCheck,
        report: Report,
        pay: Pay,
        counts: ScrubCounts,
        lost_rows: LostRows,
        rows: IndexedRows,
    ) -> None:
        self._storage = storage
        self._files = files
        self._entries = entries
        self._report = report
        self._pay = pay
        self._counts = counts
        self._lost_rows = lost_rows
        self._rows = rows

    def check(self, log_id: int, after: int, checked: Callable[[int], None]) -> bool:
        """Check one log that is rotated and synced, from behind the location `after` (0: all of it).

        `checked(location)` is called with its progress. Return whether the framing is sound. Raises `StorageFault` if
        the log cannot be read and is still there.
        """
        self._lost_rows.begin_log()
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
            if not self._lost_rows.untold:
                checked(location)
        self._counts.logs += 1
        if self._storage.logs.is_closed(log_id):
            self._map(log_id, sizes)
        # The rule of garbage collection: a log of which nothing proves that it was synced was being written when the
        # process or the power failed, and ends there if the index places no entry behind.
        if scan.end.clean or not (
            self._storage.logs.is_proved_synced(log_id) or self._has_row_from(log_id, scan.end.position)
        ):
            return sound
        self._found(DamageKind.LOG, log_id, scan.end.detail)
        return False

    def _has_row_from(self, log_id: int, position: int) -> bool:
        """Return whether the index places an entry at or behind this position of an unproved log."""
        return self._rows.behind(log_id, position, closed=False) is not None

    def _header(self, log_id: int) -> bool:
        path = self._storage.logs.path(log_id)
        try:
            file = self._files.open(path)
            try:
                if file.data_from(0) is None:
                    return True  # made ahead, and never written to
                data = file.pread(HEADER_SIZE, 0)
                if encode_header().startswith(data.rstrip(b"\0")) and not self._has_row_from(log_id, 0):
                    return True  # a power cut took the rest of it, and nothing in this log had been synced
                header = decode_header(data)
            finally:
                file.close()
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            raise storage_fault(f"cannot read entry log {path}", error) from error
        else:
            if header.magic != MAGIC or not 0 <= header.version <= VERSION:
                problem = f"its header begins with {header.magic.hex()} and version {header.version}"
            elif (
                not header.has_map
                and (header.map_offset or header.ledger_count)
                and not self._storage.logs.is_pointer_torn(log_id)
            ):
                problem = (
                    f"its header has version {header.version}, a map at {header.map_offset} and"
                    f" {header.ledger_count} ledgers, which do not go together"
                )
            else:
                return True
        self._found(DamageKind.LOG, log_id, f"{path} at 0: {problem}")
        return False

    def _map(self, log_id: int, sizes: LedgerSizesBuilder) -> None:
        """Compare the ledgers map of a closed log with what was counted."""
        found = self._storage.logs.ledgers_map(log_id, self._pay)
        path = self._storage.logs.path(log_id)
        if found.end is not None:
            if not self._storage.logs.is_proved_synced(log_id) or self._storage.logs.is_pointer_torn(log_id):
                return  # a power cut may have taken it, and all who need it count by a scan
            self._found(DamageKind.LEDGERS_MAP, log_id, f"{path}: its ledgers map cannot be read")
            return
        for ledger_id, nbytes in sizes.build().pairs():
            if found.ledgers.get(ledger_id, 0) < nbytes:
                self._found(
                    DamageKind.LEDGERS_MAP,
                    log_id,
                    f"{path}: {nbytes} bytes of ledger {ledger_id} are in it, its ledgers map counts"
                    f" {found.ledgers.get(ledger_id, 0)}",
                )
                break

    def _entry(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> None:
        storage = self._storage
        if not storage.has_ledger(ledger_id):
            return
        try:
            row = storage.location_of(ledger_id, entry_id)
        except StorageFault:
            return  # the index's fault, not the log's: the check of the index tells
        if row not in (0, location):
            # Garbage, because there is another copy, unless that is damaged.
            self._lost_rows.take_over(location, row, ledger_id, entry_id, entry)
            return
        if row == 0 and storage.is_earlier_life(ledger_id, split_location(location)[0]):
            return  # garbage of a ledger that was deleted and created again
        if row == 0 and not self._lost_rows.take(location, ledger_id, entry_id, entry):
            return
        problem = self._entries.problem(ledger_id, entry_id, entry)
        if problem is not None:
            self._report(entry_damage(problem, ledger_id, entry_id, location))

    def _found(self, kind: DamageKind, log_id: int, detail: str) -> None:
        if self._storage.logs.exists(log_id):
            self._report(Damage(kind, detail, file_id=log_id))


class IndexCheck:
    """The scrubber's check of the index.

    It checks that every row of a ledger leads to its entry, and the digests of entries in logs whose framing is
    damaged.

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
        """The ends of logs that were never closed; None for one that was."""

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
                if now and self._storage.has_ledger(ledger_id):
                    self._tell(error, ledger_id, entry_id, location)
                return 0
            if not is_sound(split_location(location)[0]):
                problem = self._entries.problem(ledger_id, entry_id, entry)
                if problem is not None and self._storage.location_of(ledger_id, entry_id) == location:
                    self._report(entry_damage(problem, ledger_id, entry_id, location))
            return len(entry)

    def _tell(self, error: StorageFault, ledger_id: int, entry_id: int, location: int) -> None:
        if not isinstance(error, EntryDamaged):
            self._report(unread_entry(str(error), ledger_id, entry_id, location))
        elif not self._was_never_synced(ledger_id, entry_id, location):
            self._report(entry_damage(str(error), ledger_id, entry_id, location))

    def _was_never_synced(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Return whether only the row is left of an add whose bytes a power cut took.

        Such an add was not acknowledged, or the replay would have given it another place.
        """
        if not self._storage.index_may_run_ahead or self._storage.was_durable(ledger_id, entry_id):
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
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(files, folder, pace, metrics or ScrubMetrics(Registry()), now_ms)
        self._storage = storage
        self._digests = digests
        self._sound: set[int] = set()
        """Logs that this pass, in this process, saw whole."""
        self._secure = storage.secure
        storage.refuse(self.register.locations, self.register.unwanted)
        storage.logs.check_with(ReadCheck(self._digests, self.met))
        self._forget_cached = storage.forget_cached

    def met(self, damage: Damage, asked: bool) -> None:
        """A read found an entry damaged, which it was `asked` for, or has brought along. Any thread."""
        # Compaction and deletions go on meanwhile. The row of what was asked for led here; what is brought along from
        # behind it may have none.
        if not self._storage.has_ledger(damage.ledger_id):
            return
        if self._is_superseded(damage) if asked else not self._is_named(damage):
            return
        self._found(damage, "a read found damage")
        self.on_met()

    def _is_deleted(self, damage: Damage) -> bool:
        return damage.kind is DamageKind.ENTRY and not self._storage.has_ledger(damage.ledger_id)

    def _is_gone(self, damage: Damage) -> bool:
        if damage.kind is not DamageKind.ENTRY:
            return False
        if damage.location:
            return self._is_superseded(damage)
        ledger_id, entry_id = damage.ledger_id, damage.entry_id
        self._pay(1, SIZE_BYTES)
        try:
            entry = self._storage.logs.read(self._storage.location_of(ledger_id, entry_id), ledger_id, entry_id)
            self._pay(0, len(entry))
            return self._storage.logs.is_sound(ledger_id, entry_id, entry)
        except StorageFault:
            return False

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
            self._check_logs(entries)
            self.position.phase, self.position.ledger_id, self.position.entry_id = ScrubPhase.INDEX, -1, -1
            self._save()
        self._check_index(IndexCheck(self._storage, entries, self._found, self._pay, self.counts))

    def _end_pass(self) -> list[Damage]:
        return self.register.end_pass(self.position.number, self._is_superseded, self._storage.logs.exists)

    def _is_superseded(self, damage: Damage) -> bool:
        """Return whether the index names another copy, or the damaged one is of an earlier ledger of its id. A missing
        row, or an index that cannot be read, proves neither."""
        try:
            row = self._storage.location_of(damage.ledger_id, damage.entry_id)
        except StorageFault:
            return False
        if row == 0:
            return self._storage.is_earlier_life(damage.ledger_id, split_location(damage.location)[0])
        return row != damage.location

    def _is_named(self, damage: Damage) -> bool:
        try:
            return self._storage.location_of(damage.ledger_id, damage.entry_id) == damage.location
        except StorageFault:
            return False

    def _was_never_synced(self, location: int) -> None:
        if self.register.supersede(location):
            self._save()

    def _check_logs(self, entries: EntryCheck) -> None:
        rows = IndexedRows(self._storage, lambda: self._pay(0, 0))
        lost_rows = LostRows(
            self._storage,
            rows,
            self._digests,
            entries,
            self._found,
            self._pay,
            self.counts,
            self._was_never_synced,
            self._not_checked,
            self.register.locations,
        )
        check = LogCheck(self._storage, self._files, entries, self._found, self._pay, self.counts, lost_rows, rows)
        logs, at = self._storage.logs, self.position
        try:
            found = [log_id for log_id in logs.log_ids() if logs.is_flushed(log_id)]
            # After the list: whatever lies in these logs has its row now, or has none.
            self._storage.flush()
        except StorageFault as error:
            self._not_checked(f"the entry logs of {self.folder}", error)
            return
        all_seen = not at.location and all(log_id >= at.log_id for log_id in found)
        lasting = self._lasting()
        for done, log_id in enumerate(found):
            self._progress = (done, len(found))
            if log_id < at.log_id:
                continue
            after = at.location if log_id == at.log_id else 0
            at.log_id, at.location = log_id, after
            try:
                sound = check.check(log_id, after, self._log_checked)
                all_seen = all_seen and not lost_rows.untold and (sound or log_id in lasting)
                if sound:
                    self._sound.add(log_id)
            except ResourcesShort as error:
                all_seen = False
                self._not_checked(f"entry log {log_id:x}.log", error)
            except StorageFault as error:
                if logs.exists(log_id):
                    all_seen = all_seen and log_id in lasting
                    self._found(Damage(DamageKind.LOG, str(error), file_id=log_id))
        try:
            lost_rows.finish(all_seen=all_seen)
        except StorageFault as error:
            self._not_checked("entries without a row in the index", error)

    def _lasting(self) -> frozenset[int]:
        """Return the logs that an earlier pass found damaged: to wait for what they hold would be to wait forever."""
        return frozenset(
            each.file_id
            for each in self.register.damages()
            if each.kind is DamageKind.LOG and each.seen_in_pass < self.position.number
        )

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
