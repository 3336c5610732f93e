"""Writers whose bookies fail in turns, in any pattern. While two bookies are well that suffice, entries are
acknowledged within a bound, at the cost of few changes. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Final

import pytest

from bookie_client.writing.ensemble_change import IMMEDIATE_CHANGES
from bookie_protocol.errors import BookieReadOnly, StorageFault, TooManyRequests
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.lives.cluster import ID, Cluster
from tests.support.simulation.troubles import Trouble, cannot_ask, delays, dies, ignores, is_dead, is_silent, refuses

PHASES: Final = 4
SECONDS: Final = 20.0
"""Of one phase at most."""
OVERLAP: Final = 5.0
"""Seconds for which the bookies that are well next are well already."""
BOUND: Final = 12.0
"""Seconds in which an entry must be acknowledged."""
SECONDS_OF_A_CHANGE: Final = 4.0
"""Mean seconds between changes, beside those that are made at once."""
TROUBLES: Final[tuple[Trouble, ...]] = (
    refuses(StorageFault),
    refuses(BookieReadOnly),
    refuses(TooManyRequests),
    cannot_ask,
    ignores,
    delays(0.5),
    delays(3.0),
    dies,
    is_dead,
    is_silent,
)


class Troubled:
    """A writer, and its bookies in trouble."""

    def __init__(self, cluster: Cluster, random: Random, enforce: bool) -> None:
        self._cluster = cluster
        self._random = random
        self._enforce = enforce
        self._ends: dict[str, Callable[[], None]] = {}

    async def run(self) -> None:
        """One phase after the other: in each one, two bookies are well."""
        well: list[VirtualBookie] = []
        for _ in range(PHASES):
            well = self._choose_well()
            for bookie in well:
                self._end(bookie)
            await asyncio.sleep(OVERLAP)
            others = [each for each in self._cluster.world.bookies if each not in well]
            self._random.shuffle(others)
            for bookie in others:
                if self._random.random() < 0.5:
                    await asyncio.sleep(self._random.choice((0.0, 0.1, 3.0)))
                self._end(bookie)
                await asyncio.sleep(0.1)
                if self._random.random() < 0.8:
                    self._ends[bookie.bookie_id] = self._random.choice(TROUBLES)(bookie)
            await asyncio.sleep(self._random.uniform(0.5, SECONDS))

    def _choose_well(self) -> list[VirtualBookie]:
        rack_of = self._cluster.rack_of
        while True:
            chosen = self._random.sample(self._cluster.world.bookies, 2)
            if not self._enforce or len({rack_of[each.bookie_id] for each in chosen}) == 2:
                return chosen

    def _end(self, bookie: VirtualBookie) -> None:
        end = self._ends.pop(bookie.bookie_id, None)
        if end is not None:
            end()


def stored_changes(cluster: Cluster) -> int:
    """Return how often the ensembles of the ledger changed."""
    versions = [version.metadata.ensembles for version in cluster.world.history.ledgers[ID].versions]
    return sum(before != after for before, after in pairwise(versions))


async def write(cluster: Cluster, enforce: bool, random: Random) -> None:
    await cluster.start()
    writer = await cluster.next.create(ledger_id=ID, ensemble=3, write_quorum=3, ack_quorum=2, password=b"one")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    troubled = asyncio.create_task(Troubled(cluster, random, enforce).run())
    while not troubled.done():
        async with asyncio.timeout(BOUND):
            await writer.append(b"x")
        await asyncio.sleep(random.choice((0.0, 0.05, 0.3)))
    await troubled
    assert stored_changes(cluster) <= IMMEDIATE_CHANGES + (loop.time() - begun) / SECONDS_OF_A_CHANGE


@pytest.mark.parametrize("seed", range(12))
def test_entries_are_acknowledged_while_two_bookies_are_well_that_suffice(seed: int) -> None:
    random = Random(f"troubles {seed}")
    enforce = random.random() < 0.5
    racks = "".join(random.sample("ab", 2)) + "".join(random.choices("ab", k=random.randint(1, 5)))
    loop = VirtualLoop()

    async def everything() -> None:
        cluster = Cluster(
            loop,
            len(racks),
            racks=racks,
            protocol_version=3,
            enforce_fault_domains=enforce,
            add_quorum_timeout=60.0,
            connect_timeout=2.0,
            degraded_retry_interval=1.0,
        )
        try:
            await write(cluster, enforce, random)
        finally:
            await cluster.world.close()

    try:
        loop.run_until_complete(everything())
    finally:
        loop.close()
