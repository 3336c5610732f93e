"""New journal files, made before they are needed.

The next file is created (header and name synced) by a short-lived thread as soon as the current one is half full,
so that no add waits for it. If that failed it is tried once more when the file is needed.

Threads: all methods on the journal thread, or before it exists and after it ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.directory import journal_path, list_journals
from bookie_pod.storage.journal.format import NO_FILE
from bookie_pod.storage.journal.journal_file import JournalFile
from bookie_pod.storage.journal.marks import LogMark
from bookie_pod.storage.journal.options import JournalOptions

_log = structlog.get_logger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class JournalFileSupply:
    """Makes the files of one journal directory, with ascending ids."""

    def __init__(
        self,
        files: Files,
        directory: str,
        options: JournalOptions,
        metrics: JournalMetrics,
        *,
        thread_name: str,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._files = files
        self._directory = directory
        self._options = options
        self._metrics = metrics
        self._thread_name = thread_name
        self._now_ms = now_ms
        self._last_id = -1
        self._previous = NO_FILE
        """The file that was written before the next one."""
        self._thread: threading.Thread | None = None
        self._ready: JournalFile | None = None

    def first(self, after: LogMark) -> JournalFile:
        """The first file of this process: largest id + 1, or the time in ms + 1 if the directory holds none.

        `after` is where the records end that other processes left; (0, 0) if they left none. Raises `StorageFault` if
        the directory cannot be listed, `OSError` if the file cannot be made.
        """
        ids = list_journals(self._files, self._directory)
        self._last_id = ids[-1] if ids else self._now_ms()
        self._previous = NO_FILE if after == LogMark() else after.journal_id
        return self._begin(self._create(), after.offset)

    def prepare(self) -> None:
        """Begin to make the next file, unless that was begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._prepare, name=self._thread_name, daemon=True)
            self._thread.start()

    def _prepare(self) -> None:
        try:
            self._ready = self._create()
        except OSError as error:
            _log.warning("cannot make the next journal yet", directory=self._directory, error=str(error))

    def next(self, end: int) -> JournalFile:
        """The next file, after one that ends at `end`: waits for that begun, else makes one now. Raises `OSError`."""
        self._join()
        ready, self._ready = self._ready, None
        return self._begin(ready or self._create(), end)

    def _begin(self, file: JournalFile, end_of_previous: int) -> JournalFile:
        file.before = end_of_previous
        self._previous = file.journal_id
        return file

    def discard(self) -> None:
        """Remove the file that was made and never used."""
        self._join()
        unused, self._ready = self._ready, None
        if unused is not None:
            unused.close()
            self._files.unlink(unused.path)

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _create(self) -> JournalFile:
        self._last_id += 1
        while self._files.exists(journal_path(self._directory, self._last_id)):
            self._last_id += 1
        began = time.perf_counter()
        made = JournalFile.create(self._files, self._directory, self._last_id, self._options, self._previous)
        self._metrics.creation_latency.observe_ms((time.perf_counter() - began) * 1000)
        return made
