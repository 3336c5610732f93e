"""The interfaces that garbage collection and the scrubber use.

They are the storage engines, of which they see one ledger directory or a whole engine, and the metadata service
(`GcMetadata`), by blocking calls.

Invariant: "it does not exist" and "could not tell" never share an answer of the metadata service: the first is None,
the second a `MetadataError`.

Threads: those of garbage collection and of the scrubber call all of it, beside reads, writes and flushes; `has_ledger`,
`logs` and `forget_cached` also those of readers.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import Consent, LedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.locations import EntryMove
from bookie_pod.storage.log_ids import is_before
from bookie_protocol.errors import MetadataError, NoLedgerIndex, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerRange

READS_PER_REQUEST: Final = 64
"""Ledgers whose metadata are read together: as many as go into one request to ZooKeeper."""
StillHeld = Callable[[], bool]
"""Returns whether a lock is still held, as far as its holder knows."""


class CollectedStorage(ABC):
    """One space of entry logs with the index that points into it."""

    index_may_run_ahead: bool
    """A power cut may have left rows of entries that were never acknowledged, which point beyond the end of a log: if
    Apache BookKeeper or an earlier release wrote the index. Here none is written before its entry is durable."""

    def __init__(self, storage: SingleDirectoryStorage | MemTableStorage) -> None:
        self._owner = storage
        self._denials = itertools.count(1)
        self._denied = self._secured = 0
        """The number of the last call of `deny_nothing`, and of the last one that is durable."""
        self._securing = threading.Lock()

    @property
    def logs(self) -> EntryLogger:
        return self._owner.logs

    @property
    @abstractmethod
    def failure(self) -> StorageFault | None:
        """Return why the whole directory is out of use, or None."""

    @abstractmethod
    def ledger_ids(self) -> Collection[int]:
        """Every ledger known here."""

    @abstractmethod
    def record(self, ledger_id: int) -> LedgerRecord | None:
        """Return the record of a ledger, or None if it is not here."""

    def has_ledger(self, ledger_id: int) -> bool:
        return self.record(ledger_id) is not None

    def is_earlier_life(self, ledger_id: int, log_id: int) -> bool:
        """Return whether the entries of this ledger in this log may be of an earlier life of its id.

        The ledger is known here. Only entries without a row may be judged by it.
        """
        record = self.record(ledger_id)
        if record is None:
            return False
        return is_before(log_id, record.first_log) if record.first_log else self._owner.died_before(ledger_id, log_id)

    def remember_deaths(self, died_before: Callable[[int, int], bool]) -> None:
        """See `ListenedStorage.died_before`."""
        self._owner.died_before = died_before

    def is_fenced(self, ledger_id: int) -> bool:
        """Return whether it is here and fenced."""
        record = self.record(ledger_id)
        return record is not None and record.fenced

    def watch(self, ledger_ids: Collection[int]) -> None:
        """Record from now on which of these ledgers receive entries; other ledgers are no longer watched."""
        self._owner.watch(ledger_ids)

    def in_one_turn(self, work: Callable[[], None]) -> None:
        """Run `work` in one turn of the event loop, in which `delete_ledger` does not wait and nothing else happens."""
        self._owner.in_one_turn(work)

    def delete_ledger(self, ledger_id: int, consent: Consent) -> None:
        """Forget the ledger, in memory at once; durable with the next `flush`. Nothing happens without `consent`, which
        is asked on the event loop, where entries are put."""
        self._owner.delete_ledger(ledger_id, consent)

    def flush(self) -> None:
        """Make everything before this call durable. `StorageFault`."""
        self._owner.flush()

    @abstractmethod
    def location_of(self, ledger_id: int, entry_id: int) -> int:
        """Return the location of the entry in the index; 0 if it has none. Raises `StorageFault`."""

    @abstractmethod
    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        """(entry id, location) of everything that the index has of a ledger from `first_entry` on, ascending; nothing
        of an unknown one. `StorageFault`."""

    @abstractmethod
    def move(self, moves: Sequence[EntryMove]) -> int:
        """Point to the new places, where the index still names the old ones. How many moved.

        Durable on return; so is every place that this process has put before, though by a move that failed: also
        without moves. What another process has put is durable if it is among these, moved to where it is.
        """

    def restore(self, ledger_id: int, entry_id: int, location: int, row: int = 0) -> bool:
        """Put the row of an entry whose row is `row`, 0: missing; False if it is another one meanwhile. Durable on
        return. `StorageFault`."""
        self.logs.make_durable(split_location(location)[0])
        return self.move([EntryMove(ledger_id, entry_id, row, location)]) == 1

    @abstractmethod
    def may_lack_rows(self, ledger_id: int) -> None:
        """Take the rows of the ledger for incomplete: an entry of it was found that has none. Durable before its rows
        change."""

    def deny_nothing(self, ledger_id: int) -> None:
        """Put the ledger in limbo: an entry of it was found that has no row, and gets none now. If it is in limbo, a
        comparison that has begun does not end that. Durable with the next `secure`."""
        self._owner.put_in_limbo([ledger_id])
        self._denied = next(self._denials)

    def secure(self) -> None:
        """Make durable what `deny_nothing` has done. Any thread; one that comes meanwhile waits for it.
        `StorageFault`."""
        with self._securing:
            denied = self._denied
            if denied != self._secured:
                self._owner.flush()
                self._secured = denied

    def was_durable(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether something proves that the entry was durable here. Asked where the index may run ahead."""
        return False

    @abstractmethod
    def settle(self) -> None:
        """Make sure that the index does not take back rows that it returns from now on.

        It may take rows back after a failed write. Raises `StorageFault`.
        """

    @abstractmethod
    def compact_index(self) -> None:
        """Give back the space of deleted index rows."""

    def refuse(self, locations: Collection[int], unsynced: Container[int] = frozenset()) -> None:
        """Let reads of entries at these places fail as damaged from now on, and give what lies at `unsynced` no row.
        Both may change later."""
        self._owner.refuse(locations)
        self._owner.unsynced = unsynced

    def is_unsynced(self, location: int) -> bool:
        """Return whether it was found before that a power cut has left parts of an entry there."""
        return location in self._owner.unsynced

    @abstractmethod
    def forget_cached(self, ledger_id: int) -> None:
        """Drop what the read cache holds of a ledger."""


class CollectedDirectory(CollectedStorage):
    """One ledger directory of `DbLedgerStorage`."""

    index_may_run_ahead = False

    def __init__(self, directory: SingleDirectoryStorage) -> None:
        super().__init__(directory)
        self._directory = directory

    @property
    def failure(self) -> StorageFault | None:
        return self._directory.failure

    def ledger_ids(self) -> Collection[int]:
        return self._directory.ledgers.ledger_ids()

    def record(self, ledger_id: int) -> LedgerRecord | None:
        return self._directory.ledgers.get(ledger_id)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self._directory.locations.get(ledger_id, entry_id)

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        return self._directory.locations.rows(ledger_id, first_entry)

    def move(self, moves: Sequence[EntryMove]) -> int:
        return self._directory.locations.move(moves)

    def may_lack_rows(self, ledger_id: int) -> None:
        self._directory.may_lack_rows()

    def settle(self) -> None:
        self._directory.locations.settle()

    def compact_index(self) -> None:
        self._directory.locations.compact()

    def forget_cached(self, ledger_id: int) -> None:
        self._directory.read_cache.forget_ledger(ledger_id)


class CollectedEngine(CollectedStorage):
    """`SortedLedgerStorage` or `InterleavedLedgerStorage`: one space over all directories."""

    index_may_run_ahead = True

    def __init__(self, storage: MemTableStorage) -> None:
        super().__init__(storage)
        self._storage = storage

    @property
    def failure(self) -> StorageFault | None:
        return None

    def ledger_ids(self) -> Collection[int]:
        return self._storage.ledger_ids()

    def record(self, ledger_id: int) -> LedgerRecord | None:
        return self._storage.cache.records.get(ledger_id)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        try:
            return self._storage.cache.get(ledger_id, entry_id)
        except NoLedgerIndex:
            return 0

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        with suppress(NoLedgerIndex):
            for page in self._storage.cache.scan(ledger_id, first_entry):
                yield from page if not first_entry else (row for row in page if row[0] >= first_entry)

    def move(self, moves: Sequence[EntryMove]) -> int:
        moved = sum(self._storage.cache.move(*each) for each in moves)
        self._storage.flush()
        return moved

    def may_lack_rows(self, ledger_id: int) -> None:
        self._storage.cache.may_lack_rows(ledger_id)

    def was_durable(self, ledger_id: int, entry_id: int) -> bool:
        return self._storage.cache.was_durable(ledger_id, entry_id)

    def settle(self) -> None:
        """Pages in memory stay as they are until they are written."""

    def compact_index(self) -> None:
        """Index files have a place for each entry; nothing to compact."""

    def forget_cached(self, ledger_id: int) -> None:
        """Do nothing: no entries that were read from a log are cached here."""


def collected(storage: LedgerStorage) -> list[CollectedStorage]:
    """Return the parts that are collected and scrubbed separately.

    They are the directories of `DbLedgerStorage`, or the whole of another engine.
    """
    if isinstance(storage, DbLedgerStorage):
        return [CollectedDirectory(directory) for directory in storage.directories]
    if isinstance(storage, MemTableStorage):
        return [CollectedEngine(storage)]
    raise TypeError(f"{type(storage).__name__} has no garbage collection")


class GcMetadata(Protocol):
    """The metadata service as the collection sees it. Every call may raise `MetadataError`."""

    bookie_id: str

    def check_instance(self) -> None:
        """Raises `MetadataError` unless this is still the cluster that this bookie's cookie names: a wiped or another
        service must not make every ledger garbage."""
        ...

    def ranges(self) -> Iterator[LedgerRange]:
        """Every ledger of the cluster in ascending spans without gaps."""
        ...

    def read(self, ledger_id: int) -> LedgerMetadata | None:
        """The ledger's metadata; None when the service answered that there is no such ledger."""
        ...

    def read_many(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, LedgerMetadata | MetadataError | None]]:
        """Yield, for each ledger in this order, what `read` answers or the error that it raises.

        A bounded number of ids is drawn from `ledger_ids`, and requested together, before the first is answered.
        """
        ...

    def re_replication_lock(self, ledger_id: int) -> AbstractContextManager[StillHeld | None]:
        """Hold the ledger's under-replication lock; None when another worker is re-replicating the ledger.

        The lock ends with its session, which may be before the block does: call the returned function before anything
        irreversible.
        """
        ...

    def is_whole_elsewhere(self, ledger_id: int) -> bool:
        """Return whether every bookie that the metadata of a closed ledger name is registered and has its copies.

        False also if one of them cannot tell.
        """
        ...
