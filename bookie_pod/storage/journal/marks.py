"""`lastMark`: the position below which a journal is durable in ledger storage (reference on-disk formats, section 3).

    16 bytes  journal id i64, offset i64, big-endian, in `<ledger directory>/lastMark` of every writable ledger
              directory, or `lastMark.<i>` if there are several journal directories
    8 bytes   "PKLM" and the CRC32C of the file's name and the 16 bytes: ours. The reference reads 16 bytes and looks
              no further; where it wrote the file there is no more

Invariants
- A copy whose check does not match does not count, nor does one that is too short.
- A copy that is older than one with a check is a leftover of a directory that took no marks meanwhile: full, read-only,
  failing. Only of copies without a check it is unknown whether the newest is right.
- A mark that is written never goes back, and is replaced by a rename, so that a crash leaves the old or the new one.
  (The reference overwrites in place; it reads ours as its own.)

Threads: `MarkFiles` belongs to the checkpoint thread (and to the start, before that thread exists).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.journal.format import crc32c
from bookie_protocol.errors import NoWritableDirectory

_MARK = struct.Struct(">qq")
_CHECK = struct.Struct(">4sI")
_CHECK_MAGIC = b"PKLM"
assert _MARK.size == 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class LogMark:
    """A position in a journal: everything before `offset` of file `journal_id`. (0, 0) is before everything."""

    journal_id: int = 0
    offset: int = 0

    def to_bytes(self) -> bytes:
        return _MARK.pack(self.journal_id, self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> LogMark:
        """Return the mark at the beginning of the content of a mark file, which has at least 16 bytes."""
        return cls(*_MARK.unpack_from(data))


def mark_bytes(name: str, mark: LogMark) -> bytes:
    """Content of the mark file of this name."""
    data = mark.to_bytes()
    return data + _check(name, data)


def parse_mark(name: str, data: bytes) -> LogMark | None:
    """Return the mark in a file of this name; None if it is damaged."""
    mark, check = data[: _MARK.size], data[_MARK.size :]
    if len(mark) < _MARK.size or (check and check != _check(name, mark)):
        return None
    found = LogMark.from_bytes(mark)
    return found if found.journal_id >= 0 and found.offset >= 0 else None


def _check(name: str, mark: bytes) -> bytes:
    return _CHECK.pack(_CHECK_MAGIC, crc32c(name.encode() + mark))


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

    def copies(self) -> list[LogMark]:
        """Return the sound marks that may be the right one, each once, the oldest first.

        Raises `StorageFault` if a file is there and cannot be read: it may hold the only one.
        """
        found: set[LogMark] = set()
        certain = LogMark()
        for directory in self._directories:
            path = f"{directory}/{self._name}"
            try:
                data = self._files.read_bytes(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise storage_fault(f"cannot read {path}", error) from error
            mark = parse_mark(self._name, data)
            if mark is None:
                _log.warning("mark file is damaged, ignored", path=path, length=len(data))
                continue
            found.add(mark)
            if len(data) > _MARK.size:
                certain = max(certain, mark)
        return sorted(mark for mark in found if mark >= certain)

    def read(self) -> LogMark:
        """The greatest mark found; (0, 0) if there is none. Raises as `copies`."""
        return max(self.copies(), default=LogMark())

    @property
    def written(self) -> LogMark:
        """The mark that the directories hold now, after `goes_on_from`."""
        return self._written

    def goes_on_from(self, mark: LogMark) -> None:
        """Continue from the mark with which the replay begins: no mark below it is written any more."""
        self._written = mark

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
                self._files.write_bytes_atomic(path, mark_bytes(self._name, mark))
            except OSError as error:
                _log.error("cannot write the mark file", path=path, error=str(error))
                errors.append(error)
        if len(errors) == len(writable):
            raise storage_fault(f"cannot write {self._name} in any ledger directory", errors[0]) from errors[0]
        self._written = mark
        return True
