"""The spaces of a stopped bookie: entry logs with one space of ids, and the index that points into them.

One per ledger directory with DbLedgerStorage, one in all with the other engines. A space satisfies what the
consistency check and the rebuilds ask of a storage (`storage.integrity`).

Threads: one at a time per object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.store import StoreFactory, StoreKind
from bookie_pod.storage.inspect.index import DatabaseIndex, FileIndex, StoredIndex
from bookie_pod.storage.inspect.layout import DiskLayout, IndexKind, index_kind
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_protocol.errors import InvalidConfiguration, WrongStorageEngine


class StoredSpace:
    """Logs and index that belong together."""

    def __init__(self, logs: StoredLogs, index: StoredIndex, index_folders: Sequence[str]) -> None:
        self.logs = logs
        self.index = index
        self.index_folders = tuple(index_folders)

    @property
    def folders(self) -> tuple[str, ...]:
        """The ledger folders."""
        return self.logs.folders

    def ledger_ids(self) -> Iterator[int]:
        return self.index.ledger_ids()

    def has_ledger(self, ledger_id: int) -> bool:
        return self.index.record(ledger_id) is not None

    def rows(self, ledger_id: int, first_entry: int) -> Iterator[tuple[int, int]]:
        return self.index.rows(ledger_id, first_entry)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self.index.location_of(ledger_id, entry_id)

    def close(self) -> None:
        try:
            self.logs.close()
        finally:
            self.index.close()


class StoredSpaces:
    """All spaces of a bookie; a context manager that closes them."""

    def __init__(
        self, files: Files, stores: StoreFactory, layout: DiskLayout, config: BookieConfig | None = None
    ) -> None:
        """`StorageFault`, `WrongStorageEngine` if there is no index, or two; nothing stays open then."""
        self._open = ExitStack()
        self.spaces: list[StoredSpace] = []
        kind = index_kind(files, stores, layout.index_folders)
        if kind is None:
            raise WrongStorageEngine(
                f"{', '.join(layout.index_folders)} holds no index: name the index directories, or rebuild it with "
                "`bookie disk rebuild-ledgers` and `bookie disk rebuild-locations`"
            )
        self.kind = kind
        try:
            if kind is IndexKind.DATABASES:
                for folders in pairs(layout):
                    self._add(_open_databases(files, stores, *folders, config))
            else:
                logs = StoredLogs(files, layout.ledgers, config)
                self._add(StoredSpace(logs, FileIndex(files, layout.index_folders), layout.index_folders))
        except BaseException:
            self._open.close()
            raise

    def _add(self, space: StoredSpace) -> None:
        self._open.callback(space.close)
        self.spaces.append(space)

    def of(self, ledger_id: int) -> StoredSpace:
        """Return the space that the ledger belongs to, whether it is known there or not."""
        return self.spaces[ledger_id % len(self.spaces)]

    def __enter__(self) -> StoredSpaces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def pairs(layout: DiskLayout) -> list[tuple[str, str]]:
    """(ledger folder, index folder) one by one; `InvalidConfiguration` if they do not match."""
    if len(layout.ledgers) != len(layout.index_folders):
        raise InvalidConfiguration(
            f"{len(layout.index_folders)} index directories and {len(layout.ledgers)} ledger directories: "
            "DbLedgerStorage has as many of one as of the other"
        )
    return list(zip(layout.ledgers, layout.index_folders, strict=True))


def _open_databases(
    files: Files, stores: StoreFactory, ledger_folder: str, index_folder: str, config: BookieConfig | None
) -> StoredSpace:
    with ExitStack() as undo:
        logs = StoredLogs(files, [ledger_folder], config)
        undo.callback(logs.close)
        databases = []
        for kind in (StoreKind.LEDGERS, StoreKind.LOCATIONS):
            path = f"{index_folder}/{kind.value}"
            if not stores.exists(path):
                raise WrongStorageEngine(
                    f"{path} is not there: name the right index directories, or run `bookie disk rebuild-{kind.value}`"
                )
            databases.append(stores.open(path, kind))
            undo.callback(databases[-1].close)
        undo.pop_all()
    return StoredSpace(logs, DatabaseIndex(*databases), [index_folder])
