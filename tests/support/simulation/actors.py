"""Who works on a ledger: its writer, readers, tailing readers, recoverers. Each has a client host of its own.

Every actor ends by itself once the cluster is whole again; one that does not is a breach. What they are told is
judged at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.client import VirtualClient
from tests.support.simulation.history import History, LedgerHistory
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World

PASSWORD = b"simulated"
PAUSE_SECONDS = 0.1


class Actor(ABC):
    """`finished` once it ended by itself or was killed."""

    is_service = False
    """Whether it works until it is stopped."""

    def __init__(self, world: World, name: str, plan: LedgerPlan, random: Random) -> None:
        self.name = name
        self._world = world
        self._history: History = world.history
        self._plan = plan
        self._random = random
        self.host: VirtualClient = world.add_client(name)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        self.host.on_kill.append(self.task.cancel)

    @property
    def finished(self) -> bool:
        return self.task is not None and self.task.done()

    async def _run(self) -> None:
        await self.host.start()
        await self._work()
        self.trace("is done")

    @abstractmethod
    async def _work(self) -> None: ...

    def trace(self, what: str) -> None:
        self._world.trace(self.name, what)

    @property
    def over(self) -> bool:
        """Everything is mended: come to an end."""
        return self._world.is_mended


class OnLedger(Actor):
    """Begins when the ledger exists."""

    def __init__(
        self, world: World, name: str, plan: LedgerPlan, random: Random, ledger: asyncio.Future[LedgerHistory]
    ) -> None:
        super().__init__(world, name, plan, random)
        self._awaited = ledger

    async def _work(self) -> None:
        await self._on(await asyncio.shield(self._awaited))

    @abstractmethod
    async def _on(self, ledger: LedgerHistory) -> None: ...

    async def _pause(self, factor: float = 1.0) -> None:
        await asyncio.sleep(PAUSE_SECONDS * factor * (0.5 + self._random.random()))
