"""An operator's command that decommissions one bookie: the real coordinator, over the virtual network."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from bookie_client.replication.replicator import ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.decommission.coordinator import Coordinator, Parts
from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, TakenOver
from bookie_protocol.errors import PodkeeperError
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.healing.commands import Command
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World


class Drainer(Command):
    """Goes on until the bookie is decommissioned, or somebody else has taken it over. Ledgers that it may not recover
    have to be closed by others for that."""

    def __init__(
        self, world: World, name: str, plan: LedgerPlan, random: Random, bookie: VirtualBookie, options: DrainOptions
    ) -> None:
        super().__init__(world, name, plan, random, bookie)
        self._options = options
        assert world.scenario.healing is not None
        rate = world.scenario.healing.drain_rate
        batch = 1 if rate is not None else random.choice((1, 5, 100))
        self._copying = ReplicationOptions(entry_batch_size=batch, throttle=ReplicationThrottle(rate))

    async def _done(self) -> bool:
        if self.bookie.is_retired:
            return True
        loop = asyncio.get_running_loop()
        began = loop.time()
        service = self.host.service
        mover = ClientMover(self.host.client, self._copying)
        request = DecommissionRequest(self.bookie.bookie_id, self.name)
        parts = Parts(service, mover, self, self._options, clock_ms=lambda: int(loop.time() * 1000))
        try:
            await Coordinator(parts).run(request)
        except TakenOver as error:
            self.trace(f"ends: {error}")
            return True
        except PodkeeperError as error:
            self.trace(f"cannot go on with {self.bookie.host}: {error}")
            return False
        if self._world.judge.cookie_gone_at.get(self.bookie.bookie_id, -1.0) < began:
            self._history.violated("H6 cookies", None, f"{self.name} says that {self.bookie.host} is decommissioned")
        self._history.count("decommissioned")
        return True
