"""The folder in an index folder in which a new database is built, until it is swapped in.

Nothing in it counts: whoever finds it may remove it, unless `index-swap.json` names it.

Threads: one, that of the rebuild.
"""

from __future__ import annotations

from typing import Final

from bookie_pod.storage.conversion.swap import ToolStores
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_pod.storage.inspect.layout import BUILDING_SUFFIX
from bookie_protocol.errors import StorageFault

BUILD_FOLDER: Final = f"rebuilt{BUILDING_SUFFIX}"
_STAMP: Final = b"\xff" * 16


def open_new(files: Files, stores: ToolStores, index_folder: str, kind: StoreKind) -> OrderedStore:
    """An empty database that counts as written (see `engines.detection`). `StorageFault`."""
    remove_build_folder(files, stores, index_folder)
    path = f"{index_folder}/{BUILD_FOLDER}/{kind.value}"
    try:
        files.makedirs(f"{index_folder}/{BUILD_FOLDER}")
    except OSError as error:
        raise StorageFault(f"cannot make {path}: {error}") from error
    store = stores.open(path, kind)
    try:
        batch = store.batch()
        batch.delete(_STAMP)
        batch.commit()
    except BaseException:
        store.close()
        raise
    return store


def remove_build_folder(files: Files, stores: ToolStores, index_folder: str) -> None:
    """Remove what was built; no error if there is nothing. `StorageFault`."""
    folder = f"{index_folder}/{BUILD_FOLDER}"
    try:
        for kind in StoreKind:
            stores.remove(f"{folder}/{kind.value}")
        stores.remove(folder)
    except OSError as error:
        raise StorageFault(f"cannot remove {folder}: {error}") from error
