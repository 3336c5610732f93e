"""A virtual bookie: what it answers is durable, what it forgets in a crash was never answered."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.connection.operations import BookieOperations
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BookieReadOnly, BookieUnavailable, LedgerFenced, LedgerStateUnknown, NoSuchEntry
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.versioned import LedgerLife
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.scenario import draw
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import World

KEY = master_key(b"")
DIGEST = digest_manager(DigestType.CRC32C, b"")


def entry(entry_id: int) -> bytes:
    return DIGEST.encode(0, entry_id, entry_id - 1, entry_id + 1, b"x")


class Cluster:
    """A world without actors, and a client's requests to its first bookie."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.world = World(draw(1), loop, Trace(keep=False))
        self.loop = loop

    async def start(self) -> None:
        await self.world._set_up()
        host = self.world.add_client("writer-0")
        await host.start()
        self.operations: BookieOperations = host.client.context.operations
        self.bookie = self.world.bookies[0]
        members = (self.bookie.bookie_id,)
        ledger = LedgerMetadata(0, 1, 1, 1, {0: members}, digest_type=DigestType.CRC32C, password=b"")
        await host.client.context.ledgers.create(ledger)
        self.world.history.ledgers[0].payloads = dict.fromkeys(range(100), b"x")

    async def add(self, entry_id: int, **options: bool) -> None:
        await self.operations.add_entry(
            self.bookie.bookie_id, LedgerLife(0, 0), entry_id, entry(entry_id), KEY, **options
        )

    async def read(self, entry_id: int, fence_key: bytes | None = None) -> bytes:
        bookie = self.bookie.bookie_id
        return (await self.operations.read_entry(bookie, 0, entry_id, fence_key=fence_key)).entry

    async def restart(self) -> None:
        self.bookie.start()
        await asyncio.sleep(5)


@pytest.fixture
def run():
    loop = VirtualLoop()

    def run(work) -> None:
        async def everything() -> None:
            cluster = Cluster(loop)
            await cluster.start()
            await work(cluster)
            await cluster.world.close()
            assert cluster.world.history.violations == []

        loop.run_until_complete(everything())

    yield run
    assert loop.unhandled == []
    loop.close()


def test_what_was_acknowledged_survives_every_end(run):
    async def work(cluster: Cluster) -> None:
        for number, end in enumerate((cluster.bookie.kill, cluster.bookie.power_off)):
            await cluster.add(number)
            assert cluster.bookie.holds(0, number) == entry(number)
            end()
            await asyncio.sleep(1)
            with pytest.raises(BookieUnavailable):
                await cluster.read(number)
            await cluster.restart()
            assert await cluster.read(number) == entry(number)

    run(work)


def test_what_was_not_synced_is_lost_from_the_end_or_kept(run):
    async def work(cluster: Cluster) -> None:
        await cluster.add(0)
        cluster.bookie.process.journal.stalled_until = cluster.loop.time() + 100
        adds = [asyncio.create_task(cluster.add(number)) for number in range(1, 20)]
        await asyncio.sleep(0.1)
        cluster.bookie.kill()
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        assert all(isinstance(outcome, BookieUnavailable) for outcome in outcomes)
        kept = [number for number in range(20) if cluster.bookie.holds(0, number)]
        assert kept == list(range(len(kept)))
        await cluster.restart()
        assert await cluster.read(kept[-1]) == entry(kept[-1])
        with pytest.raises(NoSuchEntry):
            await cluster.read(30)

    run(work)


def test_a_fence_holds_after_a_crash(run):
    async def work(cluster: Cluster) -> None:
        await cluster.add(0)
        assert await cluster.read(-1, KEY) == entry(0)
        cluster.bookie.kill()
        await cluster.restart()
        with pytest.raises(LedgerFenced):
            await cluster.add(1)
        await cluster.add(1, recovery=True)

    run(work)


def test_a_replaced_disk_leaves_ledgers_in_limbo(run):
    async def work(cluster: Cluster) -> None:
        await cluster.add(0)
        cluster.bookie.replace_disk()
        await cluster.restart()
        with pytest.raises(LedgerStateUnknown):
            await cluster.read(0)
        with pytest.raises(LedgerFenced):
            await cluster.add(1)
        assert cluster.bookie.has_lost_data
        assert cluster.bookie.holds(0, 0) == entry(0)  # for the checkers: it counts as held when it was lost

    run(work)


def test_a_read_only_bookie_refuses_writers(run):
    async def work(cluster: Cluster) -> None:
        await cluster.add(0)
        cluster.bookie.set_read_only(True)
        await asyncio.sleep(1)
        with pytest.raises(BookieReadOnly):
            await cluster.add(1)
        assert await cluster.read(0) == entry(0)

    run(work)


@pytest.mark.parametrize("moment", [0.0, 0.5], ids=["before it registers", "while its earlier registration stands"])
def test_a_bookie_that_is_told_while_it_starts_is_announced_read_only(run, moment):
    async def work(cluster: Cluster) -> None:
        bookie = cluster.bookie
        bookie.kill()
        bookie.start()
        process = bookie.process
        await asyncio.sleep(moment)
        assert (process.registration is None) == (moment == 0.0)
        bookie.set_read_only(True)
        await asyncio.sleep(20)
        assert bookie.process is process
        assert process.tree is not None
        registry = process.tree.bookies
        assert await registry.is_registered(bookie.bookie_id, BookieGroup.READ_ONLY)
        assert not await registry.is_registered(bookie.bookie_id, BookieGroup.WRITABLE)

    run(work)
