"""Rebuilding the location index from the entry logs, which are the truth.

Logs are read from the oldest to the newest, so the newest copy of an entry wins. Only entries of ledgers that the
ledger index knows get a row: the others were deleted, and so were those of an earlier ledger of the same id. What the
scan of a damaged log does not reach is taken from the old index, if that can be read: every row of it whose entry is
really there, and which the new index lacks, is kept.

Offline the rows go into a new, empty index beside the old one (`put_all`). A running bookie has a sink of its own,
which chooses between what a scan finds and what happens meanwhile: see `online.LocationsRebuild`.

Threads: one. `step` does a bounded amount of work, so that the caller can pause, be throttled and stop between steps;
this module neither sleeps nor prints, and keeps no more than one batch of rows.

Source: reference bookie behaviour, section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bookie_pod.storage.entry_log.format import MAX_LOG_ID, SIZE_BYTES
from bookie_pod.storage.entry_log.scan import LogScan, ScanEnd, ScanOutcome
from bookie_pod.storage.gc.deleted_ledgers import MayBeEarlierLife
from bookie_pod.storage.index.locations import LocationIndex, LocationRun
from bookie_protocol.errors import ResourcesShort, StorageFault

STEP_ENTRIES: Final = 1024
"""Entries or rows looked at in one step."""
STEP_BYTES: Final = 1 << 20
"""Bytes of entries after which a step ends at the latest."""
BATCH_ROWS: Final = 65_536
"""Rows that are written and synced together."""
MAX_DAMAGES: Final = 100
"""Damaged logs that a report names."""


class RebuildLogs(Protocol):
    """What is asked of entry logs."""

    def log_ids(self) -> list[int]: ...
    def size(self, log_id: int) -> int: ...
    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes: ...
    def scan_sizes(self, log_id: int) -> LogScan[int]: ...


class OldRows(Protocol):
    """An index that may be damaged."""

    def ledger_ids(self) -> Iterable[int]: ...
    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]: ...
    def location_of(self, ledger_id: int, entry_id: int) -> int: ...


RowSink = Callable[[Sequence[LocationRun]], int]
"""Takes rows, durably; how many it put. `StorageFault`."""


def _never(ledger_id: int, log_id: int) -> bool:
    return False


def put_all(index: LocationIndex) -> RowSink:
    """Every row replaces the one before: for a new index."""

    def put(runs: Sequence[LocationRun]) -> int:
        index.write(runs)
        return sum(len(run.entry_ids) for run in runs)

    return put


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild did so far."""

    bytes_total: int = 0
    """Bytes of all logs."""
    bytes_done: int = 0
    logs: int = 0
    entries: int = 0
    """Entries of known ledgers that the logs hold, copies included."""
    unknown_ledger_entries: int = 0
    """Entries that get no row: of ledgers that are not known, or were deleted and made anew since."""
    rows: int = 0
    """Rows put, those that replaced others included."""
    salvaged: int = 0
    """Rows of the old index that no scan found and whose entries are there."""
    lost: int = 0
    """Rows of the old index whose entries are not there."""
    old_unreadable: str | None = None
    """Why the old index could not be read to its end."""
    damaged_logs: int = 0
    torn_logs: int = 0
    torn: dict[int, ScanEnd] = field(default_factory=dict)
    """By log: where what a crash may have left begins."""
    damages: list[ScanEnd] = field(default_factory=list)
    """Of the first damaged logs."""


class LocationRebuild:
    """One rebuild. Call `step` until it returns False, or `run`."""

    def __init__(
        self,
        logs: RebuildLogs,
        has_ledger: Callable[[int], bool],
        sink: RowSink,
        *,
        old: OldRows | None = None,
        may_be_earlier_life: MayBeEarlierLife = _never,
        location_of: Callable[[int, int], int] | None = None,
        entries_end: Callable[[int], int | None] | None = None,
    ) -> None:
        """`old` is the index to salvage from; it needs `location_of` of the index that is being built. What a log holds
        of a ledger of which `may_be_earlier_life` gets a row only if `old` names that very place, or cannot be read.

        `entries_end`: where the entries of a log end, None if it was never closed. A log that ends before is damaged;
        one that was never closed is not, as a crash may leave anything behind what was synced. Without this function
        only a cut counts as left by a crash.
        """
        self.report = RebuildReport()
        self._logs = logs
        self._has_ledger = has_ledger
        self._may_be_earlier_life = may_be_earlier_life
        self._sink = sink
        self._old = old
        self._location_of = location_of
        self._entries_end = entries_end
        self._batch: list[LocationRun] = []
        self._batch_rows = 0
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when everything is done and durable. `StorageFault`."""
        return next(self._work, None) is not None

    def run(self) -> RebuildReport:
        """Everything at once."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        report, log_ids = self.report, oldest_first(self._logs.log_ids())
        report.bytes_total = sum(map(self._logs.size, log_ids))
        for log_id in log_ids:
            yield from self._take_log(log_id)
            report.logs += 1
        self._write()
        if self._old is not None and self._location_of is not None:
            yield from self._salvage(self._old, self._location_of)
            self._write()

    # --- logs -----------------------------------------------------------------------------------------------

    def _take_log(self, log_id: int) -> Iterator[bool]:
        report, before = self.report, self.report.bytes_done
        scan = self._logs.scan_sizes(log_id)
        last, known, in_doubt, due = -1, False, False, before + STEP_BYTES
        ids: list[int] = []
        locations: list[int] = []
        for seen, (location, ledger_id, entry_id, size) in enumerate(scan, 1):
            if ledger_id != last:
                self._add(last, ids, locations)
                ids, locations = [], []
                last, known = ledger_id, self._has_ledger(ledger_id)
                in_doubt = self._may_be_earlier_life(ledger_id, log_id)
            report.bytes_done += SIZE_BYTES + size
            if known and not (in_doubt and self._is_dropped(ledger_id, entry_id, location)):
                ids.append(entry_id)
                locations.append(location)
                report.entries += 1
            else:
                report.unknown_ledger_entries += 1
            if seen % STEP_ENTRIES == 0 or report.bytes_done >= due:
                self._add(last, ids, locations)
                ids, locations = [], []
                yield True
                due = report.bytes_done + STEP_BYTES
        self._add(last, ids, locations)
        report.bytes_done = before + self._logs.size(log_id)
        self._judge(log_id, scan.end)
        yield True

    def _is_dropped(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Whether the old index knows that this copy is none of the ledger's."""
        if self._old is None:
            return False
        try:
            return self._old.location_of(ledger_id, entry_id) != location
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            return False

    def _judge(self, log_id: int, end: ScanEnd) -> None:
        damaged = end.outcome is ScanOutcome.DAMAGED
        if self._entries_end is not None:
            entries_end = self._entries_end(log_id)
            damaged = entries_end is not None and end.position < entries_end
        if damaged:
            self.report.damaged_logs += 1
            if len(self.report.damages) < MAX_DAMAGES:
                self.report.damages.append(end)
        elif not end.clean:
            self.report.torn_logs += 1
            self.report.torn[log_id] = end

    # --- the old index --------------------------------------------------------------------------------------

    def _salvage(self, old: OldRows, location_of: Callable[[int, int], int]) -> Iterator[bool]:
        seen = 0
        try:
            for ledger_id in old.ledger_ids():
                if not self._has_ledger(ledger_id):
                    continue
                for entry_id, location in old.rows(ledger_id):
                    seen += 1
                    if location_of(ledger_id, entry_id) == 0:
                        self._salvage_row(ledger_id, entry_id, location)
                    if seen % STEP_ENTRIES == 0:
                        yield True
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault as error:
            self.report.old_unreadable = str(error)

    def _salvage_row(self, ledger_id: int, entry_id: int, location: int) -> None:
        try:
            self._logs.read(location, ledger_id, entry_id)
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault:
            self.report.lost += 1
            return
        self._add(ledger_id, [entry_id], [location])
        self.report.salvaged += 1

    # --- writing --------------------------------------------------------------------------------------------

    def _add(self, ledger_id: int, entry_ids: list[int], locations: list[int]) -> None:
        if not entry_ids:
            return
        self._batch.append(LocationRun(ledger_id, entry_ids, locations))
        self._batch_rows += len(entry_ids)
        if self._batch_rows >= BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        if self._batch:
            self.report.rows += self._sink(self._batch)
        self._batch, self._batch_rows = [], 0


def oldest_first(log_ids: Iterable[int]) -> list[int]:
    """Logs in the order of their making: ascending, but from behind the largest gap where the ids have wrapped."""
    ids = sorted(log_ids)
    if len(ids) < 2:
        return ids
    around = ids[0] + MAX_LOG_ID + 1 - ids[-1]
    gap, at = max(((ids[at] - ids[at - 1], at) for at in range(1, len(ids))), default=(0, 0))
    return ids if around >= gap else ids[at:] + ids[:at]
