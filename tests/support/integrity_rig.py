"""A bookie in memory that lost everything, and a dictated cluster with its failures, for the check that ends limbo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from bookie_client.metadata_update import check_same
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.node.integrity.full_check import DataIntegrityCheck, LocalCopies
from bookie_pod.node.integrity.preboot import run_preboot_check
from bookie_pod.node.integrity.replicas import FetchedEntry
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.journal.batch_queue import JournalBatch
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    BookieUnavailable,
    LedgerDeleted,
    MetadataDamaged,
    MetadataNotFound,
    MetadataUnavailable,
    NoSuchLedger,
    RecoveryFailed,
)
from bookie_protocol.keys import NO_LIFE, master_key
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import Identity, LedgerLife, LedgerRange, Versioned
from tests.support.memtable_engine import ENGINES, MemTableBookie
from tests.support.scrub_rig import signed
from tests.support.storage_engine import MemoryBookie

ALL_ENGINES = ("db", *ENGINES)
KEY = master_key(b"pw")
ME, A, B, C = "me:1", "a:1", "b:1", "c:1"


def metadata(
    ledger_id: int, ensembles: dict[int, tuple[str, ...]], *, last: int | None = None, write_quorum: int | None = None
) -> LedgerMetadata:
    size = len(ensembles[0])
    return LedgerMetadata(
        ledger_id,
        size,
        write_quorum or size,
        1,
        ensembles,
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        last_entry_id=-1 if last is None else last,
        length=0 if last is None else 1,
        digest_type=DigestType.CRC32C,
        password=b"pw",
    )


class Cluster:
    """A ledger store and the replicas of other bookies."""

    def __init__(self, *ledgers: LedgerMetadata) -> None:
        self.ledgers = {each.ledger_id: each for each in ledgers}
        self.down = False
        self.damaged: set[int] = set()
        """Ledgers whose metadata cannot be understood."""
        self.unreachable: set[tuple[int, int]] = set()
        self.end = 3
        """Last entry that a recovery finds; -2: recoveries fail."""
        self.fetched: list[tuple[int, int]] = []
        self.denied: set[int] = set()
        """Ledgers of which a bookie that was asked has nothing."""

    async def ranges(self, *, timeout: float | None = None) -> AsyncIterator[LedgerRange]:
        if self.down:
            raise MetadataUnavailable("down")
        yield LedgerRange(0, MAX_LEDGER_ID, tuple(sorted(self.ledgers)))

    async def read(
        self, ledger_id: int, *, fresh: bool = False, timeout: float | None = None
    ) -> Versioned[LedgerMetadata]:
        if ledger_id not in self.ledgers:
            raise MetadataNotFound(str(ledger_id))
        if ledger_id in self.damaged:
            raise MetadataDamaged(str(ledger_id))
        return Versioned(self.ledgers[ledger_id], Identity(0, 1))

    async def recover(self, life: LedgerLife) -> LedgerMetadata:
        ledger_id = life.ledger_id
        if ledger_id not in self.ledgers:
            raise LedgerDeleted(str(ledger_id))
        check_same(await self.read(ledger_id), life)
        if self.end == -2:
            raise RecoveryFailed("too few bookies")
        self.ledgers[ledger_id] = self.ledgers[ledger_id].closed(self.end, 1)
        return self.ledgers[ledger_id]

    async def fetch(self, of: LedgerMetadata, entry_ids: Iterable[int]) -> AsyncIterator[FetchedEntry]:
        ledger_id = of.ledger_id
        if ledger_id in self.denied:
            raise NoSuchLedger(str(ledger_id))
        for entry_id in entry_ids:
            await asyncio.sleep(0)
            self.fetched.append((ledger_id, entry_id))
            if (ledger_id, entry_id) in self.unreachable:
                yield FetchedEntry(entry_id, None, BookieUnavailable("nobody"))
            else:
                yield FetchedEntry(entry_id, signed(ledger_id, entry_id), None)


class InstantJournal:
    def append(self, batch: JournalBatch) -> None:
        if batch.on_done is not None:
            asyncio.get_running_loop().call_soon(batch.on_done, None)


class Rig:
    """A bookie in memory that lost everything, and what there is of it in the cluster."""

    def __init__(self, *ledgers: LedgerMetadata, engine: str = "db") -> None:
        self.cluster = Cluster(*ledgers)
        self.bookie = MemoryBookie() if engine == "db" else MemTableBookie(engine)
        self.storage: DbLedgerStorage | MemTableStorage = self.bookie.open()
        self.writable = True
        self.make()

    def make(self) -> None:
        self.ledgers = Ledgers(self.storage, 1)
        self.operations = LedgerOperations(self.ledgers, [InstantJournal()])
        self.storage.on_ledger_deleted(self.ledgers.forget)
        self.copies = LocalCopies(
            self.operations,
            self.cluster,  # type: ignore[arg-type]
            busy=lambda: False,
            writable=lambda: self.writable,
        )

        async def connect() -> Cluster:
            return self.cluster

        self.check = DataIntegrityCheck(
            self.storage,
            self.ledgers,
            self.cluster,  # type: ignore[arg-type]
            ME,
            connect,  # type: ignore[arg-type]
            self.copies,
            interval_s=0.001,
        )

    def restart(self) -> None:
        self.storage.close()
        self.storage = self.bookie.open()
        self.make()

    async def preboot(self) -> int:
        return await run_preboot_check(self.storage, self.cluster, ME, "test")  # type: ignore[arg-type]

    def put_in_limbo(self, ledger_id: int) -> None:
        record = self.storage.set_master_key(ledger_id, master_key(b"pw"))
        self.storage.set_ledger(ledger_id, replace(record, limbo=True))

    def add(
        self, ledger_id: int, entry_id: int, entry: bytes = b"", *, key: bytes = KEY, life: bytes = NO_LIFE
    ) -> None:
        """As its writer does."""
        entry = entry or signed(ledger_id, entry_id)
        lanes = self.operations.lanes()
        self.operations.add(lanes, ledger_id, entry_id, -1, key, entry, recovery=False, life=life)

    def while_it_looks(self, happens: Callable[[], None], looks: int = 1) -> list[int]:
        """Let something happen behind each of the next reads of metadata. Return the list of the ledgers that are read,
        which grows."""
        read, seen = self.cluster.read, list[int]()

        async def look(ledger_id: int, *, fresh: bool = False) -> Versioned[LedgerMetadata]:
            found = await read(ledger_id, fresh=fresh)
            seen.append(ledger_id)
            if len(seen) <= looks:
                happens()
            return found

        self.cluster.read = look  # type: ignore[method-assign,assignment]
        return seen

    @property
    def flagged(self) -> bool:
        return bool(self.storage.flags() & NEEDS_INTEGRITY_CHECK)

    def limbo(self) -> dict[int, tuple[bool, bool]]:
        """(fenced, limbo) of every ledger."""
        found = {}
        for ledger_id in self.storage.ledger_ids():
            record = self.storage.ledger(ledger_id)
            assert record is not None
            found[ledger_id] = (record.fenced, record.limbo)
        return found
