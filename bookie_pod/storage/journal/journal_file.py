"""One journal file while it is written (reference on-disk formats, sections 2.2, 2.4, 2.5).

Invariants
- The header and the name are durable before the first record.
- Every group ends at an aligned offset (versions 5 and 6).
- The file grows ahead of the data in preallocated steps, which read as zeros. (The reference writes one block at the
  end of each step and leaves a hole before it; allocating the step halves the work of each sync.)

Threads: `create`, `write_group` on the journal thread (`create` also on the thread that prepares the next file);
`sync` and `close` on the sync thread.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress

from bookie_pod.storage.files import File, Files
from bookie_pod.storage.journal.direct_file import create_journal_file
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.format import (
    FIRST_VERSION_WITH_PADDING,
    NO_FILE,
    GroupCheck,
    checked_header_bytes,
    crc32c,
    header_bytes,
    header_length,
    padding,
)
from bookie_pod.storage.journal.group_commit import slices
from bookie_pod.storage.journal.options import MIB, JournalOptions

CACHE_LAG = 8 * MIB
"""Synced bytes that stay in the page cache."""

_PAGE = 4096


class JournalFile:
    """An open journal file, written by appending groups."""

    def __init__(self, file: File, journal_id: int, options: JournalOptions) -> None:
        self.journal_id = journal_id
        self.synced = 0
        self.before = 0
        """What the next group names as having come before it; set by whoever begins to use the file."""
        self._file = file
        self._options = options
        self._aligned = options.version >= FIRST_VERSION_WITH_PADDING
        self._checked = options.group_checks and self._aligned
        self._preallocated = 0
        self._dropped = 0

    @classmethod
    def create(
        cls, files: Files, directory: str, journal_id: int, options: JournalOptions, previous: int = NO_FILE
    ) -> JournalFile:
        """A new file, its header and its name durable; `previous` is the id of the file that was written before it.

        One that could not be made is removed again, as far as the disk lets us.
        """
        file = create_journal_file(files, journal_path(directory, journal_id), direct=options.direct_io)
        try:
            journal_file = cls(file, journal_id, options)
            journal_file._write_header(previous)
            files.sync_directory(directory)
        except Exception:
            file.close()
            with suppress(OSError):
                files.unlink(file.path)
            raise
        return journal_file

    def _write_header(self, previous: int) -> None:
        version = self._options.version
        header = checked_header_bytes(version, self.journal_id, previous) if self._checked else header_bytes(version)
        self._preallocate(len(header))
        self._file.write(header)
        self._file.sync()
        self.synced = self._file.position

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def position(self) -> int:
        return self._file.position

    def write_group(self, batches: Iterable[tuple[list[bytes], int]], nbytes: int) -> int:
        """Append the pieces of all batches (`nbytes` together) and the padding. Returns the bytes written."""
        start = self._file.position
        self._preallocate(nbytes + 2 * self._options.alignment)
        crc = 0
        held = b""
        for run in slices(batches, self._options.write_buffer_bytes):
            if held:
                self._file.write(held)
            held = run[0] if len(run) == 1 else b"".join(run)
            if self._checked:
                crc = crc32c(held, crc)
        tail = self._padding(start, start + nbytes, crc)
        self._file.writev([held, tail] if tail else [held])
        return self._file.position - start

    def _padding(self, start: int, position: int, crc: int) -> bytes:
        if self._checked:
            check = GroupCheck(start, self.synced, self.before, crc)
            self.before = start
            return check.padding(self.journal_id, position, self._options.alignment)
        return padding(position, self._options.alignment) if self._aligned else b""

    def close_group(self) -> bool:
        """Append an empty group that vouches for everything synced. False if this file has no checks to do so."""
        if not self._checked or self.position == header_length(self._options.version):
            return False
        self.write_group([], 0)
        return True

    def _preallocate(self, size: int) -> None:
        needed = self._file.position + size
        if needed <= self._preallocated:
            return
        step, start = self._options.preallocation_step, self._preallocated
        self._preallocated += -(-(needed - start) // step) * step
        try:
            self._file.allocate(start, self._preallocated - start)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # Less than a step is left: the writes themselves find out when it is used up.

    def sync(self, end: int) -> None:
        """Make everything durable; `end` is a position that was written before this call."""
        self._file.datasync()
        self.synced = max(self.synced, end)
        if self._options.remove_from_page_cache:
            self._drop_cache()

    def _drop_cache(self) -> None:
        target = (self.synced - CACHE_LAG) // _PAGE * _PAGE
        if target > self._dropped:
            self._file.drop_cache(self._dropped, target - self._dropped)
            self._dropped = target

    def close(self) -> None:
        self._file.close()
