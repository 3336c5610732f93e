"""Our client against Java bookies, and ledgers handed over between our client and the Java client, both ways."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerFenced, Unauthorized
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.traffic_class import TrafficClass
from tests.interop.java_client import PASSWORD, payload
from tests.interop.java_programs import run_program
from tests.support.traced import TracedProgram
from tests.support.until import until
from tests.support.writing_scenarios import check_deferred_sync, chosen_ids, deferred_sync, explicit_lac

ENTRIES = 2_000


@pytest.fixture(scope="module")
def java_cluster(make_cluster):
    cluster = make_cluster()
    for _ in range(3):
        cluster.bookie("java").start()
    return cluster


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def options(request):
    return ClientOptions(protocol_version=request.param)


async def write(client, entries=ENTRIES, **settings):
    async with client.create(password=PASSWORD, **settings) as ledger:
        futures = [await ledger.submit(payload(ledger.ledger_id, i)) for i in range(entries)]
        assert await asyncio.gather(*futures) == list(range(entries))
    return ledger.ledger_id


@pytest.mark.parametrize("digest", list(DigestType))
async def test_java_bookies_store_and_serve_what_our_client_writes(java_cluster, options, digest):
    async with Client(java_cluster.metadata_uri, options) as client:
        ledger_id = await write(client, 500, digest=digest)
        async with client.open(ledger_id, password=PASSWORD) as reader:
            entries = [entry async for entry in reader.entries()]
        assert [e.payload for e in entries] == [payload(ledger_id, i) for i in range(500)]
        assert entries[-1].length == reader.length
        with pytest.raises(Unauthorized):
            await client.open(ledger_id, password=b"wrong")


@pytest.mark.parametrize("batch_reads", [True, False], ids=["batches", "singles"])
async def test_java_bookies_answer_reads_that_tell_their_traffic_class(java_cluster, options, batch_reads):
    """A flag of version 2 and a pair of version 3 that they do not know."""
    async with Client(java_cluster.metadata_uri, options) as client:
        ledger_id = await write(client, 300, write_quorum=3)
    marked = replace(options, traffic_class=TrafficClass.BATCH, batch_reads=batch_reads)
    async with Client(java_cluster.metadata_uri, marked) as client, client.open(ledger_id, password=PASSWORD) as reader:
        entries = [entry async for entry in reader.entries()]
        assert [e.payload for e in entries] == [payload(ledger_id, i) for i in range(300)]
        scans = [answer async for answer in replicas(reader).scan(next(iter(reader.served_by)), 0, 299)]
        assert scans
        assert {answer.error for answer in scans} == {None}


async def test_java_bookies_take_requests_that_name_the_trace_of_their_client(java_cluster):
    """A pair of version 3 in the place of the Java client's logging context."""
    program = TracedProgram()
    options = ClientOptions(tracer=program.tracer, batch_reads=False)
    async with Client(java_cluster.metadata_uri, options) as client:
        ledger_id = await write(client, 50, write_quorum=3)
        async with client.open(ledger_id, password=PASSWORD) as reader:
            for i in range(50):
                assert [e.payload for e in await reader.read(i, i)] == [payload(ledger_id, i)]
    assert program.names == ["bookkeeper.append"] * 50 + ["bookkeeper.read"] * 50


@pytest.mark.parametrize("quorums", [(3, 2, 2), (3, 3, 2)], ids=str)
async def test_the_java_client_reads_what_our_client_wrote(class_path, java_cluster, options, tmp_path, quorums):
    ensemble, write_quorum, ack_quorum = quorums
    async with Client(java_cluster.metadata_uri, options) as client:
        ledger_id = await write(client, ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
    acks = tmp_path / "acks"
    acks.write_text("".join(f"{ledger_id} {i}\n" for i in range(ENTRIES)))
    for protocol in ("V2", "V3"):
        count = await asyncio.to_thread(
            run_program, class_path, "AckVerifier", java_cluster.metadata_uri, str(acks), protocol, "recover"
        )
        assert int(count) == ENTRIES


async def test_our_client_reads_what_the_java_client_wrote(class_path, java_cluster, options, tmp_path):
    acks = tmp_path / "acks"
    uri = java_cluster.metadata_uri
    await asyncio.to_thread(run_program, class_path, "AckWriter", uri, str(acks), "V3", "2", str(ENTRIES))
    await asyncio.to_thread(run_program, class_path, "AckVerifier", uri, str(acks), "V3", "recover")
    ledgers = {int(line.split()[0]) for line in acks.read_text().splitlines()}
    assert len(ledgers) == 2
    async with Client(uri, options) as client:
        for ledger_id in ledgers:
            async with client.open(ledger_id, password=PASSWORD) as reader:
                found = [entry.payload async for entry in reader.entries()]
            assert found == [payload(ledger_id, i) for i in range(ENTRIES // 2)]


async def test_a_recovery_by_the_java_client_ends_our_writer(class_path, java_cluster, options, tmp_path):
    async with Client(java_cluster.metadata_uri, options) as client:
        ledger = await client.create(write_quorum=3, password=PASSWORD)
        for i in range(50):
            assert await ledger.append(payload(ledger.ledger_id, i)) == i
        acks = tmp_path / "acks"
        acks.write_text("".join(f"{ledger.ledger_id} {i}\n" for i in range(50)))
        await asyncio.to_thread(
            run_program, class_path, "AckVerifier", java_cluster.metadata_uri, str(acks), "V3", "recover"
        )
        with pytest.raises(LedgerFenced):
            await ledger.append(b"too late")
        await ledger.close()
        metadata = await client.metadata(ledger.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 49)


async def test_a_killed_java_bookie_is_replaced(java_cluster, options):
    spare = java_cluster.bookie("java")
    await asyncio.to_thread(spare.start)
    async with Client(java_cluster.metadata_uri, options) as client:
        async with client.create(write_quorum=3, password=PASSWORD) as ledger:
            futures = [await ledger.submit(payload(ledger.ledger_id, i)) for i in range(500)]
            name = ledger.metadata.last_ensemble[1]
            victim = next(b for b in java_cluster.bookies if b.bookie_id == name)
            await asyncio.gather(*futures)
            await asyncio.to_thread(victim.kill)
            futures = [await ledger.submit(payload(ledger.ledger_id, i)) for i in range(500, 1000)]
            await asyncio.gather(*futures)
            await until(lambda: name not in ledger.metadata.last_ensemble)  # two of three answers are enough to go on
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            found = [entry.payload async for entry in reader.entries()]
        assert found == [payload(ledger.ledger_id, i) for i in range(1000)]
    java_cluster.discard(victim)


async def test_java_bookies_serve_deferred_sync_explicit_lac_and_chosen_ids(java_cluster):
    async with Client(java_cluster.metadata_uri, ClientOptions(explicit_lac_interval=0.02)) as client:
        await check_deferred_sync(client, await deferred_sync(client))
        await explicit_lac(client)
        await chosen_ids(client)
