"""The parts of one client: connections, registry, placement and the metadata service, started and closed together.

Invariants
- A start that fails, or is cancelled half way, leaves nothing open.
- Handles end before the connections do, and the metadata service closes last: placement and registry ask it.
- The cluster's switch over quarantine is read while a bookie is in quarantine, at once and then every
  `quarantine_interval`; while it is off, quarantined bookies are released. A metadata service that cannot tell changes
  nothing, and every quarantine is told in the log once.
- A metadata service that was given open is not closed here.

Event loop only.

Source: reference client protocol, sections 13, 15 and 17; metadata layout, section 3.1 (`disableHealthCheck`).
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, TypeVar

from bookie_client.bookies import Bookies
from bookie_client.connection.health import BookieHealth
from bookie_client.connection.pool import ChannelPool, Connector
from bookie_client.context import ClientContext
from bookie_client.logs import get_logger
from bookie_client.options import ClientOptions
from bookie_client.placement.inputs import PlacementInputs
from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.tree.life_cycle import ClusterMetadata

Part = TypeVar("Part")
_log = get_logger(__name__)


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

    @property
    def context(self) -> ClientContext:
        """What the handles share. Raises `RuntimeError` when the client is not open."""
        return _opened(self._context)

    @property
    def service(self) -> MetadataService:
        """The open metadata service. Raises `RuntimeError` when the client is not open."""
        return _opened(self._service)

    async def start(self) -> None:
        """Raises `MetadataUnavailable`, and `BadRequest` for a topology file or script that cannot be used."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End open handles, then everything that runs. Calling it again is fine."""
        following, self._health_check = self._health_check, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
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
            following = follow_health_check(service.cluster, health, self._options.quarantine_interval)
            self._health_check = asyncio.create_task(following, name="health check")
        await self._placement.start(bookies, context.avoided_bookies, context.free_bytes)

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


async def follow_health_check(cluster: ClusterMetadata, health: BookieHealth, interval: float) -> None:
    """Until it is cancelled; `interval` in seconds."""
    while True:
        await health.quarantine_began.wait()
        health.quarantine_began.clear()
        told: frozenset[str] = frozenset()
        while quarantined := health.quarantined():
            if new := quarantined - told:
                _log.warning("many errors: bookies are kept out of new ensembles", bookies=sorted(new))
            told = quarantined
            try:
                enabled = await cluster.is_health_check_enabled()
            except MetadataError:
                enabled = True
            if not enabled:
                _log.info("health check is disabled: bookies released from quarantine", bookies=sorted(quarantined))
                for bookie in quarantined:
                    health.release(bookie)
                break
            await _began_again(health, interval)


async def _began_again(health: BookieHealth, interval: float) -> None:
    """Wait for the next quarantine, at most `interval` seconds."""
    try:
        async with asyncio.timeout(interval):
            await health.quarantine_began.wait()
    except TimeoutError:
        return
    health.quarantine_began.clear()
