"""Databases opened for reading without a trace.

RocksDB's binding writes a small file into every database that it opens, also for reading only. So a database is opened
through a temporary folder of symbolic links to its files, and its own folder is never written to. The write-ahead log
is replayed in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from rocksdict import AccessType, Rdict

from bookie_pod.storage.index.rocksdb_store import IDENTITY_FILE, RocksStore, build_options
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault

_CONFIG_FILE = "rocksdict-config.json"


class ReadOnlyRocksStore(RocksStore):
    """A `RocksStore` that refuses to write. Faults name the database's own folder."""

    def __init__(self, path: str, kind: StoreKind) -> None:
        self._shadow = tempfile.mkdtemp(prefix="bookie-disk-")
        self._original = path
        try:
            for name in os.listdir(path):
                if name not in ("LOCK", _CONFIG_FILE):
                    os.symlink(os.path.realpath(os.path.join(path, name)), os.path.join(self._shadow, name))
            super().__init__(path, read_identity=self._read_identity, kind=kind)
        except OSError as error:
            self._remove_shadow()
            raise StorageFault(f"RocksDB in {path}: open failed: {error}") from error
        except BaseException:
            self._remove_shadow()
            raise

    def _open(self) -> Rdict:
        try:
            options = build_options(self._config, self._kind)
            options.create_if_missing(False)
            return Rdict(self._shadow, options, access_type=AccessType.read_only())
        except Exception as error:  # the binding raises bare Exception for every RocksDB status
            raise self._fault("open", str(error).replace(self._shadow, self._original)) from error

    def _read_identity(self) -> bytes:
        try:
            with open(f"{self._shadow}/{IDENTITY_FILE}", "rb") as file:
                return file.read()
        except FileNotFoundError:  # the next who writes makes another
            return b""

    def close(self) -> None:
        super().close()
        self._remove_shadow()

    def _remove_shadow(self) -> None:
        shutil.rmtree(self._shadow, ignore_errors=True)


class ReadOnlyStores:
    """`StoreFactory` of databases that are only read."""

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{path}/CURRENT")

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        return ReadOnlyRocksStore(path, kind)
