"""Bookies that are killed, hang and come back under a loaded writer, tails and range reads."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.errors import LedgerClosed, QuorumLost
from tests.support import ledger_program
from tests.support.client_workload import Workload
from tests.support.cluster_fixtures import bookies, cluster, metadata_service
from tests.support.ledger_program import LedgerProgram
from tests.support.until import until

__all__ = ["bookies", "cluster", "metadata_service"]

BOOKIES = 4
"""An ensemble, and a spare."""
LONG = 20.0
"""Seconds; a time-out that nobody may come near: what fails at once must be noticed at once."""
SHORT = 1.0
"""Seconds; the time-out by which a bookie that hangs is given up."""
BUSY = 5.0
"""Seconds by which a busy machine may add to a time-out."""


async def test_bookies_killed_and_started_again_one_after_another(cluster):
    options = ClientOptions(add_timeout=LONG, read_timeout=LONG)
    async with Workload(cluster.uri, options) as load:
        for _ in range(2):
            victim = load.ledger.metadata.last_ensemble[1]
            cluster.kill(victim)
            await load.progress(200)
            assert victim not in load.ledger.metadata.last_ensemble
            await asyncio.to_thread(cluster.start, [victim])
        assert load.ledger.ensemble_changes == 2
        assert load.longest_append < LONG
        assert load.longest_range < LONG
        assert load.ranges_read > 10


async def test_a_bookie_without_a_spare_is_killed_and_comes_back(cluster):
    options = ClientOptions(add_timeout=LONG, read_timeout=LONG)
    async with Workload(cluster.uri, options) as load:
        ensemble = load.ledger.metadata.last_ensemble
        (spare,) = set(cluster.bookies).difference(ensemble)
        cluster.kill(spare, ensemble[0])
        await load.progress(200)
        assert list(load.ledger.degraded.values()) == [ensemble[0]]
        await asyncio.to_thread(cluster.start, [spare, ensemble[0]])
        await until(lambda: not load.ledger.degraded, 30)
        await load.progress(200)
        assert load.longest_append < LONG


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3)], ids=str)
async def test_a_bookie_that_hangs_and_goes_on(cluster, quorums):
    """With an ack quorum of two nobody waits for it; with one of three an add waits for the time-out, once."""
    options = ClientOptions(add_timeout=SHORT, read_timeout=LONG)
    async with Workload(cluster.uri, options, quorums) as load:
        load.forget_latencies()
        victim = load.ledger.metadata.last_ensemble[1]
        with cluster.paused([victim]):
            await until(lambda: victim not in load.ledger.metadata.last_ensemble, 30)
            await load.progress(200)
        await load.progress(200)
        assert load.ledger.ensemble_changes == 1
        assert load.longest_append < SHORT + BUSY
        assert load.longest_range < LONG
        if quorums[2] == 3:
            assert load.longest_append > SHORT / 2


async def test_every_bookie_is_killed_at_once_under_load(cluster):
    """The writer fails; what it saw acknowledged is all there."""
    async with Client(cluster.uri, ClientOptions(add_timeout=LONG)) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        futures = []

        async def append():
            while True:
                futures.append(await ledger.submit(ledger_program.payload(len(futures))))

        load = asyncio.create_task(append())
        await until(lambda: ledger.last_add_confirmed > 1000 or load.done(), 30)
        cluster.kill(*cluster.bookies)
        with pytest.raises(LedgerClosed):
            await load
        ended = await asyncio.gather(*futures, return_exceptions=True)
        acknowledged = [each for each in ended if isinstance(each, int)]
        assert acknowledged == list(range(len(acknowledged)))
        assert {type(each) for each in ended[len(acknowledged) :]} == {QuorumLost}
    await asyncio.to_thread(cluster.start, list(cluster.bookies))
    async with Client(cluster.uri) as client:
        metadata = await client.recover(ledger.ledger_id)
        assert metadata.last_entry_id >= acknowledged[-1]
        async with client.open(ledger.ledger_id) as reader:
            found = [e.payload async for e in reader.entries()]
        assert found == [ledger_program.payload(i) for i in range(metadata.last_entry_id + 1)]


async def test_a_writer_and_one_of_its_bookies_are_killed_together(cluster, tmp_path):
    with LedgerProgram(cluster.uri, tmp_path / "notes", (3, 2, 2), 10_000_000) as writer:
        await asyncio.to_thread(writer.wait_for, "acknowledged", 1000)
        async with Client(cluster.uri) as client:
            ensemble = (await client.metadata(writer.ledger_id)).last_ensemble
            cluster.kill(ensemble[0])
            writer.kill()
            acknowledged = writer.acknowledged()
            metadata = await client.recover(writer.ledger_id, password=ledger_program.PASSWORD)
            assert metadata.last_entry_id >= acknowledged[-1] >= 999
            async with client.open(writer.ledger_id, password=ledger_program.PASSWORD) as reader:
                found = [e.payload async for e in reader.entries()]
            assert found == [ledger_program.payload(i) for i in range(metadata.last_entry_id + 1)]
