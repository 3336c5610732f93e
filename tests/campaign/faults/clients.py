"""Clients that are slow, greedy or speak nonsense: they may cost themselves their connection, and nobody else
anything."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from random import Random

from tests.campaign.faults.kind import Fault
from tests.campaign.world import PORT, Bookie, World
from tests.support.frames import v2_batch, v2_read, v3_poll


async def _crowd(bookie: Bookie, count: int, frames: bytes, seconds: float) -> int:
    """So many connections that send this and take no answers."""
    open_ones = []
    for _ in range(count):
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.wait_for(asyncio.open_connection(bookie.host.address, PORT), 2)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            open_ones.append(writer)
            with suppress(OSError):
                writer.write(frames)
            del reader
    await asyncio.sleep(seconds)
    for writer in open_ones:
        writer.transport.abort()
    return len(open_ones)


def _some_ledger(world: World, random: Random) -> int:
    ids = list(world.history.ledgers)
    return random.choice(ids) if ids else 0


async def takes_no_answers(world: World, bookie: Bookie, random: Random) -> str:
    ledger = _some_ledger(world, random)
    frames = b"".join(v2_batch(ledger, 0, 0, 1 << 20, number) for number in range(200))
    return f"{await _crowd(bookie, random.choice((1, 8)), frames, random.uniform(2, 6))} connections"


async def half_frames(world: World, bookie: Bookie, random: Random) -> str:
    frame = struct.pack(">I", 5_000_000) + b"\x02\x01" + bytes(4_000_000)
    return f"{await _crowd(bookie, random.choice((3, 20)), frame, random.uniform(2, 6))} connections"


async def long_polls(world: World, bookie: Bookie, random: Random) -> str:
    ledger = _some_ledger(world, random)
    frames = b"".join(v3_poll(ledger, 1 << 40, 30_000, txn=number) for number in range(2_000))
    return f"{await _crowd(bookie, 2, frames, random.uniform(2, 5))} connections"


async def nonsense(world: World, bookie: Bookie, random: Random) -> str:
    count = 0
    for _ in range(30):
        data = random.randbytes(random.choice((3, 40, 4_000)))
        if random.random() < 0.7:
            data = struct.pack(">I", len(data)) + data
        count += await _crowd(bookie, 1, data, 0.02)
    return f"{count} connections"


async def many_connections(world: World, bookie: Bookie, random: Random) -> str:
    return f"{await _crowd(bookie, 300, v2_read(0, 0), random.uniform(1, 4))} connections"


FAULTS = (
    Fault("client that takes no answers", 1, takes_no_answers),
    Fault("clients with half frames", 0.7, half_frames),
    Fault("client with long polls", 0.7, long_polls),
    Fault("client with nonsense", 0.7, nonsense),
    Fault("clients in crowds", 0.5, many_connections),
)
