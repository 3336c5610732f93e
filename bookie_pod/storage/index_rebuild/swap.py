"""Putting a new index in the place of the old one so that a crash at any point can be finished.

A swap is a list of renames inside one index folder. They cannot be done at once, so they are written down first, in the
file `index-swap.json`; writing it is the moment at which the new index counts. A bookie refuses a folder with that file
(`engines.detection`), and the next run of any tool finishes the renames. Those of a database that was built beside a
running bookie's are finished by the next start of the bookie: what they were decided on was complete.

    {"version": 1, "purpose": "...", "moves": [["locations", "locations.BACKUP-20260101-000000"], ...]}

Invariants
- Before the file is there nothing of the old index was touched. After it, every rename is done, in order, each durable
  before the next. One was done before a crash if its target is there and its source is gone, or is what a later rename
  has put there. Where both are there otherwise, nothing is moved and nothing removed: neither may be thrown away.
- The old index stays, under its backup name.
- The contents of the folder in which a database is built do not count: any process that finds it may remove it, unless
  `index-swap.json` names it.
- No rename of a database in use before both are closed, and the closed one has let go of its lock: a database that is
  still open would write into its successor's folder.

Threads: one; no bookie may run, but for the one whose own closed database is swapped (`NewDatabase`).
"""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from bookie_pod.storage.engines.detection import SWAP_FILE
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
from bookie_pod.storage.inspect.layout import BUILDING_SUFFIX
from bookie_protocol.errors import UNREADABLE, StorageFault

VERSION: Final = 1
Move = tuple[str, str]
"""Names below the index folder: from, to."""
BUILD_FOLDER: Final = f"rebuilt{BUILDING_SUFFIX}"
_STAMP: Final = b"\xff" * 16
_log = structlog.get_logger(__name__)

PURPOSE: Final = "online rebuild of"
OPEN_TRIES: Final = 100
OPEN_PAUSE_S: Final = 0.02
"""Seconds between tries to open a database whose predecessor a reader may still use."""


class DiskStores:
    """Folders and RocksDB databases below an index folder, which can be moved and removed while they are closed."""

    def __init__(self, files: Files, stores: StoreFactory | None = None) -> None:
        self._files = files
        self._stores = stores or RocksStores(files)

    def exists(self, path: str) -> bool:
        return self._stores.exists(path)

    def is_there(self, path: str) -> bool:
        """Return whether anything is at `path`, a database that does not open included. `OSError`."""
        return self._files.exists(path)

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        return self._stores.open(path, kind)

    def move(self, source: str, target: str) -> None:
        """Rename, durable on return. `OSError`."""
        self._files.rename(source, target)
        for folder in {posixpath.dirname(source), posixpath.dirname(target)}:
            self._files.sync_directory(folder)

    def remove(self, path: str) -> None:
        """Remove with everything in it; no error if it is not there. `OSError`."""
        remove_tree(self._files, path)


def remove_tree(files: Files, path: str) -> None:
    """Remove a file, or a folder with everything in it; no error if it is not there. `OSError`."""
    if files.is_dir(path):
        for name in files.listdir(path):
            remove_tree(files, f"{path}/{name}")
        files.rmdir(path)
    elif files.exists(path):
        files.unlink(path)


def remove_empty(files: Files, path: str) -> None:
    """Remove a folder in which there are only folders; no error if it is not there. `StorageFault`: it holds files."""
    try:
        if files.exists(path):
            for name in files.listdir(path):
                if not files.is_dir(f"{path}/{name}"):
                    raise StorageFault(f"{path}/{name} is in the way of the new index: move it away")
                remove_empty(files, f"{path}/{name}")
            files.rmdir(path)
    except OSError as error:
        raise storage_fault(f"cannot remove {path}", error) from error


def backup_suffix(now: float | None = None) -> str:
    """`.BACKUP-<UTC date and time>`, as the reference's tools name what they put aside."""
    return time.strftime(".BACKUP-%Y%m%d-%H%M%S", time.gmtime(now))


def free_backup_suffix(folders: DiskStores, index_folder: str, names: Sequence[str], now: float | None = None) -> str:
    """A backup suffix with which none of these names is in the folder yet: a swap replaces nothing. `OSError`."""
    suffix = found = backup_suffix(now)
    at = 1
    while any(folders.is_there(f"{index_folder}/{name}{found}") for name in names):
        at += 1
        found = f"{suffix}-{at}"
    return found


def swap(files: Files, folders: DiskStores, index_folder: str, purpose: str, moves: Sequence[Move]) -> None:
    """Write the moves down, then do them. `StorageFault`: `finish` them later, if they were written down."""
    _check_possible(folders, index_folder, moves)
    content = {"version": VERSION, "purpose": purpose, "moves": [list(move) for move in moves]}
    try:
        files.write_bytes_atomic(f"{index_folder}/{SWAP_FILE}", json.dumps(content, indent=1).encode())
    except OSError as error:
        raise storage_fault(f"cannot write {index_folder}/{SWAP_FILE}", error) from error
    _carry_out(files, folders, index_folder, moves)


def finish(files: Files, folders: DiskStores, index_folder: str) -> str | None:
    """Finish a swap that was interrupted; what it was for, None if there was none. `StorageFault`."""
    found = _written_down(files, index_folder)
    if found is None:
        return None
    purpose, moves = found
    _carry_out(files, folders, index_folder, moves)
    return purpose


def interrupted(files: Files, index_folder: str) -> str | None:
    """Return the purpose of an interrupted swap, or None if there is none. Raises `StorageFault`."""
    found = _written_down(files, index_folder)
    return None if found is None else found[0]


def _written_down(files: Files, index_folder: str) -> tuple[str, list[Move]] | None:
    path = f"{index_folder}/{SWAP_FILE}"
    if not files.exists(path):
        return None
    try:
        content = json.loads(files.read_bytes(path))
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, known is {VERSION}")
        return str(content["purpose"]), [(str(source), str(target)) for source, target in content["moves"]]
    except OSError as error:
        raise storage_fault(f"cannot read {path}", error) from error
    except UNREADABLE as error:
        raise StorageFault(
            f"{path} cannot be understood ({error}): look at it, and at the folders beside it"
        ) from error


def _check_possible(folders: DiskStores, index_folder: str, moves: Sequence[Move]) -> None:
    """Raise `StorageFault` for moves that could be begun, but not ended."""
    moved: dict[str, bool] = {}
    try:
        for source, target in moves:
            if not moved.get(source, folders.is_there(f"{index_folder}/{source}")):
                raise StorageFault(f"{index_folder}: {source} is not there; nothing was changed")
            if moved.get(target, folders.is_there(f"{index_folder}/{target}")):
                raise _both(index_folder, source, target)
            moved[source], moved[target] = False, True
    except OSError as error:
        raise storage_fault(f"cannot look into {index_folder}", error) from error


def _both(index_folder: str, source: str, target: str) -> StorageFault:
    return StorageFault(
        f"{index_folder}: {source} belongs in the place of {target}, and both are there; nothing more was changed: move"
        f" {target} away, if it is not wanted"
    )


def _carry_out(files: Files, folders: DiskStores, index_folder: str, moves: Sequence[Move]) -> None:
    def is_there(name: str) -> bool:
        return folders.is_there(f"{index_folder}/{name}")

    try:
        for at, (source, target) in enumerate(moves):
            if not is_there(target):
                if not is_there(source):
                    raise StorageFault(
                        f"{index_folder}: neither {source} nor {target} is there; nothing more was changed"
                    )
                folders.move(f"{index_folder}/{source}", f"{index_folder}/{target}")
            elif is_there(source) and not any(
                source == later and not is_there(origin) for origin, later in moves[at + 1 :]
            ):
                raise _both(index_folder, source, target)
        files.unlink(f"{index_folder}/{SWAP_FILE}")
        files.sync_directory(index_folder)
    except OSError as error:
        what = f"cannot put the new index of {index_folder} in its place (the same command finishes it later)"
        raise storage_fault(what, error) from error


def open_new(files: Files, stores: DiskStores, index_folder: str, kind: StoreKind) -> OrderedStore:
    """Open a new, empty database that counts as written (see `engines.detection`). Raises `StorageFault`."""
    remove_build_folder(files, stores, index_folder)
    path = f"{index_folder}/{BUILD_FOLDER}/{kind.value}"
    try:
        files.makedirs(f"{index_folder}/{BUILD_FOLDER}")
    except OSError as error:
        raise storage_fault(f"cannot make {path}", error) from error
    store = stores.open(path, kind)
    try:
        batch = store.batch()
        batch.delete(_STAMP)
        batch.commit()
    except BaseException:
        store.close()
        raise
    return store


def remove_build_folder(files: Files, stores: DiskStores, index_folder: str) -> None:
    """Remove what was built; no error if there is nothing. `StorageFault`."""
    folder = f"{index_folder}/{BUILD_FOLDER}"
    try:
        for kind in StoreKind:
            stores.remove(f"{folder}/{kind.value}")
        stores.remove(folder)
    except OSError as error:
        raise storage_fault(f"cannot remove {folder}", error) from error


class NewDatabase:
    """A database that is built; `switch` puts it in place, `discard` removes it."""

    def __init__(self, files: Files, stores: DiskStores, index_folder: str, kind: StoreKind) -> None:
        """`StorageFault` if it cannot be made."""
        self.backup = ""
        """Path of the old database, once it was put aside."""
        self.failure: StorageFault | None = None
        """The reason why `switch` opened the old database again."""
        self._files = files
        self._stores = stores
        self._folder = index_folder
        self._kind = kind
        self.store = open_new(files, stores, index_folder, kind)

    def switch(self) -> OrderedStore:
        """Put the new database in the place of the old one and open it; both are closed. If nothing could be moved, the
        old one is opened, and `failure` tells why. `StorageFault`: neither can be used before the next start."""
        name = self._kind.value
        path = f"{self._folder}/{name}"
        self._open(path).close()  # the old one has let go of it
        try:
            backup = name + free_backup_suffix(self._stores, self._folder, [name])
            moves = [(name, backup), (f"{BUILD_FOLDER}/{name}", name)]
            swap(self._files, self._stores, self._folder, f"{PURPOSE} {name}", moves)
        except (StorageFault, OSError) as error:
            what = f"cannot put the new index of {self._folder} in its place"
            fault = storage_fault(what, error) if isinstance(error, OSError) else error
            if interrupted(self._files, self._folder) is not None:
                _log.error("the next start of the bookie finishes the swap of an index", index=self._folder)
                raise fault from error
            self.failure = fault
        else:
            self.backup = f"{self._folder}/{backup}"
        return self._open(path)

    def _open(self, path: str) -> OrderedStore:
        for _ in range(OPEN_TRIES - 1):
            try:
                return self._stores.open(path, self._kind)
            except StorageFault:
                time.sleep(OPEN_PAUSE_S)
        return self._stores.open(path, self._kind)

    def discard(self) -> None:
        """Remove what was built, if it was not put in place. A fault is logged: the next rebuild tries again."""
        try:
            if not self.backup:
                self.store.close()
            if interrupted(self._files, self._folder) is None:
                remove_build_folder(self._files, self._stores, self._folder)
        except StorageFault as error:
            _log.warning("what a rebuild of an index has left is not removed", reason=str(error))


def finish_online_rebuilds(files: Files, stores: DiskStores, index_folders: Iterable[str]) -> None:
    """Before the databases are opened: finish the swaps of online rebuilds that a crash interrupted, and remove what
    others have left. Swaps of tools are left alone. `StorageFault`."""
    for folder in index_folders:
        purpose = interrupted(files, folder)
        if purpose is not None and not purpose.startswith(PURPOSE):
            continue
        if purpose is not None:
            finish(files, stores, folder)
            _log.warning("an interrupted swap of an index was finished", index=folder, purpose=purpose)
        if files.exists(f"{folder}/{BUILD_FOLDER}"):
            remove_build_folder(files, stores, folder)
