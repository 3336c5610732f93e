"""The local consistency check: index against entry logs, both ways (reference bookie behaviour, section 8.2).

1. Every row of the index points to its entry: the bytes there are that entry, whole.
2. Every entry in the logs of a ledger that the index knows has a row (perhaps to another copy).
   A missing row alone does not prove a loss: a ledger that left this bookie and came back leaves such copies behind.

The check reads and reports; it repairs nothing. Memory holds a number for each entry log of one storage, and none for
its entries: findings are counted, and only the first `max_findings` are kept.

Threads: one, beside whatever else uses the storage. `step` does a bounded amount of work, so that the caller can pause,
be throttled and stop between steps; this module neither sleeps nor prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import ReadableLogs
from bookie_pod.storage.entry_log.scan import LogScan, ScanEnd, ScanOutcome
from bookie_protocol.errors import EntryDamaged, NotThere, ResourcesShort, StorageFault

STEP_ENTRIES: Final = 256
"""Rows or entries looked at in one step."""
MAX_FINDINGS: Final = 1000


class CheckedStorage(Protocol):
    """One space of entry logs with its index."""

    @property
    def logs(self) -> ReadableLogs: ...
    def ledger_ids(self) -> Iterable[int]: ...
    def has_ledger(self, ledger_id: int) -> bool: ...
    def rows(self, ledger_id: int, first_entry: int) -> Iterator[tuple[int, int]]: ...
    def location_of(self, ledger_id: int, entry_id: int) -> int: ...


class FindingKind(Enum):
    """The kind of a finding; the value is what commands print."""

    WRONG_ENTRY = "wrong entry"
    """The row points to other bytes, or behind the end of its log."""
    MISSING_LOG = "missing log"
    """The row points into an entry log that is not there."""
    UNREADABLE = "unreadable"
    """Reading failed."""
    INDEX = "index"
    """The index's data of a ledger cannot be read."""
    DAMAGED_LOG = "damaged log"
    """An entry log cannot be read to its end."""
    NO_ROW = "no row"
    """An entry of a known ledger without a row."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ids are -1 where they do not apply."""

    kind: FindingKind
    detail: str
    ledger_id: int = -1
    entry_id: int = -1
    location: int = 0


@dataclass(slots=True)
class ConsistencyReport:
    """The things checked and found so far."""

    ledgers: int = 0
    rows: int = 0
    logs: int = 0
    entries: int = 0
    """Entries in the logs, those of unknown ledgers included."""
    unknown_ledger_entries: int = 0
    """Entries of ledgers that the index does not know: deleted, and waiting for collection."""
    torn_logs: int = 0
    """Logs that end inside an entry, or were never closed and end in bytes that are none, to which nothing points:
    normal after a crash, or a write that failed."""
    counts: dict[FindingKind, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding, keep: int) -> None:
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if len(self.findings) < keep:
            self.findings.append(finding)

    @property
    def damages(self) -> int:
        """Findings that prove a loss: all but missing rows."""
        return sum(count for kind, count in self.counts.items() if kind is not FindingKind.NO_ROW)

    @property
    def unindexed(self) -> int:
        """Entries of known ledgers without a row."""
        return self.counts.get(FindingKind.NO_ROW, 0)

    @property
    def sound(self) -> bool:
        return not self.counts


class ConsistencyCheck:
    """One check of some storages. Call `step` until it returns False, or `run`."""

    def __init__(
        self, storages: Sequence[CheckedStorage], *, logs: bool = True, max_findings: int = MAX_FINDINGS
    ) -> None:
        """`logs` False: only from the index to the logs."""
        self.report = ConsistencyReport()
        self._storages = list(storages)
        self._logs = logs
        self._keep = max_findings
        self._last_rows: dict[int, int] = {}
        """The highest position in each log to which a row of this storage points."""
        self._work = self._all()

    def step(self) -> bool:
        """Look at about `STEP_ENTRIES` more rows or entries; return False when everything was looked at.

        Raises `StorageFault` if the ledgers or the logs themselves cannot be listed, or if the machine lacks resources
        just now (`ResourcesShort`): then the state is unknown.
        """
        return next(self._work, None) is not None

    def run(self) -> ConsistencyReport:
        """Do everything."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        for storage in self._storages:
            self._last_rows.clear()
            yield from self._check_rows(storage)
            if self._logs:
                yield from self._check_logs(storage)

    def _found(self, kind: FindingKind, detail: object, ledger: int = -1, entry: int = -1, location: int = 0) -> None:
        self.report.add(Finding(kind, str(detail), ledger, entry, location), self._keep)

    # --- from the index to the logs -------------------------------------------------------------------------

    def _check_rows(self, storage: CheckedStorage) -> Iterator[bool]:
        report, at = self.report, 0
        for ledger_id in storage.ledger_ids():
            report.ledgers += 1
            try:
                storage.has_ledger(ledger_id)  # a record that cannot be read
                for entry_id, location in storage.rows(ledger_id, 0):
                    log_id, position = split_location(location)
                    self._last_rows[log_id] = max(position, self._last_rows.get(log_id, 0))
                    self._check_row(storage, ledger_id, entry_id, location)
                    report.rows += 1
                    at += 1
                    if at % STEP_ENTRIES == 0:
                        yield True
            except NotThere:
                continue  # deleted meanwhile
            except ResourcesShort:
                raise
            except StorageFault as error:
                self._found(FindingKind.INDEX, error, ledger_id)
            if report.ledgers % STEP_ENTRIES == 0:
                yield True

    def _check_row(self, storage: CheckedStorage, ledger_id: int, entry_id: int, location: int) -> None:
        try:
            storage.logs.read(location, ledger_id, entry_id)
        except ResourcesShort:
            raise
        except StorageFault as error:
            if storage.location_of(ledger_id, entry_id) != location:
                return  # moved by compaction, or deleted, since the row was read
            log_id = split_location(location)[0]
            kind = FindingKind.UNREADABLE if storage.logs.exists(log_id) else FindingKind.MISSING_LOG
            if isinstance(error, EntryDamaged):
                kind = FindingKind.WRONG_ENTRY
            self._found(kind, error, ledger_id, entry_id, location)

    # --- from the logs to the index -------------------------------------------------------------------------

    def _check_logs(self, storage: CheckedStorage) -> Iterator[bool]:
        for log_id in storage.logs.log_ids():
            if not storage.logs.exists(log_id):
                continue  # collected meanwhile
            self.report.logs += 1
            scan = storage.logs.scan_sizes(log_id)
            try:
                yield from self._check_log(storage, scan)
                damaged = scan.end.outcome is ScanOutcome.DAMAGED and self._is_damage(storage, log_id, scan.end)
            except ResourcesShort:
                raise
            except StorageFault as error:
                if storage.logs.exists(log_id):
                    self._found(FindingKind.DAMAGED_LOG, error)
                continue
            if damaged:
                self._found(FindingKind.DAMAGED_LOG, scan.end.detail)
            elif not scan.end.clean:
                self.report.torn_logs += 1
            yield True

    def _is_damage(self, storage: CheckedStorage, log_id: int, end: ScanEnd) -> bool:
        """Return whether bytes that are no record are damage: those at the end of a log of which nothing proves that it
        was synced are what a crash, or a write that failed, has left."""
        return self._last_rows.get(log_id, 0) >= end.position or storage.logs.is_proved_synced(log_id)

    def _check_log(self, storage: CheckedStorage, scan: LogScan[int]) -> Iterator[bool]:
        report, last, known = self.report, -1, False
        for location, ledger_id, entry_id, _ in scan:
            report.entries += 1
            if report.entries % STEP_ENTRIES == 0:
                yield True
            if ledger_id != last:
                last, known = ledger_id, self._knows(storage, ledger_id)
            if not known:
                report.unknown_ledger_entries += 1
            elif not self._has_row(storage, ledger_id, entry_id):
                detail = f"entry {entry_id} of ledger {ledger_id} is in a log, and the index has no row for it"
                self._found(FindingKind.NO_ROW, detail, ledger_id, entry_id, location)

    def _knows(self, storage: CheckedStorage, ledger_id: int) -> bool:
        try:
            return storage.has_ledger(ledger_id)
        except ResourcesShort:
            raise
        except StorageFault:
            return False  # reported when its rows were checked

    def _has_row(self, storage: CheckedStorage, ledger_id: int, entry_id: int) -> bool:
        try:
            return storage.location_of(ledger_id, entry_id) != 0
        except NotThere:
            return True  # deleted meanwhile
        except ResourcesShort:
            raise
        except StorageFault as error:
            self._found(FindingKind.INDEX, error, ledger_id, entry_id)
            return True
