"""Rebuilding the location index of a ledger directory that serves.

Every entry log is read, from the oldest to the newest. A row of the index in use that its log confirms is kept; where
it is missing, or leads elsewhere, the newest copy counts. What happens meanwhile goes to both indexes (`Twin`).

Invariants
- Entries of ledgers that are not known, or that were deleted since the rebuild began, get no row; nor do those that may
  be from before a deletion, unless the index in use names that very place.
- A row of the index in use that no log confirms is never dropped: it leads to its entry, which lies behind damage, or
  it leads nowhere, and then the entry is lost here, not absent.
- Until `adopt` the index in use is untouched.

Threads: that of the rebuild, beside reads, writes, flushes, deletions and compaction.

Source: reference bookie behaviour, section 12.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.ledgers_map import map_offset
from bookie_pod.storage.entry_log.scan import ScanEnd
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.locations import YIELD_SECONDS, LocationRun, Twin
from bookie_pod.storage.index_rebuild.locations import LocationRebuild
from bookie_pod.storage.index_rebuild.state import RebuildPhase, RebuildState
from bookie_pod.storage.index_rebuild.swap import NewDatabase
from bookie_protocol.errors import ResourcesShort, StorageFault

OFFER_ROWS: Final = 256
"""Rows that are offered in one turn of the index's write lock, about 5 ms: flushes wait for it."""
ROW_BYTES: Final = 24
"""What a row of the old index counts for the pace."""


class LogsDamaged(Exception):
    """Entry logs are damaged, and nobody has accepted that."""


class LocationsRebuild:
    """One rebuild. `may_be_earlier_life(ledger, log)`: that log may hold entries from before a deletion of the
    ledger."""

    def __init__(
        self,
        directory: SingleDirectoryStorage,
        files: Files,
        pace: ScrubPace,
        state: RebuildState,
        may_be_earlier_life: Callable[[int, int], bool],
    ) -> None:
        self._directory = directory
        self._index = directory.locations
        self._logs = directory.logs
        self._files = files
        self._pace = pace
        self._state = state
        self._may_be_earlier_life = may_be_earlier_life
        self._torn: dict[int, ScanEnd] = {}

    def run(self, new: NewDatabase, *, accept_damage: bool) -> None:
        """Raises `ScrubStopped`, `LogsDamaged`, `StorageFault`; then the index in use stays."""
        twin = self._index.attach(new.store)
        try:
            # What was flushed before the twin was there lies in logs that are there now, and all of it is written.
            self._directory.flush()
            self._read_logs(twin)
            self._state.phase = RebuildPhase.ROWS
            self._keep_others(twin)
            if self._state.damages and not accept_damage:
                raise LogsDamaged(self._state.damages[0])
            self._state.phase = RebuildPhase.SWAP
            self._index.adopt(twin, new.switch)
        finally:
            self._index.detach()
        if new.failure is not None:
            raise new.failure

    # --- entry logs -----------------------------------------------------------------------------------------

    def _read_logs(self, twin: Twin) -> None:
        self._state.phase = RebuildPhase.LOGS
        closed = {log_id for log_id in self._logs.log_ids() if self._logs.is_flushed(log_id)}
        scanning = LocationRebuild(
            self._logs,
            self._is_known,
            lambda runs: self._offer(twin, runs),
            # A log that is closed in the middle of its scan ends behind what is scanned.
            entries_end=lambda log_id: self._entries_end(log_id) if log_id in closed else None,
        )
        report, state = scanning.report, self._state
        entries = nbytes = 0
        more = True
        while more:
            more = scanning.step()
            seen = report.entries + report.unknown_ledger_entries
            self._pace.pay(seen - entries, report.bytes_done - nbytes)
            entries, nbytes = seen, report.bytes_done
            state.bytes_done, state.bytes_total, state.logs = report.bytes_done, report.bytes_total, report.logs
            state.entries, state.unknown_ledger_entries = report.entries, report.unknown_ledger_entries
        state.damages = [end.detail for end in report.damages]  # of every log, those that told of ledgers among them
        self._torn = dict(report.torn)

    def _is_known(self, ledger_id: int) -> bool:
        return self._directory.ledgers.get(ledger_id) is not None

    def _entries_end(self, log_id: int) -> int | None:
        path = self._logs.path(log_id)
        try:
            file = self._files.open(path)
            try:
                return map_offset(file)
            finally:
                file.close()
        except OSError as error:
            raise StorageFault(f"cannot read entry log {path}: {error}") from error

    def _offer(self, twin: Twin, runs: Sequence[LocationRun]) -> int:
        total = 0
        for run in runs:
            pairs = [row for row in zip(run.entry_ids, run.locations, strict=True) if self._may_be(run.ledger_id, *row)]
            for at in range(0, len(pairs), OFFER_ROWS):
                done = self._index.offer(twin, run.ledger_id, pairs[at : at + OFFER_ROWS], self._is_known)
                total += done.put
                self._state.rows_changed += done.put - done.same
                time.sleep(YIELD_SECONDS)
        return total

    def _may_be(self, ledger_id: int, entry_id: int, location: int) -> bool:
        if not self._may_be_earlier_life(ledger_id, split_location(location)[0]):
            return True
        try:
            return self._index.get(ledger_id, entry_id) == location
        except StorageFault:
            return False

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
        """The next rows of the index in use. None stays open while the rebuild waits."""
        try:
            return list(islice(self._index.rows(ledger_id, first), OFFER_ROWS))
        except ResourcesShort:
            raise  # nobody can tell just now
        except StorageFault as error:
            self._state.unreadable = self._state.unreadable or str(error)
            return []

    def _keep(self, twin: Twin, ledger_id: int, entry_id: int, location: int) -> None:
        try:
            self._pace.pay(1, SIZE_BYTES + len(self._logs.read(location, ledger_id, entry_id)))
            sound = True
        except StorageFault:
            sound = False
        if self._index.keep(twin, ledger_id, entry_id, location):
            self._state.rows_salvaged += sound
            self._state.rows_dangling += not sound
            if sound and (torn := self._torn.pop(split_location(location)[0], None)) is not None:
                self._state.damages.append(torn.detail)  # no crash left this: there are entries behind it
