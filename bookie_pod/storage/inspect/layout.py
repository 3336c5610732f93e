"""The layout of a bookie's directories: which engine wrote them, and which file is what.

Pure reading; any thread.

Source: docs/internals/on-disk-formats.md, section 1; docs/internals/bookie-behaviour.md, section 13.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_pod.storage.engines.detection import SWAP_FILE, check_no_swap
from bookie_pod.storage.entry_log.names import LAST_ID_FILE, parse_log_name
from bookie_pod.storage.files import TEMPORARY_SUFFIX, Files, storage_fault
from bookie_pod.storage.index.index_file import MOVING_SUFFIX, SUFFIX
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_pod.storage.index.store import StoreFactory, StoreKind
from bookie_protocol.errors import WrongStorageEngine

BACKUP_MARKS: Final = (".BACKUP-", ".PREV-")
BUILDING_SUFFIX: Final = ".building"
"""The suffix of an index that is being built beside the one in use."""
FORMAT_MARK: Final = "format-unfinished"
"""The file in each folder while `bookie disk format` empties the folders; no bookie may use the remains as its own."""
PLACE_FILE: Final = "directory-place"
"""The file in each folder that says which of the bookie's directories it is (see `node.identity.places`)."""
_HEX: Final = re.compile(r"[0-9a-f]{1,2}")
_COLLECTION: Final = ("gc-state.json", "gc-deleted-ledgers", "gc-fenced-ledgers")
_STATE: Final = frozenset(
    {
        *(LAST_ID_FILE, "DIRTY", "BOOKIE_STATUS", *_COLLECTION, "scrub-state.json", SWAP_FILE, FORMAT_MARK),
        *("disk-age", "earlier-ledgers", "metadata-seen", "storage-flags", "index-seal", "index-files-seal"),
        *("disk-full", "start-reserve"),
    }
)
_MARK: Final = re.compile(r"lastMark(\.\d+)?")
_DATABASES: Final = frozenset({*(kind.value for kind in StoreKind), "metadata-cache"})


@dataclass(frozen=True, slots=True)
class DiskLayout:
    """The `current` folders of one bookie, in the order of its configuration."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    """Empty: the ledger folders."""

    @property
    def index_folders(self) -> tuple[str, ...]:
        return self.indexes or self.ledgers

    @property
    def folders(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.journals, *self.ledgers, *self.indexes)))


class IndexKind(Enum):
    """The two layouts of an index."""

    DATABASES = "DbLedgerStorage"
    """`ledgers/` and `locations/` per ledger directory."""
    FILES = "SortedLedgerStorage or InterleavedLedgerStorage"
    """One `.idx` file per ledger."""


def index_kind(files: Files, stores: StoreFactory, folders: Sequence[str]) -> IndexKind | None:
    """Which index the folders hold; None: none at all. `WrongStorageEngine` if both are there, or an unfinished swap.

    Database folders without the other one, and empty folders of index files, count: something was lost there.
    """
    try:
        for folder in folders:
            check_no_swap(files, folder)
        databases = [
            f"{folder}/{kind.value}"
            for folder in folders
            for kind in StoreKind
            if stores.exists(f"{folder}/{kind.value}")
        ]
        trees = [tree for folder in folders for tree in index_folders(files, folder)]
    except OSError as error:
        raise storage_fault(f"cannot look into {error.filename}", error) from error
    if databases and any(name.endswith(SUFFIX) for tree in trees for name in files.listdir(tree)):
        raise WrongStorageEngine(
            f"{databases[0]} and index files in {trees[0]} are both there, so it is unknown which index counts: "
            "move one of them away"
        )
    if databases:
        return IndexKind.DATABASES
    return IndexKind.FILES if trees else None


# --- files ------------------------------------------------------------------------------------------------


class FileKind(Enum):
    """The kind of a file; the value is what commands print."""

    JOURNAL = "journal"
    ENTRY_LOG = "entry log"
    COMPACTION = "compaction"
    """A log of a compaction under way: `.log.compacting`, `.compacted`."""
    INDEX = "index"
    """A file of a RocksDB database, or an index file."""
    BACKUP = "backup"
    """An index that a conversion or a rebuild put aside."""
    COOKIE = "cookie"
    MARK = "mark"
    STATE = "state"
    """Small files beside the logs: `lastId`, `DIRTY`, `BOOKIE_STATUS`, state of collection and scrubbing."""
    TEMPORARY = "temporary"
    """Left by something that was interrupted."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DiskFile:
    """One file; `nbytes` is its length."""

    kind: FileKind
    path: str
    nbytes: int
    modified_ms: int


def list_files(files: Files, layout: DiskLayout) -> Iterator[DiskFile]:
    """Every file below the folders, folder by folder in the order of names."""
    for folder in layout.folders:
        if files.is_dir(folder):
            yield from _walk(files, folder, "")


def _walk(files: Files, folder: str, below: str) -> Iterator[DiskFile]:
    for name in files.listdir(f"{folder}/{below}" if below else folder):
        relative = f"{below}/{name}" if below else name
        path = f"{folder}/{relative}"
        if files.is_dir(path):
            yield from _walk(files, folder, relative)
            continue
        try:
            yield DiskFile(kind_of(relative), path, files.size(path), files.modified_ms(path))
        except FileNotFoundError:
            continue  # a running bookie removed it meanwhile


def kind_of(relative: str) -> FileKind:
    """Return the kind of the file at this path below a `current` folder."""
    top, _, rest = relative.partition("/")
    name = relative.rsplit("/", 1)[-1]
    if any(mark in top for mark in BACKUP_MARKS):
        return FileKind.BACKUP
    if name.endswith((TEMPORARY_SUFFIX, BUILDING_SUFFIX)) or top.endswith(BUILDING_SUFFIX):
        return FileKind.TEMPORARY
    if rest:
        in_tree = _HEX.fullmatch(top) is not None and name.endswith((SUFFIX, MOVING_SUFFIX))
        return FileKind.INDEX if top in _DATABASES or in_tree else FileKind.OTHER
    if name.endswith(".txn"):
        return FileKind.JOURNAL
    if parse_log_name(name) is not None:
        return FileKind.ENTRY_LOG
    if name.endswith((".log.compacting", ".compacted")):
        return FileKind.COMPACTION
    if name == "VERSION":
        return FileKind.COOKIE
    if _MARK.fullmatch(name):
        return FileKind.MARK
    return FileKind.STATE if name in _STATE else FileKind.OTHER
