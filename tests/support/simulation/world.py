"""One run: the cluster of a scenario, its actors and faults, and the verdict."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace
from random import Random
from typing import Final

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.simulation import checks
from tests.support.simulation.actors import PASSWORD, Actor
from tests.support.simulation.bookie import ROOT, VirtualBookie
from tests.support.simulation.client import VirtualClient
from tests.support.simulation.clock import VirtualLoop, waiting_tasks
from tests.support.simulation.faults import Faults
from tests.support.simulation.history import History, Judge, LedgerHistory
from tests.support.simulation.metadata import MetadataOptions, MetadataServer
from tests.support.simulation.network import Network
from tests.support.simulation.readers import Reader, Tailer
from tests.support.simulation.recoverer import Recoverer
from tests.support.simulation.scenario import LedgerPlan, Scenario
from tests.support.simulation.trace import Trace
from tests.support.simulation.writer import Writer

PATIENCE_SECONDS: Final = 120.0
"""Virtual time in which everything must come to an end once the cluster is whole."""


class World:
    """Everything that one run has."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, trace: Trace) -> None:
        # The fault plan mends these; a scenario may be run again.
        self.scenario = scenario = replace(
            scenario,
            metadata=replace(scenario.metadata),
            disk=replace(scenario.disk),
            network=replace(scenario.network),
        )
        self.loop = loop
        self.trace = trace
        self._randoms = Random(f"{scenario.seed} world")
        self.history = self.make_history(trace)
        self.network = Network(loop, self._random(), trace, scenario.network)
        self.metadata = MetadataServer(self.network, self._random(), trace, scenario.metadata)
        self.metadata.on_write = self.history.metadata_written
        self.faults = self.make_faults(self._random())
        self.network.on_event = self.faults.event
        self.history.on_event = self.faults.event
        self.bookies: list[VirtualBookie] = []
        self.actors: list[Actor] = []
        self.is_mended = False
        self._clients: list[VirtualClient] = []
        self._writers: list[tuple[Writer, LedgerPlan]] = []
        self._broken = asyncio.Event()
        self.history.on_violation = self._broken.set

    def make_judge(self) -> Judge:
        return checks

    def make_history(self, trace: Trace) -> History:
        return History(ROOT, trace, self.make_judge())

    def make_faults(self, random: Random) -> Faults:
        return Faults(self, random)

    def _random(self) -> Random:
        return Random(self._randoms.getrandbits(64))

    # --- what it is made of ---------------------------------------------------------------------------------

    def add_bookie(self) -> VirtualBookie:
        bookie = VirtualBookie(
            f"bookie-{len(self.bookies)}",
            self.network,
            self.metadata,
            self.history,
            self._random(),
            self.trace,
            self.scenario.disk,
        )
        bookie.on_event = self.faults.event
        self.bookies.append(bookie)
        self.history.bookies[bookie.bookie_id] = bookie
        return bookie

    def add_client(self, name: str) -> VirtualClient:
        client = VirtualClient(name, self.network, self.metadata, self.scenario.client, self._random(), self.trace)
        self._clients.append(client)
        return client

    def add_recoverer(self) -> None:
        """Somebody begins to recover one of the ledgers now."""
        if self._writers:
            writer, plan = self._randoms.choice(self._writers)
            self._add(Recoverer(self, self._name("recoverer"), plan, self._random(), writer.ledger, 0.0))

    def _add(self, actor: Actor) -> None:
        self.actors.append(actor)
        actor.start()

    def _name(self, role: str) -> str:
        return f"{role}-{sum(actor.name.startswith(role) for actor in self.actors)}"

    # --- the run --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Violations are in the history afterwards."""
        await self._set_up()
        self.trace("FAULTS", "may strike from now on")
        self.faults.start()
        for plan in self.scenario.ledgers:
            self._begin(plan)
        await self._until_broken(self.scenario.horizon)
        self.is_mended = True
        self.faults.mend()
        if await self._all_ended() and not self.history.violations:
            await self._judge()

    async def close(self) -> None:
        """End everything that still runs."""
        tasks = [actor.task for actor in self.actors if actor.task is not None]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for task, outcome in zip(tasks, ended, strict=True):
            if isinstance(outcome, Exception):
                self.history.violated("unexpected error", None, f"{task.get_name()}: {told(outcome)}")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                for client in self._clients:
                    await client.close()
        except TimeoutError:
            self.history.violated("L hang", None, f"clients do not close; waiting are\n{waiting_tasks(self.loop)}")
        for bookie in self.bookies:
            bookie.end()
        await asyncio.sleep(5.0)  # longer than any time-out
        await self._sweep()

    async def _sweep(self) -> None:
        """Nobody leaves a task behind."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            self.history.violated(
                "L left behind", None, f"tasks after everything was closed:\n{waiting_tasks(self.loop)}"
            )
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _set_up(self) -> None:
        """A cluster that works, however slowly."""
        options = self.metadata.options
        self.metadata.options = MetadataOptions(session_timeout=options.session_timeout)
        tree = await self.metadata.connect("operator")
        service = MetadataService(tree, ROOT, None)
        await service.cluster.initialize(instance_id="simulated")
        for _ in range(self.scenario.bookies):
            self.add_bookie().start()
        async with service.bookies.watch(BookieGroup.WRITABLE) as registered:
            async for known in registered:
                if len(known.bookies) == self.scenario.bookies:
                    break
        await service.close()
        await asyncio.sleep(options.lag)  # no follower is older than the cluster
        self.metadata.options = options

    def _begin(self, plan: LedgerPlan) -> None:
        writer = Writer(self, self._name("writer"), plan, self._random())
        self._add(writer)
        self._writers.append((writer, plan))
        for _ in range(plan.readers):
            self._add(Reader(self, self._name("reader"), plan, self._random(), writer.ledger))
        for _ in range(plan.tailers):
            self._add(Tailer(self, self._name("tailer"), plan, self._random(), writer.ledger))
        for _ in range(plan.recoverers):
            delay = self._randoms.random() * self.scenario.horizon
            self._add(Recoverer(self, self._name("recoverer"), plan, self._random(), writer.ledger, delay))

    async def _until_broken(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._broken.wait()
        except TimeoutError:
            return

    async def _all_ended(self) -> bool:
        """Writers and recoverers come to their end; then tailers, once the ledgers are closed."""
        if not await self._ended([actor for actor in self._ending() if not isinstance(actor, Tailer)]):
            return False
        closer = await self._new_client("closer")
        for ledger in list(self.history.ledgers.values()):
            if not await self._close(closer, ledger):
                return False
        return await self._ended(self._ending())

    def _ending(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.is_service]

    async def _ended(self, actors: list[Actor]) -> bool:
        deadline = self.loop.time() + PATIENCE_SECONDS
        for actor in actors:
            while not actor.finished and not self._broken.is_set() and self.loop.time() < deadline:
                await self._until_broken(0.05)
        hanging = [actor for actor in actors if not actor.finished]
        if hanging and not self.history.violations:
            names = ", ".join(actor.name for actor in hanging)
            self.history.violated(
                "L hang",
                None,
                f"{names} did not end within {PATIENCE_SECONDS:g} s after everything was mended; waiting are\n"
                f"{waiting_tasks(self.loop)}",
            )
        return not self.history.violations

    async def _new_client(self, name: str) -> VirtualClient:
        client = self.add_client(name)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client.start()
        return client

    async def _close(self, closer: VirtualClient, ledger: LedgerHistory) -> bool:
        """L1: a ledger can be closed when the cluster is whole."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    try:
                        await closer.client.recover(ledger.ledger_id, password=PASSWORD)
                        return not self.history.violations
                    except PodkeeperError as error:
                        self.trace("closer", f"ledger {ledger.ledger_id}: recovery failed: {error}")
                        problem = error
                        await asyncio.sleep(0.5)
        except TimeoutError:
            self.history.violated("L1 closed", ledger, f"it cannot be recovered: {problem!r}")
            return False

    async def _judge(self) -> None:
        """Everybody can read what was acknowledged."""
        reader = await self._new_client("last-reader")
        for ledger in self.history.ledgers.values():
            checks.ledger_ended(self.history, ledger)
            view = checks.ReaderView(self.history, ledger, "last-reader")
            read = await self._read_all(reader, ledger, view)
            for entry in read:
                view.entry(entry.entry_id, entry.payload)
            ids = [entry.entry_id for entry in read]
            if ids != list(range(ledger.metadata.last_entry_id + 1)):
                self.history.violated("S6 survival", ledger, f"entries {ids} were read of {ledger.metadata}")

    async def _read_all(
        self, reader: VirtualClient, ledger: LedgerHistory, view: checks.ReaderView
    ) -> list[LedgerEntry]:
        deadline = self.loop.time() + PATIENCE_SECONDS
        while True:
            try:
                async with reader.client.open(ledger.ledger_id, password=PASSWORD) as handle:
                    view.lac(handle.last_add_confirmed)
                    return [entry async for entry in handle.entries()]
            except PodkeeperError as error:
                # A bookie may not be registered again yet.
                if self.loop.time() > deadline:
                    self.history.violated("S6 survival", ledger, f"it cannot be read: {error!r}")
                    return []
                await asyncio.sleep(0.5)


def told(error: BaseException) -> str:
    """An error with its trace."""
    return "".join(traceback.format_exception(error)).rstrip()
