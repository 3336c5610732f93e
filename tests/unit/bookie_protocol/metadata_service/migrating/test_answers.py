"""Answers of ZooKeeper count only while it is known to have the metadata: it lacks what is new in Oxia."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.migration_world import MigrationWorld, Process, seen, unreachable
from tests.support.virtual_loop import virtually

NEW = "b:9"


def hold_looks(process: Process) -> asyncio.Event:
    """Let no request about the migration be answered until the event is set."""
    goes_on = asyncio.Event()

    async def before(_: str, path: str) -> None:
        if path.startswith("/pulsar"):
            await goes_on.wait()

    process.source.before = before
    return goes_on


async def made_in_oxia(other: Process) -> None:
    await seen(lambda: other.gate.has_switched)
    await other.service.cookies.create(NEW, b"cookie")


async def read(process: Process) -> None:
    await process.service.cookies.read(NEW, timeout=1)


@virtually
async def test_new_session_answers_nothing_before_its_first_look() -> None:
    """As that of a process that slept while the metadata moved."""
    world = MigrationWorld()
    sleeper, other = await world.begin(), await world.open()
    sleeper.source.end_session()
    await world.migrate()
    await made_in_oxia(other)
    goes_on = hold_looks(sleeper)
    sleeper.source.begin_session()
    with pytest.raises(MetadataUnavailable):
        await read(sleeper)
    goes_on.set()
    await seen(lambda: sleeper.gate.has_switched)
    await read(sleeper)


@virtually
async def test_connection_that_comes_back_in_a_pause_answers_nothing_before_its_first_look() -> None:
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    await world.prepare()
    world.copy()
    process.source.session.move(SessionState.SUSPENDED)
    world.set_phase("COMPLETED")
    await made_in_oxia(other)
    goes_on = hold_looks(process)
    process.source.session.move(SessionState.CONNECTED)
    with pytest.raises(MetadataUnavailable):
        await read(process)
    goes_on.set()
    await seen(lambda: process.gate.has_switched)
    await read(process)


@pytest.mark.parametrize("is_new", [True, False], ids=["new session", "in the pause"])
@virtually
async def test_look_that_fails_lets_nothing_count(is_new: bool) -> None:
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    await world.prepare()
    if is_new:
        process.source.end_session()
    world.hidden.add(flag.FLAG)
    process.source.begin_session()
    world.copy()
    await asyncio.sleep(60)
    with pytest.raises(MetadataUnavailable):
        await read(process)
    world.hidden.clear()
    world.set_phase("COMPLETED")
    await made_in_oxia(other)
    await seen(lambda: process.gate.has_switched)
    await read(process)


@virtually
async def test_look_that_began_before_undoes_nothing_that_a_sync_has_found() -> None:
    slow: list[asyncio.Event] = []
    held = asyncio.Event()

    async def believes(_: float) -> bool:
        if slow:
            held.set()
            await slow.pop().wait()
        return True

    world = MigrationWorld(believes=believes)
    process = await world.begin()
    await world.prepare()
    slow.append(older := asyncio.Event())
    world.copy()
    await held.wait()
    world.set_phase("COMPLETED")
    with pytest.raises(MetadataUnavailable):
        await process.gate.sync("/ledgers", timeout=1)
    newer = hold_looks(process)
    older.set()
    with pytest.raises(MetadataUnavailable):
        await read(process)
    newer.set()
    await seen(lambda: process.gate.has_switched)
    with pytest.raises(MetadataNotFound):
        await read(process)


Undo = Callable[[MigrationWorld], None]
UNDONE: dict[str, Undo] = {
    "missing": lambda world: world.zookeeper.remove(flag.FLAG),
    "not started": lambda world: world.set_phase("NOT_STARTED"),
}


@pytest.mark.parametrize("undo", UNDONE.values(), ids=UNDONE)
@virtually
async def test_flag_that_is_put_back_does_not_bring_the_metadata_back(undo: Undo) -> None:
    """Other processes are in Oxia. That the migration has failed is said."""
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = unreachable
    world.set_phase("COMPLETED")
    await asyncio.sleep(1)
    undo(world)
    await asyncio.sleep(30)
    with pytest.raises(MetadataUnavailable):
        await read(process)
    with pytest.raises(MetadataUnavailable):
        await process.service.records("k").create("x", b"1", timeout=1)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    with pytest.raises(MetadataNotFound):
        await read(process)


@pytest.mark.parametrize("is_new_session", [False, True])
@virtually
async def test_flag_that_cannot_be_understood_says_not_that_the_metadata_stayed(is_new_session: bool) -> None:
    """As that of a later Pulsar behind COMPLETED, which this process has missed."""
    world = MigrationWorld()
    sleeper = await world.begin()
    await world.prepare()
    world.copy()
    await asyncio.sleep(1)
    goes_on = hold_looks(sleeper)
    if is_new_session:
        sleeper.source.end_session()
    world.set_phase("COMPLETED")
    world.oxia.put("/ledgers/new", b"")
    world.break_flag()
    await asyncio.sleep(0.01)
    if is_new_session:
        sleeper.source.begin_session()
    goes_on.set()
    for _ in range(50):
        with pytest.raises(ConnectionLost):
            await sleeper.gate.exists("/ledgers/new", timeout=2)
        await asyncio.sleep(0.1)
