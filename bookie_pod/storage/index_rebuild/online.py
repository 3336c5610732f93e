"""The rebuild of one ledger directory of a serving bookie, from the first look to the new databases.

It runs beside reads, writes, flushes, deletions and compaction.

The location index (`LocationsRebuild`). Every entry log is read, from the oldest to the newest. A row of the index in
use that its log confirms is kept; where it is missing, or leads elsewhere, the newest copy counts. Changes that happen
meanwhile go to both indexes (`Twin`).

The ledger index (`LedgersRebuild`). The records in memory are the ledger index; the database only repeats them. So
every record is kept unchanged: no fence is lowered, no key and no explicit LAC forgotten. Only whole ledgers can be
lacking. One is restored if it has left something here (entries in a log, records in a journal), was not deleted here,
and the metadata service says that it exists and places it on this bookie.

An entry log shows that a ledger was here, and no more: key, fence and explicit LAC are in no entry. So a restored
ledger is *fenced* and in limbo, because it is unknown whether it was: a fence that is forgotten lets a writer add
behind a recovery, and a limbo that is forgotten denies what was lost here. Its key is the journal's, else the one that
follows from the password in its metadata, else unknown: the next client that presents one sets it. Its explicit LAC is
the journal's, or none.

Invariants
- From before the first look until the end, entries that the index does not name are unknown, not absent (`doubt`);
  entries and ledgers that it names are served all the while.
- Garbage collection leaves the entry logs alone for as long (`CollectionHold`): a log whose rows are missing looks
  empty. Ledgers are deleted all the same; the space comes back afterwards.
- A rebuild that ends before `adopt`, for any reason, leaves the databases in use unchanged.
- Entries of ledgers that are not known, or that were deleted since the rebuild began, get no row; nor do those that may
  be from before a deletion, unless the index in use names that very place.
- A row of the index in use that no log confirms is never dropped: it leads to its entry, which lies behind damage, or
  it leads nowhere, and then the entry is lost here, not absent.
- "Could not tell" ends the rebuild: a ledger whose metadata cannot be read is neither restored nor passed over.
- Memory holds the ids of one log, of what was asked (`MAX_ASKED`), and what journals say of ledgers that are not known
  (`MAX_JOURNALED`; beyond that they are restored without it).

Threads: that of the rebuild; `held` any.

Source: docs/internals/on-disk-formats.md, section 8.3; docs/internals/bookie-behaviour.md, section 12.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog

from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.copies import NoCopy, look_at
from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.entry_log.scan import ScanEnd
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.storage import GcMetadata
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.locations import YIELD_SECONDS, LocationRun, Twin
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.journaled import Journaled, take
from bookie_pod.storage.index_rebuild.locations import ROW_BYTES, LocationRebuild, used_places
from bookie_pod.storage.index_rebuild.state import RebuildPhase, RebuildRequest, RebuildState
from bookie_pod.storage.index_rebuild.swap import DiskStores, NewDatabase
from bookie_pod.storage.index_rebuild.torn_records import TornRecords
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_pod.storage.journal.survey import read_folders
from bookie_pod.storage.log_ids import is_before
from bookie_protocol.errors import JournalDamaged, ResourcesShort, StorageFault
from bookie_protocol.keys import is_unknown_key, master_key

_log = structlog.get_logger(__name__)

MAX_ASKED: Final = 1 << 20
MAX_JOURNALED: Final = 1 << 20
MAX_DAMAGES: Final = 100
OFFER_ROWS: Final = 256
"""Rows that are offered in one turn of the index's write lock, about 5 ms: flushes wait for it."""
DOUBT: Final = "its index is being rebuilt"
REASON: Final = "the index is being rebuilt"
CHECK_S: Final = 0.05
"""Seconds between two looks at whether a pass has ended."""


class LedgersRebuild:
    """One rebuild. `belongs`: whether a ledger is one of this directory's. `is_gone`: whether it was deleted here and
    has not come back. `pay_question` waits until the metadata service may be asked."""

    def __init__(
        self,
        directory: SingleDirectoryStorage,
        files: Files,
        journal_folders: Sequence[str],
        metadata: GcMetadata,
        pace: ScrubPace,
        state: RebuildState,
        *,
        belongs: Callable[[int], bool],
        is_gone: Callable[[int], bool],
        pay_question: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._files = files
        self._journal_folders = journal_folders
        self._metadata = metadata
        self._pace = pace
        self._state = state
        self._belongs = belongs
        self._is_gone = is_gone
        self._pay_question = pay_question
        self._journaled: dict[int, Journaled] = {}
        """The data in journals about ledgers that are not known."""
        self._asked: set[int] = set()

    def restore(self) -> None:
        """Make known what is lacking. Raises `ScrubStopped`, `StorageFault`, `MetadataError`."""
        self._state.phase = RebuildPhase.LEDGERS
        self._metadata.check_instance()
        for record in self._journal_records():
            if self._is_lacking(record.ledger_id):
                take(self._journaled, record, limit=MAX_JOURNALED)
        for ledger_id, journaled in self._journaled.items():
            if journaled.lives:
                self._look_at(ledger_id)
        logs = self._directory.logs
        for log_id in logs.log_ids():
            found = logs.ledgers_map(log_id, self._pace.pay)
            if not found.complete and found.end is not None:
                _note(self._state.damages, found.end.detail)
            for ledger_id in found.ledgers:
                if self._is_lacking(ledger_id):
                    self._look_at(ledger_id)

    def replace(self, new: NewDatabase) -> None:
        """Write the new database and use it. Raises `ScrubStopped`, `StorageFault`; then the one in use stays."""
        ledgers = self._directory.ledgers
        try:
            for count in ledgers.fill(new.store):
                self._state.ledgers += count
                self._pace.pay(count, 0)
            self._state.phase = RebuildPhase.SWAP
            ledgers.adopt(new.store, new.switch)
        finally:
            ledgers.abandon()
        if new.failure is not None:
            raise new.failure

    # --- journals -------------------------------------------------------------------------------------------

    def _journal_records(self) -> Iterator[JournalRecord]:
        for record in read_folders(self._files, self._journal_folders, self._note_damage, while_trimmed=True):
            self._pace.pay(1, len(record.body))
            yield record

    def _note_damage(self, error: JournalDamaged) -> None:
        _note(self._state.journal_damages, str(error))

    # --- ledgers --------------------------------------------------------------------------------------------

    def _is_lacking(self, ledger_id: int) -> bool:
        return (
            ledger_id >= 0
            and self._belongs(ledger_id)
            and self._directory.ledgers.get(ledger_id) is None
            and not self._is_gone(ledger_id)
        )

    def _look_at(self, ledger_id: int) -> None:
        if ledger_id in self._asked:
            return
        if len(self._asked) >= MAX_ASKED:
            self._asked.clear()
        self._asked.add(ledger_id)
        self._pay_question()
        metadata = self._metadata.read(ledger_id)
        if metadata is None or self._metadata.bookie_id not in metadata.all_bookies():
            return
        found = self._journaled.get(ledger_id, Journaled())
        key = found.key
        if not key and metadata.password is not None:  # zeros are the key of a client without a password
            key = master_key(metadata.password)
        record = LedgerRecord(key, True, True, found.explicit_lac, found.next_log, found.life)
        if self._directory.restore_ledger(ledger_id, record):
            self._state.ledgers_restored += 1
            self._state.ledgers_without_key += is_unknown_key(key)
            _log.warning("a ledger that the index lacked is known again, fenced", ledger=ledger_id)


def _note(damages: list[str], damage: str) -> None:
    if len(damages) < MAX_DAMAGES:
        damages.append(damage)


class _InUse:
    """The rows of the index in use. Nothing stays open while the rebuild waits."""

    def __init__(self, directory: SingleDirectoryStorage) -> None:
        self._ledgers = directory.ledgers
        self._index = directory.locations
        self.location_of = self._index.get

    def ledger_ids(self) -> list[int]:
        return self._ledgers.ledger_ids()

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        while rows := list(islice(self._index.rows(ledger_id, first_entry), OFFER_ROWS)):
            yield from rows
            first_entry = rows[-1][0] + 1


class LogsDamaged(Exception):
    """Raised when entry logs are damaged, or the index in use cannot be read, and the request does not accept that."""


class LocationsRebuild:
    """One rebuild."""

    def __init__(
        self,
        directory: SingleDirectoryStorage,
        files: Files,
        pace: ScrubPace,
        state: RebuildState,
        died_before: Callable[[int, int], bool],
    ) -> None:
        """`died_before`: whether a log may hold entries of a ledger from before a deletion."""
        self._died_before = died_before
        self._directory = directory
        self._index = directory.locations
        self._logs = directory.logs
        self._files = files
        self._pace = pace
        self._state = state
        self._torn: dict[int, ScanEnd] = {}
        self._unread: set[int] = set()
        """Ledgers of which the index in use may name more than could be read."""

    def run(self, new: NewDatabase, *, accept_damage: bool) -> None:
        """Raises `ScrubStopped`, `LogsDamaged`, `StorageFault`; then the index in use stays."""
        twin = self._index.attach(new.store)
        try:
            # What was flushed before the twin was there lies in logs that are there now, and all of it is written.
            self._directory.flush()
            complete = self._directory.is_index_complete
            self._read(twin, complete=complete)
            if complete and not self._directory.is_index_complete:
                self._read(twin, complete=False)  # what it was taken for has decided which records get no row
            problem = next(iter(self._state.damages), self._state.unreadable)
            if problem and not accept_damage:
                raise LogsDamaged(problem)
            self._put_in_limbo()
            self._state.phase = RebuildPhase.SWAP
            self._index.adopt(twin, new.switch)
        finally:
            self._index.detach()
        if new.failure is not None:
            raise new.failure

    def _read(self, twin: Twin, *, complete: bool) -> None:
        """Fill the twin. `complete`: the index in use is."""
        self._state.rows_changed = 0
        self._read_logs(twin, complete=complete)
        self._state.phase = RebuildPhase.ROWS
        self._keep_others(twin)

    def _put_in_limbo(self) -> None:
        """Deny nothing of ledgers of which the index in use may have named entries that no log shows any more."""
        ledgers = self._directory.ledgers
        if self._state.damages and not self._directory.is_index_complete:
            self._unread.update(ledgers.ledger_ids())
        if self._unread:
            self._directory.put_in_limbo(self._unread)  # first: a check that ends now does not clear the flag
            ledgers.change_flags(lambda flags: flags | NEEDS_INTEGRITY_CHECK)
            self._directory.flush()

    # --- entry logs -----------------------------------------------------------------------------------------

    def _read_logs(self, twin: Twin, *, complete: bool) -> None:
        self._state.phase = RebuildPhase.LOGS
        closed = {log_id for log_id in self._logs.log_ids() if self._logs.is_flushed(log_id)}
        scanning = LocationRebuild(
            self._logs,
            self._is_living,
            lambda runs: self._offer(twin, runs),
            # A log that is closed in the middle of its scan ends behind what is scanned.
            entries_end=lambda log_id: self._logs.entries_end(log_id) if log_id in closed else None,
            torn=TornRecords(
                self._logs,
                twin.get,
                _InUse(self._directory),
                self._is_living,
                complete=complete,
            ),
            may_be_torn=closed.__contains__,
            may_be_earlier=self._may_be_earlier,
            used=used_places(self._index),
        )
        report, state = scanning.report, self._state
        entries = nbytes = 0
        more = True
        while more:
            more = scanning.step()
            seen, read = report.entries + report.unknown_ledger_entries, report.bytes_done + report.bytes_again
            self._pace.pay(seen - entries, read - nbytes)
            entries, nbytes = seen, read
            state.bytes_done, state.bytes_total, state.logs = report.bytes_done, report.bytes_total, report.logs
            state.entries, state.unknown_ledger_entries = report.entries, report.unknown_ledger_entries
        # Of every log, also those in which the ledgers were found.
        state.damages = [end.detail for end in report.damages]
        self._torn = dict(report.torn)

    def _is_living(self, ledger_id: int, log_id: int) -> bool:
        ledgers = self._directory.ledgers
        return self._is_known(ledger_id) and not is_before(log_id, ledgers.first_log(ledger_id))

    def _may_be_earlier(self, ledger_id: int, log_id: int) -> bool:
        return self._directory.ledgers.first_log(ledger_id) == 0 and self._died_before(ledger_id, log_id)

    def _is_known(self, ledger_id: int) -> bool:
        return self._directory.ledgers.get(ledger_id) is not None

    def _offer(self, twin: Twin, runs: Sequence[LocationRun]) -> int:
        total = 0
        for run in runs:
            pairs = list(zip(run.entry_ids, run.locations, strict=True))
            for at in range(0, len(pairs), OFFER_ROWS):
                done = self._index.offer(twin, run.ledger_id, pairs[at : at + OFFER_ROWS], self._is_known)
                total += done.put
                self._state.rows_changed += done.put - done.same
                time.sleep(YIELD_SECONDS)
        return total

    # --- the old rows ---------------------------------------------------------------------------------------

    def _keep_others(self, twin: Twin) -> None:
        for ledger_id in self._directory.ledgers.ledger_ids():
            first = 0
            while rows := self._rows(ledger_id, first):
                self._pace.pay(len(rows), ROW_BYTES * len(rows))
                for entry_id, location in rows:
                    if twin.get(ledger_id, entry_id) == 0:
                        self._keep(twin, ledger_id, entry_id, location)
                first = rows[-1][0] + 1

    def _rows(self, ledger_id: int, first: int) -> list[tuple[int, int]]:
        """Return the next rows of the index in use. None stays open while the rebuild waits."""
        try:
            return list(islice(self._index.rows(ledger_id, first), OFFER_ROWS))
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault as error:
            self._state.unreadable = self._state.unreadable or str(error)
            self._unread.add(ledger_id)
            return []

    def _keep(self, twin: Twin, ledger_id: int, entry_id: int, location: int) -> None:
        found = look_at(self._logs, location, ledger_id, entry_id)
        sound = not isinstance(found, NoCopy)
        self._pace.pay(1, SIZE_BYTES + (0 if isinstance(found, NoCopy) else len(found)))
        if self._index.keep(twin, ledger_id, entry_id, location):
            self._state.rows_salvaged += sound
            self._state.rows_dangling += not sound
            if sound and (torn := self._torn.pop(split_location(location)[0], None)) is not None:
                self._state.damages.append(torn.detail)  # no crash left this: there are entries behind it


@dataclass(frozen=True, slots=True)
class RebuildParts:
    """The parts that all directories share."""

    files: Files
    stores: DiskStores
    journal_folders: Sequence[str]
    """`current` folders."""
    metadata: GcMetadata


class DirectoryRebuild:
    """Number `number` of `count` ledger directories; folders are `current` folders."""

    def __init__(
        self,
        directory: SingleDirectoryStorage,
        parts: RebuildParts,
        hold: CollectionHold,
        ledger_folder: str,
        index_folder: str,
        *,
        number: int,
        count: int,
    ) -> None:
        self.folder = ledger_folder
        self.state = RebuildState(ledger_folder)
        self._directory = directory
        self._parts = parts
        self._hold = hold
        self._index_folder = index_folder
        self._number = number
        self._count = count

    def run(self, request: RebuildRequest, pace: ScrubPace, pay_question: Callable[[], None]) -> None:
        """Raises `ScrubStopped`, `LogsDamaged`, `StorageFault`, `MetadataError`."""
        if self._directory.failure is not None:
            raise StorageFault(str(self._directory.failure))
        self._directory.doubt = DOUBT
        try:
            self.state.phase = RebuildPhase.COLLECTION
            self._hold.take(pace)
            # As the last pass of the collection has stored them: none runs now.
            deleted = DeletedLedgers(self._parts.files, self.folder)
            if request.ledgers:
                self._rebuild_ledgers(deleted, pace, pay_question)
            if request.locations:
                withdrawals = self._directory.index_withdrawals
                self._rebuild_locations(deleted, pace, accept_damage=request.accept_damage)
                if not self.state.damages and not self.state.unreadable:
                    self._directory.prove_index(withdrawals)  # every log was read to its end
            self._seal()
        finally:
            self._hold.release()
            self._directory.doubt = None

    def _seal(self) -> None:
        """Seal the new databases, or the next process would not know that they are complete."""
        try:
            self._directory.flush_and_seal()
        except StorageFault as error:  # the next checkpoint tries again
            _log.warning("the rebuilt index is not sealed yet", index=self._index_folder, error=str(error))

    def _rebuild_ledgers(self, deleted: DeletedLedgers, pace: ScrubPace, pay_question: Callable[[], None]) -> None:
        parts = self._parts
        rebuilding = LedgersRebuild(
            self._directory,
            parts.files,
            parts.journal_folders,
            parts.metadata,
            pace,
            self.state,
            belongs=lambda ledger_id: ledger_id % self._count == self._number,
            is_gone=deleted.is_gone,
            pay_question=pay_question,
        )
        rebuilding.restore()
        self._build(StoreKind.LEDGERS, rebuilding.replace)

    def _rebuild_locations(self, deleted: DeletedLedgers, pace: ScrubPace, *, accept_damage: bool) -> None:
        died_before = deleted.may_be_earlier_life
        rebuilding = LocationsRebuild(self._directory, self._parts.files, pace, self.state, died_before)
        self._build(StoreKind.LOCATIONS, lambda new: rebuilding.run(new, accept_damage=accept_damage))

    def _build(self, kind: StoreKind, build: Callable[[NewDatabase], None]) -> None:
        new = NewDatabase(self._parts.files, self._parts.stores, self._index_folder, kind)
        try:
            build(new)
        finally:
            if new.backup:
                self.state.backups.append(new.backup)
            new.discard()


class CollectionHold:
    """The hold on one collector. Made after all other parts have set what the collector must spare."""

    def __init__(self, collector: GarbageCollector, logs: EntryLogger) -> None:
        self._collector = collector
        self._others = collector.excluded
        self._all = _AllLogs(logs)
        self._on = False
        collector.excluded = self.held

    def held(self) -> Mapping[int, str]:
        """Return the logs that are neither compacted nor removed, and why."""
        return self._all if self._on else self._others()

    def take(self, pace: ScrubPace) -> None:
        """Keep logs from being compacted or removed from now on; returns when a pass that had begun has ended.
        `ScrubStopped`."""
        self._on = True
        while not self._collector.is_idle:
            pace.wait(CHECK_S)

    def release(self) -> None:
        self._on = False


class _AllLogs(Mapping[int, str]):
    """Every log that there is or will be."""

    def __init__(self, logs: EntryLogger) -> None:
        self._logs = logs

    def __contains__(self, log_id: object) -> bool:
        return True

    def __getitem__(self, log_id: int) -> str:
        return REASON

    def __iter__(self) -> Iterator[int]:
        return iter(self._logs.log_ids())

    def __len__(self) -> int:
        return len(self._logs.log_ids())
