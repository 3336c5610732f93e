"""Disks that fail for a while, fill up, turn read-only, come short and are slow: by the shim, on one bookie's files.

After a sync of a journal or an entry log has failed, what it covered is gone at the next loss of power, whatever a
later sync says: so most of the time the power goes while syncs still fail.
"""

from __future__ import annotations

import asyncio
import errno
from random import Random

from tests.campaign.faults.kind import Fault
from tests.campaign.shim.control import Op
from tests.campaign.world import Bookie, World

_WRITTEN = (
    "/journal/",
    "/ledgers/",
    "/journal/current/",
    ".log",
    "/locations/",
    "/ledgers/current/ledgers/",
    "lastMark",
)
_READ = (".log", "/locations/")


def _seconds(random: Random) -> float:
    return random.choice((random.uniform(0.3, 2), random.uniform(2, 7)))


async def writes_fail(world: World, bookie: Bookie, random: Random) -> str:
    where, one_in = random.choice(_WRITTEN), random.choice((1, 1, 3, 20))
    return await _failing(world, bookie, random, Op.WRITE, errno.EIO, where, one_in)


async def syncs_fail(world: World, bookie: Bookie, random: Random) -> str:
    where, one_in = random.choice(("/journal/", "/journal/", ".log")), random.choice((1, 3, 20))
    return await _failing(world, bookie, random, Op.SYNC, errno.EIO, where, one_in)


async def reads_fail(world: World, bookie: Bookie, random: Random) -> str:
    return await _failing(world, bookie, random, Op.READ, errno.EIO, random.choice(_READ), random.choice((1, 4)))


async def is_full(world: World, bookie: Bookie, random: Random) -> str:
    where = random.choice(("/journal/", "/ledgers/", "/disks/"))
    ops = Op.WRITE | Op.ALLOCATE if random.random() < 0.6 else Op.ALLOCATE
    return await _failing(world, bookie, random, ops, errno.ENOSPC, where, 1)


async def is_read_only(world: World, bookie: Bookie, random: Random) -> str:
    where = random.choice(("/journal/", "/ledgers/", "/disks/"))
    return await _failing(world, bookie, random, Op.changes(), errno.EROFS, where, 1)


async def _failing(world: World, bookie: Bookie, random: Random, ops: Op, error: int, where: str, one_in: int) -> str:
    bookie.excuse = f"{errno.errorcode[error]} on {where}"
    seconds = _seconds(random)
    with bookie.shim.rule(ops, error, path=where, one_in=one_in) as hits:
        await asyncio.sleep(seconds)
        struck = int(hits)
        if error == errno.EIO and random.random() < (0.8 if ops is Op.SYNC else 0.3):
            await world.lose_power(bookie, random=random)
    if not bookie.program.is_running:
        await world.start_bookie(bookie)
    return f"{where}, one in {one_in}, for {seconds:.1f} s, {struck} calls"


async def short_writes(world: World, bookie: Bookie, random: Random) -> str:
    where = random.choice(_WRITTEN)
    with bookie.shim.rule(Op.WRITE, path=where, one_in=random.choice((1, 2, 10)), shorten=True) as hits:
        await asyncio.sleep(_seconds(random))
        return f"{where}, {int(hits)} calls"


async def slow_disk(world: World, bookie: Bookie, random: Random) -> str:
    where, delay = random.choice(_WRITTEN), random.choice((0.002, 0.05, 0.4))
    with bookie.shim.rule(Op.WRITE | Op.SYNC, path=where, delay=delay, one_in=random.choice((1, 5))):
        await asyncio.sleep(_seconds(random))
    return f"{where}, {delay} s"


FAULTS = (
    Fault("EIO of writes", 2, writes_fail),
    Fault("EIO of syncs", 3, syncs_fail),
    Fault("EIO of reads", 1, reads_fail),
    Fault("ENOSPC", 2, is_full),
    Fault("EROFS", 1, is_read_only),
    Fault("short writes", 2, short_writes),
    Fault("slow disk", 1.5, slow_disk),
)
