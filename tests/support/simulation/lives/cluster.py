"""Bookies and two clients over a virtual network, for tests that say themselves what happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from bookie_client.client import Client
from bookie_client.placement.options import PlacementOptions
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.lives.plan import draw_lives
from tests.support.simulation.lives.world import LivesWorld
from tests.support.simulation.trace import Trace

ID = 7
DIGEST = digest_manager(DigestType.CRC32C, b"one")


class Cluster:
    """Bookies, and two clients that make a ledger of the same id and password, one after the other.

    `racks`: of the bookies, in their order."""

    def __init__(self, loop: VirtualLoop, bookies: int, *, racks: str = "", **options: Any) -> None:
        drawn = draw_lives(1)
        options = {"add_timeout": 1.0, "connect_timeout": 30.0, "channels_per_bookie": 1} | options
        client = replace(drawn.client, **options)
        self.world = LivesWorld(replace(drawn, bookies=bookies, client=client), loop, Trace(keep=False))
        self.racks = racks

    async def start(self) -> None:
        await self.world._set_up()
        places = zip(self.world.bookies, self.racks, strict=bool(self.racks))
        self.rack_of = {bookie.bookie_id: rack for bookie, rack in places}
        self.bookie: VirtualBookie = self.world.bookies[0]
        self.former = await self._client("former")
        self.next = await self._client("next")

    async def _client(self, name: str) -> Client:
        host = self.world.add_client(name)
        if self.racks:
            host.placement = PlacementOptions(locations={each: f"/{rack}" for each, rack in self.rack_of.items()})
        await host.start()
        return host.client

    async def make(self, client: Client, password: bytes = b"one") -> LedgerWriter:
        return await client.create(ledger_id=ID, ensemble=1, write_quorum=1, ack_quorum=1, password=password)

    def cut_off(self) -> None:
        """Nothing that the former client sends arrives until `heal`."""
        self.world.network.block("former", self.bookie.host)

    async def heal(self) -> None:
        self.world.network.unblock("former", self.bookie.host)
        await asyncio.sleep(5.0)

    async def send_late(self, payload: bytes) -> LedgerWriter:
        """Return the writer of a ledger that has entry 0, and whose entry 1 is on its way when the ledger goes."""
        writer = await self.make(self.former)
        await writer.append(b"former")
        self.cut_off()
        await writer.submit(payload)
        await asyncio.sleep(0.1)
        await self.delete()
        return writer

    async def copy(self, life: LedgerLife, *entry_ids: int, bookie: VirtualBookie | None = None) -> None:
        """Send copies, as those who heal and those who recover do."""
        for entry_id in entry_ids:
            entry = DIGEST.encode(ID, entry_id, -1, entry_id, b"former")
            await self.former.operations.add_entry(
                (bookie or self.bookie).bookie_id, life, entry_id, entry, master_key(b"one"), recovery=True
            )

    async def delete(self) -> None:
        await self.next.delete(ID)
        self.bookie.collect(ID)

    async def read(self, password: bytes = b"one") -> list[bytes]:
        await asyncio.sleep(1.0)  # what its server knows of the metadata may be a little older
        async with self.next.open(ID, password=password) as handle:
            return [each.payload async for each in handle.entries()]
