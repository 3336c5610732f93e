"""Recovery, open ledgers and tailing against real bookies in this process: fences that survive a crash, long polls
that the real server answers."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import LedgerFenced, RecoveryFailed, Unauthorized
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from tests.support.memory_metadata import MemoryMetadata
from tests.support.served_bookie import ServedBookie
from tests.support.until import until
from tests.unit.bookie_client.recovery.crashed import LEDGER, contents, length_of, payload


class Served:
    def __init__(self, metadata, bookies):
        self.metadata = metadata
        self.bookies = bookies

    def client(self, **options):
        return Client(self.metadata, ClientOptions(**{"add_timeout": 1.0, "read_timeout": 1.0, **options}))

    async def crash(self, name):
        await self.bookies[name].crash()

    async def restart(self, name):
        await self.bookies[name].start()
        self.metadata.bookies.register_address(name, "127.0.0.1", self.bookies[name].port)


@pytest.fixture
async def served(tmp_path):
    metadata = MemoryMetadata()
    async with AsyncExitStack() as stack:
        bookies = {}
        for name in ("b1", "b2", "b3"):
            bookies[name] = await stack.enter_async_context(ServedBookie(tmp_path / name))
            metadata.bookies.register_address(name, "127.0.0.1", bookies[name].port)
        yield Served(metadata, bookies)


async def written(client, count, **options):
    ledger = await client.create(write_quorum=3, ack_quorum=2, password=b"pw", ledger_id=LEDGER, **options)
    for i in range(count):
        await ledger.append(payload(i))
    return ledger


async def test_a_dead_writers_ledger(served, version):
    async with served.client(protocol_version=version) as client:
        await written(client, 40)
    async with served.client(protocol_version=version) as client:
        metadata = await client.recover(LEDGER, password=b"pw")
        assert (metadata.last_entry_id, metadata.length) == (39, length_of(39))
        assert await contents(client) == [payload(i) for i in range(40)]


async def test_a_fence_survives_the_crash_of_every_bookie(served, version):
    async with served.client(protocol_version=version) as zombie:
        await written(zombie, 10)
        async with served.client() as client:
            await client.recover(LEDGER, password=b"pw")
            # Whoever was not needed for the vote is fenced a moment later.
            fenced = [name for name in served.bookies if await is_fenced(zombie, name)]
            assert len(fenced) >= 2
    for name in served.bookies:
        await served.crash(name)
        await served.restart(name)
    async with served.client(protocol_version=version) as zombie:
        assert [name for name in served.bookies if await is_fenced(zombie, name)] == fenced
        assert await contents(zombie) == [payload(i) for i in range(10)]


async def is_fenced(client, bookie):
    entry = digest_manager(DigestType.CRC32C, b"pw").encode(LEDGER, 10, 9, 0, b"too late")
    try:
        await client.context.operations.add_entry(bookie, LedgerLife(LEDGER, 0), 10, entry, master_key(b"pw"))
    except LedgerFenced:
        return True
    return False


async def test_bookies_that_come_back_from_a_crash_have_what_they_acknowledged(served):
    async with served.client() as client:
        await written(client, 30)
    for name in served.bookies:
        await served.crash(name)
    async with served.client() as client:
        with pytest.raises(RecoveryFailed):
            await client.recover(LEDGER, password=b"pw")
    for name in ("b1", "b2"):
        await served.restart(name)
    async with served.client() as client:
        assert (await client.recover(LEDGER, password=b"pw")).last_entry_id == 29
        assert await contents(client) == [payload(i) for i in range(30)]
    await served.restart("b3")


async def test_a_long_pipelined_tail(served, version):
    async with served.client(protocol_version=version) as client:
        ledger = await client.create(ensemble=3, write_quorum=2, ack_quorum=2, password=b"pw", ledger_id=LEDGER)
        await ledger.append_many([payload(i) for i in range(2000)])
    async with served.client(protocol_version=version) as one, served.client() as two:
        found = await asyncio.gather(*(client.recover(LEDGER, password=b"pw") for client in (one, two)))
        assert found[0] == found[1]
        assert (found[0].last_entry_id, found[0].length) == (1999, length_of(1999))
        assert await contents(one) == [payload(i) for i in range(2000)]


async def test_a_wrong_key_is_refused_by_the_bookies_themselves(served, version):
    async with served.client(protocol_version=version) as client:
        writer = await written(client, 3)
        stored = served.metadata.ledgers.stored[LEDGER]
        bare = replace(stored.value, password=None, digest_type=None)
        served.metadata.ledgers.stored[LEDGER] = type(stored)(bare, stored.identity)
        with pytest.raises(Unauthorized):
            await client.recover(LEDGER, password=b"other")
        assert await writer.append(b"not fenced") == 3


async def test_a_reader_tails_the_writer_to_the_end(served, version):
    async with served.client(protocol_version=version) as writing, served.client(protocol_version=version) as client:
        writer = await written(writing, 5)
        async with client.open(LEDGER, password=b"pw") as reader:
            assert reader.last_add_confirmed == 3
            found = []

            async def run():
                async for entry in reader.tail():
                    found.append(entry.payload)  # noqa: PERF401 - the list is looked at while it grows

            tail = asyncio.create_task(run())
            for i in range(5, 60):
                await writer.append(payload(i))
                if i % 20 == 0:
                    await until(lambda i=i: len(found) >= i)
            await writer.append_many([payload(i) for i in range(60, 1000)])
            await writer.close()
            await tail
            assert found == [payload(i) for i in range(1000)]


async def test_the_explicit_lac_of_a_pausing_writer_reaches_the_reader(served):
    async with served.client(explicit_lac_interval=0.05) as writing, served.client() as client:
        writer = await written(writing, 8)
        async with client.open(LEDGER, password=b"pw") as reader:
            found = []
            async for entry in reader.tail():
                found.append(entry.payload)
                if len(found) == 8:
                    break
            assert found == [payload(i) for i in range(8)]
            assert await reader.read_last_add_confirmed() == 7
        await writer.close()


async def test_a_tail_survives_the_crash_of_each_bookie_in_turn(served):
    async with served.client() as writing, served.client(long_poll_timeout=1.0) as client:
        writer = await written(writing, 5)
        async with client.open(LEDGER, password=b"pw") as reader:
            found = []

            async def run():
                async for entry in reader.tail():
                    found.append(entry.payload)  # noqa: PERF401 - the list is looked at while it grows

            tail = asyncio.create_task(run())
            written_so_far = 5
            for name in served.bookies:
                await served.crash(name)
                for _ in range(5):
                    await writer.append(payload(written_so_far))
                    written_so_far += 1
                await until(lambda count=written_so_far: len(found) >= count - 2, 15)
                await served.restart(name)
                await until(lambda: not writer.degraded, 15)
            await writer.close()
            await tail
            assert found == [payload(i) for i in range(written_so_far)]
