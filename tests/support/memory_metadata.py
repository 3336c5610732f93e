"""A metadata service in memory, for tests of its users: ledgers with compare-and-set, and who is writable.

Faults on demand: `lose_next_answer` applies the next write and raises as if the answer was lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.interface import (
    BookieGroup,
    BookieSet,
    Identity,
    LedgerRange,
    Versioned,
)
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.subscription import Subscription
from tests.support.memory_records import SESSION, MemoryManagedLedgers, MemoryRecords, check_identity


class MemoryLedgers:
    def __init__(self) -> None:
        self.stored: dict[int, Versioned[LedgerMetadata]] = {}
        self.history: list[LedgerMetadata] = []
        self.writes = 0
        self.lose_next_answer = False
        self.unavailable = False
        """Nothing is answered; what is followed stands still by itself."""
        self._next_id = 0
        self._creations = itertools.count(1)
        self._changed = asyncio.Event()

    async def generate_id(self, *, timeout: float | None = None) -> int:
        self._check_available()
        self._next_id += 1
        return self._next_id - 1

    async def create(self, metadata: LedgerMetadata, *, timeout: float | None = None) -> Versioned[LedgerMetadata]:
        self._check_available()
        if metadata.ledger_id in self.stored:
            raise MetadataExists(f"ledger {metadata.ledger_id} exists")
        return self.make(metadata)

    async def read(
        self, ledger_id: int, *, fresh: bool = False, timeout: float | None = None
    ) -> Versioned[LedgerMetadata]:
        self._check_available()
        try:
            return self.stored[ledger_id]
        except KeyError:
            raise MetadataNotFound(f"ledger {ledger_id}") from None

    async def write(
        self,
        metadata: LedgerMetadata,
        replaced: Identity,
        *,
        session_id: int | None = None,
        timeout: float | None = None,
    ) -> Versioned[LedgerMetadata]:
        self.writes += 1
        current = await self.read(metadata.ledger_id)
        check_identity(f"ledger {metadata.ledger_id}", current.identity, replaced)
        stored = self.change(metadata)
        if self.lose_next_answer:
            # As a store client that sends again after a lost connection: the second try meets its own first.
            self.lose_next_answer = False
            raise MetadataVersionConflict(f"version {replaced.version} is not {stored.version}")
        return stored

    def change(self, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """Another client's write."""
        before = self.stored[metadata.ledger_id].identity
        return self._store(metadata, Identity(before.version + 1, before.creation, SESSION))

    def make(self, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """Another client's ledger, in the place of the one that has its id."""
        return self._store(metadata, Identity(0, next(self._creations), SESSION))

    async def delete(self, ledger_id: int, *, timeout: float | None = None) -> None:
        self._check_available()
        if self.stored.pop(ledger_id, None) is not None:
            self._tell()

    async def delete_this(self, stored: Versioned[LedgerMetadata], *, timeout: float | None = None) -> None:
        current = self.stored.get(stored.value.ledger_id)
        if current is not None:
            check_identity(f"ledger {stored.value.ledger_id}", current.identity, stored.identity)
        await self.delete(stored.value.ledger_id)

    def watch(self, ledger_id: int) -> Subscription[Versioned[LedgerMetadata] | None]:
        async def feed(publish: Callable[[Versioned[LedgerMetadata] | None], None]) -> None:
            seen: Versioned[LedgerMetadata] | None = None
            while True:
                changed = self._changed
                found = self.stored.get(ledger_id)
                if found is None or (seen is not None and found.identity.creation != seen.identity.creation):
                    publish(None)
                    return
                if found != seen:
                    publish(found)
                seen = found
                await changed.wait()

        return Subscription(feed)

    async def read_each(
        self, ledger_ids: Sequence[int], *, timeout: float | None = None
    ) -> list[Versioned[LedgerMetadata] | MetadataNotFound]:
        self._check_available()
        return [self.stored.get(each) or MetadataNotFound(f"ledger {each}") for each in ledger_ids]

    async def ranges(self, *, first: int | None = None, timeout: float | None = None) -> AsyncIterator[LedgerRange]:
        self._check_available()
        start = first or 0
        yield LedgerRange(start, MAX_LEDGER_ID, tuple(sorted(each for each in self.stored if each >= start)))

    def _check_available(self) -> None:
        if self.unavailable:
            raise MetadataUnavailable("no answer from the model metadata service")

    def _store(self, metadata: LedgerMetadata, identity: Identity) -> Versioned[LedgerMetadata]:
        stored = self.stored[metadata.ledger_id] = Versioned(metadata, identity)
        self.history.append(metadata)
        self._tell()
        return stored

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class MemoryBookies:
    """Registrations are made by the test: bookie id -> host and port, in either group, with properties."""

    def __init__(self) -> None:
        self.writable: dict[str, tuple[str, int]] = {}
        self.read_only: dict[str, tuple[str, int]] = {}
        self.properties: dict[str, dict[str, str]] = {}
        self.racks = b""
        self.info_reads = 0
        self._version = 0
        self._publish: list = []

    def register_address(
        self,
        bookie_id: str,
        host: str,
        port: int,
        properties: dict[str, str] | None = None,
        group: BookieGroup = BookieGroup.WRITABLE,
    ) -> None:
        self._group(group)[bookie_id] = (host, port)
        self.properties[bookie_id] = properties or {}
        self._tell()

    def drop(self, bookie_id: str, group: BookieGroup = BookieGroup.WRITABLE) -> None:
        del self._group(group)[bookie_id]
        self._tell()

    async def list(self, group: BookieGroup, *, timeout: float | None = None) -> BookieSet:
        return BookieSet(frozenset(self._group(group)), self._version)

    def watch(self, group: BookieGroup) -> Subscription[BookieSet]:
        async def feed(publish) -> None:
            publish(BookieSet(frozenset(self._group(group)), self._version))
            listener = (group, publish)
            self._publish.append(listener)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._publish.remove(listener)

        return Subscription(feed)

    async def service_info(self, bookie_id: str, *, timeout: float | None = None) -> BookieServiceInfo:
        self.info_reads += 1
        address = self.writable.get(bookie_id) or self.read_only.get(bookie_id)
        if address is None:
            raise MetadataNotFound(f"bookie {bookie_id} is not registered")
        return BookieServiceInfo((Endpoint("bookie", *address, BOOKIE_RPC),), self.properties.get(bookie_id, {}))

    async def rack_assignments(self, *, timeout: float | None = None) -> bytes:
        return self.racks

    def _group(self, group: BookieGroup) -> dict[str, tuple[str, int]]:
        return self.read_only if group is BookieGroup.READ_ONLY else self.writable

    def _tell(self) -> None:
        self._version += 1
        for group, publish in self._publish:
            publish(BookieSet(frozenset(self._group(group)), self._version))


class MemoryCluster:
    def __init__(self) -> None:
        self.health_check_enabled: bool | None = True
        self.looks = 0

    async def is_health_check_enabled(self, *, timeout: float | None = None) -> bool:
        self.looks += 1
        if self.health_check_enabled is None:
            raise MetadataUnavailable("no answer from the model metadata service")
        return self.health_check_enabled


class MemoryMetadata:
    """The part of `MetadataService` that a client uses."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.ledgers = MemoryLedgers()
        self.bookies = MemoryBookies()
        self.all_records = MemoryRecords()
        self.cookies = self.all_records.of("cookies")
        self.pulsar = MemoryManagedLedgers()
        self.closed = False

    def records(self, kind: str):
        return self.all_records.of(kind)

    def managed_ledgers(self, root: str = "/managed-ledgers"):
        return self.pulsar

    async def close(self) -> None:
        self.closed = True
