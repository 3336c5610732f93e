"""What a writer's cluster sees: whom it asks, when, and for how much."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.digest import DigestType
from bookie_protocol.entry import read_header
from tests.support.until import until
from tests.unit.bookie_client.recovery.crashed import LEDGER, CrashedLedger

ABC = ("b1", "b2", "b3")


async def test_a_ledger_has_three_bookies_and_two_copies_unless_told_otherwise(three):
    async with three.client() as client:
        ledger = await client.create()
        stored = three.stored(ledger.ledger_id)
        assert (stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size) == (3, 2, 2)
        assert (stored.digest_type, stored.password, stored.format_version) == (DigestType.CRC32C, b"", 3)


async def test_custom_metadata_as_a_broker_writes_them(three):
    metadata = {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": b"public/default/persistent/orders",
    }
    async with three.client() as client:
        async with client.create(metadata=metadata) as ledger:
            pass
        assert (await client.metadata(ledger.ledger_id)).custom_metadata == metadata


@pytest.mark.parametrize("slow", ABC)
async def test_all_copies_are_sent_at_once_and_the_ack_quorum_decides(three, version, slow):
    async with three.client(protocol_version=version, add_timeout=60) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        for server in three.servers.values():
            server.hold = True
        append = asyncio.create_task(ledger.append(b"x"))
        await until(lambda: [server.held for server in three.servers.values()] == [1, 1, 1], 10)
        first, second = (name for name in ABC if name != slow)
        three.servers[first].release()
        await until(lambda: three.held_at(first, ledger.ledger_id) == {0}, 10)
        assert not append.done()
        three.servers[second].release()
        assert await append == 0
        assert three.held_at(slow, ledger.ledger_id) == set()
        three.servers[slow].release()
        await ledger.close()


async def test_entries_carry_the_last_add_confirmed_and_the_metadata_service_hears_of_the_last_alone(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        for i in range(50):
            assert ledger.last_add_confirmed == i - 1
            assert await ledger.append(b"x") == i
        assert three.metadata.ledgers.writes == 0
        for name in ABC:
            stored = three.bookie(name).ledgers[ledger.ledger_id]
            assert [read_header(stored.entries[i]).lac for i in range(50)] == list(range(-1, 49))
            assert stored.lac == 48
        await ledger.close()
        assert three.metadata.ledgers.writes == 1
        assert three.stored(ledger.ledger_id).last_entry_id == 49


async def test_the_first_entries_under_way_together_confirm_nothing_to_bookies(three):
    async with three.client() as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await asyncio.gather(*[await ledger.submit(b"x") for _ in range(10)])
        assert ledger.last_add_confirmed == 9
        assert all(three.bookie(name).ledgers[ledger.ledger_id].lac == -1 for name in ABC)
        await ledger.close()


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 3)])
async def test_a_recovery_does_not_wait_for_a_bookie_that_it_can_do_without(three, quorums):
    ledger = CrashedLedger(three, quorums, {0: ABC})
    ledger.put_all(*range(20))
    await three.add_bookie("spare")  # the last entry has to be stored on an ack quorum again
    three.servers["b2"].hold = True
    async with three.client(read_timeout=60, add_timeout=0.4) as client, asyncio.timeout(20):
        assert (await client.recover(LEDGER, password=b"pw")).last_entry_id == 19
    three.servers["b2"].release()
