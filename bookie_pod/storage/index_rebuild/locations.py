"""Rebuilding the location index from the entry logs, which are the truth.

Logs are read from the oldest to the newest, so the newest copy of an entry wins, but for what a power cut may have torn
(`torn_records`). Only entries of ledgers that the ledger index knows get a row: the others were deleted, and so were
those of an earlier ledger of the same id.

Invariants
- A row of the old index that its log confirms stays, whatever newer copies there are (`chosen`).
- A row of the old index that no log confirms, and for which no log has a copy, is kept: it leads to its entry, which
  lies behind damage, or it leads nowhere, and then the entry is lost here, not absent.
- Ledgers of which the old index may have named more than could be read are reported (`RebuildReport.unread`). The
  caller puts them in limbo, or entries that were lost here would be denied.

Offline the rows go into a new, empty index beside the old one (`put_chosen`). A running bookie has a sink of its own,
because its index changes meanwhile: see `online.LocationsRebuild`.

Threads: one. `step` does a bounded amount of work, so that the caller can pause, be throttled and stop between steps;
this module neither sleeps nor prints, and keeps no more than one batch of rows.

Source: docs/internals/bookie-behaviour.md, section 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.interface import ReadableLogs
from bookie_pod.storage.entry_log.scan import LogScan, ScanEnd, ScanOutcome
from bookie_pod.storage.index.locations import LocationIndex, LocationRun, chosen
from bookie_pod.storage.index_rebuild.torn_records import ROWS_PER_STEP, OldRows, TornRecords
from bookie_pod.storage.log_ids import MAX_LOG_ID
from bookie_protocol.errors import ResourcesShort, StorageFault

STEP_ENTRIES: Final = 1024
"""Entries or rows looked at in one step."""
STEP_BYTES: Final = 1 << 20
"""Bytes of entries after which a step ends at the latest."""
BATCH_ROWS: Final = 65_536
"""Rows that are written and synced together."""
MAX_DAMAGES: Final = 100
"""Damaged logs that a report names."""
ROW_BYTES: Final = 24
"""The bytes that a row of the old index counts for."""
IsLiving = Callable[[int, int], bool]
"""(ledger id, log id): whether the ledger is known, and what this log holds of it is not surely an earlier one's."""
UsedPlaces = Callable[[int, Sequence[int]], Sequence[int]]
"""(ledger id, entry ids): the places that an old index names, 0 where it names none or cannot be read."""
RowSink = Callable[[Sequence[LocationRun]], int]
"""Takes rows, durably; how many it put. `StorageFault`."""


class ReadableScan:
    """The scan of a log that ends where the log cannot be read, as it ends where it is damaged: one bad sector must not
    cost all other entries their rows."""

    def __init__(self, scan: LogScan[Any]) -> None:
        self._scan = scan
        self._end: ScanEnd | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether the log could not be read from some place on."""
        return self._end is not None

    @property
    def end(self) -> ScanEnd:
        """See `LogScan`."""
        return self._scan.end if self._end is None else self._end

    def __iter__(self) -> Iterator[tuple[int, int, int, Any]]:
        at = 0
        try:
            for record in self._scan:
                at = split_location(record[0])[1]
                yield record
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            self._end = ScanEnd(ScanOutcome.DAMAGED, at, f"behind {at}: {error}")


def readable_end(entries_end: Callable[[int], int | None]) -> Callable[[int], int | None]:
    """Return a function that asks where the entries of a log end; None also if that part of it cannot be read."""

    def ask(log_id: int) -> int | None:
        try:
            return entries_end(log_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return None

    return ask


def used_places(index: LocationIndex) -> UsedPlaces:
    """Return a look-up of the places that an old index names."""

    def used(ledger_id: int, entry_ids: Sequence[int]) -> Sequence[int]:
        try:
            return index.get_each(ledger_id, entry_ids)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return [0] if len(entry_ids) == 1 else [used(ledger_id, (each,))[0] for each in entry_ids]

    return used


def put_chosen(index: LocationIndex, used: UsedPlaces | None = None) -> RowSink:
    """A sink that puts rows into a new index as `chosen` says. `used`: the places that the old one names."""

    def put(runs: Sequence[LocationRun]) -> int:
        together: dict[int, dict[int, int]] = {}
        for ledger_id, entry_ids, locations in runs:
            given = together.setdefault(ledger_id, {})
            places = [0] * len(entry_ids) if used is None else used(ledger_id, entry_ids)
            rows = zip(entry_ids, locations, strict=True)
            given.update(chosen(rows, places, lambda each: given.get(each) or index.get(ledger_id, each)))  # noqa: B023
        index.write(LocationRun(ledger_id, list(rows), list(rows.values())) for ledger_id, rows in together.items())
        return sum(map(len, together.values()))

    return put


@dataclass(slots=True)
class RebuildReport:
    """The progress of a rebuild."""

    bytes_total: int = 0
    """Bytes of all logs."""
    bytes_done: int = 0
    bytes_again: int = 0
    """Bytes that were read besides: what a power cut may have torn is looked at twice, and so is the old index."""
    logs: int = 0
    entries: int = 0
    """Entries of known ledgers that the logs hold, copies included."""
    unknown_ledger_entries: int = 0
    """Entries that get no row: their ledgers are not known, or were deleted and created again since."""
    rows: int = 0
    """Rows put, those that replaced others included."""
    salvaged: int = 0
    """Rows of the old index that no scan found and whose entries are there."""
    lost: int = 0
    """Rows of the old index that no log confirms. They are kept: what they lead to is lost here, not absent."""
    old_unreadable: str | None = None
    """The reason why the old index could not be read to its end."""
    unread: set[int] = field(default_factory=set)
    """The ledgers of which the old index may have named more than could be read."""
    damaged_logs: int = 0
    torn_logs: int = 0
    torn_records: int = 0
    """Records that get no row: a power cut has torn them, or the synced copies of their entries are there."""
    torn: dict[int, ScanEnd] = field(default_factory=dict)
    """The place, by log, at which the remains of a crash may begin."""
    damages: list[ScanEnd] = field(default_factory=list)
    """The ends of the scans of the first damaged logs."""


class LocationRebuild:
    """One rebuild. Call `step` until it returns False, or `run`."""

    def __init__(
        self,
        logs: ReadableLogs,
        is_living: IsLiving,
        sink: RowSink,
        *,
        old: OldRows | None = None,
        location_of: Callable[[int, int], int] | None = None,
        entries_end: Callable[[int], int | None] | None = None,
        torn: TornRecords | None = None,
        may_be_torn: Callable[[int], bool] = lambda log_id: True,
        may_be_earlier: IsLiving = lambda ledger_id, log_id: False,
        used: UsedPlaces | None = None,
        known: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """`old` is the index to salvage from; it needs `location_of` of the index that is being built. `known` gives
        all ledgers that live, ascending, should `old` not tell its own.

        `entries_end`: where the entries of a log end, None if nothing proves that it was synced. A log that ends before
        is damaged. One that may not have been synced is damaged if the old index leads behind its end, as a crash may
        leave anything behind what was synced; where that is unknown, only a cut counts as left by a crash. Without this
        function that is so for all logs.

        `torn` judges the records of logs that `may_be_torn`, of those for which `entries_end` gives None.

        `may_be_earlier`: whether what a log holds of a living ledger may be of an earlier one. Then only the places
        count that the old index names (`used`).
        """
        self.report = RebuildReport()
        self._logs = logs
        self._is_living = is_living
        self._sink = sink
        self._old = old
        self._location_of = location_of
        self._entries_end = readable_end(entries_end or (lambda log_id: None))
        self._torn = torn
        self._may_be_torn = may_be_torn
        self._may_be_earlier = may_be_earlier
        self._used = used
        self._known = known
        self._batch: list[LocationRun] = []
        self._batch_rows = 0
        self._work = self._all()

    def step(self) -> bool:
        """Do a little more; False when everything is done and durable. `StorageFault`."""
        return next(self._work, None) is not None

    def run(self) -> RebuildReport:
        """Do everything."""
        while self.step():
            pass
        return self.report

    def _all(self) -> Iterator[bool]:
        report, log_ids = self.report, oldest_first(self._logs.log_ids())
        report.bytes_total = sum(map(self._logs.size, log_ids))
        suspects = {each for each in log_ids if self._may_be_torn(each) and self._entries_end(each) is None}
        if suspects and self._torn is not None:
            for more in self._torn.look_through(suspects):
                report.bytes_again += ROWS_PER_STEP * ROW_BYTES
                yield more
        for log_id in log_ids:
            yield from self._take_log(log_id, self._torn if log_id in suspects else None)
            report.logs += 1
        self._write()
        if self._old is not None and self._location_of is not None:
            yield from self._salvage(self._old, self._location_of)
            self._write()

    # --- logs -----------------------------------------------------------------------------------------------

    def _take_log(self, log_id: int, torn: TornRecords | None) -> Iterator[bool]:
        report, before = self.report, self.report.bytes_done
        self._logs.make_durable(log_id)
        scan = ReadableScan(self._logs.scan_sizes(log_id) if torn is None else self._logs.scan(log_id))
        last, living, earlier, due, doubtful = -1, False, False, before + STEP_BYTES, 0
        ids: list[int] = []
        locations: list[int] = []
        for seen, (location, ledger_id, entry_id, entry) in enumerate(scan, 1):
            if ledger_id != last:
                self._add(last, ids, locations)
                ids, locations = [], []
                last, living = ledger_id, self._is_living(ledger_id, log_id)
                earlier = living and self._may_be_earlier(ledger_id, log_id)
            report.bytes_done += SIZE_BYTES + (entry if torn is None else len(entry))
            if not living or (earlier and not self._is_named(ledger_id, entry_id, location)):
                report.unknown_ledger_entries += 1
            elif torn is not None and not torn.is_sound(ledger_id, entry_id, entry):
                doubtful += 1
            else:
                ids.append(entry_id)
                locations.append(location)
                report.entries += 1
            if seen % STEP_ENTRIES == 0 or report.bytes_done >= due:
                self._add(last, ids, locations)
                ids, locations = [], []
                yield True
                due = report.bytes_done + STEP_BYTES
        self._add(last, ids, locations)
        if torn is not None and doubtful:
            yield from self._take_doubtful(log_id, torn)
        report.bytes_done = before + self._logs.size(log_id)
        self._judge(log_id, scan.end, torn)
        yield True

    def _take_doubtful(self, log_id: int, torn: TornRecords) -> Iterator[bool]:
        """Look at the records of a log for which no digest vouches, once every one that is sound has its row."""
        self._write()
        report, due = self.report, self.report.bytes_again + STEP_BYTES
        for seen, (location, ledger_id, entry_id, entry) in enumerate(ReadableScan(self._logs.scan(log_id)), 1):
            report.bytes_again += SIZE_BYTES + len(entry)
            if self._is_own(ledger_id, entry_id, location) and not torn.is_sound(ledger_id, entry_id, entry):
                if torn.gets_row(ledger_id, entry_id, location, entry):
                    torn.note_row(ledger_id, entry_id, location)
                    self._add(ledger_id, [entry_id], [location])
                    report.entries += 1
                else:
                    report.torn_records += 1
            if seen % STEP_ENTRIES == 0 or report.bytes_again >= due:
                yield True
                due = report.bytes_again + STEP_BYTES

    def _is_own(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Return whether the record counts as one of the living ledger."""
        log_id = split_location(location)[0]
        return self._is_living(ledger_id, log_id) and (
            not self._may_be_earlier(ledger_id, log_id) or self._is_named(ledger_id, entry_id, location)
        )

    def _is_named(self, ledger_id: int, entry_id: int, location: int) -> bool:
        return self._used is not None and self._used(ledger_id, (entry_id,))[0] == location

    def _judge(self, log_id: int, end: ScanEnd, torn: TornRecords | None) -> None:
        entries_end = self._entries_end(log_id)
        if entries_end is not None:
            damaged = end.position < entries_end
        else:
            # Without `old` the caller keeps the rows that lead nowhere: only what lies behind could be missed.
            broken = end.position if self._old is not None else end.position + SIZE_BYTES + 1
            behind = None if torn is None else torn.leads_behind(log_id, broken)
            damaged = behind or (behind is None and end.outcome is ScanOutcome.DAMAGED)
        if damaged:
            self.report.damaged_logs += 1
            if len(self.report.damages) < MAX_DAMAGES:
                self.report.damages.append(end)
        elif not end.clean:
            self.report.torn_logs += 1
            self.report.torn[log_id] = end

    # --- the old index --------------------------------------------------------------------------------------

    def _salvage(self, old: OldRows, location_of: Callable[[int, int], int]) -> Iterator[bool]:
        for ledger_id in self._old_ledgers(old):
            yield from self._salvage_ledger(old, ledger_id, location_of)

    def _old_ledgers(self, old: OldRows) -> Iterator[int]:
        """The ledgers of the old index, and behind the place where it cannot be read all that live."""
        last = -1
        try:
            for last in old.ledger_ids():
                yield last
            return
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            self.report.old_unreadable = str(error)
        for ledger_id in self._known():
            if ledger_id > last:
                yield ledger_id

    def _salvage_ledger(self, old: OldRows, ledger_id: int, location_of: Callable[[int, int], int]) -> Iterator[bool]:
        try:
            for seen, (entry_id, location) in enumerate(old.rows(ledger_id), 1):
                living = self._is_living(ledger_id, split_location(location)[0])
                if living and location_of(ledger_id, entry_id) == 0:
                    self._salvage_row(ledger_id, entry_id, location)
                if seen % STEP_ENTRIES == 0:
                    yield True
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            self.report.old_unreadable = str(error)
            self.report.unread.add(ledger_id)
        yield True

    def _salvage_row(self, ledger_id: int, entry_id: int, location: int) -> None:
        try:
            self._logs.read(location, ledger_id, entry_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            self.report.lost += 1
        else:
            self.report.salvaged += 1
        self._add(ledger_id, [entry_id], [location])

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
        if self._torn is not None:
            self._torn.written()


def oldest_first(log_ids: Iterable[int]) -> list[int]:
    """Logs in the order of their making: ascending, but from behind the largest gap where the ids have wrapped."""
    ids = sorted(log_ids)
    if len(ids) < 2:
        return ids
    around = ids[0] + MAX_LOG_ID + 1 - ids[-1]
    gap, at = max(((ids[at] - ids[at - 1], at) for at in range(1, len(ids))), default=(0, 0))
    return ids if around >= gap else ids[at:] + ids[:at]
