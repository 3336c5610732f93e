"""Ranges from real bookies in this process: batch reads over both dialects, scans of one of them, old ones among
them."""

from contextlib import AsyncExitStack

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from bookie_client.reading.reader import EntryReader
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import NoSuchEntry
from tests.support.batch_answers import note_batches
from tests.support.memory_metadata import MemoryMetadata
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.support.served_bookie import ServedBookie


def payloads(count):
    return [bytes([i % 256]) * (i % 700) for i in range(count)]


@pytest.fixture
async def metadata():
    return MemoryMetadata()


@pytest.fixture
async def served(tmp_path, metadata):
    """Three bookies with storage and server of their own, known to the metadata service."""
    async with AsyncExitStack() as stack:
        bookies = {}
        for name in ("b1", "b2", "b3"):
            bookies[name] = await stack.enter_async_context(ServedBookie(tmp_path / name))
            metadata.bookies.register_address(name, "127.0.0.1", bookies[name].port)
        yield bookies


@pytest.mark.parametrize("flushed", [False, True])
async def test_ranges_come_by_batch_whatever_the_protocol(served, metadata, monkeypatch, version, flushed):
    batches = note_batches(monkeypatch)
    written = payloads(3000)
    async with Client(metadata, ClientOptions(protocol_version=version, batch_read_entries=100)) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=b"pw") as ledger:
            await ledger.append_many(written)
        if flushed:
            for bookie in served.values():
                await bookie.checkpoint()
        async with client.open(ledger.ledger_id, password=b"pw") as reader:
            assert [e.payload for e in await reader.read(0, 2999)] == written
            assert set(reader.served_by) == {"b1", "b2", "b3"}
            assert sum(reader.served_by.values()) == sum(count for _, count in batches) == 3000
            assert 30 <= len(batches) <= 36
            assert [e.payload for e in await reader.read(17, 1234)] == written[17:1235]
            assert sum(count for _, count in batches) == sum(reader.served_by.values())


async def test_batches_are_bounded_in_bytes(served, metadata, monkeypatch):
    batches = note_batches(monkeypatch)
    sizes = {"batch_read_bytes": 20_000, "read_window_bytes": 160_000, "max_frame_size": 1 << 20}
    async with Client(metadata, ClientOptions(**sizes)) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many([bytes(900)] * 500 + [bytes(200_000)] + [bytes(900)] * 100)
        async with client.open(ledger.ledger_id) as reader:
            assert sum([len(e.payload) async for e in reader.entries()]) == 600 * 900 + 200_000
    assert max(count for _, count in batches) * 900 <= 20_000


async def test_the_end_of_what_bookies_hold_ends_an_unbounded_range(served, metadata):
    async with Client(metadata) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many(payloads(50))
        context, stored = client.context, await client.metadata(ledger.ledger_id)
        reader = EntryReader(context, lambda: stored, digest_manager(DigestType.CRC32C, b""))
        seen = []
        with pytest.raises(NoSuchEntry):
            async for batch in reader.batches(0, 60, bound=60):
                seen += batch
        assert [e.payload for e in seen] == payloads(50)


async def test_a_scan_of_one_bookie(served, metadata, version):
    async with Client(metadata, ClientOptions(protocol_version=version)) as client:
        for write_quorum in (3, 2):
            async with client.create(ensemble=3, write_quorum=write_quorum, ack_quorum=2) as ledger:
                await ledger.append_many(payloads(300))
            async with client.open(ledger.ledger_id) as reader:
                for bookie in served:
                    answers = [answer async for answer in replicas(reader).scan(bookie, 0, 299)]
                    held = [e for e in range(300) if bookie in reader.metadata.bookies_for(e)]
                    assert [a.entry_id for a in answers] == held
                    assert [a.entry.payload for a in answers] == [payloads(300)[e] for e in held]
                assert [a.error for a in await replicas(reader).read_all(7)] == [None] * write_quorum


async def test_bookies_that_hang_up_on_batches_are_read_singly_and_once_asked(metadata, version):
    servers = {}
    for name in ("b1", "b2", "b3"):
        servers[name] = ModelBookieServer(ModelBookie(name))
        servers[name].bookie.knows_batch_reads = False
        await servers[name].start()
        metadata.bookies.register_address(name, "127.0.0.1", servers[name].port)
    # No read is asked for twice because the machine is slow.
    options = ClientOptions(protocol_version=version, first_speculative_read_timeout=0)
    async with Client(metadata, options) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append_many(payloads(500))
        for _ in range(3):
            async with client.open(ledger.ledger_id) as reader:
                assert [e.payload for e in await reader.read(0, 499)] == payloads(500)
        assert sum(server.bookie.reads for server in servers.values()) == 1500
        accepted = sum(server.accepted for server in servers.values())
        assert accepted == 6  # one for adds and reads, one for the batch that was hung up on
    for server in servers.values():
        await server.stop()
