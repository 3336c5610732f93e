"""Migrations that fail and succeed, under writers, lost answers, lost sessions and slow watches."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.migration_world import MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually

PROCESSES = 3
FAULTS = 0.02
"""Probability that a request has one."""
WRITES = ("create", "set", "delete")


class Story:
    """What happens with one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = MigrationWorld()
        self.processes: list[Process] = []
        self.phase = "NOT_STARTED"
        self.faults = FAULTS
        self.acknowledged: set[str] = set()
        self.ids: list[int] = []
        self.forbidden: list[tuple[str, str]] = []
        """Writes that ZooKeeper got while it was copied."""
        self._names = itertools.count()
        self._working: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.add(await self.world.begin())
        while len(self.processes) < PROCESSES:
            self.add(await self.world.open())

    def add(self, process: Process) -> None:
        source = process.source

        async def before(name: str, path: str) -> None:
            await asyncio.sleep(self.random.random() * 0.005)
            chance = self.random.random()
            if chance < self.faults / 4:
                source.end_session()
                asyncio.get_running_loop().call_later(0.05, source.begin_session)
            elif chance < self.faults / 2:
                raise ConnectionLost("before")

        async def after(name: str, path: str) -> None:
            if self.phase == "COPYING" and name in WRITES and not path.startswith("/pulsar/"):
                self.forbidden.append((name, path))
            if self.random.random() < self.faults / 2:
                raise ConnectionLost("after")

        source.before, source.after = before, after
        self.processes.append(process)
        for work in (self.write, self.number):
            self._working.append(asyncio.create_task(work(process)))

    async def write(self, process: Process) -> None:
        while True:
            name = f"x{next(self._names)}"
            with suppress(MetadataError):
                await process.service.records("k").create(name, b"v", timeout=1)
                self.acknowledged.add(name)
            await asyncio.sleep(0.01)

    async def number(self, process: Process) -> None:
        while True:
            with suppress(MetadataError):
                self.ids.append(await process.service.ledgers.generate_id(timeout=5))
            await asyncio.sleep(0.01)

    def move(self, phase: str) -> None:
        self.phase = phase
        self.world.set_phase(phase)

    async def migrate(self, outcome: str) -> None:
        await asyncio.sleep(self.random.random())
        if self.random.random() < 0.3:  # it fails while the coordinator waits
            self.move("PREPARATION")
            await asyncio.sleep(self.random.random() * 0.2)
            self.move("FAILED")
            await asyncio.sleep(self.random.random())
        self.move("PREPARATION")
        await seen(lambda: not self.world.participants())
        self.move("COPYING")
        await asyncio.sleep(self.random.random() * 0.2)
        self.world.copy()
        await asyncio.sleep(self.random.random() * 0.2)
        self.move(outcome)
        if outcome == "FAILED":
            self.world.oxia.clear()

    async def stop(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.wait(self._working)


@pytest.mark.parametrize("seed", range(8))
@virtually
async def test_nothing_is_lost_and_no_id_is_given_twice(seed: int) -> None:
    story = Story(seed)
    await story.start()
    for outcome in ("FAILED", "FAILED", "COMPLETED"):
        await story.migrate(outcome)
    story.faults = 0.0
    await seen(lambda: all(each.gate.has_switched for each in story.processes))
    await asyncio.sleep(0.5)
    await story.stop()
    kept = {path.rpartition("/")[2] for path in story.world.oxia.nodes if path.startswith("/ledgers/podkeeper/k/")}
    assert story.acknowledged - kept == set()
    assert [each for each, times in Counter(story.ids).items() if times > 1] == []
    assert story.forbidden == []
    assert [each.service.session.doubt for each in story.processes] == [""] * PROCESSES
    assert len(story.acknowledged) > 50
    assert len(story.ids) > 50
