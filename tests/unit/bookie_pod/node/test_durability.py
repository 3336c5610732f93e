"""Whether a stop was clean: only if the last flush returned, and whatever else happened the journals are stopped."""

from __future__ import annotations

import errno
from typing import cast

import pytest

from bookie_pod.node.durability import DirtyMarker, Durability
from bookie_pod.node.parts import StorageSide
from bookie_pod.node.recovery import ReplayedJournals
from bookie_pod.storage.checkpoint import CheckpointHandlers
from bookie_pod.storage.journal import Journal, LogMark, MarkFiles
from bookie_protocol.errors import BadRequest, StorageFault
from tests.support.memory_files import MemoryFiles


class NotedJournal:
    def __init__(self, error: Exception | None = None) -> None:
        self.started: tuple[LogMark, LogMark] | None = None
        self.stopped = False
        self._error = error

    def start(self, after: LogMark, *, written: LogMark) -> None:
        self.started = (after, written)

    def stop(self) -> None:
        self.stopped = True
        if self._error is not None:
            raise self._error

    def last_mark(self) -> LogMark:
        return LogMark()

    def remove_below(self, mark: LogMark) -> list[int]:
        return []


class Storage:
    """A storage that can only be flushed."""

    checkpoints_by_interval = True

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def start(self, checkpointer: object) -> None: ...
    def on_flush_failure(self, callback: object) -> None: ...
    def checkpoint(self, marks: object) -> None: ...
    def flush(self) -> None:
        if self.error is not None:
            raise self.error


def durability(error: Exception | None, *journals: NotedJournal) -> Durability:
    files = MemoryFiles()
    files.makedirs("/l")
    marks = [MarkFiles(files, ["/l"], index, len(journals)) for index in range(len(journals))]
    for each in marks:
        each.goes_on_from(LogMark(4, 512))
    handlers = CheckpointHandlers(on_no_writable_directory=lambda error: None, on_failure=lambda error: None)
    replayed = ReplayedJournals(marks, [LogMark(5, 1024)] * len(journals), set())
    side = StorageSide(cast("object", Storage(error)), {}, {})  # type: ignore[arg-type]
    return Durability(cast("list[Journal]", list(journals)), side, replayed, handlers, 3_600_000)


@pytest.mark.parametrize("error", [None, StorageFault("full"), BadRequest("too long"), ValueError("a fault of ours")])
async def test_a_stop_is_clean_only_if_the_last_flush_returned(error: Exception | None) -> None:
    journal = NotedJournal()
    tested = durability(error, journal)
    tested.start()
    assert journal.started == (LogMark(5, 1024), LogMark(4, 512))
    assert await tested.stop(clean=True) is (error is None)
    assert journal.stopped


async def test_every_journal_is_stopped_though_one_cannot_be() -> None:
    journals = [NotedJournal(), NotedJournal(OSError("gone")), NotedJournal()]
    tested = durability(None, *journals)
    tested.start()
    with pytest.raises(OSError, match="gone"):
        await tested.stop(clean=True)
    assert all(journal.stopped for journal in journals)


FOLDERS = ["/a/current", "/b/current"]


def test_written_and_removed_everywhere() -> None:
    files = MemoryFiles()
    for folder in FOLDERS:
        files.makedirs(folder)
    marker = DirtyMarker(files, FOLDERS)
    assert not marker.is_set()
    marker.write()
    assert [files.read_bytes(f"{folder}/DIRTY") for folder in FOLDERS] == [b"", b""]
    assert DirtyMarker(files, FOLDERS).is_set()
    files.unlink("/a/current/DIRTY")
    assert marker.is_set()  # one is enough
    marker.remove()
    assert not marker.is_set()
    marker.remove()


def test_a_disk_that_takes_no_marker_does_not_matter() -> None:
    files = MemoryFiles()
    for folder in FOLDERS:
        files.makedirs(folder)
    files.faults.read_only("/a/")
    marker = DirtyMarker(files, FOLDERS)
    marker.write()
    assert marker.is_set()
    marker.remove()
    assert not marker.is_set()


def test_a_marker_that_a_full_disk_refused_is_written_once_it_takes_it() -> None:
    files = MemoryFiles()
    for folder in ("/a", "/b"):
        files.makedirs(folder)
    marker = DirtyMarker(files, ["/a", "/b"])
    files.faults.fail("overwrite", errno=errno.ENOSPC)
    marker.write()
    assert not marker.is_set()
    files.faults.clear()
    marker.write()
    assert (files.exists("/a/DIRTY"), files.exists("/b/DIRTY")) == (True, True)
    log = files.faults.record()
    marker.write()
    assert log == [], "nothing is left to do"
    marker.remove()
    assert not marker.is_set()
