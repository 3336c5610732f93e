"""The start-up step between opening the storage and serving: replay every journal, flush, move the marks.

Invariants
- The marks move only after the storage is flushed, and what is before them in the journals is durable. If records
  were given up, everything that they may have held is in limbo before.
- If the disks are full the bookie serves what it holds, read-only until it is flushed, the marks stay, and a next start
  replays the same records again; any other failure ends the start.
- Replaying the same records again changes nothing: entries are put again, the index ends up at the newer copy.
- A record of a ledger whose key neither a journal nor the storage knows is skipped: the ledger was deleted.
- A ledger that was deleted starts again at the record of its last deletion: nothing from before comes back, and what
  the storage has of a later life stays. (With `journalWriteData` off the journals do not have its entries.)
- A key that contradicts the one that is known concerns its ledger alone: what follows with the other key is left out,
  and the ledger is in limbo, so that nothing is denied until it was healed.
- Fences are not checked.
- On a full disk what is replayed stays in memory, as far as that reaches.

Threads: the start-up thread; the event loop serves no client meanwhile.

Source: docs/internals/on-disk-formats.md, sections 2.7 and 14.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_pod.storage.journal.replay import ReplayOptions, replay_journal, settle_end
from bookie_pod.storage.log_ids import began_before
from bookie_protocol.errors import (
    BadRequest,
    NoWritableDirectory,
    PodkeeperError,
    ResourcesShort,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.keys import NO_LIFE

_log = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 2.0
SHORT: Final = (NoWritableDirectory, ResourcesShort)
"""Faults of a flush that no disk is to blame for: what it was to write waits in memory, and in the journals."""
CANCEL_CHECK_ENTRIES: Final = 256
"""Seconds between two looks at whether the start was cancelled."""


@dataclass(frozen=True, slots=True)
class ReplayedJournals:
    """The results of the replay that the start continues with.

    By journal, they are the mark files and the ends of the records; and the ledgers whose keys are journaled.
    """

    marks: list[MarkFiles]
    ends: list[LogMark]
    keys: set[int]
    unflushed: StorageFault | None = None
    """The reason why some of it waits in memory for room on the disks."""

    def go_on_at(self, heads: Sequence[LogMark], ledger_folders: Sequence[str]) -> None:
        """Move the marks to the heads of this process's own journal files, if everything before is in the storage.

        The remains of another process may be in the page cache alone, though a sync of them succeeds (an earlier
        failure was reported to that process): no mark stays in them any longer than it must.
        """
        if self.unflushed is None:
            for mark_files, head in zip(self.marks, heads, strict=True):
                try:
                    mark_files.write(head, ledger_folders)
                except StorageFault as error:
                    _log.warning("the mark stays at the end of what was replayed", reason=str(error))


def replay_journals(
    files: Files,
    storage: LedgerStorage,
    *,
    journal_folders: Sequence[str],
    ledger_folders: Sequence[str],
    give_up: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> ReplayedJournals:
    """Replay all journals, and move the marks.

    `give_up` lets damaged records be left out (`skipReplayJournalInvalidRecord`). It is called with the reason before a
    mark moves, and puts everything in limbo that they may have held.

    Raises JournalDamaged, JournalMissing or StorageFault; ReplayCancelled soon after `cancelled()` has become true.
    """
    count = len(journal_folders)
    marks = [MarkFiles(files, ledger_folders, index, count) for index in range(count)]
    sink = ReplayIntoStorage(storage, cancelled)
    ends = [
        replay_journal(
            folder,
            marks[index].copies(),
            files,
            sink,
            ReplayOptions(skip_invalid_records=give_up is not None),
            _Progress(index),
        )
        for index, folder in enumerate(journal_folders)
    ]
    sink.log_summary(count)
    given_up = [reason for end in ends for reason in end.given_up]
    if give_up is not None and given_up:
        give_up(f"records of the journals were given up: {'; '.join(given_up)}")
    for folder, mark_files, end in zip(journal_folders, marks, ends, strict=True):
        mark_files.goes_on_from(end.began)
        settle_end(folder, files, end)
    unflushed: StorageFault | None = None
    try:
        storage.flush()
        for mark_files, end in zip(marks, ends, strict=True):
            mark_files.write(end.mark, ledger_folders)
    except SHORT as error:
        unflushed = error
        _log.error("marks stay where they are; the next start replays the same again", reason=str(error))
        for folder, mark_files, end in zip(journal_folders, marks, ends, strict=True):
            if mark_files.written != end.mark:
                settle_end(folder, files, end, cut=True)
    return ReplayedJournals(marks, [end.after for end in ends], sink.journaled_keys, unflushed)


class _Progress:
    """Logs how far a long replay has come."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._next = time.monotonic() + PROGRESS_INTERVAL_S

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_INTERVAL_S
            _log.info("replaying", journal=self._index, done_bytes=done, total_bytes=total)


class ReplayCancelled(StorageFault):
    """Raised when the bookie was stopped while it replayed; nothing is lost, the marks have not moved."""


class ReplayIntoStorage:
    """The replay's sink."""

    def __init__(self, storage: LedgerStorage, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._storage = storage
        self._cancelled = cancelled
        self.journaled_keys: set[int] = set()
        """Ledgers whose key record was seen: their keys are journaled already."""
        self.entries = 0
        self.fences = 0
        self.explicit_lacs = 0
        self.skipped = 0
        self._contradicted: set[int] = set()
        """Ledgers whose records, as the journal has them now, are of another key than the one that is known."""

    def on_key(self, ledger_id: int, key: bytes, life: bytes = NO_LIFE) -> None:
        try:
            record = self._storage.set_master_key(ledger_id, key)
        except (Unauthorized, BadRequest) as error:
            self._contradict(ledger_id, error)
            return
        if life and record.life != life:
            self._storage.set_ledger(ledger_id, dataclasses.replace(record, life=life))
        self._contradicted.discard(ledger_id)
        self.journaled_keys.add(ledger_id)

    def _contradict(self, ledger_id: int, error: PodkeeperError) -> None:
        self._contradicted.add(ledger_id)
        _log.error(
            "a ledger's key in the journal cannot be its own: what follows with it is left out, and the ledger is in "
            "limbo until it is healed; journal and ledger directories that do not belong together would show this for "
            "every ledger",
            ledger_id=ledger_id,
            reason=str(error),
        )
        record = self._storage.ledger(ledger_id) or LedgerRecord(b"", first_log=0)  # it has been here, at least
        if not (record.limbo and record.fenced):  # what is left out may be a fence
            self._storage.set_ledger(ledger_id, dataclasses.replace(record, fenced=True, limbo=True))

    def on_deletion(self, ledger_id: int, next_log: int) -> None:
        """`next_log`: lives that began behind the deletion have no older log; 0: that was not said."""
        self._contradicted.discard(ledger_id)
        self.journaled_keys.discard(ledger_id)
        record = self._storage.ledger(ledger_id)
        lives = next_log and record and record.first_log and not began_before(record.first_log, next_log)
        if record is not None and not lives:
            self._storage.delete_ledger(ledger_id)
        if next_log:
            self._storage.deleted_before(ledger_id, next_log)

    def _record_of(self, ledger_id: int) -> LedgerRecord | None:
        """Return the record of a ledger that the journal's records at hand belong to."""
        return None if ledger_id in self._contradicted else self._storage.ledger(ledger_id)

    def on_fence(self, ledger_id: int) -> None:
        record = self._record_of(ledger_id)
        if record is None:
            self.skipped += 1
            return
        self._storage.set_ledger(ledger_id, dataclasses.replace(record, fenced=True))
        self.fences += 1

    def on_explicit_lac(self, ledger_id: int, packet: bytes) -> None:
        record = self._record_of(ledger_id)
        if record is None:
            self.skipped += 1
            return
        self._storage.set_ledger(ledger_id, dataclasses.replace(record, explicit_lac=packet))
        self.explicit_lacs += 1

    def on_entry(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        if self._record_of(ledger_id) is None:
            self.skipped += 1
            return
        self._storage.active_entries(ledger_id)[entry_id] = entry
        self.entries += 1
        if not self.entries % CANCEL_CHECK_ENTRIES and self._cancelled():
            raise ReplayCancelled("replay was interrupted")
        if self._storage.account(ledger_id, len(entry), 1):
            self._flush(ledger_id)

    def _flush(self, ledger_id: int) -> None:
        try:
            self._storage.flush()
        except SHORT as error:
            if self._storage.is_full(ledger_id):
                raise StorageFault(
                    f"the journals hold more than memory takes, and it cannot be flushed: {error}; free some room on"
                    " the ledger disks and start again"
                ) from error

    def log_summary(self, journals: int) -> None:
        _log.info(
            "journals replayed",
            journals=journals,
            entries=self.entries,
            ledgers=len(self.journaled_keys),
            fences=self.fences,
            explicit_lacs=self.explicit_lacs,
            skipped=self.skipped,
        )
