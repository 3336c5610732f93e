"""`BOOKIE_STATUS`: whether the bookie was read-only, and by whose word, across restarts.

    1,READ_ONLY,1718000000000,true      version, mode, ms since the epoch, set by an operator

One line in the `current` folder of every ledger directory, only with `persistBookieStatusEnabled`. The newest file
wins; one that cannot be understood does not count. The old form without the fourth field stands for an operator's.

Threads: any.

Source: reference on-disk formats, section 11.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from bookie_pod.storage.files import Files

STATUS_FILE: Final = "BOOKIE_STATUS"
_VERSION: Final = "1"
_MODES: Final = {"READ_WRITE": False, "READ_ONLY": True}

_log = structlog.get_logger(__name__)


class BookieStatus(NamedTuple):
    """What one file says."""

    read_only: bool
    since_ms: int
    manual: bool

    def to_line(self) -> bytes:
        mode = "READ_ONLY" if self.read_only else "READ_WRITE"
        return f"{_VERSION},{mode},{self.since_ms},{str(self.manual).lower()}\n".encode()


def parse_status(data: bytes) -> BookieStatus | None:
    """The status in a file's bytes; None if they are none."""
    try:
        fields = data.decode("ascii").splitlines()[0].split(",")
        if fields[0].strip() != _VERSION or len(fields) not in (3, 4):
            return None
        manual = len(fields) == 3 or {"true": True, "false": False}[fields[3].strip().lower()]
        return BookieStatus(_MODES[fields[1].strip()], int(fields[2]), manual)
    except (ValueError, KeyError, IndexError):
        return None


class StatusFiles:
    """The status files of one bookie."""

    def __init__(
        self,
        files: Files,
        folders: Sequence[str],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._files = files
        self._paths = [os.path.join(folder, STATUS_FILE) for folder in folders]
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def read(self) -> BookieStatus | None:
        """The newest status; None if there is none."""
        found = [status for path in self._paths if (status := self._read_one(path)) is not None]
        return max(found, key=lambda status: status.since_ms, default=None)

    def _read_one(self, path: str) -> BookieStatus | None:
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("status file cannot be read", path=path, error=str(error))
            return None
        status = parse_status(data)
        if status is None:
            _log.warning("status file is ignored: it cannot be understood", path=path)
        return status

    def write(self, mode: Callable[[], tuple[bool, bool]]) -> None:
        """Write to every directory that takes it. `mode`: whether it is read-only, and by an operator's word; asked
        when no other write is under way, so that the last one has the last word."""
        with self._lock:
            read_only, manual = mode()
            line = BookieStatus(read_only, self._now_ms(), manual).to_line()
            for path in self._paths:
                try:
                    self._files.write_bytes_atomic(path, line)
                except OSError as error:
                    _log.warning("status file cannot be written", path=path, error=str(error))
