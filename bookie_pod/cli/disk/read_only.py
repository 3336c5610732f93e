"""Databases opened for reading without a trace.

RocksDB's binding writes a small file into every database that it opens, also for reading only. So a database is opened
through a temporary folder of symbolic links to its files, and its own folder is never written to. The write-ahead log
is replayed in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence

from rocksdict import AccessType, Rdict

from bookie_pod.storage.files import storage_fault
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.rocksdb_store import IDENTITY_FILE, RocksStore, RocksStores, build_options
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import ResourcesShort

_CONFIG_FILE = "rocksdict-config.json"


class ReadOnlyRocksStore(RocksStore):
    """A `RocksStore` that refuses to write. Faults name the database's own folder."""

    def __init__(self, path: str, kind: StoreKind) -> None:
        self._original = path
        try:
            names = os.listdir(path)
        except OSError as error:
            raise storage_fault(f"RocksDB in {path}: open failed", error) from error
        self._shadow = _new_folder()
        try:
            self._link(path, names)
            super().__init__(path, read_identity=self._read_identity, kind=kind)
        except OSError as error:
            self._remove_shadow()
            raise storage_fault(f"RocksDB in {path}: open failed", error) from error
        except BaseException:
            self._remove_shadow()
            raise

    def _link(self, path: str, names: Sequence[str]) -> None:
        targets = {name: os.path.realpath(os.path.join(path, name)) for name in names}
        try:
            for name, target in targets.items():
                if name not in ("LOCK", _CONFIG_FILE):
                    os.symlink(target, os.path.join(self._shadow, name))
        except OSError as error:
            raise _cannot_link(error) from error

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


def _new_folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="bookie-disk-")
    except OSError as error:
        raise _cannot_link(error) from error


def _cannot_link(error: OSError) -> ResourcesShort:
    """Return the error for a temporary folder that takes no links, whatever the reason: no database is at fault."""
    return ResourcesShort(
        f"cannot make links in a temporary folder: {error}. Set TMPDIR to a folder with room, and try again"
    )


class ReadOnlyStores(RocksStores):
    """`StoreFactory` of databases that are only read."""

    def __init__(self) -> None:
        super().__init__(PosixFiles())

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        return ReadOnlyRocksStore(path, kind)
