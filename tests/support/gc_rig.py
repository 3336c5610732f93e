"""A storage engine in memory with its garbage collector, and a metadata service that a test dictates."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from bookie_pod.config.sections.gc import GcConfig
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.entry_log.direct import DirectLogWriter
from bookie_pod.storage.entry_log.format import HEADER_SIZE
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted, fenced_files
from bookie_pod.storage.gc.reports import PassResult
from bookie_pod.storage.gc.schedule import Force
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import CollectedStorage, StillHeld, collected
from bookie_pod.storage.index.locations import KEY, VALUE, LocationIndex
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataUnavailable, MetadataWentBack
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import LedgerRange
from tests.support.memtable_engine import Checkpoints, MemTableBookie
from tests.support.production import production
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

BOOKIE = "b1:3181"
MINOR = Force(minor=True)
MAJOR = Force(major=True)


@dataclass
class DictatedMetadata:
    """`ledgers`: id -> bookies of its only ensemble, or None for "exists, closed, on this bookie"."""

    ledgers: dict[int, tuple[str, ...] | None] = field(default_factory=dict)
    bookie_id: str = BOOKIE
    listing: dict[int, None] | None = None
    """What the listing says, if it lies."""
    down: bool = False
    state: LedgerState = LedgerState.CLOSED
    reads: int = 0
    span: int = 3
    at_once: int = 4
    """Ledgers that `read_many` draws before it answers for the first."""
    locked: set[int] = field(default_factory=set)
    locks_that_end: set[int] = field(default_factory=set)
    """Ledgers whose lock ends with its session while they are looked at."""
    torsos: set[int] = field(default_factory=set)
    """Ledgers whose named bookies lack copies."""
    fail_listing_after: int | None = None
    foreign: bool = False
    """Another cluster answers."""
    went_back: bool = False
    """It was put back to an older state."""
    unreadable: set[int] = field(default_factory=set)
    """Ledgers whose metadata cannot be read."""

    def check_instance(self) -> None:
        self._check()
        if self.foreign:
            raise MetadataDamaged("that is another cluster")
        if self.went_back:
            raise MetadataWentBack("an older state")

    def _check(self) -> None:
        if self.down:
            raise MetadataUnavailable("the metadata service does not answer")

    def ranges(self) -> Iterator[LedgerRange]:
        self._check()
        ids = sorted(self.ledgers if self.listing is None else self.listing)
        start = count = 0
        for at in range(0, len(ids), self.span):
            part = tuple(ids[at : at + self.span])
            if self.fail_listing_after == count:
                raise MetadataUnavailable("the listing broke off")
            yield LedgerRange(start, part[-1], part)
            start, count = part[-1] + 1, count + 1
        if self.fail_listing_after == count:
            raise MetadataUnavailable("the listing broke off")
        yield LedgerRange(start, MAX_LEDGER_ID, ())

    def read(self, ledger_id: int) -> LedgerMetadata | None:
        self._check()
        self.reads += 1
        if ledger_id in self.unreadable:
            raise MetadataUnavailable(f"ledger {ledger_id} cannot be read")
        if ledger_id not in self.ledgers:
            return None
        ensemble = self.ledgers[ledger_id] or (BOOKIE,)
        closed = self.state is LedgerState.CLOSED
        return LedgerMetadata(
            ledger_id,
            len(ensemble),
            len(ensemble),
            1,
            {0: ensemble},
            state=self.state,
            last_entry_id=0 if closed else -1,
            length=1 if closed else 0,
        )

    def read_many(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, LedgerMetadata | MetadataError | None]]:
        left = iter(ledger_ids)
        while ids := list(islice(left, self.at_once)):
            for ledger_id in ids:
                try:
                    yield ledger_id, self.read(ledger_id)
                except MetadataError as error:
                    yield ledger_id, error

    @contextmanager
    def re_replication_lock(self, ledger_id: int) -> Iterator[StillHeld | None]:
        self._check()
        yield None if ledger_id in self.locked else lambda: ledger_id not in self.locks_that_end

    def is_whole_elsewhere(self, ledger_id: int) -> bool:
        self._check()
        return ledger_id not in self.torsos


FAST = GcConfig(
    compaction_rate_by_bytes=10**12,
    compaction_rate_by_entries=10**12,
    metadata_op_rate_limit=10**9,
    deletion_grace_ms=0,  # a pass deletes what is gone; what the grace holds back has tests of its own
    overreplicated_wait_time_ms=-1,
)
"""Production's settings, but nothing is held back, and nothing is looked for that a test does not ask for."""


DIRECT_IO: Final = production().db_storage.direct_io_entry_logger
"""The format of entry logs in production."""


class GcRig:
    """One collector in memory: a directory of `DbLedgerStorage`, or a whole engine. `now` is its clock in ms."""

    def __init__(
        self,
        options: GcConfig = FAST,
        bookie: MemoryBookie | MemTableBookie | None = None,
        *,
        engine: str = "db",
        **collector: Any,
    ) -> None:
        """`engine`: "db", "sorted" or "interleaved", unless there is a `bookie`; `collector`: further arguments of the
        collector."""
        if bookie is None:
            bookie = (
                MemTableBookie(engine) if engine != "db" else MemoryBookie(options=small_options(direct_io=DIRECT_IO))
            )
        self.bookie = bookie
        self.metadata = DictatedMetadata()
        self.options = options
        self.collector_arguments = collector
        self.now = 1_000_000_000_000
        self.storage: DbLedgerStorage | MemTableStorage
        self.gc: GarbageCollector
        self.fenced: FencedAndDeleted
        self.open()

    def open(self) -> None:
        self.storage = self.bookie.open()
        if isinstance(self.storage, MemTableStorage):
            self.storage._background.request = _never
            self.storage.start(Checkpoints())
        folders = list(self.bookie.directories)
        self.fenced = FencedAndDeleted(fenced_files(self.bookie.files, folders), now_ms=lambda: self.now)
        self.gc = GarbageCollector(
            collected(self.storage)[0],
            self.metadata,
            GcStateFile(self.bookie.files, folders[0]),
            self.options,
            fenced=self.fenced,
            now_ms=lambda: self.now,
            **self.collector_arguments,
        )

    def restart(self) -> None:
        self.storage.close()
        self.open()

    @property
    def parts(self) -> CollectedStorage:
        """The storage as the collector sees it."""
        return collected(self.storage)[0]

    @property
    def logs(self) -> EntryLogger:
        return self.parts.logs

    @property
    def flushed(self) -> list[int]:
        """Logs that may be collected."""
        return [log_id for log_id in self.logs.log_ids() if self.logs.is_flushed(log_id)]

    def path(self, log_id: int) -> str:
        return self.logs.path(log_id)

    @property
    def first(self) -> int:
        """The offset of the first entry's size word in each log."""
        return DirectLogWriter.first_position if self.bookie.options.direct_io_logs else HEADER_SIZE

    def map_offset(self, log_id: int) -> int:
        """The offset of the ledgers map of a closed log."""
        return int(struct.unpack_from(">q", self.bookie.files.read_bytes(self.path(log_id)), 8)[0])

    def write(
        self,
        ledger_ids: Iterator[int] | range | list[int],
        entries: int,
        size: int = 100,
        first: int = 0,
        mark: bytes = b"x",
    ) -> int:
        """Entries of all these ledgers, alternating, then one log of them, which is returned."""
        for entry_id in range(first, first + entries):
            for ledger_id in ledger_ids:
                self.metadata.ledgers.setdefault(ledger_id, None)
                put(self.storage, entry(ledger_id, entry_id, size, mark))
        self.storage.flush()
        self.logs.rotate()
        self.logs.sync()
        return self.flushed[-1]

    def delete(self, *ledger_ids: int) -> None:
        """As a client does: in the metadata service only."""
        for ledger_id in ledger_ids:
            del self.metadata.ledgers[ledger_id]

    def force(self, force: Force = MAJOR) -> PassResult:
        """A pass that compacts."""
        assert self.gc.request(force)
        return self.gc.run_pass()

    @property
    def locations(self) -> LocationIndex:
        """The location index of a `DbLedgerStorage`."""
        assert isinstance(self.storage, DbLedgerStorage)
        return self.storage.directories[0].locations

    def set_row(self, ledger_id: int, entry_id: int, location: int) -> None:
        """The location index holds another value."""
        batch = self.locations._store.batch()
        batch.put(KEY.pack(ledger_id, entry_id), VALUE.pack(location))
        batch.commit()

    def drop_row(self, ledger_id: int, entry_id: int) -> None:
        """The location index loses one row."""
        batch = self.locations._store.batch()
        batch.delete(KEY.pack(ledger_id, entry_id))
        batch.commit()

    def flip(self, log_id: int, offset: int, bits: int = 1) -> None:
        """A log's disk returns other bits than were written."""
        path = self.path(log_id)
        (byte,) = self.bookie.files.read_bytes(path)[offset : offset + 1]
        self.bookie.files.corrupt(path, offset, bytes([byte ^ bits]))

    def cut(self, log_id: int, length: int) -> None:
        """A log loses its end."""
        file = self.bookie.files.open(self.path(log_id), writable=True)
        file.truncate(length)
        file.close()

    def forget_map(self, log_id: int) -> None:
        """As if the process had been killed while the log was written: its header names no map, and there is none."""
        path = self.path(log_id)
        self.cut(log_id, self.map_offset(log_id))
        self.bookie.files.corrupt(path, 8, bytes(20))

    def readable(self, ledger_id: int) -> dict[int, bytes]:
        """Everything of one ledger."""
        return {each: self.storage.read(ledger_id, each) for each in self.storage.entry_ids(ledger_id)}


def _never(**_: bool) -> None:
    """Stands for a request of a drain."""
