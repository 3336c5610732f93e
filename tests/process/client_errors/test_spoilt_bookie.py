"""Errors of a bookie that may not or cannot serve: read-only, damaged, overrun, or emptied and aware of it."""

from __future__ import annotations

import asyncio
import shutil
from uuid import uuid4

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.entry import ENTRY_IDS
from bookie_protocol.errors import (
    BookieReadOnly,
    LedgerStateUnknown,
    NotEnoughBookies,
    QuorumLost,
    RecoveryFailed,
    StorageFault,
    TooManyRequests,
)
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from tests.process.client_errors.ledgers import AT_ONCE, PASSWORD
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until

ALONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "password": PASSWORD}


@pytest.fixture
def alone(tmp_path, metadata_service):
    """A cluster of one bookie, which may be spoilt."""
    made = ServeCluster(tmp_path, metadata_service.uri(f"/{uuid4().hex}"))
    try:
        made.add(1)
        yield made
    finally:
        made.stop()


async def started_again(cluster, spoil=lambda bookie: None, **settings):
    """The one bookie, with other settings, after `spoil` has done its work on its directories."""
    (bookie,) = cluster.bookies.values()
    assert await asyncio.to_thread(bookie.stop) == 0
    spoil(bookie)
    bookie.settings |= settings
    await asyncio.to_thread(cluster.start, cluster.bookies)


async def test_a_bookie_that_takes_no_writes(alone):
    async with Client(alone.uri, ClientOptions(**AT_ONCE)) as client:
        ledger = await client.create(**ALONE)
        await ledger.append(b"zero")
        await started_again(alone, forceReadOnlyBookie="true")
        key = master_key(PASSWORD)
        entry = digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger.ledger_id, 1, 0, 5, b"one")
        with pytest.raises(BookieReadOnly, match=f"bookie-1 .* entry 1 of ledger {ledger.ledger_id}"):
            await client.context.operations.add_entry("bookie-1", LedgerLife(ledger.ledger_id, 0), 1, entry, key)
        with pytest.raises(QuorumLost, match=rf"ledger {ledger.ledger_id}, entry 1 on bookie-1: .*EREADONLY"):
            await ledger.append(b"one")
        await until(lambda: client.context.bookies.known_read_only == {"bookie-1"})
        with pytest.raises(NotEnoughBookies, match=r"needs 1 .* 0"):
            await client.create(**ALONE)
        async with client.open(ledger.ledger_id, password=PASSWORD, recover=False) as reader:
            assert [entry.payload for entry in await reader.read_unconfirmed(0, 0)] == [b"zero"]


async def test_an_entry_whose_place_on_the_disk_holds_something_else(alone):
    async with Client(alone.uri, ClientOptions(**AT_ONCE)) as client:
        async with client.create(**ALONE) as ledger:
            await ledger.append_many([b"entry %d of many" % i for i in range(5)])

        def spoil(bookie):
            (log,) = (
                path for path in bookie.work.glob("ledgers/current/*.log") if b"entry 2 of many" in path.read_bytes()
            )
            content = bytearray(log.read_bytes())
            content[content.rindex(ENTRY_IDS.pack(ledger.ledger_id, 2), 0, content.index(b"entry 2 of many"))] ^= 0x10
            log.write_bytes(content)

        await started_again(alone, spoil)
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            with pytest.raises(StorageFault, match=rf"entry 2 of ledger {ledger.ledger_id}: .*bookie-1"):
                await reader.read(0, 4)
            with pytest.raises(StorageFault, match=rf"bookie-1 .*entry 2 of ledger {ledger.ledger_id}"):
                await replicas(reader).read("bookie-1", 2)
            assert [entry.entry_id for entry in await reader.read(3, 4)] == [3, 4]


async def test_more_reads_than_a_bookie_lets_wait(alone):
    async with Client(alone.uri, ClientOptions(batch_reads=False, **AT_ONCE)) as client:
        async with client.create(**ALONE) as ledger:
            await ledger.append_many([b"x"] * 300)
        await started_again(alone, maxPendingReadRequestsPerThread="1", numReadWorkerThreads="1")
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            with pytest.raises(TooManyRequests, match=rf"entry \d+ of ledger {ledger.ledger_id}: .*bookie-1"):
                await reader.read(0, 299)
            async with asyncio.timeout(30):
                while True:
                    try:
                        (entry,) = await reader.read(0, 0)
                        break
                    except TooManyRequests:
                        await asyncio.sleep(0.01)  # what was asked before may still wait
            assert entry.payload == b"x"


async def test_a_bookie_that_has_lost_what_it_held_and_knows_it(alone):
    async with Client(alone.uri, ClientOptions(**AT_ONCE)) as client:
        ledger = await client.create(**ALONE)
        await ledger.append(b"zero")
        await ledger.append(b"one")
        reader = await client.open(ledger.ledger_id, password=PASSWORD, recover=False)

        def spoil(bookie):
            for name in ("journal", "ledgers"):
                shutil.rmtree(bookie.work / name)

        await started_again(alone, spoil, dataIntegrityChecking="true", dataIntegrityStampMissingCookies="true")
        with pytest.raises(RecoveryFailed, match=f"ledger {ledger.ledger_id}"):
            await client.recover(ledger.ledger_id, password=PASSWORD)
        with pytest.raises(LedgerStateUnknown, match=rf"ledger {ledger.ledger_id}: .*bookie-1"):
            await client.open(ledger.ledger_id, password=PASSWORD, recover=False)
        with pytest.raises(LedgerStateUnknown, match=rf"entry 0 of ledger {ledger.ledger_id}: .*bookie-1"):
            await reader.read_unconfirmed(0, 0)
        with pytest.raises(LedgerStateUnknown, match=rf"bookie-1 .*entry 0 of ledger {ledger.ledger_id}"):
            await replicas(reader).read("bookie-1", 0)
