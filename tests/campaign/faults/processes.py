"""Processes that are killed, held up, restarted; power that is lost; a clock that jumps."""

from __future__ import annotations

import asyncio
import resource
from random import Random

from tests.campaign.faults.kind import Fault
from tests.campaign.world import Bookie, World

_STOP_S = 60.0


async def kill(world: World, bookie: Bookie, random: Random) -> str:
    bookie.program.kill()
    await asyncio.sleep(random.choice((0.0, random.uniform(0, 3))))
    await world.start_bookie(bookie)
    return ""


async def kill_while_it_starts(world: World, bookie: Bookie, random: Random) -> str:
    for _ in range(3):
        bookie.program.kill()
        bookie.program.start()
        await asyncio.sleep(random.uniform(0.3, 2.5))
    bookie.program.kill()
    await world.start_bookie(bookie)
    return ""


async def lose_power(world: World, bookie: Bookie, random: Random) -> str:
    lost = await world.lose_power(bookie, random=random)
    await world.start_bookie(bookie)
    return f"{lost.writes} writes of {lost.files} files"


async def hold_up(world: World, bookie: Bookie, random: Random) -> str:
    seconds = random.choice((random.uniform(0.2, 2), random.uniform(2, 6), random.uniform(6, 14)))
    with bookie.out_of_reach():
        bookie.program.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            bookie.program.resume()
        await asyncio.sleep(0.5)
    return f"for {seconds:.1f} s"


async def restart(world: World, bookie: Bookie, random: Random) -> str:
    """As a rolling restart does it: an orderly stop, which has to be one."""
    if not bookie.program.is_running or not await world.says_ready(bookie):
        return "not asked: it is not up"
    code = await asyncio.to_thread(bookie.program.terminate, _STOP_S)
    if code is None:
        world.history.breach("stuck", f"{bookie.name} did not end within {_STOP_S:.0f} s of SIGTERM")
    elif code != bookie.kind.stops_with and not bookie.damaged and not bookie.excuse:
        world.history.breach("alive", f"{bookie.name} ended with {code} after SIGTERM: {bookie.program.said()[-1500:]}")
    await world.start_bookie(bookie)
    return ""


async def few_descriptors(world: World, bookie: Bookie, random: Random) -> str:
    """No more than it has open now, and a few."""
    if not bookie.program.is_running:
        return ""
    pid = bookie.program.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    more = random.choice((0, 1, 3))
    bookie.excuse = "it had no descriptors"
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_open(pid) + more, before[1]))
        await asyncio.sleep(random.uniform(2, 8))
    except (ProcessLookupError, FileNotFoundError):
        return ""
    finally:
        if bookie.program.is_running:
            resource.prlimit(bookie.program.pid, resource.RLIMIT_NOFILE, before)
    return f"{more} more than it had"


def _open(pid: int) -> int:
    from os import listdir

    return max(map(int, listdir(f"/proc/{pid}/fd"))) + 1


async def clock_jumps(world: World, bookie: Bookie, random: Random) -> str:
    seconds = random.choice((1, -1)) * random.choice((5, 3_600, 86_400 * 40, 86_400 * 366, 86_400 * 4_000))
    bookie.shim.set_clock(seconds)
    try:
        await asyncio.sleep(random.uniform(3, 8))
        if random.random() < 0.4:
            bookie.program.kill()
            if not bookie.program.is_running:
                bookie.program.start()
            await world.serving(bookie)
            await asyncio.sleep(2)
    finally:
        bookie.shim.set_clock(0)
    return f"by {seconds} s"


async def rolling_restart(world: World, random: Random) -> str:
    for bookie in list(world.bookies.values()):
        async with bookie.hold():
            await restart(world, bookie, random)
    return ""


async def kill_all(world: World, random: Random) -> str:
    return await _all_down(world, random, power=False)


async def lose_all_power(world: World, random: Random) -> str:
    return await _all_down(world, random, power=True)


async def _all_down(world: World, random: Random, *, power: bool) -> str:
    bookies = list(world.bookies.values())
    for bookie in bookies:
        await bookie.lock.acquire()
    try:
        for bookie in bookies:
            bookie.program.kill()
        writes = (await world.lose_power(*bookies, random=random)).writes if power else 0
        for bookie in bookies:
            bookie.shim.clear()
            bookie.program.start()
        await asyncio.gather(*(world.serving(bookie) for bookie in bookies))
    finally:
        for bookie in bookies:
            bookie.lock.release()
    return f"{writes} writes lost" if power else ""


async def auto_recovery_dies(world: World, random: Random) -> str:
    program, _ = random.choice(world.auto_recovery)
    program.kill()
    await asyncio.sleep(random.uniform(0, 3))
    return program.name


async def gateway_dies(world: World, random: Random) -> str:
    assert world.gateway is not None
    world.gateway[0].kill()
    return ""


async def metadata_away(world: World, random: Random) -> str:
    seconds, hang = random.choice((random.uniform(0.5, 4), random.uniform(4, 14))), random.random() < 0.5
    async with world.without_metadata(hang=hang):
        await asyncio.sleep(seconds)
    return f"{'silent' if hang else 'killed'}, for {seconds:.1f} s"


async def metadata_put_back(world: World, random: Random) -> str:
    """A backup is restored, and the newest state some passes of garbage collection later. Only bookies ask the service
    meanwhile: what others did there would be lost with it."""
    async with world.older_metadata(made_before=random.uniform(7, 12)):
        await asyncio.sleep(seconds := random.uniform(8, 16))
    return f"for {seconds:.1f} s"


FAULTS = (
    Fault("SIGKILL", 5, kill),
    Fault("SIGKILL at start", 1, kill_while_it_starts),
    Fault("power lost", 5, lose_power),
    Fault("SIGSTOP", 3, hold_up),
    Fault("SIGTERM", 2, restart),
    Fault("EMFILE", 1, few_descriptors),
    Fault("clock jump", 2, clock_jumps),
    Fault("rolling restart", 0.7, on_cluster=rolling_restart),
    Fault("SIGKILL of all", 1, on_cluster=kill_all),
    Fault("power lost by all", 1.5, on_cluster=lose_all_power),
    Fault("auto-recovery killed", 1, on_cluster=auto_recovery_dies),
    Fault("gateway killed", 0.5, on_cluster=gateway_dies),
    Fault("metadata service away", 2, on_cluster=metadata_away),
    Fault("metadata put back", 0.3, on_cluster=metadata_put_back),
)
