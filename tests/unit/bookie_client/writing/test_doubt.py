"""Bookies that went and came back: nothing counts before the metadata were looked at."""

import asyncio
from dataclasses import replace

import pytest

from bookie_client.writing import doubt
from bookie_protocol.errors import LedgerClosed, LedgerFenced, MetadataUnavailable
from tests.support.until import until


async def restart(cluster, client, ledger_id=0):
    """Every bookie, and the client has found each again."""
    for name, server in cluster.servers.items():
        channel = client.context.pool.channel(name, ledger_id)
        await server.stop()
        await until(lambda channel=channel: not channel.is_connected)
        await server.start()
        await channel.connect()


async def replace_all(cluster, client):
    """Each comes back under its id with empty disks, as one of the reference does."""
    for name in cluster.servers:
        cluster.bookie(name).ledgers.clear()
    await restart(cluster, client)


@pytest.fixture
def looks(three, monkeypatch):
    """The ledgers whose metadata were read past every cache. An error put into `fail` is raised instead."""

    class Looks(list):
        fail = None

    looks, read = Looks(), three.metadata.ledgers.read

    async def noting(ledger_id, *, fresh=False, timeout=None):
        if fresh:
            looks.append(ledger_id)
            if looks.fail is not None:
                raise looks.fail
        return await read(ledger_id, fresh=fresh, timeout=timeout)

    monkeypatch.setattr(three.metadata.ledgers, "read", noting)
    return looks


async def test_an_idle_writer_whose_bookies_were_replaced_is_not_acknowledged(three):
    async with three.client() as client, three.client() as other:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        await ledger.append(b"kept")
        await (await other.open(ledger.ledger_id, recover=True)).close()
        await replace_all(three, client)
        with pytest.raises(LedgerClosed, match=r"closed .* entry 0"):
            await ledger.append(b"lost")
        assert ledger.last_add_confirmed == 0
        await ledger.close()


async def test_nor_one_that_had_not_spoken_to_them_yet(three):
    async with three.client() as client, three.client() as other:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        await (await other.open(ledger.ledger_id, recover=True)).close()
        for name in three.servers:
            three.bookie(name).ledgers.clear()
        with pytest.raises(LedgerClosed, match=r"closed .* entry -1"):
            await ledger.append(b"lost")


async def test_nor_one_that_is_just_being_recovered(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        await ledger.append(b"kept")
        stored = await three.metadata.ledgers.read(ledger.ledger_id)
        await three.metadata.ledgers.write(stored.value.in_recovery(), stored.identity)
        await replace_all(three, client)
        with pytest.raises(LedgerFenced):
            await ledger.append(b"lost")


async def test_nor_one_whose_id_is_another_ledgers(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        await ledger.append(b"kept")
        await client.delete(ledger.ledger_id)
        await three.metadata.ledgers.create(replace(ledger.metadata, creation_token=1))
        await replace_all(three, client)
        with pytest.raises(LedgerClosed, match="deleted"):
            await ledger.append(b"lost")


async def test_metadata_that_a_client_of_the_reference_has_updated_are_still_the_writers(three):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        await ledger.append(b"x")
        stored = await three.metadata.ledgers.read(ledger.ledger_id)
        assert stored.value.creation_token
        await three.metadata.ledgers.write(replace(stored.value, creation_token=0), stored.identity)
        await restart(three, client)
        assert await ledger.append(b"y") == 1


async def test_a_bookie_that_came_back_costs_one_look_and_idle_writers_none(three, looks):
    async with three.client() as client:
        first = await client.create(write_quorum=3, ack_quorum=3)  # so that no connection is made after it
        await first.append(b"x")
        assert looks == [first.ledger_id], "the connections were made behind its creation"
        looks.clear()
        busy, idle = await client.create(write_quorum=3), await client.create(write_quorum=3)
        await asyncio.gather(busy.append(b"x"), idle.append(b"x"))
        assert looks == []
        await restart(three, client)
        for _ in range(3):
            await busy.append(b"y")
        assert looks == [busy.ledger_id]
        assert busy.last_add_confirmed == 3
        await asyncio.gather(first.close(), busy.close(), idle.close())


async def test_an_ensemble_change_is_a_look(three, looks):
    await three.add_bookie("b4")
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=3) as ledger:
        await ledger.append(b"x")
        await client.context.pool.channel("b4").connect()
        looks.clear()
        (spare,) = set(three.servers) - set(ledger.metadata.last_ensemble)
        await three.servers[ledger.metadata.last_ensemble[0]].stop()
        await ledger.append(b"y")
        await ledger.append(b"z")
        assert spare in ledger.metadata.last_ensemble
        assert looks == []


async def test_while_nobody_can_tell_acknowledgements_wait(three, looks):
    async with three.client(degraded_retry_interval=0.01) as client, client.create(write_quorum=3) as ledger:
        await ledger.append(b"x")
        await restart(three, client)
        looks.fail = MetadataUnavailable("down")
        waiting = await ledger.submit(b"y")
        await until(lambda: len(looks) > 3)
        assert not waiting.done()
        looks.fail = None
        assert await waiting == 1


async def test_not_for_ever(three, looks, monkeypatch):
    monkeypatch.setattr(doubt, "PATIENCE_SECONDS", 0.05)
    async with three.client(degraded_retry_interval=0.01) as client:
        ledger = await client.create(write_quorum=3)
        await ledger.append(b"x")
        await restart(three, client)
        looks.fail = MetadataUnavailable("down")
        with pytest.raises(MetadataUnavailable, match="down"):
            await ledger.append(b"y")
        assert ledger.last_add_confirmed == 0
        looks.fail = None
        await ledger.close()
        assert three.stored(ledger.ledger_id).last_entry_id == 0
