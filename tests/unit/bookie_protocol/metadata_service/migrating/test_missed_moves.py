"""A migration that comes and goes between two looks of a process for which it does not wait."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.tree.nodes import parent_of
from tests.support.migration_world import MemoryTree, MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually

DIRECTORY = parent_of(flag.FLAG)
NEW = "/ledgers/new"


def delete_node(world: MigrationWorld) -> None:
    for name in world.participants():
        world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")


def move(world: MigrationWorld) -> None:
    """Migrate, by a coordinator that waits for nobody, and delete the flag."""
    world.set_phase("PREPARATION")
    world.copy()
    world.set_phase("COMPLETED")
    world.zookeeper.remove(flag.FLAG)
    world.oxia.put(NEW, b"")


async def is_stopped(process: Process) -> None:
    await asyncio.sleep(1)
    for _ in range(3):
        with pytest.raises(MetadataUnavailable):
            await process.gate.create("/ledgers/x-", b"", sequential=True, timeout=1)
        with pytest.raises(MetadataUnavailable):
            await process.gate.exists(NEW, timeout=2)
        await asyncio.sleep(60)


@pytest.mark.parametrize("is_session", [False, True], ids=["node", "session"])
@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("NOT_STARTED", "NOT_STARTED"),
        ("NOT_STARTED", None),
        ("NOT_STARTED", "made again"),
        ("FAILED", "NOT_STARTED"),
        (None, "NOT_STARTED"),
        (None, "made again"),
    ],
)
@virtually
async def test_what_the_flag_says_before_and_behind_a_migration_hides_it_from_nobody(
    first: str | None, last: str | None, is_session: bool
) -> None:
    world = MigrationWorld()
    if first:
        world.set_phase(first)
    process = await world.begin()
    if is_session:
        process.source.end_session()
    else:
        delete_node(world)
    move(world)
    if last:
        if last != "made again":
            world.set_phase("COMPLETED")  # the first version is of it
        world.set_phase("NOT_STARTED")
    if is_session:
        process.source.begin_session()
    await is_stopped(process)


@virtually
async def test_flag_that_is_written_once_is_no_migration() -> None:
    world = MigrationWorld()
    process = await world.begin()
    for _ in range(3):
        process.source.end_session()
        world.set_phase("NOT_STARTED")
        process.source.begin_session()
        await seen(lambda: process.is_connected, seconds=1)


@pytest.mark.parametrize("has_directory", [False, True])
@virtually
async def test_migration_before_whose_begin_nobody_knew_migrations_is_noticed(has_directory: bool) -> None:
    world = MigrationWorld(pulsar=False)
    above = ("/pulsar", DIRECTORY)
    if has_directory:
        for path in above:
            world.zookeeper.put(path, b"")
    process = await world.begin()
    process.source.end_session()
    for path in above if not has_directory else ():
        world.zookeeper.put(path, b"")
    world.zookeeper.put(flag.PARTICIPANTS, b"")
    move(world)
    process.source.begin_session()
    await is_stopped(process)


@pytest.mark.parametrize("is_refused", [False, True], ids=["deleted", "never made"])
@virtually
async def test_process_without_a_node_knows_on_one_connection_that_a_flag_has_come_and_gone(is_refused: bool) -> None:
    world = MigrationWorld()
    if is_refused:
        world.hidden.add(flag.PARTICIPANTS)
    process = await world.begin()
    delete_node(world)
    move(world)
    await is_stopped(process)


@virtually
async def test_process_that_may_not_list_the_directory_does_not_know_that_no_flag_has_come() -> None:
    world = MigrationWorld()
    process = await world.begin()
    world.hidden.add(DIRECTORY)
    await asyncio.sleep(130)
    process.source.end_session()
    move(world)
    process.source.begin_session()
    await is_stopped(process)


@virtually
async def test_directory_that_is_made_slowly_stops_nobody() -> None:
    """As by hand, before brokers run that know migrations."""
    world = MigrationWorld(pulsar=False)
    process = await world.begin()
    for path in ("/pulsar", DIRECTORY, flag.PARTICIPANTS):
        world.zookeeper.put(path, b"")
        await asyncio.sleep(130)
        process.source.end_session()
        process.source.begin_session()
        await seen(lambda: process.is_connected, seconds=1)
    assert len(world.participants()) == 1


@pytest.mark.parametrize("is_moved", [False, True], ids=["no flag", "flag"])
@pytest.mark.parametrize("made", ["participants", "participants again", "another", "another again"])
@virtually
async def test_what_is_made_beside_the_flag_is_told_from_it(made: str, is_moved: bool) -> None:
    world = MigrationWorld()
    name, _, again = made.partition(" ")
    path = f"{DIRECTORY}/{name}"
    if again:
        world.zookeeper.put(path, b"")
    elif path in world.zookeeper.nodes:
        world.zookeeper.remove(path)
    process = await world.begin()
    process.source.end_session()
    if again:
        world.zookeeper.remove(path)
    world.zookeeper.put(path, b"")
    if is_moved:
        move(world)
    process.source.begin_session()
    if is_moved:
        await is_stopped(process)
    else:
        await seen(lambda: process.is_connected, seconds=1)


@virtually
async def test_node_that_others_delete_without_a_migration_stops_nobody() -> None:
    world = MigrationWorld()
    process = await world.begin()
    for _ in range(3):
        delete_node(world)
        await seen(lambda: len(world.participants()) == 1)
    assert process.is_connected


@pytest.mark.parametrize("clean", ["removed", "NOT_STARTED", "damaged"])
@virtually
async def test_node_proves_nothing_once_a_copy_beside_it_was_read(clean: str) -> None:
    """A step takes long meanwhile, so that only a question reads it."""
    world = MigrationWorld()
    process = await world.begin()

    async def slow(_: object) -> MemoryTree:
        await asyncio.sleep(25)
        raise MetadataUnavailable("Oxia is away")

    process.participant._connect = slow
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    world.copy()
    await asyncio.sleep(2)
    move(world)
    if clean == "NOT_STARTED":
        world.set_phase(clean)
    elif clean == "damaged":
        world.break_flag()
    await is_stopped(process)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
