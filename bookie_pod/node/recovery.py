"""The start-up step between opening the storage and serving: replay every journal, flush, move the marks.

Invariant: the marks move only after the storage is flushed. If the disks are full the bookie serves what it holds, the
marks stay, and the next start replays the same records again; any other failure ends the start.

Threads: the start-up thread.

Source: reference on-disk formats, sections 2.7 and 14.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from bookie_pod.node.replay import ReplayIntoStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_pod.storage.journal.replay import ReplayOptions, replay_journal
from bookie_protocol.errors import NoWritableDirectory

_log = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 2.0


def replay_journals(
    files: Files,
    storage: LedgerStorage,
    *,
    journal_folders: Sequence[str],
    ledger_folders: Sequence[str],
    skip_invalid_records: bool,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[list[MarkFiles], set[int]]:
    """Replay all journals; the mark files to go on with, and the ledgers whose keys were seen.

    Raises JournalDamaged, JournalMissing or StorageFault; ReplayCancelled soon after `cancelled()` has become true.
    """
    count = len(journal_folders)
    marks = [MarkFiles(files, ledger_folders, index, count) for index in range(count)]
    sink = ReplayIntoStorage(storage, cancelled)
    ends: list[LogMark] = []
    for index, folder in enumerate(journal_folders):
        progress = _Progress(index)
        ends.append(
            replay_journal(
                folder,
                marks[index].read(),
                files,
                sink,
                ReplayOptions(skip_invalid_records=skip_invalid_records),
                progress,
            )
        )
    sink.log_summary(count)
    try:
        storage.flush()
        for mark_files, end in zip(marks, ends, strict=True):
            mark_files.write(end, ledger_folders)
    except NoWritableDirectory as error:
        _log.error("marks stay where they are; the next start replays the same again", reason=str(error))
    return marks, sink.journaled_keys


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
