"""Our recovery, readers of open ledgers and tails against Java bookies; ledgers of Java writers that died."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.errors import LedgerClosed, LedgerFenced
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.interop.java_client import PASSWORD, payload
from tests.interop.java_programs import run_program
from tests.support.until import until


@pytest.fixture(scope="module")
def java_cluster(make_cluster):
    cluster = make_cluster()
    for _ in range(4):
        cluster.bookie("java").start()
    return cluster


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def options(request):
    return ClientOptions(protocol_version=request.param, explicit_lac_interval=0.1 if request.param == 3 else None)


async def left_open(uri, options, entries, **settings):
    """A ledger whose writer's process ended."""
    async with Client(uri, options) as client:
        ledger = await client.create(password=PASSWORD, **settings)
        for i in range(entries):
            await ledger.append(payload(ledger.ledger_id, i))
        return ledger.ledger_id


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 3, 3)], ids=str)
async def test_our_recovery_on_java_bookies(class_path, java_cluster, options, tmp_path, quorums):
    uri = java_cluster.metadata_uri
    sizes = dict(zip(("ensemble", "write_quorum", "ack_quorum"), quorums, strict=True))
    ledger_id = await left_open(uri, options, 60, **sizes)
    async with Client(uri, options) as one, Client(uri, options) as two:
        found = await asyncio.gather(*(client.recover(ledger_id, password=PASSWORD) for client in (one, two)))
        assert found[0] == found[1]
        assert (found[0].state, found[0].last_entry_id) == (LedgerState.CLOSED, 59)
        assert found[0].length == sum(len(payload(ledger_id, i)) for i in range(60))
        async with one.open(ledger_id, password=PASSWORD) as reader:
            assert [e.payload async for e in reader.entries()] == [payload(ledger_id, i) for i in range(60)]
    acks = tmp_path / "acks"
    acks.write_text("".join(f"{ledger_id} {i}\n" for i in range(60)))
    count = await asyncio.to_thread(run_program, class_path, "AckVerifier", uri, str(acks), "V3", "recover")
    assert int(count) == 60


async def test_our_recovery_of_what_a_java_writer_left_open(class_path, java_cluster, options, tmp_path):
    acks, uri = tmp_path / "acks", java_cluster.metadata_uri
    await asyncio.to_thread(run_program, class_path, "AckWriter", uri, str(acks), "V3", "2", "600")
    ledgers = {int(line.split()[0]) for line in acks.read_text().splitlines()}
    async with Client(uri, options) as client:
        for ledger_id in ledgers:
            async with client.open(ledger_id, password=PASSWORD, recover=True) as reader:
                found = [entry.payload async for entry in reader.entries()]
            assert found == [payload(ledger_id, i) for i in range(300)]
            assert (await client.metadata(ledger_id)).state is LedgerState.CLOSED


async def test_our_writer_is_fenced_by_our_recovery_with_a_bookie_down(java_cluster, options):
    uri = java_cluster.metadata_uri
    async with Client(uri, options) as zombie, Client(uri, options) as client:
        ledger = await zombie.create(write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(20):
            await ledger.append(payload(ledger.ledger_id, i))
        name = ledger.metadata.last_ensemble[0]
        victim = next(b for b in java_cluster.bookies if b.bookie_id == name)
        await asyncio.to_thread(victim.kill)
        try:
            metadata = await client.recover(ledger.ledger_id, password=PASSWORD)
            assert metadata.last_entry_id == 19
            # Closed, if a slow bookie refused an earlier copy first.
            with pytest.raises((LedgerFenced, LedgerClosed)):
                await ledger.append(b"too late")
            async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
                assert len(await reader.read(0, 19)) == 20
        finally:
            await asyncio.to_thread(victim.start)


async def test_our_tail_of_java_bookies(java_cluster, options):
    uri = java_cluster.metadata_uri
    async with Client(uri, options) as writing, Client(uri, options) as client:
        ledger = await writing.create(ensemble=3, write_quorum=2, ack_quorum=2, password=PASSWORD)
        for i in range(5):
            await ledger.append(payload(ledger.ledger_id, i))
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            assert reader.last_add_confirmed >= 3
            found = []

            async def run():
                async for entry in reader.tail():
                    found.append(entry.payload)  # noqa: PERF401 - the list is looked at while it grows

            tail = asyncio.create_task(run())
            for i in range(5, 40):
                await ledger.append(payload(ledger.ledger_id, i))
                if i % 10 == 0:
                    await until(lambda i=i: len(found) >= i, 10)
            if options.explicit_lac_interval is not None:
                # The writer pauses and tells bookies so; nothing else confirms its last entry to readers.
                await until(lambda: len(found) == 40, 15)
            await ledger.append(payload(ledger.ledger_id, 40))
            await ledger.close()
            await tail
            assert found == [payload(ledger.ledger_id, i) for i in range(41)]
