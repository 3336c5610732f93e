"""What was asked in ZooKeeper before the switch, and is answered behind it, changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.migration_world import MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually

NEW = "/ledgers/new"


@pytest.mark.parametrize("phase", ["NOT_STARTED", "PREPARATION", None], ids=["not started", "prepared", "damaged"])
@pytest.mark.parametrize("is_question", [False, True], ids=["sync", "question"])
@virtually
async def test_flag_that_is_read_behind_the_switch_closes_no_gate(is_question: bool, phase: str | None) -> None:
    world = MigrationWorld()
    process = await world.begin()
    await world.prepare()
    world.copy()
    await asyncio.sleep(1)
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(request: str, path: str) -> None:
        if asyncio.current_task() is asking and (request, path) == ("get", flag.FLAG):
            asked.set()
            await goes_on.wait()

    process.source.before = hold
    asking = asyncio.create_task(ask(process, is_question))
    await asked.wait()
    world.set_phase("COMPLETED")
    await seen(lambda: process.gate.has_switched)
    if phase is None:
        world.break_flag()
    else:
        world.set_phase(phase)
    goes_on.set()
    await asyncio.wait([asking])
    assert is_question or isinstance(asking.exception(), ConnectionLost)
    assert process.is_connected
    await process.gate.create(NEW, b"", timeout=1)
    assert NEW in world.oxia.nodes


async def ask(process: Process, is_question: bool) -> None:
    if is_question:
        await process.participant._ask()
    else:
        await process.gate.sync("/ledgers", timeout=100)
