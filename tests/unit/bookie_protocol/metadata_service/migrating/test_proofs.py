"""Proofs in a pause that ZooKeeper still has the metadata: a flag that has not changed, a node that is waited for.

Without a proof an answer of ZooKeeper says nothing. With one reads go on, whatever others write.
"""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.flag import Phase
from bookie_protocol.metadata_service.migrating.gate import MigratingTree
from bookie_protocol.metadata_service.migrating.participant import Participant
from bookie_protocol.metadata_service.tree.nodes import Watch
from tests.support.migration_world import (
    ROOT,
    STEP_S,
    MemoryTree,
    MigrationWorld,
    Process,
    always,
    says_nothing_of_what_is_new,
    seen,
    slow_to_be_unreachable,
    unreachable,
)
from tests.support.virtual_loop import virtually

THERE = "/ledgers/LAYOUT"


async def goes_on_reading(process: Process, seconds: float) -> None:
    for _ in range(int(seconds / 0.1)):
        assert await process.gate.exists(THERE, timeout=2) is not None
        await asyncio.sleep(0.1)


# --- our node ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_start", [True, False], ids=["start", "new session"])
@virtually
async def test_node_that_was_made_behind_the_move_proves_nothing(is_start: bool) -> None:
    """Its maker has read NOT_STARTED before, and a flag that cannot be understood behind it."""
    world = MigrationWorld()
    process = await world.begin()
    moved = asyncio.Event()

    async def hold(request: str, path: str) -> None:
        if request == "create" and path == flag.PARTICIPANT and not moved.is_set():
            await asyncio.sleep(2)
            world.move()
            world.break_flag()
            moved.set()

    if is_start:
        await process.gate.close()
        with pytest.raises(MetadataUnavailable):
            await world.open(before=hold)
        assert moved.is_set()
        return
    process.source.end_session()
    process.source.before = hold
    process.source.begin_session()
    await moved.wait()
    await says_nothing_of_what_is_new(process)
    assert len(world.participants()) == 1


@virtually
async def test_node_that_others_delete_proves_nothing_from_then_on() -> None:
    """The one that is made again was not there for a migration that ended before."""
    world = MigrationWorld()
    process = await world.begin()
    world.break_flag()
    await seen(lambda: process.is_paused)
    await goes_on_reading(process, 1)
    (name,) = world.participants()
    world.zookeeper.remove(f"{flag.PARTICIPANTS}/{name}")
    world.move()
    world.break_flag()
    await says_nothing_of_what_is_new(process)


@pytest.mark.parametrize("before", ["NOT_STARTED", "PREPARATION"])
@virtually
async def test_node_proves_that_the_metadata_stayed_whatever_the_flag_says_later(before: str) -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = unreachable
    world.set_phase(before)
    await asyncio.sleep(1)
    with world.flag_rewritten(0.005, "THAWING"):
        await seen(lambda: process.is_paused)
        await goes_on_reading(process, 2)
    assert len(world.participants()) == 1


@virtually
async def test_node_behind_a_flag_that_is_not_believed_proves_nothing() -> None:
    """The flag may be the owners': whether it is believed can change without a change of the flag."""
    trusted: list[bool] = [True]

    async def believes(_: float) -> bool:
        return trusted[0]

    world = MigrationWorld(believes=believes)
    first = await world.begin()
    await first.gate.close()
    world.move()
    trusted[0] = False
    process = await world.open()
    assert len(world.participants()) == 1
    trusted[0] = True
    world.break_flag()
    await asyncio.sleep(0.01)
    await says_nothing_of_what_is_new(process)


@virtually
async def test_node_proves_nothing_once_a_coordinator_has_gone_on_without_it() -> None:
    """The process hears of it, too, while a step is under way."""
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    world.move()
    await asyncio.sleep(0.01)
    await says_nothing_of_what_is_new(process)
    world.break_flag()
    await asyncio.sleep(2 * STEP_S)
    await says_nothing_of_what_is_new(process)
    assert len(world.participants()) == 1


@virtually
async def test_watches_of_a_node_that_stays_are_few() -> None:
    world = MigrationWorld()
    process = await world.begin()
    (name,) = world.participants()
    watches: set[Watch] = set()

    async def note(_: str, path: str) -> None:
        if path.endswith(name):
            watches.update(watch for at, watch in world.zookeeper._watches if at == path)

    process.source.after = note
    await asyncio.sleep(600)
    for _ in range(100):
        world.set_phase("NOT_STARTED")
        await asyncio.sleep(0.1)
    assert len(watches) == 1


class Questions:
    """Counts the reads of the flag that are under way. Each takes some time, `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.under_way = self.most = 0

    async def __call__(self, request: str, path: str) -> None:
        if (request, path) == ("exists", flag.FLAG):
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await asyncio.sleep(self._seconds)
            finally:
                self.under_way -= 1


@virtually
async def test_watches_of_the_flag_are_few_while_oxia_is_away() -> None:
    """Each try finds that the metadata have moved, so no earlier proof holds."""
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = unreachable
    world.set_phase("COMPLETED")
    await asyncio.sleep(6000)
    assert len({watch for at, watch in world.zookeeper._watches if at == flag.FLAG}) == 1
    questions = process.source.before = Questions(0.001)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    assert 1 <= questions.most <= 2  # a look, and a question


@virtually
async def test_question_that_is_under_way_is_asked_again_behind_a_change() -> None:
    """Its answer may be from before, and a step that is under way keeps the look waiting."""
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    questions = process.source.after = Questions(1)
    process.participant._hear_flag()
    await seen(lambda: questions.under_way == 1)
    world.move()
    await asyncio.sleep(2.5)
    assert questions.most == 1
    assert process.participant._phase is Phase.COMPLETED
    await says_nothing_of_what_is_new(process)


@virtually
async def test_nothing_is_asked_behind_the_end() -> None:
    """Closing ends the question that is under way. kazoo fires all watches meanwhile."""
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    questions = process.source.before = Questions(3)
    world.copy()
    await seen(lambda: questions.under_way)
    closing = asyncio.create_task(process.gate.close())
    await asyncio.sleep(0.001)
    world.set_phase("FAILED")
    process.participant._hear_flag()
    await closing
    assert questions.under_way == 0
    await asyncio.sleep(0.1)
    assert questions.under_way == 0


@virtually
async def test_flag_that_was_read_on_the_connection_before_proves_nothing() -> None:
    """A start tries again."""
    world = MigrationWorld()
    await world.begin()
    await world.prepare()
    source = MemoryTree(world.zookeeper, 5.0)
    gate = MigratingTree(source)
    reads: list[str] = []

    async def lose(request: str, path: str) -> None:
        if request == "get" and path == flag.FLAG:
            reads.append(path)
            if len(reads) == 1:
                source.session.move(SessionState.SUSPENDED)
                source.session.move(SessionState.CONNECTED)

    source.after = lose
    await Participant(gate, ROOT, unreachable, always).begin()
    assert await gate.exists(THERE, timeout=1) is not None
    assert len(reads) == 2
    await gate.close()


# --- a flag that is written faster than it can be read ----------------------------------------------------------


@pytest.mark.parametrize("pulsar", [True, False], ids=["Pulsar", "no Pulsar"])
@pytest.mark.parametrize("every", [0.005, 0.05])
@pytest.mark.parametrize("is_start", [True, False], ids=["start", "new session"])
@virtually
async def test_flag_of_a_stranger_that_is_written_again_and_again_stops_nobody(
    is_start: bool, every: float, pulsar: bool
) -> None:
    async def never(_: float) -> bool:
        await asyncio.sleep(0.007)  # it takes seven requests
        return False

    async def slow(_: str, __: str) -> None:
        await asyncio.sleep(0.001)

    world = MigrationWorld(pulsar=pulsar, believes=never)
    process = await world.begin()
    with world.flag_rewritten(every, "NOT_STARTED"):
        await asyncio.sleep(0.1)
        if is_start:
            process = await world.open(before=slow)
        else:
            process.source.before = slow
            process.source.end_session()
            process.source.begin_session()
        await seen(lambda: process.is_connected, seconds=1)
        await process.service.records("k").create("x", b"1")


# --- a step that takes long -------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["FAILED", "PREPARATION"])
@virtually
async def test_reads_go_on_while_oxia_does_not_answer(to: str) -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    world.set_phase(to)
    await goes_on_reading(process, 2 * STEP_S)
    assert len(world.participants()) == 1


@virtually
async def test_reads_go_on_while_a_write_is_under_way() -> None:
    world = MigrationWorld()
    process = await world.begin()

    async def slow(request: str, path: str) -> None:
        if path.endswith("/x") and request == "create":
            await asyncio.sleep(STEP_S)

    process.source.before = slow
    write = asyncio.create_task(process.gate.create("/ledgers/x", b"", timeout=30))
    await asyncio.sleep(0.1)
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    world.set_phase("FAILED")
    await goes_on_reading(process, STEP_S)
    await write
    await seen(lambda: process.is_connected)
