"""Trouble of the machine on which a tool runs is not taken for a database that is gone or damaged."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bookie_pod.cli.disk.place import Place
from bookie_pod.cli.disk.read_only import ReadOnlyStores
from bookie_pod.cli.disk.rebuild import _refuse_databases
from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.engines.detection import DB_LEDGER_STORAGE, check_engine
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.offline import OfflineLedgers, OfflineLocations
from bookie_pod.storage.index_rebuild.swap import DiskStores
from bookie_pod.storage.inspect.layout import DiskLayout
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_protocol.errors import ResourcesShort, StorageFault
from tests.support.stored_disks import write_disk

Patch = pytest.MonkeyPatch


def _raising(number: int) -> Callable[..., NoReturn]:
    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(number, os.strerror(number), "here")

    return fail


def _no_links(patch: Patch) -> None:
    patch.setattr(os, "symlink", _raising(errno.ENOSPC))


def _no_rights(patch: Patch) -> None:
    patch.setattr(os, "symlink", _raising(errno.EPERM))


def _no_folder(patch: Patch) -> None:
    patch.setattr(tempfile, "mkdtemp", _raising(errno.ENOENT))


def _no_descriptors(patch: Patch) -> None:
    patch.setattr(os, "listdir", _raising(errno.EMFILE))


def _no_status(number: int) -> Callable[[Patch], None]:
    """No database folder tells whether it holds a database."""
    stat = os.stat

    def fail(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith("/CURRENT"):
            raise OSError(number, os.strerror(number), str(path))
        return stat(path, *args, **kwargs)

    return lambda patch: patch.setattr(os, "stat", fail)


_stale = _no_status(errno.ESTALE)


def _rebuild_ledgers(folder: str) -> None:
    files = PosixFiles()
    with closing(StoredLogs(files, [folder])) as logs:
        OfflineLedgers(files, DiskStores(files), ReadOnlyStores(), folder, logs, (), number=0, count=1).close()


def _rebuild_locations(folder: str) -> None:
    files = PosixFiles()
    with closing(StoredLogs(files, [folder])) as logs:
        OfflineLocations(files, DiskStores(files), ReadOnlyStores(), folder, logs).close()


@pytest.mark.parametrize("rebuild", [_rebuild_ledgers, _rebuild_locations])
@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (_no_links, ResourcesShort),
        (_no_rights, ResourcesShort),
        (_no_folder, ResourcesShort),
        (_stale, StorageFault),
    ],
)
def test_a_rebuild_does_not_go_on_without_the_old_database(
    rebuild: Callable[[str], None], trouble: Callable[[Patch], None], kind: type[StorageFault], tmp_path: Path
) -> None:
    layout = write_disk("db", tmp_path, {1: 3, 2: 3}, fenced=(2,))
    with pytest.MonkeyPatch.context() as patch:
        trouble(patch)
        with pytest.raises(kind):
            rebuild(layout.ledgers[0])
    rebuild(layout.ledgers[0])


@pytest.mark.parametrize("trouble", [_no_links, _no_folder, _no_descriptors])
def test_a_database_that_is_only_read_tells_trouble_of_the_machine(
    trouble: Callable[[Patch], None], tmp_path: Path
) -> None:
    layout = write_disk("db", tmp_path, {1: 3})
    with pytest.MonkeyPatch.context() as patch:
        trouble(patch)
        with pytest.raises(ResourcesShort):
            ReadOnlyStores().open(f"{layout.ledgers[0]}/{StoreKind.LEDGERS.value}", StoreKind.LEDGERS)


def _to_change(layout: DiskLayout) -> None:
    with Place(layout, BookieConfig(), PosixFiles()).to_change(unclean=True):
        pass


def _start(layout: DiskLayout) -> None:
    files = PosixFiles()
    check_engine(files, RocksStores(files), layout.ledgers, layout.index_folders, DB_LEDGER_STORAGE)


@pytest.mark.parametrize(
    "look",
    [
        lambda layout: ReadOnlyStores().exists(f"{layout.ledgers[0]}/{StoreKind.LEDGERS.value}"),
        lambda layout: DiskStores(PosixFiles()).exists(f"{layout.ledgers[0]}/{StoreKind.LEDGERS.value}"),
        lambda layout: StoredSpaces(PosixFiles(), ReadOnlyStores(), layout),
        lambda layout: _refuse_databases(DiskStores(PosixFiles()), layout.index_folders),
        _to_change,
        _start,
    ],
    ids=["read only", "a tool", "inspection", "rebuild of index files", "a change", "a start"],
)
@pytest.mark.parametrize(("number", "kind"), [(errno.ESTALE, StorageFault), (errno.EMFILE, ResourcesShort)])
def test_whether_there_is_a_database_may_be_unknown(
    look: Callable[[DiskLayout], object], number: int, kind: type[StorageFault], tmp_path: Path
) -> None:
    layout = write_disk("db", tmp_path, {1: 3})
    with pytest.MonkeyPatch.context() as patch:
        _no_status(number)(patch)
        with pytest.raises(kind) as raised:
            look(layout)
    assert type(raised.value) is kind
