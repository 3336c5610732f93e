"""The entry point: create, open, delete and list ledgers.

    async with Client("zk+null://zk1:2181/ledgers") as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=b"secret") as ledger:
            await ledger.append(b"first entry")
        async with client.open(ledger.ledger_id, password=b"secret") as reader:
            async for entry in reader.entries():
                print(entry.payload)

Invariants
- Creating and opening a closed ledger talk to the metadata service only.
- The client owns its connections: closing it ends every handle.

Event loop only.

Source: reference client protocol, sections 3, 13, 15 and 27.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from random import Random
from types import TracebackType
from typing import Any, Generic, TypeVar

from bookie_client.bookies import Bookies
from bookie_client.connection.answers import BookieInfo
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.pool import ChannelPool, Connector, tcp_connector
from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementChoice, PlacementInputs
from bookie_client.placement.options import PlacementOptions
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.creation import NewLedger, create_ledger
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import LedgerNotClosed, MetadataNotFound, NoSuchLedger, Unauthorized
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import MetadataService

Handle = TypeVar("Handle", bound=LedgerWriter | AdvancedLedgerWriter | LedgerReader)
Writer = TypeVar("Writer", LedgerWriter, AdvancedLedgerWriter)


class Opening(Generic[Handle]):
    """A handle in the making: `await` it, or enter it with `async with`, which closes the handle at the
    end."""

    def __init__(self, make: Callable[[], Awaitable[Handle]]) -> None:
        self._make = make
        self._handle: Handle | None = None

    def __await__(self) -> Generator[Any, None, Handle]:
        return self._make().__await__()

    async def __aenter__(self) -> Handle:
        self._handle = await self._make()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            await self._handle.__aexit__(kind, error, trace)


class Client:
    """A BookKeeper client on the running event loop.

    `metadata` is the URI of the metadata service (`zk+null://host:2181/ledgers`, or the embedded service's),
    or an open service, which is then not closed with the client. `placement` decides which bookies a ledger goes
    to: a policy's name ("random", "rack-aware", "region-aware", "zone-aware"), `PlacementOptions`, or a policy of
    your own; by default rack-aware, with the racks that bookies publish. Raises `BadRequest` for a choice that makes
    no sense.
    """

    def __init__(
        self,
        metadata: str | MetadataService,
        options: ClientOptions | None = None,
        *,
        placement: PlacementChoice | None = None,
        connector: Connector = tcp_connector,
        random: Random | None = None,
    ) -> None:
        self._metadata = metadata
        self._options = options or ClientOptions()
        self._placement = PlacementInputs(placement or PlacementOptions())
        self._connector = connector
        self._random = random or Random()
        self._service: MetadataService | None = None
        self._context: ClientContext | None = None

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the metadata service. Raises `MetadataUnavailable`, and `BadRequest` for a topology file or
        script that cannot be used."""
        await self._placement.open()
        if isinstance(self._metadata, str):
            # Here, because the drivers take a while to load and a client of an open service needs none of
            # them.
            from bookie_protocol.metadata_service.uri import open_metadata_service

            self._service = await open_metadata_service(self._metadata)
        else:
            self._service = self._metadata
        bookies = Bookies(self._service.bookies)
        bookies.start()
        health = BookieHealth(self._options, asyncio.get_running_loop().time, self._random)
        pool = ChannelPool(bookies.address, self._options, self._connector, health)
        pool.addresses.start(lambda: bookies.known_writable | bookies.known_read_only, bookies.changed)
        context = ClientContext(self._options, self._service.ledgers, bookies, pool, self._placement, self._random)
        await self._placement.start(bookies, context.avoided_bookies, context.free_bytes)
        self._context = context

    async def close(self) -> None:
        """Close all connections, and the metadata service if this client opened it. Calling it again is fine.

        Writers that were not closed before fail what is pending; their ledgers stay open.
        """
        context, self._context = self._context, None
        if context is not None:
            for end in list(context.open_handles):
                await end()
            await self._placement.close()
            await context.pool.close()
            await context.bookies.close()
        service, self._service = self._service, None
        if service is not None and isinstance(self._metadata, str):
            await service.close()

    # --- ledgers --------------------------------------------------------------------------------------------

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest: DigestType = DigestType.CRC32C,
        metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> Opening[LedgerWriter]:
        """Create a ledger and its writer's handle.

        `metadata`: custom metadata, kept with the ledger's own. `ledger_id`: an id chosen by the caller; by
        default the cluster gives a new one. `deferred_sync`: entries are acknowledged before bookies synced
        them, and count (`last_add_confirmed`) only after `LedgerWriter.force`; a bookie that fails ends such a
        handle. Raises `BadRequest` (quorums that do not fit, an id that the metadata layout cannot hold),
        `BadVersion` (deferred sync with protocol version 2), `NotEnoughBookies`, `MetadataExists` (the chosen
        id is taken), `MetadataUnavailable`.
        """
        new = NewLedger(
            quorums=Quorums(ensemble, write_quorum, ack_quorum),
            password=password,
            digest=digest,
            metadata=metadata or {},
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
        )
        return Opening(lambda: self._create(LedgerWriter, new))

    def create_advanced(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 2,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest: DigestType = DigestType.CRC32C,
        metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> Opening[AdvancedLedgerWriter]:
        """As `create`, with a handle whose entry ids the caller chooses."""
        new = NewLedger(
            quorums=Quorums(ensemble, write_quorum, ack_quorum),
            password=password,
            digest=digest,
            metadata=metadata or {},
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
        )
        return Opening(lambda: self._create(AdvancedLedgerWriter, new))

    def open(
        self, ledger_id: int, *, password: bytes = b"", digest: DigestType = DigestType.CRC32C
    ) -> Opening[LedgerReader]:
        """Open a closed ledger for reading.

        The recorded digest type is used; `digest` counts only for ledgers that recorded none. Raises
        `NoSuchLedger`, `Unauthorized` (another password), `LedgerNotClosed`, `MetadataUnavailable`.
        """
        return Opening(lambda: self._open(ledger_id, password, digest))

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata; bookies give the space back when their garbage collection has run. A
        ledger that does not exist is fine."""
        await self._ready.ledgers.delete(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata. Raises `NoSuchLedger`."""
        try:
            return (await self._ready.ledgers.read(ledger_id)).value
        except MetadataNotFound as error:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist") from error

    async def list(self) -> AsyncIterator[int]:
        """The ids of all ledgers, ascending."""
        async for span in self._ready.ledgers.ranges():
            for ledger_id in span.ids:
                yield ledger_id

    async def writable_bookies(self) -> frozenset[str]:
        """Ids of the bookies that take writes at present."""
        return await self._ready.bookies.writable()

    async def bookie_info(self, bookie_id: str) -> BookieInfo:
        """Total and free bytes of a bookie, as it says now. Raises `BookieUnavailable`, or what it answered."""
        return await self._ready.operations.bookie_info(bookie_id)

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> ClientContext:
        if self._context is None:
            raise RuntimeError("this client is not open: use `async with Client(...)`, or call start()")
        return self._context

    async def _create(self, handle: type[Writer], new: NewLedger) -> Writer:
        context = self._ready
        stored = await create_ledger(context, new)
        digest = digest_manager(new.digest, new.password)
        return handle(context, stored, digest, master_key(new.password), deferred_sync=new.deferred_sync)

    async def _open(self, ledger_id: int, password: bytes, digest: DigestType) -> LedgerReader:
        metadata = await self.metadata(ledger_id)
        if metadata.password is not None and metadata.password != password:
            raise Unauthorized(f"ledger {ledger_id} has another password")
        if metadata.state is not LedgerState.CLOSED:
            raise LedgerNotClosed(
                f"ledger {ledger_id} is {metadata.state.value}: its end is known once its writer closes it"
            )
        return LedgerReader(self._ready, metadata, digest_manager(metadata.digest_type or digest, password))
