"""The start-up step between opening the storage and serving: replay every journal, flush, move the marks.

Invariant: the marks move only after the storage is flushed. If the disks are full the bookie serves what it holds,
read-only until it is flushed, the marks stay, and a next start replays the same records again; any other failure ends
the start.

Threads: the start-up thread.

Source: reference on-disk formats, sections 2.7 and 14.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from bookie_pod.node.replay import SHORT, ReplayIntoStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_pod.storage.journal.replay import ReplayOptions, replay_journal
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class ReplayedJournals:
    """What the start goes on with, by journal: the mark files and where the records end; and the ledgers whose keys
    are journaled."""

    marks: list[MarkFiles]
    ends: list[LogMark]
    keys: set[int]
    unflushed: StorageFault | None = None
    """Why some of it waits in memory for room on the disks."""


def replay_journals(
    files: Files,
    storage: LedgerStorage,
    *,
    journal_folders: Sequence[str],
    ledger_folders: Sequence[str],
    skip_invalid_records: bool,
    cancelled: Callable[[], bool] = lambda: False,
) -> ReplayedJournals:
    """Replay all journals, and move the marks.

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
            ReplayOptions(skip_invalid_records=skip_invalid_records),
            _Progress(index),
        )
        for index, folder in enumerate(journal_folders)
    ]
    sink.log_summary(count)
    for mark_files, end in zip(marks, ends, strict=True):
        mark_files.goes_on_from(end.began)
    unflushed: StorageFault | None = None
    try:
        storage.flush()
        for mark_files, end in zip(marks, ends, strict=True):
            mark_files.write(end.mark, ledger_folders)
    except SHORT as error:
        unflushed = error
        _log.error("marks stay where they are; the next start replays the same again", reason=str(error))
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
