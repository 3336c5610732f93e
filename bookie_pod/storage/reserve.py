"""Room for a start on a full disk: `start-reserve`, a file in each ledger and index folder.

A database is opened by writing: RocksDB makes a table of what its log holds, and begins files anew. So a disk that
somebody else has filled to the last byte would keep the bookie down that could collect garbage on it. Hence a little
room is held while there is plenty; a start that finds less than that gives it up, and then serves reads, and collects.

Invariants
- It is held anew only where that leaves the disk writable, and never while clients or garbage collection need the room.
- Whether it can be held decides about nothing: a file system that refuses is told of once, and the bookie goes on.

Threads: `give_up_reserves` at the start, `hold` on the disk monitor's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import structlog

from bookie_pod.storage.files import DiskUsage, Files

_log = structlog.get_logger(__name__)

NAME: Final = "start-reserve"
MOST_BYTES: Final = 32 * 1024 * 1024
"""Two tables as RocksDB makes them of full memtables of locations, and the rest many times over."""
_PART_OF_DISK: Final = 64


class StartReserves:
    """The reserves of some folders."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._settled: set[str] = set()
        """Folders that hold theirs, or whose file system refused it."""

    def hold(self, folder: str, usage: DiskUsage, warn: float) -> None:
        """Have the reserve of a folder in which there is room, unless the disk were used beyond `warn` by it."""
        if folder in self._settled:
            return
        path, nbytes = f"{folder}/{NAME}", _bytes(usage)
        try:
            if not self._files.exists(path) or self._files.size(path) < nbytes:
                if usage.usable - nbytes < (1 - warn) * usage.total:
                    return
                _make(self._files, path, nbytes)
        except OSError as error:
            _log.warning("no room can be held for a start on a full disk", path=path, reason=str(error))
            with suppress(OSError):
                self._files.unlink(path)
        self._settled.add(folder)


def give_up_reserves(files: Files, folders: Iterable[str]) -> None:
    """Before anything is opened in these folders: those on a full disk get what was held for this."""
    for folder in folders:
        path = f"{folder}/{NAME}"
        with suppress(OSError):  # a disk that cannot be used is told of by whoever opens something on it
            usage = files.usage(folder)
            if usage.usable < _bytes(usage) and files.exists(path):
                files.unlink(path)
                _log.warning("the disk is full: this start uses the room that was held for it", folder=folder)


def _bytes(usage: DiskUsage) -> int:
    return min(MOST_BYTES, usage.total // _PART_OF_DISK)


def _make(files: Files, path: str, nbytes: int) -> None:
    file = files.overwrite(path)
    try:
        file.allocate(0, nbytes)
    finally:
        file.close()
