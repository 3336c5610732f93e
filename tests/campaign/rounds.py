"""The loop of a campaign: rounds of faults under load, each of which is judged when the faults are over.

A round begins and ends with everything sound: fewer copies than an ack quorum may be destroyed in it, and all are made
again before the next one. Near its end everything is closed, and every bookie is killed, or loses its power, at once.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from pathlib import Path
from random import Random
from typing import Final

from tests.campaign.actors import Actors
from tests.campaign.connecting import connected
from tests.campaign.faults.kind import Fault
from tests.campaign.faults.table import NAMES, Plan, Strike, draw
from tests.campaign.history import History
from tests.campaign.judge import Judge
from tests.campaign.kinds import OURS, Kind
from tests.campaign.watch import Watch
from tests.campaign.world import BOOKIES, World

ROUND_S: Final = 25.0
CALM_S: Final = 5.0
"""At first nothing happens: then there is something that every bookie is known to have."""
WRITERS: Final = 3


class Campaign:
    """`run` for a round of faults, and until the time is over, or until the first breach."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        *,
        zookeeper: bool = False,
        plant: str | None = None,
        stop_at_breach: bool = False,
        java: str | None = None,
        names: Collection[str] = NAMES,
        kind: Kind = OURS,
    ) -> None:
        """`java`: the class path of the Java client, which needs ZooKeeper. `names`: of the faults to draw from.
        `kind`: of the bookies."""
        folder.mkdir(parents=True, exist_ok=True)
        self.history = History(journal=(folder / "journal.txt").open("w"))
        self._folder = folder
        self._seed = seed
        self._seconds = seconds
        self._zookeeper = zookeeper
        self._plant = plant
        self._stop_at_breach = stop_at_breach
        self._names = names
        self._kind = kind
        self._java = None if java is None else (java, folder / "java.log")
        self.memory: dict[str, int] = {}

    async def run(self) -> History:
        random = Random(self._seed)
        history = self.history
        world = World(self._folder, random, history, zookeeper=self._zookeeper, plant=self._plant, kind=self._kind)
        async with world:
            watch = asyncio.create_task(Watch(world, history).run(), name="watch")
            judge = Judge(world, history)
            try:
                await self._unless_decided(self._round(world, judge, Plan((), (), CALM_S, None), self._seed))
                while not self._is_decided:
                    plan = draw(random, BOOKIES, ROUND_S, self._names)
                    await self._unless_decided(self._round(world, judge, plan, random.randrange(1 << 30)))
                    if watch.done():
                        watch.result()
                    if history.clock >= self._seconds:
                        break
            finally:
                watch.cancel()
                self.memory = {bookie.name: bookie.most_kb for bookie in world.bookies.values() if bookie.most_kb}
        return history

    @property
    def _is_decided(self) -> bool:
        return self._stop_at_breach and bool(self.history.breaches)

    async def _unless_decided(self, work: Coroutine[None, None, None]) -> None:
        """To its end, or until the first breach if that is all that is asked for."""
        going = asyncio.create_task(work)
        decided = asyncio.create_task(self.history.breached.wait())
        try:
            await asyncio.wait({going, decided} if self._stop_at_breach else {going}, return_when="FIRST_COMPLETED")
            if going.done():
                going.result()
        finally:
            for task in (going, decided):
                task.cancel()
            await asyncio.wait({going, decided})

    async def _round(self, world: World, judge: Judge, plan: Plan, seed: int) -> None:
        history = self.history
        history.counts["rounds"] += 1
        victims = ", ".join(f"bookie-{number + 1}" for number in plan.victims) or "nobody"
        history.note(f"round {history.counts['rounds']}: copies may be destroyed on {victims}")
        actors = Actors(world.uri, world.gateway_address, history, seed, self._java)
        actors.start(WRITERS)
        ends = history.clock + plan.seconds
        strikes = set()
        for strike in plan.strikes:
            await asyncio.sleep(strike.after)
            strikes.add(asyncio.create_task(self._strike(world, judge, strike), name=strike.fault.name))
        await asyncio.sleep(max(0.0, ends - history.clock))
        if strikes:
            await asyncio.wait(strikes)
        for task in strikes:
            task.result()
        await actors.stop()
        async with connected(world.uri) as client:
            await judge.all_closed(client)
        if plan.last is not None:
            await self._strike_all(world, judge, plan.last, Random(seed))
        await actors.tails_end()
        await judge.round()
        async with connected(world.uri) as client:
            await actors.delete_some(client)

    async def _strike(self, world: World, judge: Judge, strike: Strike) -> None:
        random, fault = Random(strike.seed), strike.fault
        if fault.on_cluster is not None:
            await self._strike_all(world, judge, fault, random)
            return
        assert fault.on_bookie is not None
        bookie = list(world.bookies.values())[strike.bookie]
        async with bookie.hold():
            if not bookie.program.is_running:
                await world.start_bookie(bookie)
            began, before = self.history.clock, judge.acknowledged()
            detail = await fault.on_bookie(world, bookie, random)
            self.history.fault(began, fault.name, bookie.name, detail)
            await judge.remembers(bookie, before, all_it_had=fault.destroys)

    async def _strike_all(self, world: World, judge: Judge, fault: Fault, random: Random) -> None:
        assert fault.on_cluster is not None
        bookies = list(world.bookies.values())
        began, before = self.history.clock, judge.acknowledged()
        starts = [bookie.program.starts for bookie in bookies]
        self.history.fault(began, fault.name, "all", await fault.on_cluster(world, random))
        for bookie, count in zip(bookies, starts, strict=True):
            if bookie.program.starts > count:
                await judge.remembers(bookie, before)
