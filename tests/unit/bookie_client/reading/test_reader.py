"""Ranges: bounds, windows, iterations that are given up."""

import pytest

from bookie_protocol.errors import BadRequest
from tests.unit.bookie_client.conftest import payloads


async def written(three, client, count=200):
    async with client.create(write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append_many(payloads(count))
    return await client.open(ledger.ledger_id)


@pytest.mark.parametrize("batch_reads", [True, False])
@pytest.mark.parametrize("window", [1, 2, 7, 1000])
async def test_every_window_gives_every_entry_in_order(three, version, window, batch_reads):
    async with three.client(
        protocol_version=version, read_window_entries=window, batch_read_entries=window, batch_reads=batch_reads
    ) as client:
        reader = await written(three, client, 60)
        assert [e.entry_id async for e in reader.entries(3, 50)] == list(range(3, 51))


async def test_no_more_than_the_window_is_asked_for_ahead(three):
    async with three.client(read_window_entries=10, batch_reads=False) as client:
        reader = await written(three, client)
        before = sum(three.bookie(b).reads for b in three.servers)
        async for entry in reader.entries():
            if entry.entry_id == 50:
                break
        asked = sum(three.bookie(b).reads for b in three.servers) - before
        assert 51 <= asked <= 61


async def test_large_entries_shrink_the_window_to_its_bytes(three):
    async with three.client(read_window_bytes=100_000, batch_reads=False) as client:
        async with client.create(write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many([bytes(20_000)] * 100)
        reader = await client.open(ledger.ledger_id)
        async for entry in reader.entries():
            if entry.entry_id == 60:
                break
        asked = sum(three.bookie(b).reads for b in three.servers)
        assert 61 <= asked <= 61 + 100_000 // 20_000 + 1


@pytest.mark.parametrize("bounds", [(-1, 5), (5, 3), (0, 200), (201, 200)])
async def test_ranges_outside_the_ledger_are_refused(three, bounds):
    async with three.client() as client:
        reader = await written(three, client)
        with pytest.raises(BadRequest):
            reader.entries(*bounds)
        with pytest.raises(BadRequest):
            await reader.read_payloads(*bounds)


@pytest.mark.parametrize("batches", [True, False])
async def test_payloads_alone(three, batches):
    async with three.client(batch_reads=batches, batch_read_entries=40) as client:
        reader = await written(three, client)
        for first, last in ((0, 199), (7, 7), (30, 150), (5, 4)):
            wanted = [entry.payload for entry in await reader.read(first, last)]
            found = await reader.read_payloads(first, last)
            assert ([bytes(payload) for payload in found], len(found)) == (wanted, last - first + 1)


async def test_the_writer_reads_up_to_its_confirmed_end_and_no_further(three):
    async with three.client() as client, client.create() as ledger:
        await ledger.append_many(payloads(10))
        assert [e.payload for e in await ledger.read(0, 9)] == payloads(10)
        with pytest.raises(BadRequest, match="confirmed, 9"):
            await ledger.read(0, 10)
