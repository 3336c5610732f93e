"""Putting a database that was built beside a running bookie's into its place.

The renames are written down first, as those of the tools are (`storage.index_rebuild.swap`), but a start of the bookie
finishes them by itself: what they were decided on was complete. So a crash leaves the old database or the new one.

Invariants
- No rename before both databases are closed, and the closed one has let go of its lock: a database that is still open
  would write into its successor's folder.
- The old database stays as `<name>.BACKUP-<time>`.

Threads: that of the rebuild; `finish_online_rebuilds` the start of the bookie.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import structlog

from bookie_pod.storage.files import Files
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_pod.storage.index_rebuild.swap import (
    BUILD_FOLDER,
    ToolStores,
    finish,
    free_backup_suffix,
    interrupted,
    open_new,
    remove_build_folder,
    swap,
)
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

PURPOSE: Final = "online rebuild of"
OPEN_TRIES: Final = 100
OPEN_PAUSE_S: Final = 0.02
"""How often, and after how long, a database is opened whose predecessor may still be looked at by a reader."""


class NewDatabase:
    """A database that is built; `switch` puts it in place, `discard` removes it."""

    def __init__(self, files: Files, stores: ToolStores, index_folder: str, kind: StoreKind) -> None:
        """`StorageFault` if it cannot be made."""
        self.backup = ""
        """Path of the old database, once it was put aside."""
        self.failure: StorageFault | None = None
        """Why `switch` opened the old database again."""
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
            backup = name + free_backup_suffix(self._files, self._folder)
            moves = [(name, backup), (f"{BUILD_FOLDER}/{name}", name)]
            swap(self._files, self._stores, self._folder, f"{PURPOSE} {name}", moves)
        except (StorageFault, OSError) as error:
            if interrupted(self._files, self._folder) is not None:
                raise StorageFault(f"{error}; the next start of the bookie finishes it") from error
            self.failure = StorageFault(str(error))
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


def finish_online_rebuilds(files: Files, stores: ToolStores, index_folders: Iterable[str]) -> None:
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
