"""The end of a pause in ZooKeeper: writes are let through only if what the look found is so behind the last step."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.migrating import flag
from tests.support.migration_world import MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually


def delete_node(world: MigrationWorld) -> None:
    (name,) = world.participants()
    world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")


class Held:
    """Requests that wait: those of this name and path."""

    def __init__(self, request: str, path: str) -> None:
        self._held = (request, path)
        self._goes_on = asyncio.Event()
        self.came = asyncio.Event()

    async def __call__(self, *asked: str) -> None:
        if asked == self._held:
            self.came.set()
            await self._goes_on.wait()

    def release(self) -> None:
        self._goes_on.set()


async def is_written(process: Process) -> None:
    await process.gate.create("/ledgers/new-", b"", sequential=True, timeout=5)


@pytest.mark.parametrize("how", ["a write under way", "a slow step", "a start"])
@virtually
async def test_nothing_is_written_in_a_copy_that_did_not_wait_because_others_deleted_our_node(how: str) -> None:
    world = MigrationWorld()
    process = await world.begin()
    held = Held("create", "/ledgers/slow") if how == "a write under way" else Held("sync", "/ledgers")
    if how == "a start":
        await process.gate.close()
        opening = asyncio.create_task(world.open(before=held))
    else:
        process.source.before = held
        if how == "a write under way":
            slow = asyncio.create_task(process.gate.create("/ledgers/slow", b"", timeout=30))
            await held.came.wait()
            world.break_flag()
            await seen(lambda: process.is_paused)
        else:
            process.source.before = None
            await world.prepare()
            world.copy()
            world.oxia.clear()
            process.source.before = held
        world.set_phase("FAILED")
    await held.came.wait()
    await seen(lambda: len(world.participants()) == 1)
    await asyncio.sleep(0.1)
    delete_node(world)
    world.set_phase("PREPARATION")
    world.copy()
    await asyncio.sleep(0.1)
    held.release()
    if how == "a start":
        process = await opening
    elif how == "a write under way":
        await slow
    with pytest.raises(MetadataUnavailable):
        await is_written(process)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    await is_written(process)


@virtually
async def test_failure_that_is_over_before_the_last_step_lets_nothing_through() -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    held = process.source.before = Held("sync", "/ledgers")
    world.set_phase("FAILED")
    await held.came.wait()
    world.set_phase("PREPARATION")
    generation = process.gate.session_id
    held.release()
    await seen(lambda: not world.participants())
    assert process.gate.session_id == generation


@pytest.mark.parametrize("pulsar", [True, False], ids=["Pulsar", "no Pulsar"])
@virtually
async def test_node_that_others_delete_again_and_again_stops_nobody(pulsar: bool) -> None:
    """Nor does a flag that they write, which is not believed."""

    async def never(_: float) -> bool:
        await asyncio.sleep(0.007)
        return False

    async def deletes(request: str, path: str) -> None:
        await asyncio.sleep(0.001)
        if (request, path) == ("sync", "/ledgers"):
            for name in world.participants():
                world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")
            world.set_phase("PREPARATION")

    world = MigrationWorld(pulsar=pulsar, believes=never)
    process = await world.begin()
    process.source.before = deletes
    process.source.end_session()
    process.source.begin_session()
    await seen(lambda: process.is_connected, seconds=1)
