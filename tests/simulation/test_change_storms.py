"""Writers whose spares refuse or fail right after they were chosen: the segments that they store. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import pytest

from bookie_client.writing.ensemble_change import LONGEST_CHANGE_PAUSE
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.errors import BookieReadOnly, StorageFault
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.lives.cluster import ID, Cluster
from tests.support.simulation.troubles import Trouble, cannot_ask, dies, refuses

SECONDS: Final = 20.0
MOST_SEGMENTS: Final = 14
"""The first one, those that are made at once, and those of ever longer pauses."""


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


class Storm:
    """A writer with a spare bookie fewer, and the others."""

    def __init__(self, cluster: Cluster, writer: LedgerWriter) -> None:
        self.cluster = cluster
        self.writer = writer
        members = writer.metadata.last_ensemble
        self.members = [each for each in cluster.world.bookies if each.bookie_id in members]
        self.spares = [each for each in cluster.world.bookies if each.bookie_id not in members]

    async def write_for(self, seconds: float) -> None:
        """Append until then, ten entries a second."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            async with asyncio.timeout(5.0):
                await self.writer.append(b"x")
            await asyncio.sleep(0.1)


Work = Callable[[Storm], Awaitable[None]]


def run(loop: VirtualLoop, work: Work, *, bookies: int, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
    async def everything() -> None:
        cluster = Cluster(loop, bookies, protocol_version=3, add_quorum_timeout=None, quarantine_time=1800.0)
        try:
            await cluster.start()
            ensemble, write, ack = quorums
            writer = await cluster.next.create(
                ledger_id=ID, ensemble=ensemble, write_quorum=write, ack_quorum=ack, password=b"one"
            )
            await writer.append(b"0")
            await asyncio.sleep(1.0)  # all members have it
            await work(Storm(cluster, writer))
        finally:
            await cluster.world.close()

    loop.run_until_complete(everything())


@pytest.mark.parametrize(
    "refusal",
    [cannot_ask, refuses(BookieReadOnly), refuses(StorageFault), dies],
    ids=["ask", "read", "fail", "die"],
)
def test_spares_that_refuse_cost_few_segments_and_are_used_again(loop: VirtualLoop, refusal: Trouble) -> None:
    async def work(storm: Storm) -> None:
        mend = [refusal(bookie) for bookie in storm.spares]
        storm.members[0].kill()
        await storm.write_for(SECONDS)
        assert len(storm.writer.metadata.ensembles) <= MOST_SEGMENTS
        for each in mend:
            each()
        await storm.write_for(2 * LONGEST_CHANGE_PAUSE)
        assert not storm.writer.degraded
        assert len(storm.writer.metadata.ensembles) <= MOST_SEGMENTS + 1

    run(loop, work, bookies=9)


def test_the_one_spare_that_does_not_refuse_is_found_at_once(loop: VirtualLoop) -> None:
    async def work(storm: Storm) -> None:
        for bookie in storm.spares[1:]:
            refuses(StorageFault)(bookie)
        storm.members[0].kill()
        await storm.write_for(3.0)
        assert storm.spares[0].bookie_id in storm.writer.metadata.last_ensemble
        assert len(storm.writer.metadata.ensembles) <= len(storm.spares) + 1

    run(loop, work, bookies=9)
