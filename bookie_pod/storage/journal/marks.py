"""`lastMark`: the position below which a journal is durable in ledger storage (reference formats, section 3).

    16 bytes: journal id i64, offset i64, big-endian, in `<ledger directory>/lastMark` of every writable
    ledger directory, or `lastMark.<i>` if there are several journal directories

Invariants
- The greatest mark of all ledger directories counts; a missing or short file does not.
- A mark that is written never goes back, and is replaced by a rename, so that a crash leaves the old or the
  new one. (The reference overwrites in place; it reads ours as its own.)

Threads: `MarkFiles` belongs to the checkpoint thread (and to the start, before that thread exists).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from bookie_pod.storage.files import Files
from bookie_protocol.errors import NoWritableDirectory, StorageFault

_MARK = struct.Struct(">qq")
assert _MARK.size == 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class LogMark:
    """Everything of a journal before `offset` of file `journal_id`. (0, 0) is before everything."""

    journal_id: int = 0
    offset: int = 0

    def to_bytes(self) -> bytes:
        return _MARK.pack(self.journal_id, self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> LogMark | None:
        """The mark in the content of a mark file; None if it is too short."""
        return cls(*_MARK.unpack_from(data)) if len(data) >= _MARK.size else None


def mark_file_name(journal_index: int, journal_count: int) -> str:
    """`lastMark` with one journal directory, else `lastMark.<index>`."""
    return "lastMark" if journal_count == 1 else f"lastMark.{journal_index}"


class MarkFiles:
    """The mark files of one journal, over all ledger directories (their `current` folders)."""

    def __init__(self, files: Files, ledger_directories: Sequence[str], journal_index: int, journal_count: int) -> None:
        self._files = files
        self._directories = list(ledger_directories)
        self._name = mark_file_name(journal_index, journal_count)
        self._written = LogMark()

    def read(self) -> LogMark:
        """The greatest mark found; (0, 0) if there is none.

        Raises `StorageFault` if a file is there and cannot be read: it may hold the greatest one.
        """
        found = [mark for directory in self._directories if (mark := self._read_one(directory)) is not None]
        self._written = max(found, default=LogMark())
        return self._written

    def _read_one(self, directory: str) -> LogMark | None:
        path = f"{directory}/{self._name}"
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFault(f"cannot read {path}: {error.strerror or error}") from error
        mark = LogMark.from_bytes(data)
        if mark is None:
            _log.warning("mark file is too short, ignored", path=path, length=len(data))
        return mark

    def write(self, mark: LogMark, writable: Sequence[str]) -> bool:
        """Make `mark` durable in every directory of `writable`; False if a later one was written before.

        One directory that takes it is enough, failures elsewhere are logged. Raises `NoWritableDirectory` if
        none was given, `StorageFault` if none took it.
        """
        if mark < self._written:
            return False
        if not writable:
            raise NoWritableDirectory(f"no ledger directory is writable, {self._name} stays as it is")
        errors: list[OSError] = []
        for directory in writable:
            path = f"{directory}/{self._name}"
            try:
                self._files.write_bytes_atomic(path, mark.to_bytes())
            except OSError as error:
                _log.error("cannot write the mark file", path=path, error=str(error))
                errors.append(error)
        if len(errors) == len(writable):
            raise StorageFault(f"cannot write {self._name} in any ledger directory: {errors[0]}") from errors[0]
        self._written = mark
        return True
