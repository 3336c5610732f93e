"""Adds that are still on their way when their ledger is deleted, and that arrive after another one has its id and its
password. Each test runs the real client and the real request handling of one bookie, over a virtual network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from bookie_client.client import Client
from bookie_client.recovery.forward_read import FoundEntry, RecoveryParts
from bookie_client.recovery.recovery import Rewriter
from bookie_client.writing.explicit_lac import ExplicitLac
from bookie_client.writing.writer import LedgerWriter
from bookie_pod.server.tcp.metadata_questions import Look
from bookie_pod.server.tcp.requests import AddRequest
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    LedgerIdInUse,
    LedgerStateUnknown,
    MetadataReplaced,
    MetadataUnavailable,
    NoSuchLedger,
    PodkeeperError,
    QuorumLost,
    RecoveryFailed,
)
from bookie_protocol.keys import life_of, life_of_copies, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.versioned import LedgerLife
from tests.support.simulation.bookie import VirtualBookie
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.lives.cluster import DIGEST, ID, Cluster

Run = Callable[..., None]


@pytest.fixture
def run() -> Iterator[Run]:
    loop = VirtualLoop()

    def run(work: Callable[[Cluster], Awaitable[Any]], version: int = 3, bookies: int = 1, **options: Any) -> None:
        async def everything() -> None:
            cluster = Cluster(loop, bookies, protocol_version=version, **options)
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


@pytest.mark.parametrize("has_begun", [False, True])
def test_late_fence_does_not_end_the_writer_of_the_next_ledger(run: Run, has_begun: bool) -> None:
    async def work(cluster: Cluster) -> None:
        former = await cluster.make(cluster.former)
        await former.append_many([b"former 0", b"former 1"])
        cluster.cut_off()
        parts = RecoveryParts(cluster.former.context, former.stored, DIGEST, master_key(b"one"))
        fencing = asyncio.ensure_future(parts.read(cluster.bookie.bookie_id, LAST_ENTRY))
        await asyncio.sleep(0.1)
        await cluster.delete()
        writer = await cluster.next.create(ledger_id=ID, ensemble=1, write_quorum=1, ack_quorum=1, password=b"one")
        if has_begun:
            await writer.append(b"0")
        await cluster.heal()
        with pytest.raises(LedgerStateUnknown if has_begun else PodkeeperError):
            await fencing
        if not has_begun:
            await writer.append(b"0")
        await writer.append(b"1")
        await writer.close()
        assert await cluster.read() == [b"0", b"1"]

    run(work, bookies=1 if has_begun else 2)


@pytest.mark.parametrize("password", [b"one", b"two"])
def test_recovery_finds_no_entry_of_a_dead_ledger(run: Run, monkeypatch: pytest.MonkeyPatch, password: bytes) -> None:
    """The bookie got nothing of the next one yet. The recovery ends once it has collected the dead one."""
    monkeypatch.setattr(VirtualBookie, "collect", lambda self, ledger_id: None)

    async def work(cluster: Cluster) -> None:
        former = await cluster.make(cluster.former)
        await former.append_many([b"former 0", b"former 1"])
        await cluster.delete()
        await cluster.make(cluster.next, password)
        with pytest.raises(RecoveryFailed):
            await cluster.next.recover(ID, password=password)
        cluster.bookie.process.storage.delete_ledger(ID)
        assert (await cluster.next.recover(ID, password=password)).last_entry_id == -1

    run(work)


def test_recovery_takes_no_entry_of_a_dead_ledger_for_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bookie holds it still; the others say that the next ledger has no entry."""
    monkeypatch.setattr(VirtualBookie, "collect", lambda self, ledger_id: None)

    async def work(cluster: Cluster) -> None:
        async def make(client: Client) -> LedgerWriter:
            return await client.create(ledger_id=ID, ensemble=3, write_quorum=3, ack_quorum=2, password=b"one")

        former = await make(cluster.former)
        await cluster.copy(LedgerLife.of(former.stored), 0, 1, 2)
        await cluster.delete()
        await make(cluster.next)
        assert (await cluster.next.recover(ID, password=b"one")).last_entry_id == -1

    run(work, bookies=3)


def test_recovery_ends_where_all_bookies_hold_a_dead_ledger(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot tell which of the two lives."""

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


def test_writer_ends_where_all_bookies_but_one_refuse_its_ledger(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former ledger of the id, which names no life, is fenced there. The writer does not change from one to another
    for ever."""

    monkeypatch.setattr(VirtualBookie, "collect", lambda self, ledger_id: None)

    async def work(cluster: Cluster) -> None:
        for bookie in cluster.world.bookies[:3]:
            bookie.process.clients.context.operations.ledgers.create_fenced(ID, master_key(b"one"))
        writer = await cluster.next.create(ledger_id=ID, ensemble=3, write_quorum=3, ack_quorum=2, password=b"one")
        async with asyncio.timeout(60.0):
            with pytest.raises(LedgerIdInUse):
                await writer.append(b"0")
        assert writer.ensemble_changes < 8

    run(work, bookies=4, add_quorum_timeout=None)


def test_writer_goes_on_when_bookies_cannot_ask_the_metadata_service_for_a_moment(run: Run) -> None:
    async def work(cluster: Cluster) -> None:
        is_down = False

        def failing(look: Look) -> Look:
            async def ask(ledger_id: int) -> LedgerMetadata | None:
                if is_down:
                    raise MetadataUnavailable("its session is gone for a moment")
                return await look(ledger_id)

            return ask

        for bookie in cluster.world.bookies:
            questions = bookie.process.handlers.questions
            assert questions is not None
            questions._look = failing(questions._look)
        writer = await cluster.next.create(ledger_id=ID, ensemble=2, write_quorum=2, ack_quorum=2, password=b"one")
        await writer.append(b"0")
        is_down = True
        gone = writer.metadata.last_ensemble[0]
        next(bookie for bookie in cluster.world.bookies if bookie.bookie_id == gone).kill()
        async with asyncio.timeout(60.0):
            added = asyncio.create_task(writer.append(b"1"))
            await asyncio.sleep(12.0)
            is_down = False
            assert await added == 1

    run(work, bookies=5, add_quorum_timeout=None, quarantine_time=1800.0)


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
