"""The storage engines as the scrubber sees them, and what else it needs from outside.

Threads: the scrubber's calls all of it, beside reads, writes, flushes and garbage collection; `has_ledger`, `logs` and
`forget_cached` also those of readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.gc.engines import CollectedDirectory, CollectedEngine
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.index.location_rows import EntryMove
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import NoLedgerIndex, StorageFault


class DigestTypes(Protocol):
    """The digest type that a ledger's metadata names."""

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        """None: unknown, or nobody could tell now. May wait for the metadata service; never raises, but for
        `ScrubStopped`. `fresh`: of the ledger that has this id now, for whoever is about to call an entry damaged; what
        was learnt before may be of an earlier one. Any thread."""
        ...


class ScrubbedStorage(Protocol):
    """One space of entry logs with the index that points into it."""

    @property
    def logs(self) -> EntryLogger: ...

    @property
    def collected(self) -> CollectedStorage:
        """The same space as garbage collection sees it."""
        ...

    @property
    def failure(self) -> StorageFault | None:
        """Why the whole directory is out of use."""
        ...

    def ledger_ids(self) -> Collection[int]: ...

    def has_ledger(self, ledger_id: int) -> bool: ...

    def rows(self, ledger_id: int, first_entry: int) -> Iterator[tuple[int, int]]:
        """(entry id, location) from `first_entry` on, ascending. `StorageFault`; nothing of an unknown ledger."""
        ...

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        """Where the index says the entry is; 0 when it says nothing. `StorageFault`."""
        ...

    def restore(self, ledger_id: int, entry_id: int, location: int) -> bool:
        """Put the missing row of an entry; False if there is one meanwhile. Durable on return. `StorageFault`."""
        ...

    def flush(self) -> None:
        """Make everything before this call durable. `StorageFault`."""
        ...

    def refuse(self, locations: Collection[int]) -> None:
        """Let reads of entries at these places fail as damaged from now on. The collection may change later."""
        ...

    def forget_cached(self, ledger_id: int) -> None:
        """Drop what the read cache holds of a ledger."""
        ...


class ScrubbedDirectory:
    """One ledger directory of `DbLedgerStorage`."""

    def __init__(self, directory: SingleDirectoryStorage) -> None:
        self._directory = directory
        self.collected: CollectedStorage = CollectedDirectory(directory)

    @property
    def logs(self) -> EntryLogger:
        return self._directory.logs

    @property
    def failure(self) -> StorageFault | None:
        return self._directory.failure

    def ledger_ids(self) -> Collection[int]:
        return self.collected.ledger_ids()

    def has_ledger(self, ledger_id: int) -> bool:
        return self.collected.has_ledger(ledger_id)

    def rows(self, ledger_id: int, first_entry: int) -> Iterator[tuple[int, int]]:
        return self._directory.locations.rows(ledger_id, first_entry)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self.collected.location_of(ledger_id, entry_id)

    def restore(self, ledger_id: int, entry_id: int, location: int) -> bool:
        return self.collected.move([EntryMove(ledger_id, entry_id, 0, location)]) == 1

    def flush(self) -> None:
        self._directory.flush()

    def refuse(self, locations: Collection[int]) -> None:
        self._directory.refuse(locations)

    def forget_cached(self, ledger_id: int) -> None:
        self._directory.read_cache.forget_ledger(ledger_id)


class ScrubbedEngine:
    """`SortedLedgerStorage` or `InterleavedLedgerStorage`: one space over all directories."""

    def __init__(self, storage: MemTableStorage) -> None:
        self._storage = storage
        self.collected: CollectedStorage = CollectedEngine(storage)

    @property
    def logs(self) -> EntryLogger:
        return self._storage.logs

    @property
    def failure(self) -> StorageFault | None:
        return None

    def ledger_ids(self) -> Collection[int]:
        return self.collected.ledger_ids()

    def has_ledger(self, ledger_id: int) -> bool:
        return self.collected.has_ledger(ledger_id)

    def rows(self, ledger_id: int, first_entry: int) -> Iterator[tuple[int, int]]:
        try:
            pages = self._storage.cache.scan(ledger_id, first_entry)
        except NoLedgerIndex:
            return
        for page in pages:
            yield from (row for row in page if row[0] >= first_entry)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self.collected.location_of(ledger_id, entry_id)

    def restore(self, ledger_id: int, entry_id: int, location: int) -> bool:
        return self.collected.move([EntryMove(ledger_id, entry_id, 0, location)]) == 1

    def flush(self) -> None:
        self._storage.flush()

    def refuse(self, locations: Collection[int]) -> None:
        self._storage.refuse(locations)

    def forget_cached(self, ledger_id: int) -> None:
        """Nothing that was read from a log is cached here."""


def scrubbed(storage: LedgerStorage) -> list[ScrubbedStorage]:
    """What is scrubbed separately: each directory of `DbLedgerStorage`, or the whole of the other engines."""
    if isinstance(storage, DbLedgerStorage):
        return [ScrubbedDirectory(directory) for directory in storage.directories]
    if isinstance(storage, MemTableStorage):
        return [ScrubbedEngine(storage)]
    raise TypeError(f"{type(storage).__name__} cannot be scrubbed")
