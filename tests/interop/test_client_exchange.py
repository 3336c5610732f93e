"""Ledgers handed over between our client and the Java client, both ways, on our bookies and on Java's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import ClientCode, LedgerFenced, NoSuchLedger, Unauthorized
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.interop.java_client import PASSWORD, JavaClientError, payload, payloads
from tests.support.hanging import hanging
from tests.support.until import until

COUNT = 300
QUORUMS = [(3, 3, 2), (3, 2, 2), (4, 3, 2)]
CUSTOM = {"application": b"podkeeper", "component": b"interop", "bin": b"\x00\xff\x22\x0a"}
PROTOCOLS = {2: "V2", 3: "V3"}
PAIRWISE = [
    (digest, quorums, 2 + (row + column) % 2)
    for row, digest in enumerate(DigestType)
    for column, quorums in enumerate(QUORUMS)
]
"""Every digest with every shape, and each of these with either version of the protocol."""
TO_JAVA = [(digest, 2 + row % 2) for row, digest in enumerate(DigestType)]
FROM_JAVA = [(digest, 3 - row % 2) for row, digest in enumerate(DigestType)]
"""Every digest with every version, either on the way to Java's client or back."""


@pytest.fixture
async def client(quartet):
    async with ours(quartet) as made:
        yield made


@asynccontextmanager
async def ours(cluster, **options):
    async with Client(cluster.metadata_uri, ClientOptions(**{"add_timeout": 2.0, **options})) as client:
        yield client


@pytest.fixture
def java(java_client):
    """The Java client without blocking the event loop."""
    return Java(java_client)


class Java:
    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            return await asyncio.to_thread(getattr(self._client, name), *args, **kwargs)

        return call

    @asynccontextmanager
    async def refuses(self, code):
        with pytest.raises(JavaClientError) as raised:
            yield
        assert raised.value.code == code


def create(client, quorums, **settings):
    ensemble, write_quorum, ack_quorum = quorums
    return client.create(
        ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD, **settings
    )


async def append(ledger, count):
    first = ledger.last_add_pushed + 1
    ids = await ledger.append_many(payload(ledger.ledger_id, i) for i in range(first, first + count))
    assert ids == list(range(first, first + count))


async def read(client, ledger_id):
    async with client.open(ledger_id, password=PASSWORD) as reader:
        assert reader.is_closed
        return [e.payload async for e in reader.entries()]


def hangs(cluster, bookie_id):
    return hanging(bookie.pid for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


# --- closed ledgers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("digest", "quorums", "version"), PAIRWISE, ids=str)
async def test_java_reads_what_ours_wrote(quartet, java, version, quorums, digest):
    async with ours(quartet, protocol_version=version) as client:
        async with create(client, quorums, digest=digest, metadata=CUSTOM) as ledger:
            await append(ledger, COUNT)
        stored = await client.metadata(ledger.ledger_id)
    one, expected = ledger.ledger_id, payloads(ledger.ledger_id, COUNT)
    metadata = await java.metadata(one)
    assert (metadata["ensemble"], metadata["write_quorum"], metadata["ack_quorum"]) == quorums
    assert (metadata["state"], metadata["last_entry"], metadata["format"]) == ("CLOSED", COUNT - 1, 3)
    assert (metadata["digest"], metadata["metadata"]) == (digest.name, CUSTOM)
    assert metadata["ensembles"] == dict(stored.ensembles)
    opened = await java.open(one, digest=digest, protocol=PROTOCOLS[version])
    assert opened == {"lac": COUNT - 1, "length": sum(map(len, expected)), "closed": True}
    for how in ("single", "batch") if version == 2 and quorums[0] == quorums[1] else ("single",):
        assert await java.read(one, 0, COUNT - 1, how) == expected


@pytest.mark.parametrize(("digest", "quorums", "version"), PAIRWISE, ids=str)
async def test_ours_reads_what_java_wrote(quartet, java, version, quorums, digest):
    one = await java.create(quorums, digest=digest, metadata=CUSTOM, protocol=PROTOCOLS[version])
    await java.append(one, COUNT)
    await java.close(one)
    async with ours(quartet, protocol_version=version) as client:
        metadata = await client.metadata(one)
        assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == quorums
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, COUNT - 1)
        assert (metadata.digest_type, dict(metadata.custom_metadata)) == (digest, CUSTOM)
        async with client.open(one, password=PASSWORD) as reader:
            assert reader.length == sum(map(len, payloads(one, COUNT)))
            batched = [e.payload async for e in reader.entries()]
            by_batch = any(map(client.context.batch_support.is_proven, metadata.all_bookies()))
            assert by_batch == (quorums[0] == quorums[1])
        async with ours(quartet, protocol_version=version, batch_reads=False) as single:
            assert batched == await read(single, one) == payloads(one, COUNT)


async def test_entries_with_chosen_ids(client, java):
    order = sorted(range(COUNT), key=lambda i: i * 7919 % COUNT)
    big = 2**40 + 17  # a ledger id of the caller's, too
    async with client.create_advanced(write_quorum=3, password=PASSWORD, ledger_id=big) as ledger:
        futures = [await ledger.submit(i, payload(big, i)) for i in order]
        assert [await future for future in futures] == order
    await java.open(big)
    assert await java.read(big, 0, COUNT - 1) == payloads(big, COUNT)

    one = await java.create((3, 3, 2), advanced=True, ledger=big + 1)
    await java.write(one, order)
    await java.close(one)
    assert await read(client, big + 1) == payloads(big + 1, COUNT)
    await client.delete(big)
    await client.delete(big + 1)


async def test_deletion_and_wrong_passwords(client, java):
    async with create(client, (3, 3, 2)) as mine:
        await append(mine, 1)
    its = await java.create((3, 3, 2))
    await java.append(its, 1)
    await java.close(its)
    async with java.refuses(ClientCode.UNAUTHORIZED_ACCESS):
        await java.open(mine.ledger_id, password=b"guess")
    with pytest.raises(Unauthorized):
        await client.open(its, password=b"guess")
    await client.delete(mine.ledger_id)
    await java.call("delete", ledger=its)
    async with java.refuses(ClientCode.NO_SUCH_LEDGER_ON_METADATA_SERVER):
        await java.open(mine.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open(its, password=PASSWORD)


# --- open ledgers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("digest", "version"), TO_JAVA, ids=str)
async def test_java_follows_our_writer(quartet, java, version, digest):
    async with ours(quartet, protocol_version=version) as client:
        ledger = await create(client, (3, 2, 2), digest=digest)
        one = ledger.ledger_id
        await append(ledger, COUNT)
        await ledger.append(payload(one, COUNT))
        opened = await java.open(one, digest=digest, protocol=PROTOCOLS[version])
        assert (opened["lac"], opened["closed"]) == (COUNT - 1, False)
        assert await java.read(one, 0, COUNT - 1) == payloads(one, COUNT)
        assert await java.read(one, COUNT, COUNT, "unconfirmed") == [payload(one, COUNT)]
        await append(ledger, 2)
        assert (await java.call("lac", ledger=one))["lac"] >= COUNT
        if version == 3:
            poll = asyncio.create_task(java.call("poll", ledger=one, entry=COUNT + 2))
            await append(ledger, 1)
            await append(ledger, 1)
            assert (await poll)["lac"] >= COUNT + 2
        await ledger.close()
        last = ledger.last_add_confirmed
        assert await java.open(one, digest=digest) == {"lac": last, "length": ledger.length, "closed": True}
        assert await java.read(one, 0, last) == payloads(one, last + 1)


@pytest.mark.parametrize(("digest", "version"), FROM_JAVA, ids=str)
async def test_ours_tails_the_java_writer(quartet, java, version, digest):
    one = await java.create((3, 2, 2), digest=digest, protocol=PROTOCOLS[version])
    await java.append(one, 10)
    async with ours(quartet, protocol_version=version) as client, client.open(one, password=PASSWORD) as reader:
        assert not reader.is_closed
        found = []

        async def tail():
            async for entry in reader.tail():
                found.append(entry.payload)  # noqa: PERF401 - looked at while it grows

        task = asyncio.create_task(tail())
        written = 10
        for more in (50, 50, 290):
            await java.append(one, more - 1)
            await java.append(one, 1)  # and with it the word that those before are confirmed
            written += more
            await until(lambda count=written - 1: len(found) >= count or task.done(), 20)
        await java.close(one)
        await task
        assert found == payloads(one, 400)


async def test_deferred_sync_by_the_java_writer(client, java):
    one = await java.create((3, 3, 3), deferred=True)
    await java.append(one, 100)
    async with client.open(one, password=PASSWORD) as reader:
        assert await reader.read_last_add_confirmed() == -1
        assert [e.payload for e in await reader.read_unconfirmed(0, 99)] == payloads(one, 100)
    await java.call("force", ledger=one)
    await java.append(one, 1)
    async with client.open(one, password=PASSWORD) as reader:
        assert await reader.read_last_add_confirmed() == 99
    await java.call("force", ledger=one)
    await java.close(one)
    assert await read(client, one) == payloads(one, 101)


# --- ensemble changes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PROTOCOLS)
async def test_java_reads_over_an_ensemble_change_of_ours(quartet, java, version):
    async with ours(quartet, protocol_version=version) as client:
        ledger = await create(client, (3, 2, 2))
        one = ledger.ledger_id
        await append(ledger, 100)
        with hangs(quartet, ledger.metadata.last_ensemble[1]):
            await append(ledger, 100)
        await append(ledger, 100)
        await ledger.close()
        segments = dict(ledger.metadata.ensembles)
        assert list(segments) == [0, 100]
    assert (await java.metadata(one))["ensembles"] == segments
    await java.open(one)
    assert await java.read(one, 0, 299) == payloads(one, 300)


@pytest.mark.parametrize("version", PROTOCOLS)
async def test_ours_reads_over_an_ensemble_change_of_java(quartet, java, version):
    one = await java.create((3, 2, 2), protocol=PROTOCOLS[version])
    await java.append(one, 100)
    async with ours(quartet, protocol_version=version) as client:
        async with client.open(one, password=PASSWORD) as reader:
            before = reader.metadata.last_ensemble
            with hangs(quartet, before[1]):
                await java.append(one, 100)
            await java.append(one, 100)
            await until(lambda: len(reader.metadata.ensembles) == 2, 20)
            await reader.read_last_add_confirmed()
            found = [e.payload async for e in reader.entries()]
            assert found == payloads(one, len(found))
            assert len(found) >= 200
        await java.close(one)
        metadata = await client.metadata(one)
        assert list(metadata.ensembles) == [0, 100]
        assert before[1] not in metadata.last_ensemble
        assert await read(client, one) == payloads(one, 300)


# --- recovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("digest", "version"), FROM_JAVA, ids=str)
async def test_our_recovery_fences_the_java_writer(quartet, java, version, digest):
    one = await java.create((3, 2, 2), digest=digest, protocol=PROTOCOLS[version])
    await java.append(one, COUNT)
    async with ours(quartet, protocol_version=version) as client:
        metadata = await client.recover(one, password=PASSWORD)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, COUNT - 1)
        assert metadata.length == sum(map(len, payloads(one, COUNT)))
        async with java.refuses(ClientCode.LEDGER_FENCED):
            await java.append(one, 1)
        assert await client.metadata(one) == metadata
        assert await read(client, one) == payloads(one, COUNT)
    assert (await java.open(one, recover=True, digest=digest))["lac"] == COUNT - 1
    assert await java.read(one, 0, COUNT - 1) == payloads(one, COUNT)


@pytest.mark.parametrize(("digest", "version"), TO_JAVA, ids=str)
async def test_the_java_recovery_fences_our_writer(quartet, java, version, digest):
    async with ours(quartet, protocol_version=version) as client:
        ledger = await create(client, (3, 2, 2), digest=digest)
        one = ledger.ledger_id
        await append(ledger, COUNT)
        opened = await java.open(one, recover=True, digest=digest, protocol=PROTOCOLS[version])
        assert opened == {"lac": COUNT - 1, "length": ledger.length, "closed": True}
        with pytest.raises(LedgerFenced):
            await ledger.append(b"too late")
        await ledger.close()
        assert (await client.metadata(one)).last_entry_id == COUNT - 1
        assert await read(client, one) == payloads(one, COUNT)
    assert await java.read(one, 0, COUNT - 1) == payloads(one, COUNT)


@pytest.mark.parametrize("writer", ["ours", "java"])
async def test_both_recover_the_same_ledger_at_once_and_come_to_one_end(quartet, client, java, writer):
    ledgers = []
    async with ours(quartet) as dying:
        for number in range(8):
            if writer == "ours":
                ledger = await create(dying, QUORUMS[number % 3])
                await append(ledger, 20 + number)
                ledgers.append(ledger.ledger_id)
            else:
                ledgers.append(await java.create(QUORUMS[number % 3]))
                await java.append(ledgers[-1], 20 + number)
    for number, one in enumerate(ledgers):
        mine, its = await asyncio.gather(client.recover(one, password=PASSWORD), java.open(one, recover=True))
        assert mine.last_entry_id == its["lac"] == 19 + number
        assert mine.length == its["length"]
        assert await client.metadata(one) == mine
        assert await read(client, one) == await java.read(one, 0, 19 + number) == payloads(one, 20 + number)
