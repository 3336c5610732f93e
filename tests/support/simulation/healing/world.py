"""One run with healing: the cluster, those who heal it, and the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_protocol.errors import MetadataError, MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.simulation.actors import Actor
from tests.support.simulation.bookie import ROOT, VirtualBookie
from tests.support.simulation.client import VirtualClient
from tests.support.simulation.clock import VirtualLoop, waiting_tasks
from tests.support.simulation.healing import copies
from tests.support.simulation.healing.collector import Collector
from tests.support.simulation.healing.commands import Command, Restorer, Undoer
from tests.support.simulation.healing.drainer import Drainer
from tests.support.simulation.healing.faults import HealingFaults
from tests.support.simulation.healing.healer import Healer
from tests.support.simulation.healing.judge import HEALERS, HealingJudge
from tests.support.simulation.healing.plan import HealingPlan
from tests.support.simulation.healing.racks import Racks
from tests.support.simulation.scenario import Scenario
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import World

HEALED_SECONDS: Final = 300.0
"""Virtual time in which everything must be restored once the cluster is whole."""
SPARES: Final = 2


class HealingWorld(World):
    """As `World`, with healers, decommissions, and bookies that collect what is surplus."""

    judge: HealingJudge

    def __init__(self, scenario: Scenario, loop: VirtualLoop, trace: Trace) -> None:
        assert scenario.healing is not None
        self.plan: HealingPlan = scenario.healing
        self.is_closing = False
        self._requests: dict[asyncio.Task[None], None] = {}
        self._wanted_back: dict[str, None] = {}
        """Bookies whose decommission somebody undoes: it is not begun again."""
        self.racks = Racks(self.plan.racks)
        super().__init__(scenario, loop, trace)
        self.judge.history = self.history
        self.judge.obeys = self.racks.obeyed
        self.judge.on_cookie_deleted = self._decommissioned
        self.metadata.on_write = self._written
        self.metadata.on_delete = self.judge.deleted
        self._operator: MetadataService | None = None

    def make_judge(self) -> HealingJudge:
        self.judge = HealingJudge(ROOT, self.loop.time)
        return self.judge

    def make_faults(self, random: Random) -> HealingFaults:
        return HealingFaults(self, random)

    def _written(self, host: str, path: str, data: bytes, version: int) -> None:
        self.judge.written(host, path, data)
        self.history.metadata_written(host, path, data, version)

    # --- what it is made of ---------------------------------------------------------------------------------

    def add_bookie(self) -> VirtualBookie:
        bookie = super().add_bookie()
        bookie.writes_cookie = True
        if self.plan.collect_every is not None:
            collector = Collector(bookie, self.history, self.judge, self._random(), self.plan.collect_every)
            collector.is_over = lambda: self.is_closing
        return bookie

    def add_client(self, name: str) -> VirtualClient:
        client = super().add_client(name)
        client.placement = self.racks.placement(knows_them=name.startswith(HEALERS))
        return client

    def begin_empty(self, bookie: VirtualBookie) -> None:
        """An emptied bookie starts, as after its cookie was deleted by hand."""
        self.trace(bookie.host, "comes back empty")
        bookie.is_held_back = False
        bookie.start()

    def add_healer(self) -> None:
        self._add(Healer(self, self._name("healer"), self.scenario.ledgers[0], self._random(), self.plan.config))

    def begin_drain(self) -> None:
        """Decommission a bookie, if there is one; another one is added for it first."""
        draining = {actor.bookie.bookie_id for actor in self.actors if isinstance(actor, Drainer)}
        sound = [bookie for bookie in self.bookies if bookie.is_running and bookie.bookie_id not in draining]
        if sound:
            self.add_bookie().start()
            self._drain(self._randoms.choice(sound))

    def resume_drain(self, before: Actor) -> None:
        """The same command again, from somewhere else."""
        assert isinstance(before, Drainer)
        if not before.bookie.is_retired and before.bookie.bookie_id not in self._wanted_back:
            self._drain(before.bookie)

    def undo_drain(self, drainer: Actor) -> Undoer:
        """Somebody wants the bookie back."""
        assert isinstance(drainer, Command)
        self._wanted_back[drainer.bookie.bookie_id] = None
        undoer = Undoer(self, self._name("undoer"), self.scenario.ledgers[0], self._random(), drainer.bookie)
        self._add(undoer)
        return undoer

    def restore(self, bookie: VirtualBookie) -> None:
        """Recover a bookie that is lost for good."""
        name = self._name("restorer")
        self._add(Restorer(self, name, self.scenario.ledgers[0], self._random(), bookie, self.plan.drain))

    def _drain(self, bookie: VirtualBookie) -> None:
        name = self._name("drainer")
        self._add(Drainer(self, name, self.scenario.ledgers[0], self._random(), bookie, self.plan.drain))

    def _decommissioned(self, bookie_id: str) -> None:
        """Its cookie is gone: the operator stops it some time later."""
        bookie = self.history.bookies[bookie_id]
        bookie.is_retired = True
        self.history.count("cookie deleted")
        self.loop.call_later(self._randoms.expovariate(1.0), self._leaves, bookie)

    def _leaves(self, bookie: VirtualBookie) -> None:
        bookie.kill()
        if self.plan.ids_used_again:
            self.loop.call_later(self._randoms.expovariate(1.0), self._unless_mended, lambda: self._begins_anew(bookie))

    def _begins_anew(self, bookie: VirtualBookie) -> None:
        self.history.count("an id used again")
        bookie.begin_anew()

    def ask(self, request: Callable[[MetadataService], Awaitable[Any]]) -> None:
        """An operator's request to the metadata service, as often as it takes."""

        async def run() -> None:
            while self._operator is not None:
                try:
                    await request(self._operator)
                    return
                except (MetadataExists, MetadataNotFound):
                    return  # it is so already
                except MetadataError as error:
                    self.trace("operator", f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

        task = self.loop.create_task(run(), name="operator")
        self._requests[task] = None
        task.add_done_callback(lambda done: self._requests.pop(done, None))

    # --- the run --------------------------------------------------------------------------------------------

    async def _set_up(self) -> None:
        await super()._set_up()
        for _ in range(self.plan.healers):
            self.add_healer()
        self._operator = (await self._new_client("operator-2")).service
        for at in self.plan.drains:
            self.loop.call_later(at, self._unless_mended, self.begin_drain)

    def _unless_mended(self, action: Callable[[], None]) -> None:
        if not self.is_mended:
            action()

    async def _all_ended(self) -> bool:
        self._make_whole()
        return await super()._all_ended() and await self._healed()

    def _make_whole(self) -> None:
        """So many bookies that every copy finds a place, and somebody who heals."""
        sound = len(self._sound())
        draining = {actor.bookie.bookie_id: actor for actor in self.actors if isinstance(actor, Drainer)}
        for _ in range(self.scenario.quorums[0] + SPARES + len(draining) - sound):
            self.add_bookie().start()
        while not self.racks.suffice(self._sound(), self.scenario.quorums[0]):
            self.add_bookie().start()
        if not any(healer.goes_on for healer in self.actors if isinstance(healer, Healer)):
            self.add_healer()
        for drainer in draining.values():
            if not drainer.bookie.is_retired and drainer.host.is_dead:
                self.resume_drain(drainer)
        undoers = {actor.bookie.bookie_id: actor for actor in self.actors if isinstance(actor, Undoer)}
        for undoer in undoers.values():
            if undoer.host.is_dead:
                self.undo_drain(undoer)

    def _sound(self) -> list[VirtualBookie]:
        return [bookie for bookie in self.bookies if bookie.is_running and not bookie.held_read_only]

    async def _healed(self) -> bool:
        deadline = self.loop.time() + HEALED_SECONDS
        while not self.history.violations:
            left = self._left()
            if not left:
                return True
            if self.loop.time() > deadline:
                told = "\n".join(left)
                tasks = waiting_tasks(self.loop)
                self.history.violated("L healing", None, f"after {HEALED_SECONDS:g} s:\n{told}\nwaiting are\n{tasks}")
                break
            await self._until_broken(0.5)
        return False

    def _left(self) -> list[str]:
        left = [f"marked: {ledger_id}" for ledger_id in self.judge.marks]
        left += [f"locked: {ledger_id} by {lock.host}" for ledger_id, lock in self.judge.locks.items()]
        left += [
            f"{one.name}: {one.bookie.host}" for one in self.actors if isinstance(one, Command) and not one.finished
        ]
        left += [f"down: {one.host}" for one in self.bookies if self._is_away(one)]
        return left or copies.missing(self.history) or self.racks.disobeyed(self.history)

    def _is_away(self, bookie: VirtualBookie) -> bool:
        here = bookie.is_running and self.judge.registered_since(bookie.bookie_id) is not None
        return not (here or bookie.disk.lost or bookie.is_retired)

    # --- the verdict ----------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        await self._stop_healers()
        await super()._judge()
        await self._check_replicas()

    async def _stop_healers(self) -> None:
        healers = [actor.task for actor in self.actors if isinstance(actor, Healer) and actor.task is not None]
        for task in healers:
            task.cancel()
        await asyncio.wait(healers)
        for ledger_id, lock in self.judge.locks.items():
            self.history.violated("L healing", self.history.ledgers[ledger_id], f"{lock.host} leaves its lock behind")
        for bookie in self.bookies:
            if bookie.is_retired:
                self._named_by_none(bookie)
            elif bookie.bookie_id in self._wanted_back:
                self._came_back(bookie)

    def _named_by_none(self, bookie: VirtualBookie) -> None:
        for ledger in self.history.ledgers.values():
            if bookie.bookie_id in ledger.metadata.all_bookies():
                self.history.violated("H6 cookies", ledger, f"{bookie.bookie_id} was decommissioned, and is named")

    def _came_back(self, bookie: VirtualBookie) -> None:
        record = self.judge.decommissions.records.get(bookie.bookie_id)
        if record is not None or (bookie.is_running and bookie.held_read_only):
            self.history.violated("H8 undo", None, f"{bookie.bookie_id} is not what it was before: {record}")

    async def _check_replicas(self) -> None:
        """Each replica is read, to the last entry."""
        client = await self._new_client("last-checker")
        checker = LedgerChecker(client.client, CheckOptions(verification_percentage=100))
        for ledger in self.history.ledgers.values():
            report = await checker.check(ledger.ledger_id)
            if not report.is_healthy:
                findings = [found for part in report.fragments for found in part.findings if found.verdict.is_bad]
                self.history.violated("L healing", ledger, f"its replicas are not well: {findings}")

    async def close(self) -> None:
        self.is_closing = True
        for task in list(self._requests):
            task.cancel()
        await super().close()
