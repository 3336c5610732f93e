"""A migration that is disturbed: by what others write or hide in ZooKeeper, and by a coordinator that breaks off."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, MetadataRefused, MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.options import MetadataServiceUri
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.migration_world import MemoryTree, MigrationWorld, seen, unreachable
from tests.support.virtual_loop import virtually

INFO = BookieServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc"),))
TARGETS = {
    "long time-out": "oxia://h:6648/ns?sessionTimeoutMillis=" + "9" * 400,
    "longer time-out": "oxia://h:6648/ns?sessionTimeoutMillis=" + "9" * 5000,
    "long port": "oxia://h:" + "9" * 5000 + "/ns",
    "surrogate": "oxia://h:6648/\ud800",
    "not Oxia": "zk:h:2181",
}


@pytest.mark.parametrize("phase", ["PREPARATION", "COMPLETED"])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@virtually
async def test_target_that_is_not_an_oxia_is_waited_out(target: str, phase: str) -> None:
    world = MigrationWorld()
    process = await world.begin()
    world.zookeeper.put(flag.FLAG, json.dumps({"phase": phase, "targetUrl": target}).encode())
    await asyncio.sleep(30)
    assert process.is_paused
    assert len(world.participants()) == 1
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)


@virtually
async def test_error_that_nobody_thought_of_ends_no_process(caplog: pytest.LogCaptureFixture) -> None:
    world = MigrationWorld()
    process = await world.begin()

    async def connect(_: MetadataServiceUri) -> MemoryTree:
        raise ZeroDivisionError

    process.participant._connect = connect
    world.set_phase("PREPARATION")
    await asyncio.sleep(30)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    assert any(each.exc_info and each.exc_info[0] is ZeroDivisionError for each in caplog.records)


# --- what is hidden or deleted ----------------------------------------------------------------------------------


def hide_flag(world: MigrationWorld) -> None:
    world.set_phase("PREPARATION")
    world.hidden.add(flag.FLAG)


@virtually
async def test_flag_that_a_stranger_hides_stops_nobody() -> None:
    async def never(_: float) -> bool:
        return False

    world = MigrationWorld(believes=never)
    process = await world.begin()
    hide_flag(world)
    late = await world.open()
    process.source.end_session()
    process.source.begin_session()
    await seen(lambda: process.is_connected and late.is_connected)
    await late.service.records("k").create("x", b"1")


@virtually
async def test_flag_that_the_owners_hide_is_not_overlooked() -> None:
    world = MigrationWorld()
    await world.begin()
    hide_flag(world)
    with pytest.raises(MetadataRefused):
        await world.open()


@virtually
async def test_directory_that_a_stranger_hides_stops_nobody() -> None:
    world = MigrationWorld()
    world.hidden.add(flag.PARTICIPANTS)
    process = await world.begin()
    assert process.is_connected


@virtually
async def test_directory_that_is_ephemeral_is_a_missing_one() -> None:
    """Nobody can make a node in it, and its maker may be a stranger."""
    world = MigrationWorld()
    world.zookeeper.remove(flag.PARTICIPANTS)
    world.zookeeper.put(flag.PARTICIPANTS, b"", owner=7)
    process = await world.begin()
    await process.service.records("k").create("x", b"1")
    world.zookeeper.remove(flag.PARTICIPANTS)
    world.zookeeper.put(flag.PARTICIPANTS, b"")
    await seen(lambda: len(world.participants()) == 1)


@pytest.mark.parametrize("owner", [None, 7], ids=["missing", "ephemeral"])
@virtually
async def test_directory_that_goes_while_our_node_is_made_stops_nobody(owner: int | None) -> None:
    world = MigrationWorld()

    async def replace(request: str, path: str) -> None:
        if request == "create" and path == flag.PARTICIPANT:
            world.zookeeper.remove(flag.PARTICIPANTS)
            if owner is not None:
                world.zookeeper.put(flag.PARTICIPANTS, b"", owner)

    assert (await world.open(before=replace)).is_connected


@virtually
async def test_node_of_ours_that_others_delete_is_made_again() -> None:
    world = MigrationWorld()
    process = await world.begin()
    for _ in range(3):
        (node,) = world.participants()
        world.zookeeper.remove(f"{flag.PARTICIPANTS}/{node}")
        await seen(lambda: len(world.participants()) == 1)
    await world.migrate()
    await seen(lambda: process.gate.has_switched)
    assert process.service.session.doubt == ""


@virtually
async def test_write_behind_the_copy_of_a_coordinator_that_did_not_wait_raises_doubt() -> None:
    """It reads PREPARATION and waits for the write, which ends when the copy is made."""
    world = MigrationWorld()
    process = await world.begin()
    await process.service.records("k").create("y", b"1")
    writing = asyncio.Event()

    async def slow(request: str, path: str) -> None:
        if request == "create" and path.endswith("/x"):
            writing.set()
            await asyncio.sleep(4)

    process.source.before = slow
    write = asyncio.create_task(process.service.records("k").create("x", b"1", timeout=30))
    await writing.wait()
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    world.copy()
    await write
    await asyncio.sleep(5)
    world.set_phase("COMPLETED")
    await seen(lambda: process.gate.has_switched)
    assert process.service.session.doubt


# --- a migration that is begun again, or not ended --------------------------------------------------------------


@virtually
async def test_records_of_an_earlier_copy_are_not_gone_on_with() -> None:
    """The copy deletes nothing, so what was deleted in between would be there again."""
    world = MigrationWorld()
    process = await world.begin()
    await process.service.cookies.create("b:1", b"cookie")
    await world.prepare()
    world.copy()
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    await process.service.cookies.delete("b:1")
    world.set_phase("PREPARATION")
    await asyncio.sleep(60)
    assert len(world.participants()) == 1
    world.oxia.clear()
    await seen(lambda: not world.participants())


@virtually
async def test_namespace_that_is_emptied_for_another_start_has_what_we_make_before_the_copy() -> None:
    """The migration fails and begins again before our last look at the flag, which says the same then."""
    world = MigrationWorld()
    process = await world.begin()
    begun_again: list[str] = []

    async def begin_again(request: str, path: str) -> None:
        if request == "children" and path == flag.PARTICIPANTS and not begun_again:
            begun_again.append(path)
            world.set_phase("FAILED")
            world.oxia.clear()
            world.set_phase("PREPARATION")

    process.source.before = begin_again
    world.set_phase("PREPARATION")
    await seen(lambda: begun_again and not world.participants())
    assert any("idgen-long/HOB" in each for each in world.oxia.nodes)


@virtually
async def test_failure_while_oxia_is_connected_leaves_nothing_there() -> None:
    world = MigrationWorld()
    process = await world.begin()
    await process.service.bookies.register("b:1", BookieGroup.WRITABLE, INFO)
    connected = process.participant._connect

    async def slow(uri: MetadataServiceUri) -> object:
        await asyncio.sleep(5)
        return await connected(uri)

    process.participant._connect = slow  # type: ignore[assignment]
    world.set_phase("PREPARATION")
    await asyncio.sleep(2)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    assert world.oxia.nodes == {}


@virtually
async def test_pause_that_does_not_end_is_logged_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    with caplog.at_level(logging.WARNING), pytest.raises(MetadataUnavailable):
        await process.service.records("k").create("x", b"1", timeout=200)
    assert sum("PREPARATION" in each.getMessage() for each in caplog.records) == 3


@virtually
async def test_namespace_of_another_cluster_is_neither_written_over_nor_gone_on_with() -> None:
    world = MigrationWorld()
    process = await world.begin()
    world.oxia.put("/ledgers", b"")
    world.oxia.put("/ledgers/INSTANCEID", b"another")
    world.set_phase("PREPARATION")
    await asyncio.sleep(30)
    assert len(world.participants()) == 1
    world.set_phase("COMPLETED")
    await asyncio.sleep(30)
    assert not process.gate.has_switched
    with pytest.raises(MetadataDamaged):
        await world.open()
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    assert process.service.session.doubt == ""


@virtually
async def test_failure_while_a_process_is_on_its_way_to_oxia_is_seen() -> None:
    """Another process that could not reach Oxia stays in ZooKeeper."""
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    world.copy()
    connected = process.participant._connect

    async def slow(uri: MetadataServiceUri) -> object:
        await asyncio.sleep(4)
        return await connected(uri)

    await process.participant._leave_target()
    process.participant._connect = slow  # type: ignore[assignment]
    world.set_phase("COMPLETED")
    await asyncio.sleep(1)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    assert not process.gate.has_switched


@virtually
async def test_oxia_that_does_not_answer_holds_up_no_failure() -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    (target,) = world.targets
    ends = asyncio.Event()

    async def close() -> None:
        await ends.wait()

    target.close = close  # type: ignore[method-assign]
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected, seconds=1)
    ends.set()


# --- metadata that are in Oxia, where this process cannot follow ------------------------------------------------


@virtually
async def test_oxia_that_hangs_in_the_copy_holds_up_no_failure() -> None:
    """A process that is ready has nothing to do when the copy begins."""
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    await asyncio.sleep(1)

    async def hang(*_: object) -> None:
        await asyncio.sleep(25)

    for each in world.targets:
        each.before = hang
    world.copy()
    await asyncio.sleep(1)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected, seconds=1)


@virtually
async def test_process_that_nobody_waits_for_does_not_take_the_copy_for_an_earlier_one() -> None:
    world = MigrationWorld()
    await world.begin()
    await world.prepare()
    world.copy()
    world.set_phase("PREPARATION")
    late = await world.open()
    await seen(lambda: late.participant._prepared_for is not None, seconds=1)


@virtually
async def test_read_is_unavailable_while_the_metadata_are_where_this_process_cannot_follow() -> None:
    """ZooKeeper lacks what is new: bookies would take new ledgers for deleted, and clients know no new bookie."""
    world = MigrationWorld()
    process = await world.begin()
    reachable = process.participant._connect
    process.participant._connect = world._connect = unreachable  # type: ignore[method-assign]
    world.set_phase("COMPLETED")
    await seen(lambda: process.is_paused)
    await asyncio.sleep(1)
    with pytest.raises(MetadataUnavailable):
        await process.service.ledgers.read(7, timeout=1)
    with pytest.raises(MetadataUnavailable):
        await process.service.bookies.list(BookieGroup.WRITABLE, timeout=1)
    with pytest.raises(MetadataUnavailable):
        await world.open()
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    with pytest.raises(MetadataNotFound):
        await process.service.ledgers.read(7)
    process.participant._connect = reachable
    await world.migrate()
    await seen(lambda: process.gate.has_switched)
    with pytest.raises(MetadataNotFound):
        await process.service.ledgers.read(7)


@virtually
async def test_answer_from_before_is_thrown_away_when_it_comes_behind_the_move() -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = unreachable
    asked, answers = asyncio.Event(), asyncio.Event()

    async def slow(request: str, path: str) -> None:
        if path == "/ledgers/new":
            asked.set()
            await answers.wait()

    process.source.after = slow
    fired = asyncio.Event()
    read = asyncio.create_task(process.gate.exists("/ledgers/new", watch=fired.set, timeout=100))
    await asked.wait()
    world.set_phase("COMPLETED")
    await seen(lambda: process.is_paused)
    await asyncio.sleep(1)
    answers.set()
    with pytest.raises(ConnectionLost):
        await read
    assert process.gate._standing == set()


@virtually
async def test_read_behind_a_sync_that_found_the_move_is_unavailable() -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    held: list[str] = []
    goes_on = asyncio.Event()

    async def hold_first(request: str, path: str) -> None:
        if request == "get" and path == flag.FLAG and not held:
            held.append(path)
            await goes_on.wait()

    process.source.before = hold_first
    world.copy()
    await seen(lambda: held)
    world.set_phase("COMPLETED")
    with pytest.raises(ConnectionLost):
        await process.gate.sync("/ledgers", timeout=1)
    with pytest.raises(ConnectionLost):
        await process.gate.exists("/ledgers/new", timeout=1)
    goes_on.set()
    await seen(lambda: process.gate.has_switched)
    assert await process.gate.exists("/ledgers/new", timeout=1) is None


@pytest.mark.parametrize(
    "stored", [b"one", b"moved copy-1 one", b"removing one"], ids=["as it was", "moved on", "being removed"]
)
@virtually
async def test_cluster_with_the_same_id_is_the_same_cluster(stored: bytes) -> None:
    """Behind the migration Oxia's may have been moved further, which its own instance id says."""
    world = MigrationWorld()
    process = await world.begin()
    await world.migrate()
    await seen(lambda: process.gate.has_switched)
    world.oxia.put("/ledgers/INSTANCEID", stored)
    assert (await world.open()).gate.has_switched


@virtually
async def test_cluster_that_was_formatted_behind_the_migration_is_another_one() -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.migrate()
    await seen(lambda: process.gate.has_switched)
    await process.service.cluster.format(force=True)
    with pytest.raises(MetadataDamaged):
        await world.open()


@pytest.mark.parametrize("phase", ["PREPARATION", "COMPLETED"])
@virtually
async def test_step_that_fails_for_long_is_logged_again_and_again(phase: str, caplog: pytest.LogCaptureFixture) -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = unreachable
    with caplog.at_level(logging.WARNING):
        world.set_phase(phase)
        await asyncio.sleep(630)
    assert sum("Oxia is away" in each.getMessage() for each in caplog.records) in (10, 11)
