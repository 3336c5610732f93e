"""Which entries of a log live, and whether the log is what it should be.

An entry is copied when
- the index points to *this* copy of it;
- the index points to no copy at all, nor are its bytes what a power cut has left of a log that was never synced to
  there;
- the index points to a place where the entry is not: the row or the place is damaged.
The last two hold only if the log is not older than the ledger: else the entry would be one of an earlier ledger of the
same id, whose bytes may be as valid.

Any other copy is garbage, on the word of the index alone. Another process may have put the row that says so, and of
what it wrote nothing is durable until this one has written it. So such rows are put once more (`Run.stay`), before the
copy may go.

`LogDamaged` is raised, and the log must stay, when
- the scan ends before the log does, or finds other bytes per ledger than the log was measured to have;
- the index places a neighbour of some entry into this log, and it is not there: its head is damaged;
- the index places an entry into another one: a size word that grew by exactly what follows it hides that from a scan,
  and from the sums per ledger too;
- nothing but a scan tells what a log holds (`Source.closed` is false), and the index places an entry where the scan
  has seen none.

Threads: the garbage collection thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes, LedgerSizesBuilder
from bookie_pod.storage.entry_log.scan import LogScan
from bookie_pod.storage.gc.index_check import IndexedEntry, IndexedRows, is_there, was_synced
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.index.locations import MAX_ENTRY_ID, EntryMove
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

RUN_BYTES: Final = 1 << 20
RUN_ENTRIES: Final = 1024
REACH: Final = 8
"""The largest gap between the ids of consecutive entries of a ledger here: larger with wide ensembles."""

Pay = Callable[[int, int], None]
"""`pay(entries, bytes)` waits until that much may be read or written; raises `CollectionStopped`."""


class LogDamaged(StorageFault):
    """An entry log is not what its map, or the index, says."""


@dataclass(frozen=True, slots=True)
class Source:
    """The log to compact, and what is known of it."""

    log_id: int
    sizes: LedgerSizes
    """Bytes per ledger, as it was measured."""
    live_bytes: int
    """Bytes that will be copied, as far as that is known."""
    end: int | None = None
    """The offset at which the log ends, if that is before its last byte: it may be, if it was written at a crash."""
    closed: bool = True
    """True if `sizes` come from the log's own map; False if from a scan, which damage may have misled."""


class Run:
    """Consecutive entries of one ledger; `rows` is what the index says of each."""

    __slots__ = ("entries", "entry_ids", "first_log", "ledger_id", "locations", "nbytes", "rows", "stay")

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.first_log: int | None = None
        """The first log of the ledger's life to which its living entries belong: no other life has the same."""
        self.entry_ids: list[int] = []
        self.locations: list[int] = []
        self.rows: list[int] = []
        self.entries: list[bytes] = []
        self.stay: list[EntryMove] = []
        """The entries beside them that the index places elsewhere."""
        self.nbytes = 0
        """The bytes of the entries, with their 4-byte sizes."""

    def add(self, entry_id: int, location: int, row: int, entry: bytes) -> None:
        self.entry_ids.append(entry_id)
        self.locations.append(location)
        self.rows.append(row)
        self.entries.append(entry)
        self.nbytes += SIZE_BYTES + len(entry)

    @property
    def end(self) -> int:
        """Return the offset in the log at which the last entry ends."""
        return split_location(self.locations[-1])[1] + len(self.entries[-1])

    @property
    def full(self) -> bool:
        return self.nbytes >= RUN_BYTES or len(self.entries) >= RUN_ENTRIES


def live_runs(
    storage: CollectedStorage,
    source: Source,
    pay: Pay,
    rows: IndexedRows,
) -> Iterator[Run]:
    """The live entries of a log. Reading is paid for here. Ends with `LogDamaged` unless the whole log was seen, with
    another `StorageFault` if it is unknown whether an entry lives."""
    scan = storage.logs.scan(source.log_id)
    counted = LedgerSizesBuilder()
    seen = array("I")
    indexed = indexed_sum = 0
    for run in _runs(scan, pay):
        counted.add(run.ledger_id, run.nbytes)
        if not source.closed:
            seen.extend(split_location(location)[1] for location in run.locations)
        record = storage.record(run.ledger_id)
        if record is None:
            continue
        _check_neighbours(storage, source, run)
        live = _living(storage, source, run, rows)
        live.first_log = record.first_log
        here = [split_location(row)[1] for row, at in zip(live.rows, live.locations, strict=True) if row == at]
        indexed, indexed_sum = indexed + len(here), indexed_sum + sum(here)
        if live.entries or live.stay:
            yield live
    if not scan.end.clean and scan.end.position != source.end:
        raise LogDamaged(f"entry log {source.log_id:x}.log is damaged at {scan.end.position}: {scan.end.detail}")
    if not counted.build().same_as(source.sizes):
        raise LogDamaged(
            f"entry log {source.log_id:x}.log does not hold the bytes per ledger that it was measured to have"
        )
    if not source.closed:
        _check_rows(rows.unseen(source.log_id, seen, (indexed, indexed_sum)), source.log_id)


def _runs(scan: LogScan[bytes], pay: Pay) -> Iterator[Run]:
    """Entries as they lie in the log, cut where the ledger changes or enough came together."""
    run: Run | None = None
    for location, ledger_id, entry_id, entry in scan:
        pay(0, SIZE_BYTES + len(entry))  # entries count when they are moved: of one that is dead only bytes are read
        if run is not None and (run.ledger_id != ledger_id or run.full):
            yield run
            run = None
        if run is None:
            run = Run(ledger_id)
        run.add(entry_id, location, 0, entry)
    if run is not None:
        yield run


def _living(storage: CollectedStorage, source: Source, run: Run, rows: IndexedRows) -> Run:
    """The entries of the run that have to be copied, and those that stay where they are."""
    live = Run(run.ledger_id)
    for entry_id, location, entry in zip(run.entry_ids, run.locations, run.entries, strict=True):
        row = storage.location_of(run.ledger_id, entry_id)
        if row == location:
            lives = True
        elif storage.is_earlier_life(run.ledger_id, source.log_id):
            lives = False
        elif row == 0:
            lives = was_synced(storage, rows, location, run.ledger_id, entry_id, entry)
        else:
            lives = not _is_elsewhere(storage, row, run.ledger_id, entry_id)
        if lives:
            live.add(entry_id, location, row, entry)
        elif row:
            live.stay.append(EntryMove(run.ledger_id, entry_id, row, row))
    return live


def _is_elsewhere(storage: CollectedStorage, row: int, ledger_id: int, entry_id: int) -> bool:
    if is_there(storage, row, ledger_id, entry_id):
        return True
    log_id, position = split_location(row)
    _log.error(
        "the index points to a place where the entry is not; a copy that compaction has met takes its place",
        ledger=ledger_id,
        entry=entry_id,
        log_id=log_id,
        position=position,
    )
    return False


def _check_neighbours(storage: CollectedStorage, source: Source, run: Run) -> None:
    """The entries right before and behind those of the run, if the index places them here, must be here; and none may
    be hidden inside another one."""
    ids = set(run.entry_ids)
    for entry_id in _near(ids):
        row = storage.location_of(run.ledger_id, entry_id) if 0 <= entry_id <= MAX_ENTRY_ID else 0
        log_id, position = split_location(row)
        if not row or log_id != source.log_id or (source.end is not None and position > source.end):
            continue
        hidden = split_location(run.locations[0])[1] < position < run.end
        next_to_one = entry_id - 1 in ids or entry_id + 1 in ids
        if hidden or (next_to_one and not is_there(storage, row, run.ledger_id, entry_id)):
            raise LogDamaged(
                f"entry log {log_id:x}.log is damaged at {position}: entry {entry_id} of ledger {run.ledger_id}"
                " should be there"
            )


def _near(ids: set[int]) -> set[int]:
    """Ids within `REACH` of these that are not among them."""
    first, last = min(ids), max(ids)
    if last - first + 1 == len(ids):
        return {*range(first - REACH, first), *range(last + 1, last + 1 + REACH)}
    return {entry_id + step for entry_id in ids for step in range(-REACH, REACH + 1)} - ids


def _check_rows(missed: IndexedEntry | None, log_id: int) -> None:
    """Every row that points into the log must point to an entry that the scan has seen."""
    if missed is not None:
        raise LogDamaged(
            f"entry log {log_id:x}.log is damaged: entry {missed.entry_id} of ledger {missed.ledger_id} should"
            f" be at {missed.position}, which a scan steps over"
        )
