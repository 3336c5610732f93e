"""Which engine wrote a disk, and whether its index is still there.

Nothing on a disk names the engine. Opened by the wrong one, or with an empty index, a bookie would answer "no ledger"
for everything it holds, and garbage collection would then unlink the entry logs. Hence:

- `ledgers/` and `locations/` speak for DbLedgerStorage, `<h>/<h>/<hex>.idx` for Sorted or Interleaved (which share a
  layout); anything but the configured engine is refused.
- Entry logs that hold entries, without an index, are refused. For Sorted and Interleaved the folders `<h>/<h>`
  represent the index: a new one gets the first (`stamp_index`), and they stay when the last ledger is deleted.
- So is an index to which nothing was ever written. A new index is stamped (a deletion of a key that does not exist
  leaves no row but counts as a write), and only while no entry log holds an entry; one that lost all its rows to
  deletions has been written to. Thus "new" and "lost" stay apart.

Threads: the start of the bookie.

Source: docs/internals/bookie-behaviour.md, sections 1.5 (the engines' names) and 13.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.storage.entry_log.format import BLOCK, ENTRY_HEAD, HEADER_SIZE, SIZE_BYTES
from bookie_pod.storage.entry_log.names import parse_log_name
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.index_file import MOVING_SUFFIX, SUFFIX, relative_folder
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
from bookie_protocol.errors import InvalidConfiguration, WrongStorageEngine

DB_LEDGER_STORAGE: Final = StorageEngine.DB.value
SORTED_LEDGER_STORAGE: Final = StorageEngine.SORTED.value
INTERLEAVED_LEDGER_STORAGE: Final = StorageEngine.INTERLEAVED.value
KNOWN_ENGINES: Final = tuple(engine.value for engine in StorageEngine)


def is_db(class_name: str) -> bool:
    return class_name == DB_LEDGER_STORAGE


def short_name(class_name: str) -> str:
    """The class name without its package."""
    return class_name.rsplit(".", 1)[-1]


def check_name(class_name: str) -> str:
    """The name itself; `InvalidConfiguration` if no engine has it."""
    if class_name not in KNOWN_ENGINES:
        raise InvalidConfiguration(
            f"ledgerStorageClass={class_name} is not a storage engine; known are {', '.join(KNOWN_ENGINES)}"
        )
    return class_name


_STAMP_KEY = b"\xff" * 16

SWAP_FILE = "index-swap.json"
"""The file in an index folder that says that a tool is replacing the index (see `storage.index_rebuild.swap`)."""


def check_engine(
    files: Files,
    stores: StoreFactory,
    ledger_directories: Sequence[str],
    index_directories: Sequence[str],
    configured: str,
) -> None:
    """Refuse (`WrongStorageEngine`) directories that the configured engine did not write.

    Directories are the `current` folders that share one index: a pair of DbLedgerStorage, all of the other engines.
    `configured` is the Apache class name.
    """
    try:
        for index_directory in index_directories:
            check_no_swap(files, index_directory)
            _check_other_engine(files, stores, index_directory, configured)
        _check_index(files, stores, ledger_directories, index_directories, configured)
    except OSError as error:
        raise storage_fault(f"cannot inspect {error.filename}", error) from error


def check_no_swap(files: Files, index_directory: str) -> None:
    """`WrongStorageEngine` if a tool was interrupted while it put a new index in place."""
    if files.exists(f"{index_directory}/{SWAP_FILE}"):
        raise WrongStorageEngine(
            f"{index_directory}/{SWAP_FILE} is there: a conversion or rebuild of the index was interrupted; "
            "run `bookie disk finish` with the same configuration"
        )


def _check_other_engine(files: Files, stores: StoreFactory, index_directory: str, configured: str) -> None:
    index_file = _find_index_file(files, index_directory)
    if is_db(configured) and index_file is not None:
        raise WrongStorageEngine(
            f"{index_directory} was written by SortedLedgerStorage or InterleavedLedgerStorage ({index_file} exists), "
            f"not by {short_name(configured)}: set ledgerStorageClass={SORTED_LEDGER_STORAGE}, "
            f"or InterleavedLedgerStorage if that was configured"
        )
    if not is_db(configured) and not _missing(stores, index_directory):
        raise WrongStorageEngine(
            f"{index_directory} was written by DbLedgerStorage (ledgers/ and locations/ are there), "
            f"not by {short_name(configured)}: set ledgerStorageClass={DB_LEDGER_STORAGE}"
        )


def _check_index(
    files: Files,
    stores: StoreFactory,
    ledger_directories: Sequence[str],
    index_directories: Sequence[str],
    configured: str,
) -> None:
    """Refuse entry logs with entries whose index is gone."""
    if is_db(configured):
        lost = sorted({kind for directory in index_directories for kind in _missing(stores, directory)}, reverse=True)
        what = " and ".join(lost)
    else:
        # The folders remain when the last ledger was deleted, which distinguishes that from a lost index.
        lost = [] if any(index_folders(files, directory) for directory in index_directories) else ["index"]
        what = "any .idx file"
    if not lost:
        return
    for ledger_directory in ledger_directories:
        log = find_log_with_entries(files, ledger_directory)
        if log is not None:
            raise WrongStorageEngine(
                f"{', '.join(index_directories)} lacks {what}, but entry log {log} holds entries: bring the index of "
                f"{short_name(configured)} back there, or set ledgerStorageClass to the engine that wrote it"
            )


def stamp_index(files: Files, index_directories: Sequence[str]) -> None:
    """Mark new index directories of Sorted or Interleaved, before any entry is stored. They passed `check_engine`.

    `OSError`.
    """
    for directory in index_directories:
        if not index_folders(files, directory):
            files.makedirs(f"{directory}/{relative_folder(0)}")


def _missing(stores: StoreFactory, index_directory: str) -> list[str]:
    """Databases of DbLedgerStorage that are not in the directory."""
    return [kind.value for kind in StoreKind if not stores.exists(f"{index_directory}/{kind.value}")]


def check_not_lost(files: Files, store: OrderedStore, ledger_directory: str) -> bool:
    """Refuse an empty index over entry logs with entries; stamp it if it is new, and return whether it was."""
    if store.was_written():
        return False
    try:
        log = find_log_with_entries(files, ledger_directory)
    except OSError as error:
        raise storage_fault(f"cannot inspect {ledger_directory}", error) from error
    if log is not None:
        raise WrongStorageEngine(
            f"{store.path} is empty, but entry log {log} holds entries: the index was lost; bring it back "
            f"(nothing was changed)"
        )
    batch = store.batch()
    batch.delete(_STAMP_KEY)
    batch.commit()
    return True


def _find_index_file(files: Files, directory: str) -> str | None:
    """Return the path of one `<h>/<h>/<hex>.idx` below the directory, or None if there is none."""
    for folder in index_folders(files, directory):
        for name in files.listdir(folder):
            if name.endswith((SUFFIX, MOVING_SUFFIX)):
                return f"{folder.removeprefix(directory + '/')}/{name}"
    return None


def find_log_with_entries(files: Files, ledger_directory: str) -> str | None:
    """Path of an entry log of the directory that holds at least one entry, or None."""
    if not files.is_dir(ledger_directory):
        return None
    for name in files.listdir(ledger_directory):
        path = f"{ledger_directory}/{name}"
        if parse_log_name(name) is not None and first_ledger_of(files, path) is not None:
            return path
    return None


def first_ledger_of(files: Files, path: str) -> int | None:
    """The ledger of the first record of an entry log, before the end, before zeros, and before anything that is no
    record; None: it holds no entry. `OSError`."""
    file = files.open(path)
    try:
        position = HEADER_SIZE
        while True:
            head = file.pread(ENTRY_HEAD.size, position)
            if len(head) < ENTRY_HEAD.size:
                return None
            size, ledger_id, _ = ENTRY_HEAD.unpack(head)
            if size == 0:
                return None
            if size < 0:  # padding of the direct-I/O logger, up to the next block
                position = (position // BLOCK + 1) * BLOCK
            elif ledger_id >= 0:
                return int(ledger_id)
            else:  # a batch of the ledgers map, or the filler of a direct-I/O header
                position += SIZE_BYTES + size
    finally:
        file.close()
