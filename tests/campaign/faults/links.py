"""Networks that lose, delay and cut."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from random import Random

from tests.campaign.faults.kind import Fault
from tests.campaign.network import Cut
from tests.campaign.world import PORT, Bookie, World


async def _for_a_while(bookie: Bookie, link: AbstractContextManager[None], random: Random) -> str:
    seconds = random.choice((random.uniform(0.5, 4), random.uniform(4, 12)))
    with bookie.out_of_reach(), link:
        await asyncio.sleep(seconds)
    return f"for {seconds:.1f} s"


async def cut_off(world: World, bookie: Bookie, random: Random) -> str:
    return await _for_a_while(bookie, bookie.host.cut(Cut.BOTH), random)


async def hears_nothing(world: World, bookie: Bookie, random: Random) -> str:
    return await _for_a_while(bookie, bookie.host.cut(Cut.IN), random)


async def is_not_heard(world: World, bookie: Bookie, random: Random) -> str:
    return await _for_a_while(bookie, bookie.host.cut(Cut.OUT), random)


async def without_metadata(world: World, bookie: Bookie, random: Random) -> str:
    return await _for_a_while(bookie, bookie.host.cut(Cut.BOTH, peer=world.metadata_address), random)


async def without_clients(world: World, bookie: Bookie, random: Random) -> str:
    way = random.choice(list(Cut))
    return await _for_a_while(bookie, bookie.host.cut(way, peer=world.here), random) + f" ({way.name})"


async def loses_packets(world: World, bookie: Bookie, random: Random) -> str:
    return await _for_a_while(bookie, bookie.host.cut(Cut.BOTH, loss=random.choice((0.05, 0.2, 0.5))), random)


async def is_slow(world: World, bookie: Bookie, random: Random) -> str:
    link = bookie.host.slow(random.choice((20, 200, 900)), random.choice((256, 2_000)))
    return await _for_a_while(bookie, link, random)


async def resets(world: World, bookie: Bookie, random: Random) -> str:
    return await _for_a_while(bookie, bookie.host.resetting(PORT), random)


FAULTS = (
    Fault("cut off both ways", 2, cut_off),
    Fault("cut off inwards", 1, hears_nothing),
    Fault("cut off outwards", 1, is_not_heard),
    Fault("cut off from metadata", 1, without_metadata),
    Fault("cut off from clients", 1, without_clients),
    Fault("packets lost", 1, loses_packets),
    Fault("slow link", 1, is_slow),
    Fault("connections reset", 1, resets),
)
