"""The node that says that a process takes part: made again whenever it is missing, as long as others let it be made."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.metadata_service.migrating import flag
from tests.support.migration_world import MigrationWorld, seen
from tests.support.virtual_loop import virtually

MINUTES = 200.0
"""Seconds after which a process has looked again at what has no watch."""


def clear_directory(world: MigrationWorld) -> None:
    for name in world.participants():
        world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")
    world.zookeeper.remove(flag.PARTICIPANTS)
    world.zookeeper.changes.pop(flag.PARTICIPANTS, None)  # one that is made again numbers from 0


def owners(world: MigrationWorld) -> set[int]:
    nodes = world.zookeeper.nodes
    return {nodes[f"{flag.PARTICIPANTS}/{name}"].owner for name in world.participants()}


@pytest.mark.parametrize("owner", [None, 7], ids=["missing", "ephemeral"])
@virtually
async def test_directory_that_is_made_again_later_is_joined(owner: int | None) -> None:
    world = MigrationWorld()
    process = await world.begin()
    clear_directory(world)
    if owner is not None:
        world.zookeeper.put(flag.PARTICIPANTS, b"", owner)
    await asyncio.sleep(5)
    if owner is not None:
        world.zookeeper.remove(flag.PARTICIPANTS)
    world.zookeeper.put(flag.PARTICIPANTS, b"")
    await seen(lambda: owners(world) == {process.source.session_id}, seconds=1)


@virtually
async def test_node_of_another_process_under_our_name_is_not_ours() -> None:
    world = MigrationWorld()
    first, second = await world.begin(), await world.open()

    async def slow(request: str, path: str) -> None:
        if request == "get" and path.startswith(flag.PARTICIPANT):
            await asyncio.sleep(0.5)

    first.source.before = slow
    clear_directory(world)
    world.zookeeper.put(flag.PARTICIPANTS, b"")
    await seen(lambda: owners(world) == {first.source.session_id, second.source.session_id})


@virtually
async def test_directory_that_is_shown_again_is_joined() -> None:
    world = MigrationWorld()
    process = await world.begin()
    world.zookeeper.remove(f"{flag.PARTICIPANTS}/{world.participants()[0]}")
    world.hidden.add(flag.PARTICIPANTS)
    await asyncio.sleep(5)
    assert (owners(world), process.is_connected) == (set(), True)
    world.hidden.clear()
    await seen(lambda: owners(world) == {process.source.session_id}, seconds=MINUTES)


@virtually
async def test_directory_that_was_ephemeral_for_a_moment_is_joined() -> None:
    world = MigrationWorld()
    replaced: list[str] = []

    async def replace(request: str, path: str) -> None:
        if request == "create" and path == flag.PARTICIPANT and not replaced:
            replaced.append(path)
            clear_directory(world)
            world.zookeeper.put(flag.PARTICIPANTS, b"", owner=7)

    process = await world.open(before=replace)
    assert (owners(world), process.is_connected) == (set(), True)
    world.zookeeper.remove(flag.PARTICIPANTS)
    world.zookeeper.put(flag.PARTICIPANTS, b"")
    await seen(lambda: owners(world) == {process.source.session_id}, seconds=1)


@virtually
async def test_node_of_ours_that_others_replace_and_hide_stops_nobody() -> None:
    """They may delete it. What they make under its name is theirs."""
    world = MigrationWorld()
    process = await world.begin()
    (name,) = world.participants()
    taken = f"{flag.PARTICIPANTS}/{name}"
    world.zookeeper.remove(taken)
    world.zookeeper.put(taken, b"", owner=7)
    world.hidden.add(taken)
    await seen(lambda: owners(world) == {7, process.source.session_id})
    world.set_phase("PREPARATION")
    await seen(lambda: owners(world) == {7})
    world.set_phase("FAILED")
    process.source.end_session()
    process.source.begin_session()
    await seen(lambda: process.is_connected and process.source.session_id in owners(world))


@virtually
async def test_node_of_ours_that_others_always_delete_is_made_at_a_bounded_pace() -> None:
    world = MigrationWorld()
    made: list[str] = []

    async def remove(request: str, path: str) -> None:
        if request == "create" and path == flag.PARTICIPANT:
            (name,) = world.participants()
            made.append(name)
            world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")

    process = await world.begin()
    process.source.after = remove
    world.zookeeper.remove(f"{flag.PARTICIPANTS}/{world.participants()[0]}")
    await asyncio.sleep(60)
    assert 60 < len(made) < 200
    assert process.is_connected


@virtually
async def test_node_of_ours_that_others_delete_often_leaves_no_watches_and_is_made_at_a_bounded_pace() -> None:
    world = MigrationWorld()
    process = await world.begin()
    before = process.source.requests
    for _ in range(500):
        for name in world.participants():
            world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")
        await asyncio.sleep(0.002)
    await asyncio.sleep(1)
    assert len([path for path, _ in world.zookeeper._watches if path.startswith(flag.PARTICIPANT)]) == 1
    assert process.source.requests - before < 500
    assert process.is_connected


# --- a flag that is hidden --------------------------------------------------------------------------------------


class Owners:
    """Whether only the owners of the cluster could have written the flag."""

    def __init__(self) -> None:
        self.alone = False

    async def believed(self, _: float) -> bool:
        return self.alone


@pytest.mark.parametrize("is_start", [True, False], ids=["start", "later"])
@virtually
async def test_flag_that_strangers_had_hidden_is_heard_of_when_it_is_good(is_start: bool) -> None:
    owners_of_flag = Owners()
    world = MigrationWorld(believes=owners_of_flag.believed)
    process = await world.begin()
    world.set_phase("NOT_STARTED")
    world.hidden.add(flag.FLAG)
    if is_start:
        await process.service.close()
        process = await world.open()
    await asyncio.sleep(1)
    world.zookeeper.remove(flag.FLAG)
    world.hidden.clear()
    owners_of_flag.alone = True
    world.set_phase("NOT_STARTED")
    await asyncio.sleep(MINUTES)
    world.set_phase("PREPARATION")
    await seen(lambda: process.is_paused and not world.participants(), seconds=1)


@pytest.mark.parametrize("number", range(1, 4))
@virtually
async def test_flag_that_strangers_make_and_hide_during_a_look_stops_no_start(number: int) -> None:
    """`number`: the look at it before which they do it."""
    world = MigrationWorld(believes=Owners().believed)
    await world.begin()
    requests: list[str] = []

    async def hide(request: str, path: str) -> None:
        if path == flag.FLAG and request != "sync":
            requests.append(request)
            if len(requests) == number:
                world.set_phase("PREPARATION")
                world.hidden.add(flag.FLAG)

    assert (await world.open(before=hide)).is_connected
    assert requests
