"""An operator's command that decommissions one bookie: the real coordinator, over the virtual network."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from bookie_client.replication.replicator import ReplicationOptions
from bookie_pod.autorecovery.decommission.coordinator import Coordinator, Parts
from bookie_pod.autorecovery.decommission.ledger_drain import DrainOptions
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, TakenOver
from bookie_protocol.errors import BookieUnavailable, PodkeeperError
from tests.support.simulation.actors import Actor
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World


class Drainer(Actor):
    """Goes on until the bookie is decommissioned, or somebody else has taken it over. Ledgers that it may not recover
    have to be closed by others for that."""

    is_service = True

    def __init__(
        self, world: World, name: str, plan: LedgerPlan, random: Random, bookie: VirtualBookie, options: DrainOptions
    ) -> None:
        super().__init__(world, name, plan, random)
        self.bookie = bookie
        self._options = options

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        service = self.host.service
        copying = ReplicationOptions(entry_batch_size=self._random.choice((1, 5, 100)))
        mover = ClientMover(self.host.client, copying)
        request = DecommissionRequest(self.bookie.bookie_id, self.name)
        while not self.bookie.is_retired:
            parts = Parts(service, mover, _Admin(self), self._options, clock_ms=lambda: int(loop.time() * 1000))
            try:
                await Coordinator(parts).run(request)
                self._history.count("decommissioned")
                return
            except TakenOver as error:
                self.trace(f"ends: {error}")
                return
            except PodkeeperError as error:
                self.trace(f"cannot go on with {self.bookie.host}: {error}")
            await self._wait()

    async def _wait(self) -> None:
        await asyncio.sleep(0.2 + self._random.random())

    async def ask(self, read_only: bool) -> None:
        """What the bookie's admin API does."""
        bookie, network = self.bookie, self._world.network
        await asyncio.sleep(0.001 + 0.02 * self._random.random())
        cut_off = network.blocked(self.host.host, bookie.host) or network.blocked(bookie.host, self.host.host)
        if not bookie.is_running or cut_off:
            raise BookieUnavailable(f"the admin API of {bookie.host} does not answer")
        bookie.held_read_only = read_only
        bookie.set_read_only(read_only)


class _Admin:
    """A `BookieAdmin`."""

    def __init__(self, drainer: Drainer) -> None:
        self._drainer = drainer

    async def set_read_only(self, bookie_id: str, read_only: bool) -> None:
        await self._drainer.ask(read_only)
