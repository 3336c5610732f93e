"""A process of auto-recovery on a virtual host: the real auditor, worker and daemon, over the virtual network."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from bookie_pod.autorecovery.auditor.auditor import Auditor
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.daemon import AutoRecovery
from bookie_pod.autorecovery.start import make_worker
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments, ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from tests.support.simulation.actors import Actor
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World


class Healer(Actor):
    """Works until it is stopped (`task.cancel`, it gives everything back) or killed (`host.kill`)."""

    is_service = True

    def __init__(self, world: World, name: str, plan: LedgerPlan, random: Random, config: AutoRecoveryConfig) -> None:
        super().__init__(world, name, plan, random)
        self._config = config

    @property
    def goes_on(self) -> bool:
        """It works, and was not told to stop: one that was may still give back what it holds."""
        stops = self.task is not None and self.task.cancelling() > 0
        return not (stops or self.finished or self.host.is_dead)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        service, client = self.host.service, self.host.client
        registry = Registry(clock=loop.time)

        def clock_ms() -> int:
            return int(loop.time() * 1000)

        instruments = AuditorInstruments(registry, embedded=False)
        auditor = Auditor(
            service,
            client,
            self._config,
            instruments,
            bookie_id=self.name,
            random=self._random,
            clock=lambda: Clock(clock_ms),
        )
        metrics = ReplicationWorkerMetrics(registry, embedded=False)
        worker = make_worker(service, client, self._config, metrics, clock_ms)
        parts = {"auditor": auditor.run, "replication worker": worker.run}
        daemon = AutoRecovery(service.session, parts, worker.progress)
        await daemon.start()
        try:
            self.trace(f"gives up: {await daemon.watch()}")
        finally:
            await daemon.stop()
