"""The seam: every file access of the storage goes through `Files` and `File`.

Invariants
- No module of `bookie_pod.storage` but `files_posix` calls `open`, `os.open`, `os.rename`, … itself (a test
  checks it), so that tests can lose unsynced data, fail or slow down any call. RocksDB is behind a seam of
  its own (`storage.index`).
- `File.write` appends at the file's own end-of-write position and writes everything or raises `OSError`.
- Only `datasync`, `sync` and the `*_synced` / `*_atomic` helpers make data durable; a new, renamed or removed
  name is durable once `sync_directory` of its folder returned. (ext4 and xfs also keep the name of a new file
  once the file itself was synced; only code that can bear losing the file may lean on that.)
- A file whose sync failed once never syncs again: the kernel may have dropped the pages that it could not
  write, and the next sync of the same file would report success.
- Every `OSError` carries the path in `filename`, and keeps no view of the buffer that was to be written.

Threads: a `Files` may be used from any thread. One `File` opened for writing has one thread that writes;
another thread may sync it meanwhile, and `pread` may be called from several threads at once.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from bookie_protocol.errors import DirectoryFault, ResourcesShort, StorageFault

Buffer: TypeAlias = bytes | bytearray | memoryview

TEMPORARY_SUFFIX = ".tmp"
"""The suffix of the temporary sibling that `write_bytes_atomic` writes."""

LONGEST_WITHOUT_HOLES: Final = 1 << 32
"""Bytes that a file of mostly holes may have where these look like data."""
_SHORT: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR, errno.ENOSPC, errno.EDQUOT}
)
_SHORT_WORDS: Final = tuple(os.strerror(number) for number in sorted(_SHORT))


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the file system that holds a path; `usable` is what this process may still write."""

    total: int
    usable: int
    device: int
    file_system: int = 0
    """The same for every mount of one file system, also in other containers; 0: it has no such number."""


def storage_fault(what: str, error: OSError) -> StorageFault:
    """Return the error for a file that cannot be read: `ResourcesShort` if the machine is at fault, and so no damage.

    Only this function judges an `OSError`; code that looks for damage checks the type.
    """
    kind = ResourcesShort if error.errno in _SHORT else StorageFault
    return kind(f"{what}: {error}")


def refuse_if_short(what: str, error: Exception) -> None:
    """Raise `ResourcesShort` if the machine is at fault for an error that the caller would take for the loss of a file:
    such a file is written over later, with nothing in it."""
    if isinstance(error, OSError) and isinstance(fault := storage_fault(what, error), ResourcesShort):
        raise fault from error


def directory_fault(what: str, error: OSError, directory: str) -> StorageFault:
    """Return `storage_fault` for a write below one of the directories; `DirectoryFault` if that disk is at fault."""
    fault = storage_fault(what, error)
    return fault if isinstance(fault, ResourcesShort) else DirectoryFault(str(fault), directory)


def storage_fault_of_library(what: str, error: Exception | str) -> StorageFault:
    """Return `storage_fault` for a library that passes on the operating system's words but not its number."""
    text = str(error)
    kind = ResourcesShort if any(words in text for words in _SHORT_WORDS) else StorageFault
    return kind(f"{what}: {text}")


class File(Protocol):
    """One open file. Offsets and lengths are in bytes."""

    @property
    def path(self) -> str: ...
    @property
    def position(self) -> int:
        """Return the offset of the next `write`."""
        ...

    def write(self, data: Buffer) -> None:
        """Append `data` whole at `position`."""
        ...

    def writev(self, pieces: Sequence[Buffer]) -> None:
        """Append all pieces whole, in order."""
        ...

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write `data` whole at `offset`; `position` stays. Bytes never written before it read as zeros."""
        ...

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def allocate(self, offset: int, length: int) -> None:
        """Reserve disk space for this range; the file grows to its end if it is shorter, with zeros."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it with zeros; `position` is at most `size` then."""
        ...

    def datasync(self) -> None:
        """Make the data (and the size) durable, without other metadata."""
        ...

    def sync(self) -> None:
        """Make data and metadata durable."""
        ...

    def drop_cache(self, offset: int, length: int) -> None:
        """Advise the kernel to forget these pages. Never fails."""
        ...

    def data_from(self, offset: int) -> tuple[int, int] | None:
        """Begin and end of the first range at or behind `offset` that is no hole; None: nothing but holes to the end.

        What is left out reads as zeros. A file system that does not know its holes calls everything data.
        """
        ...

    def size(self) -> int: ...
    def close(self) -> None:
        """Idempotent; makes nothing durable."""
        ...


class Files(Protocol):
    """A file system."""

    def create(self, path: str) -> File:
        """Open a new file for writing and reading; `FileExistsError` if the name is taken."""
        ...

    def create_direct(self, path: str) -> File:
        """Create a file as `create` does, past the page cache.

        `pwrite` takes only buffers at addresses, lengths and offsets that are multiples of 4096. `OSError` (EINVAL,
        EOPNOTSUPP) where the file system has no direct I/O; no file is left behind then.
        """
        ...

    def overwrite(self, path: str) -> File:
        """Open a file for writing and reading, made if missing, else cut to zero bytes."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file; `position` starts at its end. `FileNotFoundError` if it is not there."""
        ...

    def read_bytes(self, path: str) -> bytes: ...
    def write_bytes(self, path: str, data: bytes) -> None:
        """Truncate and write, without a sync (the reference's way for `lastId`)."""
        ...

    def write_bytes_synced(self, path: str, data: bytes) -> None:
        """Truncate, write, sync: a crash may leave the file empty or torn."""
        ...

    def write_bytes_atomic(self, path: str, data: bytes) -> None:
        """Write a temporary sibling, sync it, rename it over `path`, sync the folder."""
        ...

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def is_accessible(self, path: str) -> bool:
        """Return whether this process may read and write a folder.

        It checks permissions, and that the file system is not read-only.
        """
        ...

    def takes_file_of(self, folder: str, nbytes: int) -> bool:
        """Return whether a file in this folder may have this length; leave nothing behind, and take no room.

        False if it is longer than `LONGEST_WITHOUT_HOLES` and the file system does not tell holes from data: a reader
        of such a file would have to read all of it. Raises `OSError` if it cannot be tried.
        """
        ...

    def size(self, path: str) -> int:
        """Length of a file in bytes; `FileNotFoundError` if it is not there."""
        ...

    def modified_ms(self, path: str) -> int:
        """Last modification of a file, in ms since the epoch."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted; `FileNotFoundError` if it is not there."""
        ...

    def makedirs(self, path: str) -> None:
        """Make a folder and its missing parents; their names are durable on return. No error if it exists."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces `target`."""
        ...

    def link(self, source: str, target: str) -> None:
        """Second name for the same file; `FileExistsError` if `target` is taken."""
        ...

    def unlink(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def usage(self, path: str) -> DiskUsage: ...


class WholeFiles(ABC):
    """Reading and writing whole small files, in terms of the primitives of `Files`.

    Every implementation of `Files` inherits it, so that the crash ring dies between its real steps.
    """

    @abstractmethod
    def open(self, path: str, *, writable: bool = False) -> File: ...
    @abstractmethod
    def overwrite(self, path: str) -> File: ...
    @abstractmethod
    def rename(self, source: str, target: str) -> None: ...
    @abstractmethod
    def sync_directory(self, path: str) -> None: ...

    def read_bytes(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write_bytes(self, path: str, data: bytes) -> None:
        file = self.overwrite(path)
        try:
            file.write(data)
        finally:
            file.close()

    def write_bytes_synced(self, path: str, data: bytes) -> None:
        file = self.overwrite(path)
        try:
            file.write(data)
            file.sync()
        finally:
            file.close()

    def write_bytes_atomic(self, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        self.write_bytes_synced(temporary, data)
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")
