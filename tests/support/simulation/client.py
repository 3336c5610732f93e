"""A client host of the virtual cluster: its own session with the metadata service and its own connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from bookie_client.client import Client
from bookie_client.options import ClientOptions
from bookie_client.placement.options import PlacementOptions
from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.simulation.bookie import ROOT
from tests.support.simulation.metadata import MetadataServer
from tests.support.simulation.network import Network
from tests.support.simulation.session import VirtualTree
from tests.support.simulation.trace import Trace


class VirtualClient:
    """`kill` is the end of its process: nothing leaves the host any more, and what its code still does is seen by
    nobody. `close` ends that code."""

    def __init__(
        self,
        host: str,
        network: Network,
        metadata: MetadataServer,
        options: ClientOptions,
        random: Random,
        trace: Trace,
    ) -> None:
        self.host = host
        self.is_dead = False
        self.on_kill: list[Callable[[], None]] = []
        self.placement: PlacementOptions | None = None
        """None: the client's default. Counts from `start` on."""
        self._network = network
        self._metadata = metadata
        self._options = options
        self._random = random
        self._trace = trace
        self._service: MetadataService | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def service(self) -> MetadataService:
        assert self._service is not None
        return self._service

    async def start(self) -> None:
        """Connect, however long it takes."""
        tree = await self._connect()
        self._service = MetadataService(tree, ROOT, None, random=self._random)
        while True:
            try:
                await self._service.prepare()
                break
            except MetadataError:
                await asyncio.sleep(0.1)
        self._client = Client(
            self._service,
            self._options,
            placement=self.placement,
            connector=self._network.connector(self.host),
            random=self._random,
        )
        await self._client.start()

    async def _connect(self) -> VirtualTree:
        while True:
            try:
                return await self._metadata.connect(self.host)
            except TimeoutError:
                self._metadata.forget(self.host)

    def kill(self) -> None:
        if self.is_dead:
            return
        self._trace(self.host, "is killed")
        self.is_dead = True
        self._network.retire(self.host)
        self._metadata.forget(self.host)
        for callback in self.on_kill:
            callback()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._service is not None:
            await self._service.close()
