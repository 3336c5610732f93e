"""Operators' commands about one bookie: the undo of a decommission, and the recovery of one that is lost for good."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from random import Random
from typing import TYPE_CHECKING

from bookie_client.replication.replicator import ReplicationOptions
from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.recover import Recover, RecoverOptions, find_ledgers
from bookie_pod.autorecovery.decommission.state import Phase
from bookie_pod.autorecovery.decommission.store import TakenOver
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_protocol.errors import BookieUnavailable, NotThere, PodkeeperError, Refused
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.simulation.actors import Actor
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World


class Command(Actor):
    """About one bookie; repeated until it is done. The real code, over the virtual network."""

    is_service = True

    def __init__(self, world: World, name: str, plan: LedgerPlan, random: Random, bookie: VirtualBookie) -> None:
        super().__init__(world, name, plan, random)
        self.bookie = bookie

    async def _work(self) -> None:
        while True:
            if await self._done():
                return
            await asyncio.sleep(0.2 + self._random.random())

    @abstractmethod
    async def _done(self) -> bool:
        """One try."""

    async def set_read_only(self, bookie_id: str, read_only: bool, decommission: int | None = None) -> None:
        """The bookie's admin API: a `BookieAdmin`."""
        bookie, network = self.bookie, self._world.network
        await asyncio.sleep(0.001 + 0.02 * self._random.random())
        cut_off = network.blocked(self.host.host, bookie.host) or network.blocked(bookie.host, self.host.host)
        if not bookie.is_running or cut_off:
            raise BookieUnavailable(f"the admin API of {bookie.host} does not answer")
        if decommission is not None and not self._goes_on(decommission):
            raise Refused(f"the decommission of {bookie.host} is over")
        bookie.held_read_only = read_only
        bookie.set_read_only(read_only)

    def _goes_on(self, decommission: int) -> bool:
        record = self._world.judge.decommissions.records.get(self.bookie.bookie_id)
        return record is not None and record.started_ms == decommission and record.phase is not Phase.UNDOING


class Undoer(Command):
    """Takes a decommission back, or finds that there is none, or that it is too late."""

    async def _done(self) -> bool:
        try:
            await undo(self.host.service, self, self.bookie.bookie_id)
        except TakenOver as error:
            self.trace(str(error))
            return False
        except (NotThere, Refused) as error:
            self.trace(f"ends: {error}")
            return True
        except PodkeeperError as error:
            self.trace(f"cannot undo the decommission of {self.bookie.host}: {error}")
            return False
        self._history.count("undone")
        return True


class Restorer(Command):
    """Restores what a bookie held whose disk is gone for good."""

    def __init__(
        self, world: World, name: str, plan: LedgerPlan, random: Random, bookie: VirtualBookie, options: DrainOptions
    ) -> None:
        super().__init__(world, name, plan, random, bookie)
        self._options = RecoverOptions(
            skip_open=random.random() < 0.2,
            skip_unrecoverable=random.random() < 0.5,
            delete_cookies=random.random() < 0.5,
            drain=options,
        )
        self._copying = ReplicationOptions(entry_batch_size=random.choice((1, 5, 100)))

    async def _done(self) -> bool:
        service, lost = self.host.service, self.bookie.bookie_id
        recover = Recover(service, ClientMover(self.host.client, self._copying), {lost}, self._options)
        try:
            found = await find_ledgers(service, {lost})
            result = await recover.run(found)
        except PodkeeperError as error:
            self.trace(f"cannot recover {self.bookie.host} yet: {error}")
            return False
        self._history.count("recovered a lost bookie")
        for ledger_id in {each.ledger_id for each in found if each.state is LedgerState.CLOSED} - result.failed.keys():
            ledger = self._history.ledgers[ledger_id]
            if lost in ledger.metadata.all_bookies():
                self._history.violated("H9 recover", ledger, f"{self.name} says it is restored, and it names {lost}")
        return True
