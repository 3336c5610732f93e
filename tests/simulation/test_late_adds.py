"""Adds that are still on their way when their ledger is deleted, and that arrive after another one has its id and its
password. Each test runs the real client and the real request handling of one bookie, over a virtual network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bookie_client.client import Client
from bookie_client.recovery.forward_read import FoundEntry, RecoveryParts
from bookie_client.recovery.recovery import Rewriter
from bookie_client.writing.explicit_lac import ExplicitLac
from bookie_client.writing.writer import LedgerWriter
from bookie_pod.server.tcp.requests import AddRequest
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import MetadataReplaced, NoSuchLedger, QuorumLost, RecoveryFailed
from bookie_protocol.keys import life_of, life_of_copies, master_key
from bookie_protocol.versioned import LedgerLife
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.lives.plan import draw_lives
from tests.support.simulation.lives.world import LivesWorld
from tests.support.simulation.trace import Trace

ID = 7
DIGEST = digest_manager(DigestType.CRC32C, b"one")


class Cluster:
    """Bookies, and two clients that make a ledger of the same id and password, one after the other."""

    def __init__(self, loop: VirtualLoop, version: int, bookies: int) -> None:
        drawn = draw_lives(1)
        options = replace(
            drawn.client, protocol_version=version, add_timeout=1.0, connect_timeout=30.0, channels_per_bookie=1
        )
        self.world = LivesWorld(replace(drawn, bookies=bookies, client=options), loop, Trace(keep=False))

    async def start(self) -> None:
        await self.world._set_up()
        self.bookie: VirtualBookie = self.world.bookies[0]
        self.former = await self._client("former")
        self.next = await self._client("next")

    async def _client(self, name: str) -> Client:
        host = self.world.add_client(name)
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


Run = Callable[..., None]


@pytest.fixture
def run() -> Iterator[Run]:
    loop = VirtualLoop()

    def run(work: Callable[[Cluster], Awaitable[Any]], version: int = 3, bookies: int = 1) -> None:
        async def everything() -> None:
            cluster = Cluster(loop, version, bookies)
            try:
                await cluster.start()
                await work(cluster)
            finally:
                await cluster.world.close()

        loop.run_until_complete(everything())

    yield run
    loop.close()


def test_late_add_does_not_take_the_place_of_an_entry_of_the_next_ledger(run: Run) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.send_late(b"late")
        async with await cluster.make(cluster.next) as writer:
            await writer.append_many([b"0", b"1"])
            await cluster.heal()
        assert await cluster.read() == [b"0", b"1"]

    run(work)


def test_late_add_that_comes_first_begins_no_ledger(run: Run) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.send_late(b"late")
        async with await cluster.make(cluster.next) as writer:
            await cluster.heal()
            assert cluster.bookie.process.storage.ledger(ID) is None
            await writer.append_many([b"0", b"1"])
        assert await cluster.read() == [b"0", b"1"]

    run(work)


def test_recovery_of_the_next_ledger_finds_no_late_add(run: Run) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.send_late(b"late")
        writer = await cluster.make(cluster.next)
        await writer.append(b"0")
        await cluster.heal()
        assert (await cluster.former.recover(ID, password=b"one")).last_entry_id == 0
        assert await cluster.read() == [b"0"]

    run(work)


def test_bookie_that_has_dropped_the_state_of_a_ledger_knows_its_life(run: Run) -> None:

    async def work(cluster: Cluster) -> None:
        await cluster.send_late(b"late")
        writer = await cluster.make(cluster.next)
        await writer.append(b"0")
        cluster.bookie.process.clients.context.operations.ledgers.states.clear()
        await cluster.heal()
        await writer.append(b"1")
        await writer.close()
        assert await cluster.read() == [b"0", b"1"]

    run(work)


@pytest.mark.parametrize("closed", [False, True])
def test_dead_ledger_does_not_come_back_after_a_restart(
    run: Run, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """The id is used again before the bookie has collected the former ledger."""

    monkeypatch.setattr(VirtualBookie, "collect", lambda self, ledger_id: None)

    async def work(cluster: Cluster) -> None:
        former = await cluster.make(cluster.former)
        await former.append_many([b"former 0", b"former 1", b"former 2"])
        if closed:
            await cluster.next.recover(ID, password=b"one")
        await cluster.next.delete(ID)
        cluster.bookie.kill()
        cluster.bookie.start()
        await asyncio.sleep(5.0)
        writer = await cluster.make(cluster.next)
        await writer.append(b"0")
        assert (await cluster.former.recover(ID, password=b"one")).last_entry_id == 0
        assert await cluster.read() == [b"0"]

    run(work)


def test_late_explicit_lac_is_refused(run: Run) -> None:
    async def work(cluster: Cluster) -> None:
        former = await cluster.make(cluster.former)
        await former.append(b"former")
        cluster.cut_off()
        life = life_of(former.metadata.creation_token)
        announcer = ExplicitLac(cluster.former.context, former._state, DIGEST, master_key(b"one"), life)
        announced = asyncio.ensure_future(announcer._send(0))
        await asyncio.sleep(0.1)
        await cluster.delete()
        async with await cluster.make(cluster.next) as writer:
            await writer.append(b"0")
            await cluster.heal()
            assert not cluster.bookie.process.clients.context.operations.ledgers.for_read(ID).explicit_lac
        assert await announced == 0

    run(work)


@pytest.mark.parametrize("has_begun", [False, True])
def test_late_copy_is_refused(run: Run, has_begun: bool) -> None:
    async def work(cluster: Cluster) -> None:
        former = await cluster.make(cluster.former)
        await former.append_many([b"former 0", b"former 1"])
        cluster.cut_off()
        copying = asyncio.ensure_future(cluster.copy(LedgerLife.of(former.stored), 1))
        await asyncio.sleep(0.1)
        await cluster.delete()
        writer = await cluster.make(cluster.next)
        if has_begun:
            await writer.append(b"0")
        await cluster.heal()
        with pytest.raises(NoSuchLedger):
            await copying
        if not has_begun:
            await writer.append(b"0")
        assert (await cluster.former.recover(ID, password=b"one")).last_entry_id == 0
        assert await cluster.read() == [b"0"]

    run(work)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("password", [b"one", b"two"])
def test_next_ledger_has_no_copies_of_a_dead_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, password: bytes, restarted: bool
) -> None:
    """The bookie holds nothing but copies of it, and has not collected them when the id is used again."""

    monkeypatch.setattr(VirtualBookie, "collect", lambda self, ledger_id: None)

    async def work(cluster: Cluster) -> None:
        former = await cluster.make(cluster.former)
        await cluster.copy(LedgerLife.of(former.stored), 0, 1, 2)
        await cluster.delete()
        if restarted:
            cluster.bookie.kill()
            cluster.bookie.start()
            await asyncio.sleep(5.0)
        writer = await cluster.make(cluster.next, password)
        await writer.append(b"0")
        assert (await cluster.former.recover(ID, password=password)).last_entry_id == 0
        assert await cluster.read(password) == [b"0"]

    run(work)


def test_recovery_ends_where_all_bookies_hold_a_dead_ledger(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes their entries for those of the next ledger, which has the same password and got none yet."""

    monkeypatch.setattr(VirtualBookie, "collect", lambda self, ledger_id: None)

    async def work(cluster: Cluster) -> None:
        async def make(client: Client) -> LedgerWriter:
            return await client.create(ledger_id=ID, ensemble=3, write_quorum=3, ack_quorum=2, password=b"one")

        former = await make(cluster.former)
        for bookie in cluster.world.bookies:
            await cluster.copy(LedgerLife.of(former.stored), 0, 1, 2, bookie=bookie)
        await cluster.delete()
        await make(cluster.next)
        async with asyncio.timeout(60.0):
            with pytest.raises(RecoveryFailed):
                await cluster.next.recover(ID, password=b"one")

    run(work, bookies=5)


def test_recovery_names_the_life_of_what_it_stores(run: Run) -> None:
    async def work(cluster: Cluster) -> None:
        writer = await cluster.make(cluster.former)
        await writer.append(b"former")
        cluster.bookie.collect(ID)  # it has lost what it had
        cluster.bookie.process.storage.delete_ledger(ID)
        found = FoundEntry(0, 6, b"former")
        parts = RecoveryParts(cluster.next.context, writer.stored, DIGEST, master_key(b"one"))
        rewriter = Rewriter(parts, -1)
        rewriter.store(found)
        await rewriter.drain()
        await rewriter.close()
        record = cluster.bookie.process.storage.ledger(ID)
        assert record is not None
        assert record.life == life_of_copies(writer.metadata.creation_token)

    run(work)


@pytest.mark.parametrize("version", [2, 3])
def test_writer_that_knows_that_its_ledger_is_gone_sends_nothing_more(run: Run, version: int) -> None:
    """Its adds wait for a connection to the bookie, which comes after the next ledger has the id."""

    async def work(cluster: Cluster) -> None:
        received: list[AddRequest] = []
        handlers: Any = cluster.bookie.process.handlers
        handlers.add = lambda conn, request, reply: received.append(request)
        cluster.cut_off()
        writer = await cluster.make(cluster.former)
        await writer.submit(b"late")
        await cluster.delete()
        await cluster.make(cluster.next)
        writer._pipeline.abandon(QuorumLost("it has waited for long"))
        with pytest.raises(MetadataReplaced):
            await writer.close()
        await cluster.heal()
        assert received == []

    run(work, version)
