"""Deferred sync: what is acknowledged counts once it was forced."""

import asyncio

import pytest

from bookie_protocol.errors import BadRequest, BadVersion, LedgerClosed, QuorumLost, StorageFault
from tests.support.until import until


def unsynced(cluster, ledger_id=0):
    return {n: set(cluster.bookie(n).ledgers[ledger_id].unsynced) for n in cluster.servers}


async def test_the_lac_moves_with_a_force_and_not_before(three):
    async with three.client() as client, client.create(write_quorum=3, deferred_sync=True) as ledger:
        assert await ledger.append_many([b"x"] * 5) == list(range(5))
        assert (ledger.last_add_confirmed, ledger.length) == (-1, 0)
        with pytest.raises(BadRequest, match="confirmed"):
            await ledger.read(0, 0)
        await ledger.force()
        assert (ledger.last_add_confirmed, ledger.length) == (4, 5)
        assert [three.bookie(n).forces for n in three.servers] == [1, 1, 1]
        assert len(await ledger.read(0, 4)) == 5
        await ledger.force()  # nothing new: nothing is sent
        assert [three.bookie(n).forces for n in three.servers] == [1, 1, 1]
        await ledger.append(b"six")
        assert max(three.bookie(n).ledgers[0].lac for n in three.servers) == 4


async def test_what_was_forced_survives_a_crash_of_every_bookie(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3, deferred_sync=True)
        await ledger.append_many([b"kept"] * 3)
        await ledger.force()
        await ledger.append_many([b"lost"] * 2)
        assert all(entries == {3, 4} for entries in unsynced(three).values())
        for name in three.servers:
            three.bookie(name).crash()
        await ledger.close()
        assert (three.stored(0).last_entry_id, three.stored(0).length) == (2, 12)
        async with client.open(0) as reader:
            assert [e.payload async for e in reader.entries()] == [b"kept"] * 3


async def test_only_what_was_acknowledged_before_the_force_is_covered(three):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=3, deferred_sync=True) as ledger:
        await ledger.append(b"before")
        for server in three.servers.values():
            server.hold = True
        force = asyncio.create_task(ledger.force())
        await until(lambda: all(server.held == 1 for server in three.servers.values()))
        later = await ledger.submit(b"after")
        await until(lambda: all(server.held == 2 for server in three.servers.values()))
        for server in three.servers.values():
            server.release()
        await force
        await later
        assert ledger.last_add_confirmed == 0
        await ledger.force()
        assert ledger.last_add_confirmed == 1


async def test_one_bookie_that_cannot_force_fails_the_force_and_not_the_handle(three):
    async with three.client() as client, client.create(write_quorum=3, deferred_sync=True) as ledger:
        await ledger.append(b"x")
        three.bookie("b2").fail_forces = StorageFault
        with pytest.raises(StorageFault, match=r"ledger 0: .*forced, .* b2"):
            await ledger.force()
        assert ledger.last_add_confirmed == -1
        three.bookie("b2").fail_forces = None
        await ledger.force()
        assert ledger.last_add_confirmed == 0


async def test_a_force_before_any_entry_and_one_on_an_ordinary_ledger_ask_nobody(three):
    async with three.client() as client:
        async with client.create(deferred_sync=True) as ledger:
            await ledger.force()
        async with client.create() as ordinary:
            await ordinary.append(b"x")
            await ordinary.force()
            assert ordinary.last_add_confirmed == 0
        assert sum(three.bookie(n).forces for n in three.servers) == 0
        with pytest.raises(LedgerClosed):
            await ledger.force()


async def test_a_failed_bookie_ends_the_handle_although_there_is_a_spare(three):
    await three.add_bookie("b4")
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3, deferred_sync=True)
        await ledger.append(b"one")
        await ledger.force()
        three.bookie(ledger.metadata.last_ensemble[0]).fail_adds = StorageFault
        with pytest.raises(QuorumLost, match="deferred"):
            await ledger.append(b"two")
        with pytest.raises(LedgerClosed):
            await ledger.force()
        await ledger.close()
        assert three.stored(0).last_entry_id == 0
        assert len(three.stored(0).ensembles) == 1


async def test_closing_waits_for_a_force_under_way(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3, deferred_sync=True)
        await ledger.append(b"x")
        for server in three.servers.values():
            server.hold = True
        force = asyncio.create_task(ledger.force())
        await until(lambda: all(server.held == 1 for server in three.servers.values()))
        close = asyncio.create_task(ledger.close())
        await asyncio.sleep(0)
        for server in three.servers.values():
            server.release()
        await asyncio.gather(force, close)
        assert three.stored(0).last_entry_id == 0


async def test_protocol_version_2_has_no_deferred_sync(three):
    async with three.client(protocol_version=2) as client:
        with pytest.raises(BadVersion, match=r"version 2 .*deferred"):
            await client.create(deferred_sync=True)
        assert three.metadata.ledgers.stored == {}


def restart(cluster, bookie_id):
    """The process ends and comes back at once, without what was not synced."""
    server = cluster.servers[bookie_id]
    server.bookie.crash()
    for connection in list(server.connections):
        connection.abort()


async def test_a_bookie_restarted_before_the_force_ends_the_handle_because_it_forgot_what_it_had_acknowledged(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3, deferred_sync=True)
        await ledger.append(b"kept")
        await ledger.force()
        await ledger.append(b"lost")
        restart(three, "b2")
        await until(lambda: ledger.failure is not None)
        with pytest.raises(QuorumLost, match=r"bookie b2 lost: .* 0 .*forced"):
            await ledger.flush()
        with pytest.raises(LedgerClosed):
            await ledger.force()
        await ledger.close()
        assert three.stored(0).last_entry_id == 0


async def test_a_bookie_restarted_before_an_entry_was_acknowledged_ends_the_handle_too(three):
    """Its acknowledgement counts towards the ack quorum, and it may have forgotten the entry."""
    async with three.client(add_timeout=60) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3, deferred_sync=True)
        await ledger.append(b"kept")
        await ledger.force()
        three.servers["b3"].hold = True
        lost = await ledger.submit(b"lost")
        await until(lambda: all(1 in three.held_at(bookie, ledger.ledger_id) for bookie in ("b1", "b2")))
        await until(lambda: three.servers["b3"].held == 1)
        for bookie in ("b1", "b2"):
            await until(lambda bookie=bookie: not client.context.health.outstanding(bookie))
        restart(three, "b2")
        with pytest.raises(QuorumLost, match=r"bookie b2 lost: .* 0 .*forced"):
            await lost
        three.servers["b3"].release()
        await ledger.close()
        assert three.stored(0).last_entry_id == 0


async def test_a_bookie_restarted_when_everything_is_forced_does_no_harm(three):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=3, deferred_sync=True) as ledger:
        await ledger.append(b"kept")
        await ledger.force()
        restart(three, "b2")
        await until(lambda: not client.context.pool.channel("b2", ledger.ledger_id).is_connected)
        await asyncio.sleep(0.02)  # the back-off after a lost connection
        await ledger.append(b"next")
        await ledger.force()
        assert ledger.last_add_confirmed == 1
