"""The journals of a bookie and the checkpoints that let them be trimmed.

Invariants
- Checkpoints stop before the journals do. A clean stop flushes everything and moves the marks; after a failure nothing
  is flushed, since the journals hold what was acknowledged.

Threads: event loop; starting and stopping run on threads.

Source: docs/internals/on-disk-formats.md, section 11.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import structlog

from bookie_pod.node.parts import StorageSide
from bookie_pod.node.recovery import ReplayedJournals
from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.journal import Journal

DIRTY_FILE: Final = "DIRTY"
_log = structlog.get_logger(__name__)


class DirtyMarker:
    """The `DIRTY` file: present while a bookie serves, so that the next start knows whether it stopped cleanly.

    The marker in the `current` folder of every ledger directory.

    Threads: any one at a time.
    """

    def __init__(self, files: Files, folders: Sequence[str]) -> None:
        self._files = files
        self._paths = [os.path.join(folder, DIRTY_FILE) for folder in folders]
        self._missing = list(self._paths)
        """The paths that this process has not written yet."""

    def is_set(self) -> bool:
        """True if the previous process did not stop cleanly."""
        return any(self._files.exists(path) for path in self._paths)

    def write(self) -> None:
        """Write it where it is not yet. A disk that is full or read-only has other ways to be noticed: call this again
        once it may take the file, or a later kill would count as a clean stop."""
        for path in list(self._missing):
            with suppress(OSError):
                self._files.write_bytes_synced(path, b"")
                self._files.sync_directory(os.path.dirname(path))
                self._missing.remove(path)

    def remove(self) -> None:
        self._missing = list(self._paths)
        for path in self._paths:
            with suppress(OSError):
                self._files.unlink(path)


class Durability:
    """One start, one stop, which also ends what a failed start had begun."""

    def __init__(
        self,
        journals: Sequence[Journal],
        storage: StorageSide,
        replayed: ReplayedJournals,
        handlers: CheckpointHandlers,
        flush_interval_ms: int,
    ) -> None:
        self._journals = journals
        self._replayed = replayed
        self._writable = storage.writable
        self._started: list[Journal] = []
        self._checkpointing = False
        self._checkpoints = SyncThread(
            storage.storage, journals, replayed.marks, storage.writable, handlers, flush_interval_ms=flush_interval_ms
        )

    def start(self) -> None:
        """Begin a journal file each, and checkpoints. What the replay has made superfluous goes first: the disk may be
        full of it."""
        for journal, marks, end in zip(self._journals, self._replayed.marks, self._replayed.ends, strict=True):
            journal.start(end, written=marks.written)
            self._started.append(journal)
        self._replayed.go_on_at([journal.last_mark() for journal in self._journals], self._writable())
        self._checkpoints.start()
        self._checkpointing = True

    def checkpoint_step(self) -> object | None:
        """Return the step of the running checkpoint; None if none is running."""
        return self._checkpoints.step()

    def request(self) -> None:
        """Let a checkpoint be made soon. Never blocks."""
        self._checkpoints.request()

    async def checkpoint(self) -> None:
        """Make everything durable in ledger storage now, and move the marks. A failure is reported to the handlers."""
        await asyncio.to_thread(self._checkpoints.checkpoint)

    async def stop(self, *, clean: bool) -> bool:
        """End both; whether everything is in ledger storage now."""
        try:
            return await asyncio.to_thread(self._last_checkpoint, clean)
        finally:
            async with AsyncExitStack() as journals:  # each is stopped, though another cannot be
                for journal in self._started:
                    journals.push_async_callback(asyncio.to_thread, journal.stop)

    def _last_checkpoint(self, clean: bool) -> bool:
        if not self._checkpointing:
            return False
        if not clean:
            self._checkpoints.stop()
            return False
        try:
            self._checkpoints.shutdown()
        except Exception as error:
            _log.error("the last flush failed; the next start replays the journal", reason=repr(error))
            return False
        return True
