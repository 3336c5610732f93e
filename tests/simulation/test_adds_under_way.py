"""An entry that one bookie acknowledged is still on its way to the others when that bookie loses its disk. The writer
counts the acknowledgement later. Each test runs the real client and the real request handling of three bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from bookie_client.client import Client
from bookie_client.replication.check import LedgerChecker
from bookie_client.replication.closing import close_checked
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.writing.writer import LedgerWriter
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerStateUnknown, RecoveryFailed
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.versioned import LedgerLife
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.scenario import draw
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import World

LATE = 3
"""The entry on its way."""


class Cluster:
    """Three bookies that hold an open ledger, its writer, and a client that heals."""

    def __init__(self, loop: VirtualLoop) -> None:
        drawn = draw(1)
        client = replace(drawn.client, add_timeout=600.0)
        self.world = World(replace(drawn, quorums=(3, 3, 2), bookies=3, client=client), loop, Trace(keep=False))

    async def start(self) -> None:
        await self.world._set_up()
        self._writer, healer = self.world.add_client("writer"), self.world.add_client("healer")
        self.world.scenario = replace(
            self.world.scenario, client=replace(self.world.scenario.client, protocol_version=2)
        )
        older = self.world.add_client("older")
        for client in (self._writer, healer, older):
            await client.start()
        self.healer: Client = healer.client
        self.older: Client = older.client
        """One whose copies name no life, as those of Apache's and of earlier releases."""
        self.ledger: LedgerWriter = await self._writer.client.create(
            ensemble=3, write_quorum=3, ack_quorum=2, password=b"", digest=DigestType.CRC32C
        )
        self.ledger_id = self.ledger.ledger_id
        self.world.history.ledgers[self.ledger_id].payloads = dict.fromkeys(range(LATE + 1), b"x")
        await self.ledger.append_many([b"x"] * LATE)
        ensemble = self.ledger.metadata.last_ensemble
        self.first, self.second, self.third = (self.world.history.bookies[each] for each in ensemble)
        for bookie in (self.first, self.second, self.third):
            await self._holds(bookie, LATE - 1)

    async def late_entry(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Append an entry that only the second bookie gets before `meanwhile` has happened. The first one gets it then,
        by which it is acknowledged, and goes for good."""
        for bookie in (self.first, self.third):
            self.world.network.block("writer", bookie.host)
        appending = asyncio.ensure_future(self.ledger.append(b"x"))
        await self._holds(self.second, LATE)
        await asyncio.sleep(1.0)
        await meanwhile()
        self.world.network.unblock("writer", self.first.host)
        assert await appending == LATE
        self.first.lose_disk()
        await asyncio.sleep(10.0)

    async def lose_and_refill(self) -> None:
        await self.lose_disk()
        await self.refill(self.older)

    async def lose_disk(self) -> None:
        """The second bookie comes back with an empty disk."""
        self.second.replace_disk()
        self.second.start()
        await asyncio.sleep(10.0)

    async def refill(self, healer: Client) -> None:
        """It gets what there is."""
        last = (await LedgerChecker(self.healer).check(self.ledger_id)).fragments[-1].fragment
        position = last.ensemble.index(self.second.bookie_id)
        lost = {position: self.second.bookie_id}
        await FragmentReplicator(healer).replicate(replace(last, last_entry=LATE - 1), lost, in_place=lost.keys())

    async def _holds(self, bookie: VirtualBookie, entry_id: int) -> None:
        while bookie.holds(self.ledger_id, entry_id) is None:  # noqa: ASYNC110 - the clock is virtual
            await asyncio.sleep(0.01)


Run = Callable[[Callable[[Cluster], Awaitable[None]]], None]


@pytest.fixture
def run() -> Iterator[Run]:
    loop = VirtualLoop()

    def run(work: Callable[[Cluster], Awaitable[None]]) -> None:
        async def everything() -> None:
            cluster = Cluster(loop)
            try:
                await cluster.start()
                await work(cluster)
            finally:
                await cluster.world.close()

        loop.run_until_complete(everything())

    yield run
    loop.close()


async def _heal(client: Client, ledger_id: int) -> LedgerMetadata:
    life = LedgerLife.of(await client.stored_metadata(ledger_id))
    return await close_checked(client, LedgerChecker(client), life)


async def _read(client: Client, ledger_id: int) -> LedgerMetadata:
    """As a reader, who knows nothing of marks, recovers a ledger."""
    return await client.recover(ledger_id, password=b"")


def test_copies_that_name_the_ledger_are_refused_where_the_fence_may_be_another_ones(run: Run) -> None:
    """In limbo nothing tells whose the fence is. The bookie fills itself, and workers take another one."""

    async def work(cluster: Cluster) -> None:
        await cluster.lose_disk()
        with pytest.raises(LedgerStateUnknown):
            await cluster.refill(cluster.healer)

    run(work)


CLOSE = pytest.mark.parametrize("close", [_heal, _read])


@CLOSE
def test_entry_whose_first_copy_was_lost_under_way_is_not_cut_off(
    run: Run, close: Callable[[Client, int], Awaitable[LedgerMetadata]]
) -> None:
    """No mark names the bookie any more. It is in limbo until the ledger is closed, so its word is not a promise."""

    async def work(cluster: Cluster) -> None:
        await cluster.late_entry(cluster.lose_and_refill)
        with pytest.raises(RecoveryFailed):
            await close(cluster.healer, cluster.ledger_id)
        assert not (await cluster.healer.metadata(cluster.ledger_id)).is_closed

    run(work)


@CLOSE
def test_limbo_that_ended_with_the_refill_would_cut_it_off(
    run: Run, close: Callable[[Client, int], Awaitable[LedgerMetadata]]
) -> None:
    """A planted bug: nothing else keeps the entry."""

    async def work(cluster: Cluster) -> None:
        async def forgetful() -> None:
            await cluster.lose_and_refill()
            cluster.second.process.clients.context.operations.ledgers.leave_limbo(cluster.ledger_id)

        await cluster.late_entry(forgetful)
        assert (await close(cluster.healer, cluster.ledger_id)).last_entry_id == LATE - 1

    run(work)
