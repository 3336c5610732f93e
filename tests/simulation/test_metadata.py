"""The virtual metadata service: sessions, watches, old reads, lost answers, under the drivers' common layer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable, MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.simulation.conftest import run
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.metadata import MetadataOptions, MetadataServer
from tests.support.simulation.network import Network, NetworkOptions
from tests.support.simulation.session import HOST
from tests.support.simulation.trace import Trace

INFO = BookieServiceInfo((Endpoint("bookie", "b1", 3181, BOOKIE_RPC),), {})
LEDGER = LedgerMetadata(7, 1, 1, 1, {0: ("b1",)}, digest_type=DigestType.CRC32C, password=b"")


class Service:
    def __init__(self, loop: VirtualLoop, **options: float) -> None:
        trace = Trace(keep=False)
        self.network = Network(loop, Random(1), trace, NetworkOptions())
        self.server = MetadataServer(self.network, Random(2), trace, MetadataOptions(**options))

    async def connect(self, host: str) -> MetadataService:
        service = MetadataService(await self.server.connect(host), "/ledgers", None)
        await service.prepare()
        return service

    async def start(self) -> MetadataService:
        service = await self.connect("operator")
        await service.cluster.initialize(instance_id="test")
        return service


def test_compare_and_set(loop):
    async def work() -> None:
        one = await Service(loop).start()
        stored = await one.ledgers.create(LEDGER)
        written = await one.ledgers.write(LEDGER.in_recovery(), stored.identity)
        with pytest.raises(MetadataVersionConflict):
            await one.ledgers.write(LEDGER, stored.identity)
        assert (await one.ledgers.read(7)).version == written.version
        with pytest.raises(MetadataNotFound):
            await one.ledgers.read(8)

    run(loop, work())


def test_a_write_whose_answer_was_lost_is_recognised_by_the_common_layer(loop):
    service = Service(loop)
    applied = []

    async def work() -> None:
        one = await service.start()
        stored = await one.ledgers.create(LEDGER)
        service.server.on_write = lambda host, path, data, version: applied.append(path)
        service.server.lose_answers = 1
        written = await one.ledgers.write(LEDGER.in_recovery(), stored.identity)
        assert (await one.ledgers.read(7)).version == written.version == stored.version + 1
        assert len(applied) == 1

    run(loop, work())


def test_a_registration_ends_with_the_session_of_a_process_that_is_gone(loop):
    service = Service(loop, session_timeout=2.0)

    async def work() -> None:
        await service.start()
        bookie, other = await service.connect("bookie"), await service.connect("other")
        await bookie.bookies.register("b1", BookieGroup.WRITABLE, INFO)
        async with other.bookies.watch(BookieGroup.WRITABLE) as sets:
            assert (await anext(sets)).bookies == {"b1"}
            service.server.forget("bookie")
            before = loop.time()
            assert (await anext(sets)).bookies == frozenset()
            assert loop.time() - before == pytest.approx(2.0, abs=0.1)
        with pytest.raises(MetadataUnavailable):
            await bookie.bookies.list(BookieGroup.WRITABLE)

    run(loop, work())


def test_an_old_session_that_ends_leaves_the_registration_of_a_new_one(loop):
    service = Service(loop, session_timeout=2.0)

    async def work() -> None:
        await service.start()
        first = await service.connect("bookie")
        await first.bookies.register("b1", BookieGroup.WRITABLE, INFO)
        await first.bookies.unregister("b1", BookieGroup.WRITABLE)
        service.server.forget("bookie")
        second = await service.connect("bookie")
        await second.bookies.register("b1", BookieGroup.WRITABLE, INFO)
        await asyncio.sleep(10)
        assert await second.bookies.is_registered("b1", BookieGroup.WRITABLE)

    run(loop, work())


def test_a_partition_suspends_a_session_and_a_long_one_ends_it(loop):
    service = Service(loop, session_timeout=2.0)

    async def work() -> None:
        await service.start()
        bookie = await service.connect("bookie")
        await bookie.bookies.register("b1", BookieGroup.WRITABLE, INFO)
        states: list[SessionState] = []
        bookie.session.add_listener(states.append)
        service.network.block("bookie", HOST)
        with pytest.raises(MetadataUnavailable):
            await bookie.bookies.list(BookieGroup.WRITABLE, timeout=0.5)
        await asyncio.sleep(10)
        service.network.unblock("bookie", HOST)
        await asyncio.sleep(1)
        assert states == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]
        assert not await bookie.bookies.is_registered("b1", BookieGroup.WRITABLE)

    run(loop, work())


def test_others_may_read_what_was_and_nobody_goes_back(loop):
    service = Service(loop)

    async def work() -> None:
        one = await service.start()
        other = await service.connect("other")
        stored = await one.ledgers.create(LEDGER)
        await asyncio.sleep(1)
        service.server.options = replace(service.server.options, lag=0.5)
        seen, old = [], 0
        for _ in range(20):
            stored = await one.ledgers.write(LEDGER, stored.identity)
            assert (await one.ledgers.read(7)).version == stored.version  # never older than one's own writes
            seen.append((await other.ledgers.read(7)).version)
            old += seen[-1] < stored.version
            await asyncio.sleep(0.05)
        assert seen == sorted(seen)
        assert old > 0
        await asyncio.sleep(0.5)
        assert (await other.ledgers.read(7)).version == stored.version

    run(loop, work())


def test_a_watch_misses_nothing_although_reads_are_old(loop):
    service = Service(loop)

    async def work() -> None:
        one = await service.start()
        other = await service.connect("other")
        created = await one.ledgers.create(LEDGER)
        await asyncio.sleep(1)
        service.server.options = replace(service.server.options, lag=0.5)
        async with other.ledgers.watch(7) as versions:
            await one.ledgers.write(LEDGER.in_recovery(), created.identity)
            async for stored in versions:
                assert stored is not None
                if stored.version == 1:
                    return

    run(loop, work())
