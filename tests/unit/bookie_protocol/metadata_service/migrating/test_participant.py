"""What the coordinator of a migration may rely on, and what our processes do when it fails, or breaks its word."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import (
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.migration_world import MemoryTree, MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually

INFO = BookieServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc"),))
W = BookieGroup.WRITABLE
LOCKS = "/ledgers/underreplication/locks"
VOTES = "/ledgers/underreplication/auditorelection"


# --- our node ---------------------------------------------------------------------------------------------------


@virtually
async def test_migration_that_fails_at_an_unanswered_deletion_of_our_node_leaves_no_writer_without_one() -> None:
    world = MigrationWorld()
    process = await world.begin()
    deleted: list[str] = []

    async def lose(request: str, path: str) -> None:
        if request == "delete" and "/participants/" in path and not deleted:
            deleted.append(path)
            world.set_phase("FAILED")
            raise ConnectionLost("the answer was lost")

    process.source.after = lose
    world.set_phase("PREPARATION")
    await seen(lambda: deleted)
    await seen(lambda: process.is_connected)
    await process.service.records("k").create("x", b"")
    assert len(world.participants()) == 1


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING"])
@virtually
async def test_process_that_starts_in_the_pause_is_not_waited_for(phase: str) -> None:
    """It writes nothing, and may not be able to reach Oxia: a command or a probe, say."""
    world = MigrationWorld()
    await world.begin()
    await world.prepare()
    world.set_phase(phase)

    async def unreachable(_: object) -> MemoryTree:
        raise MetadataUnavailable("Oxia is away")

    connect, world._connect = world._connect, unreachable  # type: ignore[method-assign]
    late = await world.open()
    await asyncio.sleep(5)
    assert (world.participants(), late.is_connected) == ((), False)
    late.participant._connect = connect
    world.set_phase("FAILED")
    await seen(lambda: late.is_connected and len(world.participants()) == 2)
    await world.migrate()
    await seen(lambda: late.gate.has_switched)


@virtually
async def test_start_goes_on_after_an_answer_that_was_lost() -> None:
    world = MigrationWorld()
    await world.begin()
    lost: list[str] = []

    async def lose(request: str, path: str) -> None:
        if request == "exists" and path == flag.FLAG and len(lost) < 3:
            lost.append(path)
            raise ConnectionLost("another leader")

    late = await world.open(before=lose)
    assert late.is_connected
    assert len(lost) == 3


@pytest.mark.parametrize("what", ["lost", "slow", "Oxia"])
@virtually
async def test_start_without_an_answer_ends_by_its_time_out(what: str) -> None:
    world = MigrationWorld()
    await world.begin()

    async def lose(request: str, path: str) -> None:
        if what == "lost":
            raise ConnectionLost("no leader")
        if what == "slow" and request == "sync":
            await asyncio.sleep(3)

    async def slow(_: object) -> MemoryTree:
        await asyncio.sleep(25)
        raise MetadataUnavailable("Oxia is away")

    if what == "Oxia":
        await world.migrate()
        world._connect = slow  # type: ignore[method-assign]
    before = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable):
        await world.open(timeout=5, before=lose)
    assert asyncio.get_running_loop().time() - before < 6


# --- a flag that cannot be understood ---------------------------------------------------------------------------


@virtually
async def test_flag_that_cannot_be_understood_is_a_service_that_is_away() -> None:
    """Any other error of a read ends a bookie."""
    world = MigrationWorld()
    process = await world.begin()
    await process.service.records("k").create("x", b"1")
    world.break_flag()
    await seen(lambda: process.is_paused)
    with pytest.raises(MetadataUnavailable):
        await process.service.records("k").read("x", timeout=1)
    with pytest.raises(MetadataUnavailable):
        await process.service.records("k").create("y", b"1", timeout=1)


@virtually
async def test_process_does_not_start_beside_a_flag_that_cannot_be_understood() -> None:
    """The metadata may have moved, and nobody waits for a process that is not there."""
    world = MigrationWorld()
    await world.begin()
    world.break_flag()
    with pytest.raises(MetadataUnavailable):
        await world.open()
    world.set_phase("FAILED")
    late = await world.open()
    await seen(lambda: late.is_connected)
    await late.service.records("k").create("x", b"1")


@virtually
async def test_flag_that_cannot_be_understood_is_asked_for_less_and_less() -> None:
    world = MigrationWorld()
    process = await world.begin()
    world.break_flag()
    await seen(lambda: process.is_paused)
    before = process.source.requests
    await asyncio.sleep(600)
    assert process.source.requests - before < 400
    world.zookeeper.remove(flag.FLAG)
    await seen(lambda: process.is_connected, seconds=1)


@virtually
async def test_locks_and_votes_end_with_the_pause_of_a_flag_that_is_mended() -> None:
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    marks = process.service.under_replication
    await marks.mark(7, ["b:1"], ctime_ms=1)
    lock = await marks.lock(7)
    term = await process.service.auditor_election.elect("b:1")
    lost = asyncio.create_task(term.lost())
    await process.service.bookies.register("b:1", W, INFO)
    world.break_flag()
    await seen(lambda: process.is_paused)
    world.zookeeper.remove(flag.FLAG)
    await seen(lambda: process.is_connected)
    await marks.release(lock)
    await lost
    assert (world.zookeeper.children(LOCKS), world.zookeeper.children(VOTES)) == ((), ())
    await seen(lambda: other.is_connected)
    await other.service.under_replication.lock(7, timeout=1)
    await process.service.bookies.register("b:1", W, INFO, timeout=1)  # ours: it is left as it is


# --- a coordinator that does not wait ---------------------------------------------------------------------------


@virtually
async def test_coordinator_that_did_not_wait_for_this_process_is_found_out() -> None:
    """What was written behind the copy is missing in Oxia, so nobody may take a ledger for deleted."""
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    world.copy()
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    await process.service.records("k").create("x", b"1")
    world.set_phase("COMPLETED")
    await seen(lambda: process.gate.has_switched)
    assert process.service.session.doubt
    process.service.session.begin_history()
    assert not process.service.session.doubt


@virtually
async def test_migration_that_waited_raises_no_doubt() -> None:
    world = MigrationWorld()
    process, away = await world.begin(), await world.open()
    await world.fail()
    await seen(lambda: process.is_connected and away.is_connected)
    away.source.end_session()
    await world.prepare()
    away.source.begin_session()
    world.copy()
    world.set_phase("COMPLETED")
    await seen(lambda: process.gate.has_switched and away.gate.has_switched)
    late = await world.open()
    assert [each.service.session.doubt for each in (process, away, late)] == ["", "", ""]


@virtually
async def test_unanswered_deletion_of_our_node_raises_no_doubt() -> None:
    world = MigrationWorld()
    process = await world.begin()
    deleted: list[str] = []

    async def lose(request: str, path: str) -> None:
        if request == "delete" and "/participants/" in path and not deleted:
            deleted.append(path)
            world.copy()
            world.set_phase("COMPLETED")
            raise ConnectionLost("the answer was lost")

    process.source.after = lose
    world.set_phase("PREPARATION")
    await seen(lambda: process.gate.has_switched)
    assert process.service.session.doubt == ""


# --- trust ------------------------------------------------------------------------------------------------------


@virtually
async def test_flag_that_strangers_may_write_is_not_believed() -> None:
    trusted: list[bool] = [False]

    async def believes(_: float) -> bool:
        return trusted[0]

    world = MigrationWorld(believes=believes)
    process = await world.begin()
    world.set_phase("COMPLETED")
    await asyncio.sleep(5)
    assert (process.is_connected, process.gate.has_switched, world.targets) == (True, False, [])
    await process.service.records("k").create("x", b"1")
    assert not (await world.open()).gate.has_switched
    trusted[0] = True
    world.set_phase("FAILED")
    await world.migrate()
    await seen(lambda: process.gate.has_switched)


# --- the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@virtually
async def test_close_at_any_moment_ends_the_sessions_on_both_sides(seed: int) -> None:
    world = MigrationWorld()
    process = await world.begin()
    for number, phase in enumerate(("PREPARATION", "COPYING", "COMPLETED" if seed % 2 else "FAILED")):
        asyncio.get_running_loop().call_later(0.003 * number, world.set_phase, phase)
    slowly(process)
    await asyncio.sleep(0.001 * seed)
    async with asyncio.timeout(20):
        await process.service.close()
    await asyncio.sleep(1)
    ended = {process.service.session.state, process.source.session.state}
    assert ended | {each.session.state for each in world.targets} == {SessionState.CLOSED}


def slowly(process: Process) -> None:
    async def pause(_: str, __: str) -> None:
        await asyncio.sleep(0.0005)

    process.source.before = pause


@virtually
async def test_write_that_waits_hears_that_the_service_is_closed() -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    waiting = asyncio.create_task(process.service.records("k").create("x", b"", timeout=1000))
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    await process.service.close()
    with pytest.raises(MetadataUnavailable):
        await waiting
    assert asyncio.get_running_loop().time() - before < 5


@virtually
async def test_read_that_waits_for_the_flag_hears_that_the_service_is_closed() -> None:
    world = MigrationWorld()
    process = await world.begin()

    async def slow(_: object, path: str = flag.FLAG) -> MemoryTree:
        if path == flag.FLAG:
            await asyncio.sleep(25)
        return MemoryTree(world.oxia, 5.0)

    process.participant._connect = slow
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    process.source.before = slow  # type: ignore[assignment]
    world.set_phase("PREPARATION")
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(process.gate.exists("/ledgers", timeout=600))
    await asyncio.sleep(0.1)
    before = asyncio.get_running_loop().time()
    await process.gate.close()
    with pytest.raises(MetadataUnavailable) as caught:
        await waiting
    assert type(caught.value) is MetadataUnavailable
    assert asyncio.get_running_loop().time() - before < 1


# --- in the pause -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_name", ["create", "sync"])
@virtually
async def test_call_in_the_pause_ends_by_its_time_out(request_name: str) -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()

    async def slow(_: str, __: str) -> None:
        await asyncio.sleep(0.8)

    process.source.before = slow
    before = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable):
        if request_name == "create":
            await process.gate.create("/ledgers/none", b"", timeout=1.0)
        else:
            await process.gate.sync("/ledgers", timeout=1.0)
    assert asyncio.get_running_loop().time() - before < 1.5


@virtually
async def test_what_a_server_that_lags_behind_still_shows_does_not_exist_already() -> None:
    """The node was deleted before the pause; the server of this session learns of it with a sync."""
    world = MigrationWorld()
    process = await world.begin()
    await process.service.records("k").create("x", b"1")
    node = world.zookeeper.nodes["/ledgers/podkeeper/k/x"]
    await world.prepare()
    world.copy()
    world.zookeeper.remove("/ledgers/podkeeper/k/x")
    world.zookeeper.nodes["/ledgers/podkeeper/k/x"] = node

    async def learn(request: str, _: str) -> None:
        if request == "sync":
            world.zookeeper.nodes.pop("/ledgers/podkeeper/k/x", None)

    process.source.before = learn
    with pytest.raises(MetadataUnavailable):
        await process.service.records("k").create("x", b"2", timeout=1)


@virtually
async def test_everything_goes_on_in_oxia() -> None:
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    stored = await process.service.records("k").create("x", b"1")
    await process.service.bookies.register("b:1", W, INFO)
    await world.migrate()
    await seen(lambda: process.is_connected and other.gate.has_switched)
    assert (await other.service.bookies.list(W)).bookies == {"b:1"}
    with pytest.raises(MetadataVersionConflict):
        await process.service.records("k").update("x", b"2", stored)
    again = await process.service.records("k").read("x")
    await process.service.records("k").update("x", b"2", again.identity)
    with pytest.raises(MetadataNotFound):
        await other.service.records("k").read("y")


@virtually
async def test_watch_that_raises_at_the_switch_keeps_no_other_one_from_being_called() -> None:
    world = MigrationWorld()
    process = await world.begin()
    fired = [asyncio.Event() for _ in range(20)]

    def bad() -> None:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    for each in fired:
        await process.gate.exists("/ledgers/INSTANCEID", watch=each.set, timeout=5)
        await process.gate.exists("/ledgers/LAYOUT", watch=bad, timeout=5)
    await world.migrate()
    await seen(lambda: process.gate.has_switched)
    await asyncio.sleep(1)
    assert all(each.is_set() for each in fired)
    assert process.is_connected
