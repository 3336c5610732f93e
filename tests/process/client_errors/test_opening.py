"""Errors of starting, of creating and opening a ledger and of asking for its metadata; those of the blocking client."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_client import BlockingClient, Client, ClientOptions, PlacementOptions
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    LedgerClosed,
    LedgerFenced,
    LedgerIdsExhausted,
    MetadataDamaged,
    MetadataExists,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.embedded.store import NodeStore
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree.paths import LONG_ID_GENERATION, SHORT_ID_LIMIT, ledger_path
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.process.client_errors.ledgers import PASSWORD, closed, written
from tests.support.bookie_process import free_port
from tests.support.metadata_process import MetadataProcess

BOOKIES = 3
"""An ensemble, and no spare."""


async def test_a_metadata_service_where_nobody_listens():
    with pytest.raises(MetadataUnavailable, match="check metadataServiceUri"):
        await open_metadata_service(f"embedded://127.0.0.1:{free_port()}/ledgers", timeout=0.5)


async def test_a_topology_file_that_is_not_there(cluster, tmp_path):
    placement = PlacementOptions(topology_file=str(tmp_path / "none.yaml"))
    with pytest.raises(BadRequest, match=r"none\.yaml .*read"):
        await Client(cluster.uri, placement=placement).start()


async def test_creating(cluster, client):
    with pytest.raises(BadRequest, match=r"ensemble 2, .* 3"):
        await client.create(ensemble=2, write_quorum=3)
    with pytest.raises(BadRequest, match="ledger id -1"):
        await client.create(ledger_id=-1)
    with pytest.raises(NotEnoughBookies, match=r"needs 4 .* 3"):
        await client.create(ensemble=4)
    taken = await client.create(ledger_id=4711)
    with pytest.raises(MetadataExists, match="4711"):
        await client.create(ledger_id=4711)
    with pytest.raises(MetadataExists, match="4711"):
        await client.create_advanced(ledger_id=4711)
    await taken.close()
    async with Client(cluster.uri, ClientOptions(protocol_version=2)) as old:
        with pytest.raises(BadVersion, match="deferred"):
            await old.create(deferred_sync=True)


async def test_the_last_ledger_id_is_taken(tmp_path):
    """The service is stopped while the sequence of ids is moved to its end."""
    metadata, newest = MetadataProcess(tmp_path / "metadata"), f"/ledgers/{LONG_ID_GENERATION}/HOB-{2**31 - 1}"
    try:
        metadata.start()
        async with Client(metadata.uri()) as client:
            service = client.metadata_service
            await service.cluster.initialize()
            for path in (newest.rpartition("/")[0], newest):
                await service.tree.ensure(path, timeout=5)
        metadata.stop()
        move_sequence(tmp_path / "metadata" / "store", newest, SHORT_ID_LIMIT - 1)
        metadata.start()
        async with Client(metadata.uri()) as client:
            generate = client.metadata_service.ledgers.generate_id
            last = (2**31 - 1) << 32 | SHORT_ID_LIMIT - 1
            assert await generate() == last
            with pytest.raises(LedgerIdsExhausted, match=f"/{LONG_ID_GENERATION}"):
                await generate()
    finally:
        metadata.stop()


def move_sequence(store, parent, number):
    """The next sequential node below `parent` gets this number."""
    nodes = NodeStore(str(store))
    staged = nodes.stage()
    staged.keep(parent, replace(nodes._require(parent), sequence=number))
    nodes.commit(staged)
    nodes.sync()
    nodes.close()


async def test_a_ledger_that_does_not_exist(client):
    for call in (client.metadata, client.recover, lambda ledger_id: client.open(ledger_id)):
        with pytest.raises(NoSuchLedger, match="ledger 99999"):
            await call(99999)
    await client.delete(99999)


async def test_a_password_that_is_wrong_fences_nobody(client):
    ledger = await written(client)
    for recover in (False, True):
        with pytest.raises(Unauthorized, match=f"ledger {ledger.ledger_id} .*password"):
            await client.open(ledger.ledger_id, password=b"guess", recover=recover)
    with pytest.raises(Unauthorized, match=f"ledger {ledger.ledger_id} "):
        await client.recover(ledger.ledger_id, password=b"guess")
    assert (await client.metadata(ledger.ledger_id)).state is LedgerState.OPEN
    assert await ledger.append(b"still mine") == 5
    await ledger.close()


async def test_metadata_that_cannot_be_read(client, service):
    ledger_id = await closed(client)
    layout = await service.cluster.layout()
    await service.tree.overwrite(
        service.root + ledger_path(layout or LedgerLayout.HIERARCHICAL, ledger_id), b"garbage", timeout=5
    )
    for call in (client.metadata, lambda one: client.open(one, password=PASSWORD), client.recover):
        with pytest.raises(MetadataDamaged, match=str(ledger_id)):
            await call(ledger_id)
    await client.delete(ledger_id)


async def test_a_bookie_that_nobody_knows_hangs_or_dies_under_the_request(cluster, client, impatient):
    with pytest.raises(BookieUnavailable, match="bookie-99"):
        await client.bookie_info("bookie-99")
    assert (await client.bookie_info("bookie-1")).total_bytes > 0
    with cluster.paused(["bookie-1"]), pytest.raises(BookieTimeout, match="bookie-1"):
        await impatient.bookie_info("bookie-1")
    with cluster.paused(["bookie-1"]):
        asking = asyncio.ensure_future(client.bookie_info("bookie-1"))
        await asyncio.sleep(0.05)
        cluster.kill("bookie-1")
        with pytest.raises(ConnectionLost, match="bookie-1"):
            await asking
    with pytest.raises(BookieUnavailable, match="bookie-1"):
        await impatient.bookie_info("bookie-1")
    await asyncio.to_thread(cluster.start, ["bookie-1"])


def test_the_blocking_client_raises_the_same(cluster):
    with BlockingClient(cluster.uri) as client, BlockingClient(cluster.uri) as other:
        with pytest.raises(NoSuchLedger, match="ledger 99999"):
            client.open(99999)
        with pytest.raises(NotEnoughBookies, match="needs 4 writable"):
            client.create(ensemble=4)
        ledger = client.create(write_quorum=3, password=PASSWORD)
        ledger.append(b"one")
        with pytest.raises(Unauthorized, match=f"ledger {ledger.ledger_id}"):
            other.open(ledger.ledger_id, password=b"guess")
        other.recover(ledger.ledger_id, password=PASSWORD)
        with pytest.raises(LedgerFenced, match=f"ledger {ledger.ledger_id}, entry 1"):
            ledger.append(b"too late")
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}"):
            ledger.append(b"too late")
        with (
            other.open(ledger.ledger_id, password=PASSWORD) as reader,
            pytest.raises(BadRequest, match=f"ledger {ledger.ledger_id}"),
        ):
            reader.read(0, 5)
        ledger.close()
    with pytest.raises(RuntimeError, match="open"):
        client.metadata(ledger.ledger_id)
