"""Which index directory holds the file of which ledger.

Invariants
- A ledger has at most one index file. Two are refused at the start: nothing shows which one is right.
- A new file goes to a random directory that is writable; if none is, to one that still has `min_usable` bytes.
- A move copies to `<id>.idx.rloc`, syncs it, removes the old file, then renames, each step durable before the next: a
  crash leaves the old file or the finished copy, and no other copy beside the latter. Once the copy is durable it is
  the ledger's file, and a move that fails from there on is only ever finished.
- `path` is right before a handle of another file is dropped: code that opens the file again finds the one that counts.
- The name of a file that another process made may not be durable (`unsettled`): it is made so with the first write.
- The file of a deleted ledger is unlinked before the file of its next life is made.
- Nothing is written to a directory that was given up, nor removed there. A ledger whose file was there goes on in a
  copy that keeps its unfinished name: the next start begins with the old file, and the journals bring the rest. One
  whose file cannot be copied, or not be removed, is `cut_off`: its contents are unknown until that start.

Threads: `path` from any; `delete` on the event loop, `created` and `disown` too under the lock of the page table;
everything else under the flush lock of the ledger cache.

Source: docs/internals/on-disk-formats.md, section 9.1.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import random
import threading
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.index.index_file import (
    MAX_ENTRY_ID,
    MOVING_SUFFIX,
    SUFFIX,
    parse_name,
    relative_folder,
    relative_path,
    slot_offset,
)
from bookie_protocol.errors import NoWritableDirectory, StorageFault

_log = structlog.get_logger(__name__)

_COPY_BYTES: Final = 1 << 20
_HEX: Final = frozenset("0123456789abcdef")


class WritableDirs(Protocol):
    """Disk states of the index directories (`current` folders): `LedgerDirs` of entry logs, which indexes must not
    import."""

    def all(self) -> Sequence[str]: ...
    def writable(self) -> Sequence[str]: ...


class IndexDirectories:
    """The index files on disk."""

    def __init__(self, files: Files, dirs: WritableDirs, min_usable_bytes: int) -> None:
        """Look at all of them. `StorageFault` if a directory cannot be read or holds what no index directory does."""
        self._files = files
        self._dirs = dirs
        self._min_usable = min_usable_bytes
        self._where: dict[int, str] = {}
        self._half_moved: dict[int, str] = {}
        """The directories of the finished copies whose old files may still be there."""
        self._half_removed: set[str] = set()
        """Copies whose removal may not be durable yet."""
        self._deleted: dict[int, list[str]] = {}
        self._lost: set[str] = set()
        self.cut_off: set[int] = set()
        """Ledgers of which only failed disks know."""
        self.unsettled: set[int] = set()
        """Ledgers whose files were found, and of no checkpoint."""
        self._lock = threading.Lock()
        self.generation = 0
        """Grows behind each change that makes a file void: who looked up a path before must not keep what it opened."""
        moving: dict[int, list[str]] = {}
        for directory in dirs.all():
            self._scan(directory, moving)
        self._finish_moves(moving)

    def ledger_ids(self) -> list[int]:
        return list(self._where)

    def path(self, ledger_id: int) -> str | None:
        """The ledger's file, None if it has none yet."""
        copied = self._half_moved.get(ledger_id)
        if copied is not None:
            return _copy_in(copied, ledger_id)
        directory = self._where.get(ledger_id)
        return None if directory is None else posixpath.join(directory, relative_path(ledger_id))

    # --- start ----------------------------------------------------------------------------------------------

    def _scan(self, directory: str, moving: dict[int, list[str]]) -> None:
        try:
            for folder in index_folders(self._files, directory):
                for name in self._files.listdir(folder):
                    if name.endswith(MOVING_SUFFIX):
                        moving.setdefault(self._parse(folder, name), []).append(directory)
                    elif name.endswith(SUFFIX):
                        self._found(self._parse(folder, name), directory)
        except OSError as error:
            raise storage_fault(f"cannot list index directory {directory}", error) from error

    @staticmethod
    def _parse(folder: str, name: str) -> int:
        try:
            return parse_name(name)
        except ValueError:
            raise StorageFault(
                f"{folder}/{name} is not an index file: its name is not a ledger id in hex; move it away"
            ) from None

    def _found(self, ledger_id: int, directory: str) -> None:
        other = self._where.setdefault(ledger_id, directory)
        if other != directory:
            path = relative_path(ledger_id)
            raise StorageFault(
                f"ledger {ledger_id} has two index files, {other}/{path} and {directory}/{path}: move one away"
            )

    def _finish_moves(self, moving: dict[int, list[str]]) -> None:
        for ledger_id, directories in moving.items():
            first, *others = (_copy_in(directory, ledger_id) for directory in directories)
            try:
                if ledger_id in self._where:
                    for directory in directories:
                        self._remove_copy(ledger_id, directory)
                elif others:
                    raise StorageFault(
                        f"ledger {ledger_id} has no index file, and two copies that a move may have left unfinished, "
                        f"{first} and {others[0]}: move one away"
                    )
                else:
                    self._files.rename(first, posixpath.join(directories[0], relative_path(ledger_id)))
                    self._where[ledger_id] = directories[0]
                    self._files.sync_directory(posixpath.dirname(first))
            except OSError as error:
                raise storage_fault(f"cannot finish the move to {first}", error) from error

    def _remove_copy(self, ledger_id: int, directory: str) -> None:
        copy = _copy_in(directory, ledger_id)
        if self._files.exists(copy):
            self._half_removed.add(copy)
            self._files.unlink(copy)
        if copy in self._half_removed:
            self._files.sync_directory(posixpath.dirname(copy))
            self._half_removed.discard(copy)

    # --- files ----------------------------------------------------------------------------------------------

    def create(self, ledger_id: int) -> tuple[str, File]:
        """(directory, new file) for a ledger without a file; its name is not durable yet. `OSError`,
        `NoWritableDirectory`."""
        self.unlink_deleted(ledger_id)
        directory = self._pick()
        self._files.makedirs(posixpath.join(directory, relative_folder(ledger_id)))
        return directory, self._files.create(posixpath.join(directory, relative_path(ledger_id)))

    def created(self, ledger_id: int, directory: str) -> None:
        """The file is there and durable."""
        self._where[ledger_id] = directory

    def settle(self, ledger_id: int) -> None:
        """Make the name of a file durable that was found. `OSError`."""
        path = self.path(ledger_id) if ledger_id in self.unsettled else None
        if path is not None:
            self._files.sync_directory(posixpath.dirname(path))
        self.unsettled.discard(ledger_id)

    def _pick(self, unlike: str | None = None) -> str:
        unfit = {unlike, *self._lost}
        candidates = [path for path in self._dirs.writable() if path not in unfit]
        if not candidates:
            candidates = [path for path in self._dirs.all() if path not in unfit and self._usable(path)]
        if not candidates:
            raise NoWritableDirectory(
                f"no index directory may take a new file: all of {', '.join(self._dirs.all())} are full and none has "
                f"{self._min_usable} bytes left (minUsableSizeForIndexFileCreation); free space or add a directory"
            )
        return random.choice(candidates)

    def _usable(self, path: str) -> bool:
        try:
            return self._files.usage(path).usable > self._min_usable
        except OSError:
            return False

    def should_move(self, ledger_id: int) -> bool:
        """Return whether the ledger's file has to be moved.

        It has to if it is in a directory that was given up, or in a full one while another is writable, or if a move
        was not finished.
        """
        directory = self._where.get(ledger_id)
        if ledger_id in self._half_moved:
            return directory not in self._lost or self._half_moved[ledger_id] in self._lost
        writable = self._dirs.writable()
        return directory is not None and (directory in self._lost or (bool(writable) and directory not in writable))

    def move(self, ledger_id: int) -> None:
        """Move the file to another directory, or finish a move that failed.

        No other thread may write to it meanwhile, and every handle is to be dropped afterwards, whether the move
        succeeded or not. Raises `OSError`; may be repeated.
        """
        old = self._where.get(ledger_id)
        if old is None:
            return  # deleted just now
        source = posixpath.join(old, relative_path(ledger_id))
        new = self._half_moved.get(ledger_id) or self._copied(ledger_id, source, old)
        if new in self._lost:
            # What the old file lacks is in the journals, so it must stay, and nothing is written to the copy any more.
            raise OSError(errno.EIO, "the disk of its copy was given up", _copy_in(new, ledger_id))
        if old in self._lost:
            return
        target = posixpath.join(new, relative_path(ledger_id))
        with contextlib.suppress(FileNotFoundError):  # removed by a try that failed behind it
            self._files.unlink(source)
        self._files.sync_directory(posixpath.dirname(source))
        self._files.rename(_copy_in(new, ledger_id), target)
        with self._lock:
            if ledger_id in self._half_moved:  # else deleted meanwhile, the new file too
                self._where[ledger_id] = new
                del self._half_moved[ledger_id]
                self.generation += 1
        self._files.sync_directory(posixpath.dirname(target))
        _log.info("index file moved out of a full directory", ledger_id=ledger_id, source=old, target=new)

    def _copied(self, ledger_id: int, source: str, old: str) -> str:
        """Return the directory that holds a durable copy now."""
        for directory in self.in_use():
            self._remove_copy(ledger_id, directory)  # a try that failed left it: a start could not tell which is whole
        new = self._pick(unlike=old)
        copy = _copy_in(new, ledger_id)
        self._files.makedirs(posixpath.dirname(copy))
        self._copy(source, copy)
        self._files.sync_directory(posixpath.dirname(copy))
        with self._lock:
            if ledger_id in self._where:
                self._half_moved[ledger_id] = new
                self.generation += 1
            else:  # deleted meanwhile
                self._deleted.setdefault(ledger_id, []).append(new)
        return new

    def _copy(self, source: str, target: str) -> None:
        reader = self._files.open(source)
        try:
            writer = self._files.overwrite(target)
            try:
                end = 0
                while (found := reader.data_from(end)) is not None:  # holes stay holes
                    begin, end = found
                    end = min(end, begin + _COPY_BYTES)
                    writer.pwrite(reader.pread(end - begin, begin), begin)
                writer.truncate(reader.size())
                writer.sync()
            finally:
                writer.close()
        finally:
            reader.close()

    # --- deletion -------------------------------------------------------------------------------------------

    def delete(self, ledger_id: int) -> None:
        """Forget the ledger's file; `unlink_deleted` removes it. Memory only."""
        with self._lock:
            files = [directories.pop(ledger_id, None) for directories in (self._where, self._half_moved)]
        for directory in files:
            if directory is not None:
                self.disown(ledger_id, directory)

    def disown(self, ledger_id: int, directory: str) -> None:
        """A file in this directory belongs to a life of the ledger that is over."""
        with self._lock:
            self.generation += 1
            if directory in self._lost:
                self.cut_off.add(ledger_id)
            else:
                self._deleted.setdefault(ledger_id, []).append(directory)

    def give_up(self, directory: str) -> None:
        """The disk of this directory failed."""
        for ledger_id in self.deleted_ledgers():
            with contextlib.suppress(OSError):  # what was to be removed may still be
                self.unlink_deleted(ledger_id)
        with self._lock:
            self._lost.add(directory)
            for ledger_id, directories in list(self._deleted.items()):
                if directory in directories:
                    self.cut_off.add(ledger_id)
                    del self._deleted[ledger_id]

    def of(self, error: OSError) -> str | None:
        """Return the directory that an error is about."""
        path = str(error.filename)
        return next((each for each in self._dirs.all() if path == each or path.startswith(f"{each}/")), None)

    def in_use(self) -> list[str]:
        """All directories but those that were given up."""
        return [directory for directory in self._dirs.all() if directory not in self._lost]

    def is_lost(self, directory: str | None) -> bool:
        """Return whether the directory was given up."""
        return directory in self._lost

    def deleted_ledgers(self) -> list[int]:
        with self._lock:
            return list(self._deleted)

    def unlink_deleted(self, ledger_id: int) -> None:
        """Remove what earlier lives of the ledger left, durably. `OSError`; may be repeated."""
        left = list(self._deleted.get(ledger_id, ()))
        for directory in self.in_use() if left else ():
            self._remove_copy(ledger_id, directory)  # of a move that failed: a start would take it for the file
        for directory in left:
            path = posixpath.join(directory, relative_path(ledger_id))
            with contextlib.suppress(FileNotFoundError):  # never there, or removed by a try that failed behind it
                self._files.unlink(path)
            self._files.sync_directory(posixpath.dirname(path))
            with self._lock:
                self._deleted[ledger_id].remove(directory)
                if not self._deleted[ledger_id]:
                    del self._deleted[ledger_id]


def _copy_in(directory: str, ledger_id: int) -> str:
    """Return the path that a move writes to."""
    return posixpath.join(directory, relative_path(ledger_id).removesuffix(SUFFIX) + MOVING_SUFFIX)


def max_entry_id(files: Files, directories: Sequence[str], page_bytes: int) -> int:
    """The highest entry id whose slot every directory's file system can hold (CephFS, for one, takes files of 1 TiB).

    A directory that cannot be asked, being full or mounted read-only, is believed to take what most do.
    """
    for bits in range(MAX_ENTRY_ID.bit_length(), 0, -1):
        length = slot_offset(1 << bits) + page_bytes
        if all(_takes_file_of(files, directory, length) for directory in directories):
            break
    return (1 << bits) - 1


def _takes_file_of(files: Files, directory: str, length: int) -> bool:
    try:
        return files.takes_file_of(directory, length)
    except OSError as error:
        _log.warning("how long an index file may be cannot be found out", directory=directory, error=str(error))
        return True


def index_folders(files: Files, directory: str) -> list[str]:
    """The folders of the second level that hold index files. They stay when the last file goes, and tell thus that an
    index was here."""
    return [f"{first}/{name}" for first in _hex_folders(files, directory) for name in _hex_names(files, first)]


def _hex_folders(files: Files, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in _hex_names(files, directory)]


def _hex_names(files: Files, directory: str) -> list[str]:
    names = files.listdir(directory) if files.is_dir(directory) else []
    return [name for name in names if len(name) <= 2 and _HEX.issuperset(name) and files.is_dir(f"{directory}/{name}")]
