"""Which place of a bookie each directory holds: `directory-place` in every `current` folder.

    {"set": "9f1c06b2a7d34e58", "places": ["journal 1", "ledger 2", "index 2"]}

Cookies are alike in all directories of a bookie, so two that changed places (disks that got other names at a boot, a
wrong mount, volumes that were bound crosswise) pass every check of cookies. A bookie that started on them would look
for a ledger in the wrong one, and deny what it has acknowledged. Hence each directory says which one it is, and which
others it belongs to (`set`, made once for all of them: a disk of an earlier life of the same bookie has another one).

Invariants
- A start on directories that hold other places than the configuration gives them is refused before the storage is
  opened.
- A folder without the file (a new one, or one of an older release) gets it once the journals are replayed, and only if
  nothing in it belongs elsewhere: with DbLedgerStorage a ledger is in the directory that its id selects. Journals prove
  their place by the marks, which the replay finds.
- Where directories may be added, those of ledgers and of indexes have no order: any of them may hold any ledger.

Threads: any one at a time, blocking.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.config.sections.journal import CURRENT_FOLDER
from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.detection import first_ledger_of
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.entry_log.names import parse_log_name
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.inspect.layout import PLACE_FILE
from bookie_protocol.errors import UNREADABLE, InvalidCookie, ResourcesShort

_log = structlog.get_logger(__name__)
_KINDS: Final = ("journal", "ledger", "index")


class MisplacedDirectory(InvalidCookie):
    """A directory holds what belongs to another one."""


@dataclass(frozen=True, slots=True)
class Place:
    """The contents of one folder's file."""

    set_id: str
    places: tuple[str, ...]

    def encode(self) -> bytes:
        return json.dumps({"set": self.set_id, "places": self.places}).encode()


class DirectoryPlaces:
    """The places of all directories of one bookie."""

    def __init__(self, files: Files, directories: BookieDirectories, *, ordered: bool) -> None:
        """`ordered`: the order of ledger and of index directories counts."""
        self._files = files
        self._ordered = ordered
        self._ledger_folders = [os.path.join(directory, CURRENT_FOLDER) for directory in directories.ledger]
        self._expected = _places(directories)
        self._missing: list[str] = []
        self._set_id = ""

    def check(self) -> None:
        """Compare what the folders hold with the configuration; change nothing. Raises `MisplacedDirectory` or
        `StorageFault`."""
        found = {folder: place for folder in self._expected if (place := self._read(folder)) is not None}
        self._missing = [folder for folder in self._expected if folder not in found]
        wrong = [folder for folder, place in found.items() if not self._fits(place, self._expected[folder])]
        if wrong:
            holds = ", ".join(
                f"{folder} holds {' and '.join(found[folder].places)} but is configured as"
                f" {' and '.join(self._expected[folder])}"
                for folder in wrong
            )
            raise MisplacedDirectory(
                f"directories changed places: {holds}; mount each disk or volume where the configuration names it"
            )
        sets = {place.set_id: folder for folder, place in found.items()}
        if len(sets) > 1:
            raise MisplacedDirectory(
                f"{' and '.join(sets.values())} do not belong together: one of them holds the disk of another bookie,"
                " or of an earlier life of this one; mount the disks that this bookie ran with last"
            )
        self._set_id = next(iter(sets), "") or secrets.token_hex(8)

    def check_contents(self, storage: LedgerStorage) -> None:
        """Look for what belongs elsewhere in folders that do not say their place yet. Raises `MisplacedDirectory` or
        `StorageFault`."""
        if not self._missing or not isinstance(storage, DbLedgerStorage) or len(storage.directories) == 1:
            return
        for name, ledger_id, place in self._ledgers_seen(storage):
            if (right := ledger_id % len(storage.directories)) != place:
                raise MisplacedDirectory(
                    f"{name} is configured as directory {place + 1} of {len(storage.directories)} but holds ledger"
                    f" {ledger_id}, which belongs to directory {right + 1}: directories changed places; mount each disk"
                    " or volume where the configuration named it when the ledger was written"
                )

    def _ledgers_seen(self, storage: DbLedgerStorage) -> Iterator[tuple[str, int, int]]:
        """Path, ledger, number of the directory: the rows of each index, and one ledger of each entry log."""
        for place, directory in enumerate(storage.directories):
            for ledger_id in directory.ledgers.ledger_ids():
                yield directory.ledgers.path, ledger_id, place
        for place, folder in enumerate(self._ledger_folders):
            if folder in self._missing:
                for path, ledger_id in self._logged(folder):
                    yield path, ledger_id, place

    def _logged(self, folder: str) -> Iterator[tuple[str, int]]:
        try:
            for name in self._files.listdir(folder) if self._files.is_dir(folder) else []:
                path = f"{folder}/{name}"
                if parse_log_name(name) is not None and (ledger_id := first_ledger_of(self._files, path)) is not None:
                    yield path, ledger_id
        except OSError as error:
            raise storage_fault(f"cannot read {folder}", error) from error

    def record(self) -> None:
        """Write the file where it is not yet, or where directories were added; durable on return. `StorageFault`.

        A full disk is left to the next start: a bookie has to serve reads on it, and collect garbage.
        """
        for folder, places in self._expected.items():
            place = Place(self._set_id, places)
            if self._read(folder) != place:
                try:
                    self._files.write_bytes_atomic(f"{folder}/{PLACE_FILE}", place.encode())
                except OSError as error:
                    fault = storage_fault(f"cannot write {folder}/{PLACE_FILE}", error)
                    if not isinstance(fault, ResourcesShort):
                        raise fault from error
                    _log.warning(
                        "a directory does not know its place yet; the next start tries again", reason=str(fault)
                    )

    def _fits(self, found: Place, expected: Sequence[str]) -> bool:
        if self._ordered:
            return set(found.places) == set(expected)
        return set(map(_unordered, found.places)) == set(map(_unordered, expected))

    def _read(self, folder: str) -> Place | None:
        path = f"{folder}/{PLACE_FILE}"
        try:
            stored = json.loads(self._files.read_bytes(path))
            return Place(str(stored["set"]), tuple(map(str, stored["places"])))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_fault(f"cannot read {path}", error) from error
        except UNREADABLE as error:
            raise MisplacedDirectory(
                f"{path} is damaged, so the directory cannot say which one it is; if it is certainly the one that is"
                " configured there, remove this file: the next start looks at what the directory holds and writes it"
            ) from error


def _places(directories: BookieDirectories) -> dict[str, tuple[str, ...]]:
    """Return the configured uses of each `current` folder: one may be a journal, a ledger and an index directory."""
    found: dict[str, list[str]] = {}
    lists = (directories.journal, directories.ledger, directories.index or directories.ledger)
    for kind, names in zip(_KINDS, lists, strict=True):
        for number, directory in enumerate(names, 1):
            found.setdefault(os.path.join(directory, CURRENT_FOLDER), []).append(f"{kind} {number}")
    return {folder: tuple(places) for folder, places in found.items()}


def _unordered(place: str) -> str:
    """The place as it counts where ledger and index directories have no order."""
    return place if place.startswith("journal ") else place.partition(" ")[0]
