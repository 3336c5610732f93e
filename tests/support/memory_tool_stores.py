"""`DiskStores` in memory: databases of a `MemoryStores` beside the files of a `MemoryFiles`.

Moving or removing a database is one atomic, durable operation of the shared faults.
"""

from __future__ import annotations

import random

from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_pod.storage.index_rebuild.swap import DiskStores, remove_tree
from tests.support.memory_faults import Operation
from tests.support.memory_files import MemoryFiles
from tests.support.memory_store import MemoryStores


class MemoryToolStores(DiskStores):
    """The databases and folders of one bookie."""

    def __init__(self, files: MemoryFiles, stores: MemoryStores) -> None:
        self.files = files
        self.stores = stores

    def exists(self, path: str) -> bool:
        return self.stores.exists(path)

    def is_there(self, path: str) -> bool:
        return self.stores.exists(path) or self.files.exists(path)

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        return self.stores.open(path, kind)

    def move(self, source: str, target: str) -> None:
        if source in self.stores.stores:
            self.files.faults.before(Operation("rename", source))
            moved = self.stores.stores.pop(source)
            moved._path = target
            self.stores.stores[target] = moved
            return
        self.files.rename(source, target)
        self.files.sync_directory(source.rpartition("/")[0])
        self.files.sync_directory(target.rpartition("/")[0])

    def remove(self, path: str) -> None:
        for known in [known for known in self.stores.stores if known == path or known.startswith(path + "/")]:
            self.files.faults.before(Operation("unlink", known))
            del self.stores.stores[known]
        remove_tree(self.files, path)

    def copy(self) -> MemoryToolStores:
        """The same disks for another run, with faults of their own."""
        files = self.files.restart()
        stores = MemoryStores(files.faults)
        for path, store in self.stores.stores.items():
            stores.stores[path] = store.after_crash(files.faults, store.unsynced)
        return MemoryToolStores(files, stores)

    def crash(self, rng: random.Random) -> MemoryToolStores:
        """The disks after a power cut."""
        files = self.files.crash(rng, whole_sectors=True)
        return MemoryToolStores(files, self.stores.crash(rng, files.faults))
