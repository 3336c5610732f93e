"""Bookies that leave for good and come back as new ones under their old names."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from random import Random
from typing import Final

from bookie_pod.autorecovery.decommission.presence import Presence, presence_of
from bookie_protocol.errors import CouldNotTell, ExitCode, NotThere
from bookie_protocol.metadata_service.records import DECOMMISSION
from tests.campaign.connecting import connected
from tests.campaign.faults.kind import Fault
from tests.campaign.world import COMMAND, Bookie, World

_DECOMMISSION_S: Final = 100.0
_END_S: Final = 40.0


def _cluster(world: World, *arguments: str, seconds: float = 40.0) -> tuple[int | None, str]:
    """`bookie cluster ...`: its exit code, and what it said; None: it did not end in time."""
    try:
        done = subprocess.run(
            [COMMAND, "cluster", *arguments, "--metadata", world.uri],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "it did not end in time"
    return done.returncode, done.stdout + done.stderr


async def is_replaced(world: World, bookie: Bookie, random: Random) -> str:
    """As an operator does it who has lost the volumes: new ones, and no cookie, so that it is a new bookie under the
    name that ledgers know. Its ledgers' writers may be idle meanwhile, and know nothing of it."""
    bookie.program.kill()
    await asyncio.sleep(random.choice((0.0, random.uniform(0, 6))))
    await world.destroys(bookie, "replaced")
    await world.forget_cookie(bookie)
    await world.empty_disks(bookie)
    await world.start_bookie(bookie)
    return ""


async def is_decommissioned(world: World, bookie: Bookie, random: Random) -> str:
    """Drained while it serves; if that is said to be done, nothing needs it: its disks go, and nothing is destroyed."""
    arguments = ("decommission", bookie.name, "--grace", "2", "--force", "--rate", "0")
    code, said = await asyncio.to_thread(_cluster, world, *arguments, seconds=_DECOMMISSION_S)
    if code == 0:
        await _nothing_names(world, bookie)
        bookie.program.kill()
        await world.empty_disks(bookie)
    elif code is not None and "Traceback" in said:
        world.history.breach("alive", f"the decommission of {bookie.name} ended with {code}: {said[-1500:]}")
    for _ in range(5):
        undone, _said = await asyncio.to_thread(_cluster, world, "decommission", bookie.name, "--undo")
        if undone == 0:
            break
        await asyncio.sleep(1)
    await world.start_bookie(bookie)
    return f"exit code {code}"


async def is_suspended_while_decommissioned(world: World, bookie: Bookie, random: Random) -> str:
    """Its session ends, it is decommissioned as a stopped one, and it goes on: as no member, or read-only. It must take
    nothing new."""
    if not bookie.program.is_running:
        return "not asked: it is not up"
    with bookie.out_of_reach():
        bookie.program.pause()
        try:
            await _until_gone(world, bookie)
            arguments = ("decommission", bookie.name, "--stopped", "--grace", "2", "--force", "--rate", "0")
            code, _ = await asyncio.to_thread(_cluster, world, *arguments, seconds=_DECOMMISSION_S)
        finally:
            bookie.program.resume()
        if code == 0:
            await _ends_as_no_member(world, bookie)
        elif await _is_decommissioned(world, bookie) and await _gets_writable(world, bookie):
            world.history.breach("metadata", f"{bookie.name} is writable, and its decommission is under way")
    for _ in range(5 if code else 0):
        undone, _said = await asyncio.to_thread(_cluster, world, "decommission", bookie.name, "--undo")
        if undone == 0:
            break
        await asyncio.sleep(1)
    await world.start_bookie(bookie)
    return f"exit code {code}"


async def _ends_as_no_member(world: World, bookie: Bookie) -> None:
    deadline = asyncio.get_running_loop().time() + _END_S
    while bookie.program.is_running and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.25)
    if bookie.program.is_running:
        world.history.breach("metadata", f"{bookie.name} goes on, and its decommission is said to be done")
    elif bookie.program.exit_code != ExitCode.SERVER_EXCEPTION:
        world.history.breach("alive", f"{bookie.name} ended with {bookie.program.exit_code} without its cookie")
    bookie.program.kill()
    await _nothing_names(world, bookie)
    await world.empty_disks(bookie)


async def _until_gone(world: World, bookie: Bookie) -> None:
    async with connected(world.uri) as client:
        for _ in range(60):
            with suppress(CouldNotTell):
                if await presence_of(client.metadata_service, bookie.name) is Presence.ABSENT:
                    return
            await asyncio.sleep(0.5)


async def _is_decommissioned(world: World, bookie: Bookie) -> bool:
    async with connected(world.uri) as client:
        with suppress(CouldNotTell):
            return bookie.name in await client.metadata_service.records(DECOMMISSION).names()
    return False


async def _gets_writable(world: World, bookie: Bookie) -> bool:
    async with connected(world.uri) as client:
        for _ in range(30):
            with suppress(CouldNotTell):
                if await presence_of(client.metadata_service, bookie.name) is Presence.WRITABLE:
                    return True
            await asyncio.sleep(0.25)
    return False


async def _nothing_names(world: World, bookie: Bookie) -> None:
    async with connected(world.uri) as client:
        for ledger in world.history.live():
            try:
                names = (await client.metadata(ledger.ledger_id)).all_bookies()
            except (CouldNotTell, NotThere):
                continue
            if bookie.name in names:
                world.history.breach("metadata", f"{ledger} names {bookie.name}, whose decommission is said to be done")


FAULTS = (
    Fault("bookie replaced", 2, is_replaced, destroys=True),
    Fault("decommission", 0.25, is_decommissioned),
    Fault("suspended across its decommission", 0.25, is_suspended_while_decommissioned),
)
