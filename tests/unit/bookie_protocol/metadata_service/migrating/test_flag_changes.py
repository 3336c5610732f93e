"""Changes of the flag at every moment of a read of it: all of them are heard, and none keeps a process waiting."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.migration_world import (
    NEW,
    MemoryTree,
    MigrationWorld,
    Process,
    says_nothing_of_what_is_new,
    seen,
    slow_to_be_unreachable,
)
from tests.support.virtual_loop import virtually

MOMENTS = range(24)
"""Half of them are before a request about the migration, half behind its answer."""


class Moment:
    """Does something once: before the request with this number about the migration, or behind its answer."""

    def __init__(self, source: MemoryTree | None, number: int, act: Callable[[], object]) -> None:
        self._wanted = number
        self._number = itertools.count()
        self._act = act
        self.has_come = False
        if source is not None:
            source.before = source.after = self

    async def __call__(self, _: str, path: str) -> None:
        if path.startswith("/pulsar") and next(self._number) == self._wanted:
            self.has_come = True
            self._act()


# --- each change is heard ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", MOMENTS)
@virtually
async def test_pause_that_begins_at_any_moment_of_a_look_hears_of_the_move(number: int) -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    Moment(process.source, number, lambda: world.set_phase("PREPARATION"))
    world.set_phase("NOT_STARTED")
    await asyncio.sleep(1)
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    assert process.is_paused
    world.move()
    await asyncio.sleep(0.01)
    await says_nothing_of_what_is_new(process)


@pytest.mark.parametrize("number", MOMENTS)
@virtually
async def test_move_at_any_moment_of_a_look_is_heard(number: int) -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    moment = Moment(process.source, number, world.move)
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    if not moment.has_come:
        world.move()
        await asyncio.sleep(0.01)
    await says_nothing_of_what_is_new(process)


# --- answers behind a change ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_missing", [True, False], ids=["get", "exists"])
@virtually
async def test_answer_behind_a_change_waits_for_what_the_flag_says(is_missing: bool) -> None:
    """What our node proves is not true of a coordinator that does not wait."""
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)

    async def slow(_: str, path: str) -> None:
        if path == flag.FLAG:
            await asyncio.sleep(3)

    process.source.before = slow
    world.move()
    await asyncio.sleep(0.01)
    with pytest.raises(MetadataUnavailable):
        await (process.gate.get if is_missing else process.gate.exists)(NEW, timeout=20)


@virtually
async def test_question_without_an_answer_is_asked_again() -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    failed: list[str] = []

    async def fail(request: str, path: str) -> None:
        if path == flag.FLAG and len(failed) < 3:
            failed.append(request)
            raise ZeroDivisionError if len(failed) == 2 else ConnectionLost("another leader")

    process.source.before = fail
    world.move()
    await asyncio.sleep(0.01)
    await says_nothing_of_what_is_new(process)
    assert len(failed) == 3


@virtually
async def test_answer_behind_a_change_that_is_harmless_comes_within_its_time_out() -> None:
    world = MigrationWorld()
    process = await world.begin()
    process.participant._connect = slow_to_be_unreachable
    world.set_phase("PREPARATION")
    await asyncio.sleep(1)
    pause = 1.0

    async def slow(_: str, path: str) -> None:
        if path == flag.FLAG:
            await asyncio.sleep(pause)

    process.source.before = slow
    world.set_phase("PREPARATION")
    await asyncio.sleep(0.01)
    assert await process.gate.exists("/ledgers", timeout=5) is not None
    pause = 4.0
    world.set_phase("PREPARATION")
    await asyncio.sleep(0.01)
    before = asyncio.get_running_loop().time()
    with pytest.raises(ConnectionLost):
        await process.gate.exists("/ledgers", timeout=2)
    assert asyncio.get_running_loop().time() - before < 2.1


# --- a flag that is written faster than it can be read ----------------------------------------------------------


@pytest.mark.parametrize("pulsar", [True, False], ids=["Pulsar", "no Pulsar"])
@pytest.mark.parametrize("every", [0.002, 0.005, 0.05])
@pytest.mark.parametrize("is_start", [True, False], ids=["start", "new session"])
@virtually
async def test_flag_of_the_owners_that_is_written_again_and_again_stops_nobody(
    is_start: bool, every: float, pulsar: bool
) -> None:
    async def believes(_: float) -> bool:
        await asyncio.sleep(0.007)  # it takes seven requests
        return True

    async def slow(_: str, __: str) -> None:
        await asyncio.sleep(0.001)

    world = MigrationWorld(pulsar=pulsar, believes=believes)
    process = await world.begin()
    with world.flag_rewritten(every, "NOT_STARTED", "FAILED"):
        await asyncio.sleep(0.1)
        if is_start:
            process = await world.open(before=slow)
        else:
            process.source.before = slow
            process.source.end_session()
            process.source.begin_session()
        await seen(lambda: process.is_connected, seconds=1)
        await process.service.records("k").create("x", b"1")


@pytest.mark.parametrize("request_s", [0.3, 0.9, 4.5])
@virtually
async def test_start_ends_by_its_time_out_however_slow_each_request_is(request_s: float) -> None:
    world = MigrationWorld()
    await world.begin()

    async def slow(_: str, path: str) -> None:
        if path.startswith("/pulsar"):
            await asyncio.sleep(request_s)

    before = asyncio.get_running_loop().time()
    with suppress(MetadataUnavailable):
        await world.open(timeout=5, before=slow)
    assert asyncio.get_running_loop().time() - before < 6


@pytest.mark.parametrize("number", MOMENTS)
@virtually
async def test_start_ends_whatever_begins_at_any_moment_of_it(number: int) -> None:
    """A process that has joined already prepares when it has started: Oxia may not answer."""
    world = MigrationWorld()
    await world.begin()
    world._connect = slow_to_be_unreachable  # type: ignore[method-assign]
    moment = Moment(None, number, lambda: world.set_phase("PREPARATION"))
    before = asyncio.get_running_loop().time()
    process = await world.open(before=moment)
    assert asyncio.get_running_loop().time() - before < 1
    if moment.has_come:
        await seen(lambda: process.is_paused or not process.is_connected)
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)


# --- a migration that a process has slept through ---------------------------------------------------------------


def without_flag(world: MigrationWorld) -> None:
    if flag.FLAG in world.zookeeper.nodes:
        world.zookeeper.remove(flag.FLAG)


def without_pulsar(world: MigrationWorld) -> None:
    for path in [each for each in world.zookeeper.nodes if each.startswith("/pulsar")]:
        world.zookeeper.remove(path)


async def is_stopped(process: Process) -> None:
    """It neither writes nor believes what it reads."""
    await asyncio.sleep(1)
    for _ in range(3):
        with pytest.raises(MetadataUnavailable):
            await process.gate.create("/ledgers/x-", b"", sequential=True, timeout=1)
        await says_nothing_of_what_is_new(process)
        await asyncio.sleep(30)


@pytest.mark.parametrize("clean", [without_flag, without_pulsar, lambda world: world.set_phase("NOT_STARTED")])
@pytest.mark.parametrize("is_new_session", [False, True])
@pytest.mark.parametrize("is_start", [False, True], ids=["agreed", "started in the pause"])
@virtually
async def test_process_that_no_migration_waits_for_goes_on_only_if_it_has_failed(
    is_start: bool, is_new_session: bool, clean: Callable[[MigrationWorld], None]
) -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    if is_start:
        process = await world.open()
    if is_new_session:
        process.source.end_session()
    else:
        process.source.session.move(SessionState.SUSPENDED)
    world.move()
    clean(world)
    if is_new_session:
        process.source.begin_session()
    else:
        process.source.session.move(SessionState.CONNECTED)
    await is_stopped(process)
    for path in ("/pulsar", "/pulsar/migration-coordinator", flag.PARTICIPANTS):
        world.zookeeper.put(path, b"")
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected)
    await process.gate.create("/ledgers/x-", b"", sequential=True, timeout=1)


@pytest.mark.parametrize("clean", [without_flag, without_pulsar])
@pytest.mark.parametrize("is_made", [False, True], ids=["none before", "NOT_STARTED before"])
@virtually
async def test_process_that_has_slept_knows_that_a_flag_has_come_and_gone(
    is_made: bool, clean: Callable[[MigrationWorld], None]
) -> None:
    world = MigrationWorld()
    process = await world.begin()
    if is_made:
        world.set_phase("NOT_STARTED")
        await asyncio.sleep(1)
    process.source.end_session()
    world.set_phase("PREPARATION")
    world.move()
    clean(world)
    process.source.begin_session()
    await is_stopped(process)
    world.set_phase("COMPLETED")
    await seen(lambda: process.gate.has_switched)


@pytest.mark.parametrize("phase", [None, "NOT_STARTED", "FAILED"])
@pytest.mark.parametrize("pulsar", [True, False], ids=["Pulsar", "no Pulsar"])
@virtually
async def test_process_that_has_slept_without_a_migration_goes_on(pulsar: bool, phase: str | None) -> None:
    world = MigrationWorld(pulsar=pulsar)
    process = await world.begin()
    if phase is not None:
        world.set_phase(phase)
        await asyncio.sleep(1)
    for _ in range(3):
        process.source.end_session()
        process.source.begin_session()
        await seen(lambda: process.is_connected, seconds=1)


@virtually
async def test_flag_that_is_deleted_under_a_process_that_takes_part_stops_nobody() -> None:
    """Our node has been there all the time, also while the connection was lost."""
    world = MigrationWorld()
    process = await world.begin()
    for phase in ("NOT_STARTED", "PREPARATION"):
        process.participant._connect = slow_to_be_unreachable
        world.set_phase(phase)
        await asyncio.sleep(1)
        process.source.session.move(SessionState.SUSPENDED)
        without_flag(world)
        process.source.session.move(SessionState.CONNECTED)
        await seen(lambda: process.is_connected)


@virtually
async def test_end_that_is_written_again_and_again_is_followed() -> None:
    world = MigrationWorld()
    process = await world.begin()

    async def slow(_: str, __: str) -> None:
        await asyncio.sleep(0.001)

    process.source.before = slow
    await world.prepare()
    world.copy()
    for _ in range(1000):
        world.set_phase("COMPLETED")
        await asyncio.sleep(0.002)
    assert process.gate.has_switched
