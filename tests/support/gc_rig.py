"""A storage engine in memory with its garbage collector, and a metadata service that a test dictates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.entry_log.interface import EntryLogger
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.engines import collected
from bookie_pod.storage.gc.options import GcOptions
from bookie_pod.storage.gc.schedule import CompactionRule
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.index.locations import KEY
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import LedgerRange
from tests.support.storage_engine import MemoryBookie, entry, put

BOOKIE = "b1:3181"


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
    locked: set[int] = field(default_factory=set)
    fail_listing_after: int | None = None

    def check_instance(self) -> None:
        self._check()

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

    @contextmanager
    def re_replication_lock(self, ledger_id: int) -> Iterator[bool]:
        self._check()
        yield ledger_id not in self.locked


FAST = GcOptions(
    minor=CompactionRule(0.2, 3600),
    major=CompactionRule(0.8, 86_400),
    compaction_rate=1e12,
    metadata_rate=1e9,
    over_replicated_interval_ms=-1,
)


class GcRig:
    """One ledger directory of `DbLedgerStorage` in memory; `now` is the collector's clock in ms."""

    def __init__(self, options: GcOptions = FAST, bookie: MemoryBookie | None = None) -> None:
        self.bookie = bookie or MemoryBookie()
        self.metadata = DictatedMetadata()
        self.options = options
        self.now = 1_000_000_000_000
        self.storage: DbLedgerStorage
        self.gc: GarbageCollector
        self.open()

    def open(self) -> None:
        self.storage = self.bookie.open()
        self.gc = GarbageCollector(
            collected(self.storage)[0],
            self.metadata,
            GcStateFile(self.bookie.files, self.bookie.directories[0]),
            self.options,
            now_ms=lambda: self.now,
        )

    def restart(self) -> None:
        self.storage.close()
        self.open()

    @property
    def logs(self) -> EntryLogger:
        return self.storage.directories[0].logs

    def write(
        self, ledger_ids: Iterator[int] | range | list[int], entries: int, size: int = 100, first: int = 0
    ) -> None:
        """Entries of all these ledgers, alternating, then one log of them."""
        for entry_id in range(first, first + entries):
            for ledger_id in ledger_ids:
                self.metadata.ledgers.setdefault(ledger_id, None)
                put(self.storage, entry(ledger_id, entry_id, size))
        self.storage.flush()
        self.logs.rotate()
        self.logs.sync()

    def delete(self, *ledger_ids: int) -> None:
        """As a client does: in the metadata service only."""
        for ledger_id in ledger_ids:
            del self.metadata.ledgers[ledger_id]

    def drop_row(self, ledger_id: int, entry_id: int) -> None:
        """The location index loses one row."""
        batch = self.storage.directories[0].locations._store.batch()
        batch.delete(KEY.pack(ledger_id, entry_id))
        batch.commit()

    def readable(self, ledger_id: int) -> dict[int, bytes]:
        """Everything of one ledger."""
        return {each: self.storage.read(ledger_id, each) for each in self.storage.entry_ids(ledger_id)}
