"""The seam: every file access of the storage goes through `Files` and `File`.

Invariants
- No module of `bookie_pod.storage` calls `open`, `os.open`, `os.rename`, … itself (a test checks it), so that tests
  can lose unsynced data, fail or slow down any call. RocksDB is behind a seam of its own (`storage.index`).
- `File.write` appends at the file's own end-of-write position and writes everything or raises `OSError`.
- Only `datasync`, `sync` and the `*_synced` helpers make data durable; a new name is durable once
  `sync_directory` of its folder returned.

Threads: a `Files` may be used from any thread. One `File` opened for writing belongs to one thread at a time;
`pread` may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the file system that holds a path; `usable` is what this process may still write."""

    total: int
    usable: int
    device: int


class File(Protocol):
    """One open file. Offsets and lengths are in bytes."""

    @property
    def path(self) -> str: ...
    @property
    def position(self) -> int:
        """Where the next `write` goes."""
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data` whole at `position`."""
        ...

    def writev(self, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Append all pieces whole, in order."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None: ...
    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
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

    def size(self) -> int: ...
    def close(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def create(self, path: str) -> File:
        """Open a new file for writing and reading; `FileExistsError` if the name is taken."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open an existing file; `position` starts at its end. `FileNotFoundError` if it is not there."""
        ...

    def read_bytes(self, path: str) -> bytes: ...
    def write_bytes_synced(self, path: str, data: bytes) -> None:
        """Truncate, write, sync (not rename-atomic: the reference's way for `lastMark`)."""
        ...

    def write_bytes_atomic(self, path: str, data: bytes) -> None:
        """Write a temporary sibling, sync it, rename it over `path`, sync the folder."""
        ...

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted; `FileNotFoundError` if it is not there."""
        ...

    def makedirs(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def link(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def usage(self, path: str) -> DiskUsage: ...
