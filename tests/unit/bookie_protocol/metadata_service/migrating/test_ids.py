"""No ledger id is given twice when metadata move to Oxia."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.migration_world import MemoryTree, MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually

LONG_ROOT = "/ledgers/idgen-long"


async def ids_of(process: Process, number: int) -> list[int]:
    return [await process.service.ledgers.generate_id(timeout=30) for _ in range(number)]


async def completed_under(world: MigrationWorld, waiting: asyncio.Task[int]) -> int:
    """Migrate while a call is under way, which waits for the end of it. Returns what it gave."""
    await world.prepare()
    world.copy()
    await asyncio.sleep(1)
    assert not waiting.done()
    world.set_phase("COMPLETED")
    return await waiting


def answers_late(source: MemoryTree, name: str, path: str) -> asyncio.Event:
    """The next answer to this request is on its way for a second. The event: it was given."""
    given = asyncio.Event()

    async def after(request: str, about: str) -> None:
        if request == name and about == path and not given.is_set():
            given.set()
            await asyncio.sleep(1)

    source.after = after
    return given


@pytest.mark.parametrize("long", [False, True])
@virtually
async def test_call_that_waits_in_the_pause_gives_an_id_that_nobody_has(long: bool) -> None:
    world = MigrationWorld()
    process = await world.begin()
    if long:
        world.zookeeper.put(LONG_ROOT, b"")
    before = await ids_of(process, 4)
    await world.prepare()
    world.copy()
    waiting = asyncio.create_task(process.service.ledgers.generate_id(timeout=30))
    await asyncio.sleep(1)
    world.set_phase("COMPLETED")
    assert await waiting not in before
    assert not set(await ids_of(process, 3)) & set(before)


@pytest.mark.parametrize(("long", "request_name"), [(False, "exists"), (True, "exists"), (True, "children")])
@virtually
async def test_call_that_looked_before_the_pause_counts_by_no_copied_generator(long: bool, request_name: str) -> None:
    """It found no long ids, or none of the newest high-order bits, and takes its number behind the switch."""
    world = MigrationWorld()
    other = await world.begin()
    if long:
        world.zookeeper.put(LONG_ROOT, b"")
    before = await ids_of(other, 4)
    process = await world.open()
    looked = answers_late(process.source, request_name, LONG_ROOT)
    waiting = asyncio.create_task(process.service.ledgers.generate_id(timeout=30))
    await looked.wait()
    given = await completed_under(world, waiting)
    after = [given, *await ids_of(process, 3), *await ids_of(other, 3)]
    assert not set(after) & set(before)
    assert len(set(after)) == len(after)


@virtually
async def test_number_whose_answer_was_lost_is_not_taken_again_from_a_copied_generator() -> None:
    world = MigrationWorld()
    process = await world.begin()
    before = await ids_of(process, 4)
    sent = asyncio.Event()

    async def lose(request: str, path: str) -> None:
        if request == "create" and "/idgen/" in path and not sent.is_set():
            sent.set()
            await asyncio.sleep(1)
            raise ConnectionLost("the connection was lost")

    process.source.before = lose
    waiting = asyncio.create_task(process.service.ledgers.generate_id(timeout=30))
    await sent.wait()
    assert await completed_under(world, waiting) not in before


@virtually
async def test_look_of_the_session_before_does_not_count_in_the_next_one() -> None:
    """A slow call finds no long ids, and answers behind one that found them in the next session."""
    world = MigrationWorld()
    process = await world.begin()
    looked = answers_late(process.source, "exists", LONG_ROOT)
    slow = asyncio.create_task(process.service.ledgers.generate_id(timeout=30))
    await looked.wait()
    world.zookeeper.put(LONG_ROOT, b"")
    process.source.end_session()
    process.source.begin_session()
    await seen(lambda: process.is_connected)
    fast: list[Any] = await ids_of(process, 1)
    assert min(*fast, await slow, *await ids_of(process, 1)) > 2**31


# --- brokers, and processes that die ----------------------------------------------------------------------------


async def ids_of_broker(tree: MemoryTree, number: int) -> list[int]:
    """As Pulsar's `PulsarLedgerIdGenerator`: it looks for long ids each time."""
    found: list[int] = []
    for _ in range(number):
        if await tree.exists(LONG_ROOT, timeout=5) is None:
            found.append((await tree.take_number("/ledgers/idgen/ID-", timeout=5))[0])
            continue
        names = (await tree.children(LONG_ROOT, timeout=5)).names
        high = max((int(each.removeprefix("HOB-")) for each in names), default=1)
        low, node = await tree.take_number(f"{LONG_ROOT}/HOB-{high:010d}/ID-", timeout=5)
        if node is not None:
            await tree.delete(node, None, timeout=5)
        found.append(high << 32 | low)
    return found


@pytest.mark.parametrize("long", [False, True])
@virtually
async def test_broker_that_hears_of_the_preparation_last_and_of_the_end_first_gives_new_ids(long: bool) -> None:
    world = MigrationWorld()
    ours = await world.begin()
    if long:
        world.zookeeper.put(LONG_ROOT, b"")
        world.zookeeper.put(f"{LONG_ROOT}/HOB-0000000001", b"")
    broker = MemoryTree(world.zookeeper, 5.0)
    node = await broker.create(flag.PARTICIPANT, b"", ephemeral=True, sequential=True, timeout=5)
    before = await ids_of(ours, 3)
    world.set_phase("PREPARATION")
    await seen(lambda: len(world.participants()) == 1)
    before += await ids_of_broker(broker, 5)
    await broker.delete(node.path, None, timeout=5)
    world.copy()
    world.set_phase("COMPLETED")
    after = await ids_of_broker(MemoryTree(world.oxia, 5.0), 5)
    await seen(lambda: ours.gate.has_switched)
    after += await ids_of(ours, 3)
    assert len({*before, *after}) == len(before) + len(after)


@virtually
async def test_ids_of_a_process_that_dies_before_it_is_ready_are_not_given_again() -> None:
    """Another one was ready before, and one that has the URI of Oxia is the first that gives ids there."""
    world = MigrationWorld()
    ours, dying = await world.begin(), await world.open()
    world.zookeeper.put(LONG_ROOT, b"")
    hears = asyncio.Event()

    async def late(request: str, _: str) -> None:
        if request == "sync":
            await hears.wait()

    dying.source.before = late
    world.set_phase("PREPARATION")
    await seen(lambda: len(world.participants()) == 1)
    before = await ids_of(dying, 4)
    dying.source.end_session()
    await seen(lambda: not world.participants())
    world.copy()
    ours.source.before = late
    world.set_phase("COMPLETED")
    direct = MetadataService(MemoryTree(world.oxia, 5.0), "/ledgers", None)
    assert not set(before) & {await direct.ledgers.generate_id() for _ in range(4)}


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING"])
@pytest.mark.parametrize("is_start", [False, True], ids=["session", "start"])
@virtually
async def test_process_that_comes_in_the_pause_makes_the_numbers_before_brokers_follow(
    is_start: bool, phase: str
) -> None:
    """No process of ours was there before, or an outage has ended all sessions."""
    world = MigrationWorld()
    process = await world.begin()
    before = await ids_of(process, 3)
    process.source.end_session()
    world.set_phase(phase)
    if is_start:
        await world.open()
    else:
        process.source.begin_session()
    await asyncio.sleep(5)
    world.copy()
    assert not set(before) & set(await ids_of_broker(MemoryTree(world.oxia, 5.0), 3))


@pytest.mark.parametrize("is_ready", [False, True], ids=["at the deletion of our node", "ready"])
@virtually
async def test_process_that_has_missed_a_failure_prepares_for_the_next_start(is_ready: bool) -> None:
    """It has agreed to the one before. The namespace was emptied, or is another one."""
    world = MigrationWorld()
    process = await world.begin()
    before = await ids_of(process, 3)
    begun_again: list[str] = []

    def begin_again() -> None:
        begun_again.append("")
        world.set_phase("FAILED")
        world.oxia.clear()
        world.set_phase("PREPARATION")

    async def at_deletion(request: str, path: str) -> None:
        if not is_ready and request == "delete" and path.startswith(flag.PARTICIPANT) and not begun_again:
            begin_again()

    process.source.before = at_deletion
    await world.prepare()
    if is_ready:
        begin_again()
        await asyncio.sleep(5)
    assert begun_again
    world.copy()
    assert not set(before) & set(await ids_of_broker(MemoryTree(world.oxia, 5.0), 3))


@virtually
async def test_migration_that_fails_leaves_the_generators_as_they_were() -> None:
    world = MigrationWorld()
    process = await world.begin()
    before = await ids_of(process, 2)
    await world.fail()
    await seen(lambda: process.is_connected)
    assert max(await ids_of(process, 2)) < max(before) + 10


@virtually
async def test_name_of_a_generator_that_is_no_number_of_use_ends_nothing() -> None:
    """Any client may make one."""
    world = MigrationWorld()
    process = await world.begin()
    world.zookeeper.put(LONG_ROOT, b"")
    world.zookeeper.put(f"{LONG_ROOT}/HOB-{'9' * 5000}", b"")
    with pytest.raises(MetadataDamaged):
        await process.service.ledgers.generate_id()
    world.set_phase("PREPARATION")
    await asyncio.sleep(5)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)


@virtually
async def test_cluster_without_a_layout_gets_new_numbers_too() -> None:
    """As one that only Pulsar has used."""
    world = MigrationWorld()
    broker = MemoryTree(world.zookeeper, 5.0)
    for path in ("/ledgers", "/ledgers/idgen"):
        world.zookeeper.put(path, b"")
    before = await ids_of_broker(broker, 4)
    world.copy()
    world.set_phase("COMPLETED")
    process = await world.open()
    assert not set(before) & set(await ids_of(process, 4))
