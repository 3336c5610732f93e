"""The entry point: create, open, delete and list ledgers.

    async with Client("zk+null://zk1:2181/ledgers") as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=b"secret") as ledger:
            await ledger.append(b"first entry")
        async with client.open(ledger.ledger_id, password=b"secret") as reader:
            async for entry in reader.entries():
                print(entry.payload)

A ledger that its writer has not closed, because it still writes or because it died, is opened in one of two ways:

    async with client.open(ledger_id, password=b"secret") as reader:                 # the writer notices nothing
        async for entry in reader.tail():
            print(entry.payload)
    async with client.open(ledger_id, password=b"secret", recover=True) as reader:   # the writer is locked out
        entries = await reader.read(0, reader.last_add_confirmed)

Invariants
- Creating and opening a closed ledger talk to the metadata service only.
- A wrong password is rejected before any bookie is asked, if the ledger recorded one.
- The client owns its parts (`ClientParts`): a start that fails, or is cancelled half way, leaves nothing open. Handles
  end before the connections do, and the metadata service closes last: placement and registry ask it. One that was given
  open is not closed here.
- The cluster's switch over quarantine is read while a bookie is in quarantine, at once and then every
  `quarantine_interval`; while it is off, quarantined bookies are released. A metadata service that cannot tell changes
  nothing, and every quarantine is logged once. A bookie that answers a probe is released; the first one is sent after
  `quarantine_interval`.

Event loop only.

Source: docs/internals/client-protocol.md, sections 3, 13, 15, 17 and 27; docs/internals/metadata-layout.md, section 3.1
(`disableHealthCheck`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from operator import index
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from bookie_client.access import access_to
from bookie_client.bookies import Bookies
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.network import Connector, tcp_connector
from bookie_client.connection.operations import BookieOperations
from bookie_client.connection.pool import ChannelPool
from bookie_client.connection.request import BookieInfo
from bookie_client.context import ClientContext
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementChoice, PlacementInputs
from bookie_client.placement.options import PlacementOptions
from bookie_client.placement.policy import ClusterView, PlacementPolicy
from bookie_client.reading.handle import LedgerReader
from bookie_client.recovery.recovery import recover_ledger
from bookie_client.writing.advanced import AdvancedLedgerWriter
from bookie_client.writing.creation import NewLedger, create_writer, takes_new_ledger
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerDeleted, MetadataError, MetadataNotFound
from bookie_protocol.lasting import Ending
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.tree.life_cycle import ClusterMetadata

Handle = TypeVar("Handle", bound=LedgerWriter | AdvancedLedgerWriter | LedgerReader)
Part = TypeVar("Part")
_log = get_logger(__name__)


class Opening(Generic[Handle]):
    """A handle in the making: `await` it, or enter it with `async with`, which closes the handle at the
    end. What a handle has, it does not have yet."""

    def __init__(self, make: Callable[[], Awaitable[Handle]]) -> None:
        self._make = make
        self._handle: Handle | None = None

    def __await__(self) -> Generator[Any, None, Handle]:
        return self._make().__await__()

    if not TYPE_CHECKING:  # to a type checker it has no other attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"{name}: the ledger is not open yet; use `async with client.create(...) as ledger`, or `await` it"
            )

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

    `metadata` is the URI of the metadata service (`zk+null://host:2181/ledgers`, or the embedded service's), reached
    as `ClientOptions.metadata_service` says, or an open service, which is then not closed with the client.
    `placement` decides which bookies a ledger goes to: a policy's name ("random", "rack-aware", "region-aware",
    "zone-aware"), `PlacementOptions`, or a policy of your own; by default rack-aware, with the racks that bookies
    publish. Raises `BadRequest` for a choice that makes no sense.
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
        inputs = PlacementInputs(placement or PlacementOptions())
        self._parts = ClientParts(metadata, options or ClientOptions(), inputs, connector, random or Random())

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the metadata service. Raises `MetadataUnavailable`, `BadRequest` for a topology file or script
        that cannot be used, and `RuntimeError` when it was started before, or is closed meanwhile; nothing is left open
        then, nor when it is cancelled."""
        await self._parts.start()

    async def close(self) -> None:
        """Close all connections, and the metadata service if this client opened it. Calling it again is fine: every
        call waits until the client is closed, and cancelling one does not stop it.

        Writers that were not closed before fail what is pending; their ledgers stay open.
        """
        await self._parts.close()

    # --- ledgers --------------------------------------------------------------------------------------------

    @takes_new_ledger
    def create(self, new: NewLedger) -> Opening[LedgerWriter]:
        """Create a ledger and its writer's handle.

            async with client.create(ensemble=5, write_quorum=3, ack_quorum=2, password=b"secret") as ledger:
                await ledger.append(b"first entry")

        The arguments, all by name, are the fields of `NewLedger`; in short: `ensemble`, `write_quorum` and `ack_quorum`
        in bookies. `password`, `digest`: what adds and entries are protected with. `metadata`: custom metadata, kept
        with the ledger's own. `ledger_id`: an id chosen by the caller; by default the cluster gives a new one.
        `deferred_sync`: entries are acknowledged before bookies synced them, and count (`last_add_confirmed`) only
        after `LedgerWriter.force`; a bookie that fails, or a connection lost before the force, ends such a handle.

        Raises `BadRequest` (quorums that do not fit, an id that the metadata layout cannot hold), `BadVersion`
        (deferred sync with protocol version 2), `NotEnoughBookies`, `MetadataExists` (the chosen id is taken),
        `MetadataUnavailable`.
        """
        return Opening(lambda: create_writer(self.context, LedgerWriter, new))

    @takes_new_ledger
    def create_advanced(self, new: NewLedger) -> Opening[AdvancedLedgerWriter]:
        """Create a ledger as `create` does, and return a handle whose entry ids the caller chooses."""
        return Opening(lambda: create_writer(self.context, AdvancedLedgerWriter, new))

    def open(
        self,
        ledger_id: int,
        *,
        password: bytes | None = b"",
        digest: DigestType = DigestType.CRC32C,
        recover: bool = False,
    ) -> Opening[LedgerReader]:
        """Open a ledger for reading.

        Of a ledger that is not closed the handle reads up to the last add confirmed and may tail; its writer goes
        on. `recover`: close it first, as `Client.recover` does, so that its end is known and no writer can add to
        it any more.

        `password` None: the one that the ledger recorded (administration). The recorded digest type is used;
        `digest` counts only for ledgers that recorded none. Raises `LedgerDeleted`, `Unauthorized` (another
        password), `MetadataUnavailable`; of a ledger that is not closed also what
        `LedgerReader.read_last_add_confirmed`, or with `recover` what `Client.recover`, raises.
        """
        return Opening(lambda: self._open(ledger_id, password, digest, recover))

    def open_stored(
        self,
        stored: Versioned[LedgerMetadata],
        *,
        password: bytes | None = b"",
        digest: DigestType = DigestType.CRC32C,
        last_add_confirmed: int = -1,
    ) -> LedgerReader:
        """Return a reader of a ledger whose metadata the caller already has. Opening it sends no request.

        It suits tasks to which one planner assigned many ledgers. If an entry cannot be read with these metadata, the
        reader tries once more with the metadata that are stored by then.

        A ledger that is not closed is read up to `last_add_confirmed`; the handle does not follow it, so it cannot
        tail. `password` and `digest` as in `open`. Raises `Unauthorized`."""
        reader = LedgerReader(self.context, stored, access_to(stored.value, password, digest).digest)
        reader.heard(last_add_confirmed)
        return reader

    async def recover(
        self, ledger_id: int, *, password: bytes | None = b"", digest: DigestType = DigestType.CRC32C
    ) -> LedgerMetadata:
        """Close a ledger that its writer has not closed; returns its final metadata. A closed one is left as it is.

        The writer is fenced: whatever it appends from now on fails with `LedgerFenced`. All entries that it saw
        acknowledged are part of the ledger; one whose append failed, or never ended, may be. Any number of clients
        may recover a ledger at the same time and come to the same end. `password` and `digest` as in `open`.

            metadata = await client.recover(ledger_id, password=b"secret")
            print(metadata.last_entry_id, metadata.length)

        Raises `RecoveryFailed` when too few bookies can be reached (the ledger stays in recovery; try again when they
        are back), `LedgerDeleted`, `Unauthorized` (another password; nothing was fenced then), `MetadataUnavailable`,
        `MetadataVersionConflict` (another client changed its state or last ensemble meanwhile, so that the bookies'
        answers no longer count: no end was stored, try again)."""
        stored = await self.stored_metadata(ledger_id)
        return (await recover_ledger(self.context, stored, access_to(stored.value, password, digest))).value

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata, whatever its state; bookies give the space back when their garbage collection
        has run. A ledger that does not exist is fine. A writer notices at its next ensemble change, or when it
        closes.

            await client.delete(ledger_id)

        Raises `MetadataUnavailable`.
        """
        await self.context.ledgers.delete(checked_id(ledger_id))

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return a ledger's metadata. Raises `LedgerDeleted`, `MetadataUnavailable`."""
        return (await self.stored_metadata(ledger_id)).value

    async def list(self) -> AsyncIterator[int]:
        """The ids of all ledgers, ascending; complete, or it raises `MetadataUnavailable`.

        async for ledger_id in client.list():
            print(ledger_id)
        """
        async for span in self.context.ledgers.ranges():
            for ledger_id in span.ids:
                yield ledger_id

    async def writable_bookies(self) -> frozenset[str]:
        """Ids of the bookies that take writes at present. Raises `MetadataUnavailable`."""
        return await self.context.bookies.writable()

    async def quarantined_bookies(self) -> frozenset[str]:
        """Ids of the bookies that this client keeps out of new ensembles at present, for their many errors."""
        return self.context.health.quarantined()

    async def bookie_info(self, bookie_id: str) -> BookieInfo:
        """Total and free bytes of a bookie, as it says now. Raises `BookieUnavailable`, or what it answered."""
        return await self.context.operations.bookie_info(bookie_id)

    # --- for administration -----------------------------------------------------------------------------------

    @property
    def metadata_service(self) -> MetadataService:
        """The open metadata service; it lives as long as the client, or longer if it was given open."""
        return self._parts.service

    @property
    def operations(self) -> BookieOperations:
        """Single requests to single bookies."""
        return self.context.operations

    @property
    def bookies(self) -> Bookies:
        """Return the registered bookies, as this client follows them."""
        return self.context.bookies

    @property
    def placement(self) -> PlacementPolicy:
        """Return the placement policy that chooses bookies."""
        return self.context.placement

    async def cluster_view(self) -> ClusterView:
        """Return the bookies as the placement policy has to see them now. Raises `MetadataUnavailable`."""
        return await self.context.cluster_view()

    @property
    def context(self) -> ClientContext:
        """Return the state that the handles share, for other parts of this package such as replication."""
        return self._parts.context

    async def stored_metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return a ledger's metadata with its version, for compare-and-set. Raises as `Client.metadata`."""
        try:
            return await self.context.ledgers.read(checked_id(ledger_id))
        except MetadataNotFound as error:
            raise LedgerDeleted(f"ledger {ledger_id} does not exist") from error

    # --- inside ---------------------------------------------------------------------------------------------

    async def _open(self, ledger_id: int, password: bytes | None, digest: DigestType, recover: bool) -> LedgerReader:
        context = self.context
        stored = await self.stored_metadata(ledger_id)
        access = access_to(stored.value, password, digest)
        if recover:
            stored = await recover_ledger(context, stored, access)
        await context.placement_inputs.locate()
        reader = LedgerReader(context, stored, access.digest)
        if not stored.value.is_closed or context.options.keep_metadata_updated:
            await reader.follow()
        return reader


def checked_id(ledger_id: int) -> int:
    """Return the id. Raises `TypeError` for what is not a whole number."""
    try:
        return index(ledger_id)
    except TypeError:
        raise TypeError(f"a ledger id is an int, not {type(ledger_id).__name__}: {ledger_id!r}") from None


class ClientParts:
    """Belongs to one `Client`, which says what the arguments mean. `start` it; `close` may be called at any time."""

    def __init__(
        self,
        metadata: str | MetadataService,
        options: ClientOptions,
        placement: PlacementInputs,
        connector: Connector,
        random: Random,
    ) -> None:
        self._metadata = metadata
        self._options = options
        self._placement = placement
        self._connector = connector
        self._random = random
        self._service: MetadataService | None = None
        self._context: ClientContext | None = None
        self._health_check: asyncio.Task[None] | None = None
        self._is_starting = False
        self._ending = Ending("close client")

    @property
    def context(self) -> ClientContext:
        """Return the state that the handles share. Raises `RuntimeError` if the client is not open."""
        return _opened(self._context)

    @property
    def service(self) -> MetadataService:
        """The open metadata service. Raises `RuntimeError` when the client is not open."""
        return _opened(self._service)

    async def start(self) -> None:
        """Raises `MetadataUnavailable`, `BadRequest` for a topology file or script that cannot be used, and
        `RuntimeError` for a client that was started before, or is closed meanwhile."""
        await self._ending.settle()
        if self._is_starting or self._service is not None:
            raise RuntimeError("this client was started before")
        self._is_starting = True
        ending = self._ending = Ending("close client")
        try:
            await self._start()
            if ending.has_begun:
                raise RuntimeError("this client was closed while it started")
        except BaseException:
            # What a call of `close` did not find yet is there now.
            self._ending = Ending("close client")
            await self.close()
            raise
        finally:
            self._is_starting = False

    async def close(self) -> None:
        """End open handles, then everything that runs. Calling it again is fine; cancelling a call does not stop it."""
        await self._ending.reach(self._close)

    async def _close(self) -> None:
        following, self._health_check = self._health_check, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        context, self._context = self._context, None
        if context is not None:
            for end in list(context.open_handles):
                await end()
        await self._placement.close()
        if context is not None:
            await context.pool.close()
            await context.bookies.close()
        service, self._service = self._service, None
        if service is not None and isinstance(self._metadata, str):
            await service.close()

    async def _start(self) -> None:
        await self._placement.open()
        service = self._service = await self._connect()
        bookies = Bookies(service.bookies)
        bookies.start()
        health = BookieHealth(self._options, asyncio.get_running_loop().time, self._random)
        pool = ChannelPool(bookies.address, self._options, self._connector, health)
        pool.addresses.start(lambda: bookies.known_writable | bookies.known_read_only, bookies.changed)
        context = ClientContext(self._options, service.ledgers, bookies, pool, self._placement, self._random)
        self._context = context
        if self._options.quarantine:
            answers, interval = context.operations.answers, self._options.quarantine_interval
            following = follow_health_check(service.cluster, health, answers, interval)
            self._health_check = asyncio.create_task(following, name="health check")
        await self._placement.start(bookies, health, context.free_bytes)

    async def _connect(self) -> MetadataService:
        if not isinstance(self._metadata, str):
            return self._metadata
        # Here, because the drivers take a while to load and a client of an open service needs none of them.
        from bookie_protocol.metadata_service.uri import connect_metadata_service

        return await connect_metadata_service(self._metadata, self._options.metadata_service)


def _opened(part: Part | None) -> Part:
    if part is None:
        raise RuntimeError("this client is not open: use `async with Client(...)`, or call start()")
    return part


async def follow_health_check(
    cluster: ClusterMetadata, health: BookieHealth, answers: Callable[[str], Awaitable[bool]], interval: float
) -> None:
    """Probe quarantined bookies and follow the cluster's switch over quarantine until cancelled. `interval` is in
    seconds; `answers` probes a bookie."""
    clock = asyncio.get_running_loop().time
    while True:
        await health.quarantine_began.wait()
        health.quarantine_began.clear()
        probe_at: dict[str, float] = {}
        while quarantined := health.quarantined():
            if new := quarantined - probe_at.keys():
                _log.warning("many errors: bookies are kept out of new ensembles", bookies=sorted(new))
            probe_at = {bookie: probe_at.get(bookie, clock() + interval) for bookie in quarantined}
            try:
                enabled = await cluster.is_health_check_enabled()
            except MetadataError:
                enabled = True
            if not enabled:
                _log.info("health check is disabled: bookies released from quarantine", bookies=sorted(quarantined))
                for bookie in quarantined:
                    health.release(bookie)
                break
            due = sorted(bookie for bookie, at in probe_at.items() if at <= clock())
            for bookie, is_well in zip(due, await asyncio.gather(*map(answers, due)), strict=True):
                probe_at[bookie] = clock() + interval
                if is_well:
                    _log.info("bookie answers: released from quarantine", bookie=bookie)
                    health.release(bookie)
            await _began_again(health, interval)


async def _began_again(health: BookieHealth, interval: float) -> None:
    """Wait for the next quarantine, at most `interval` seconds."""
    try:
        async with asyncio.timeout(interval):
            await health.quarantine_began.wait()
    except TimeoutError:
        return
    health.quarantine_began.clear()
