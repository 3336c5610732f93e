"""Errors of reading, following, copying and recovering a ledger."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.reading.maintenance import replicas
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import FragmentReplicator
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    BookieUnavailable,
    DigestMismatch,
    EntriesUnreadable,
    LedgerClosed,
    LedgerNotClosed,
    NoSuchEntry,
    NoSuchLedger,
    RecoveryFailed,
)
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from tests.process.client_errors.ledgers import PASSWORD, closed, written

BOOKIES = 3
"""An ensemble, and no spare."""


async def test_ranges_that_are_none(client):
    async with client.open(await closed(client), password=PASSWORD) as reader:
        for first, last in ((0, 5), (-1, 2), (3, 1)):
            with pytest.raises(BadRequest, match=f"ledger {reader.ledger_id}"):
                await reader.read(first, last)
        with pytest.raises(BadRequest, match="-1"):
            reader.tail(-1)


async def test_entries_that_nobody_has_can_tell_or_has_undamaged(cluster, client, impatient):
    ledger = await written(client)
    async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
        with pytest.raises(NoSuchEntry, match=f"entry 5 of ledger {ledger.ledger_id}"):
            await reader.read_unconfirmed(5, 5)
        damaged = bytearray(digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger.ledger_id, 5, 4, 9, b"five"))
        damaged[-1] ^= 1
        operations = client.context.operations
        for bookie in ledger.metadata.last_ensemble:
            await operations.add_entry(bookie, LedgerLife(ledger.ledger_id, 0), 5, bytes(damaged), master_key(PASSWORD))
        with pytest.raises(DigestMismatch, match=f"entry 5 of ledger {ledger.ledger_id}"):
            await reader.read_unconfirmed(5, 5)
        assert set(reader.damaged_at) == set(ledger.metadata.last_ensemble)
    await ledger.close()
    async with impatient.open(ledger.ledger_id, password=PASSWORD) as reader:
        one = ledger.metadata.last_ensemble[0]
        with cluster.paused(cluster.bookies):
            with pytest.raises(BookieTimeout, match=f"entry 0 of ledger {ledger.ledger_id}: .*{one}"):
                await reader.read(0, 4)
            with pytest.raises(BookieTimeout, match=one):
                await replicas(reader).read(one, 0)
        with pytest.raises(NoSuchEntry, match=f"{one} .*entry 7 of ledger {ledger.ledger_id}"):
            await replicas(reader).read(one, 7)


async def test_a_ledger_whose_entries_are_nowhere(client):
    """Its metadata promise entries that no bookie has ever seen."""
    ledger = await client.create(write_quorum=3, password=PASSWORD)
    stored = await client.context.ledgers.read(ledger.ledger_id)
    await client.context.ledgers.write(stored.value.closed(9, 90), stored.identity)
    async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
        with pytest.raises(NoSuchLedger, match=f"entry 0 of ledger {ledger.ledger_id}"):
            await reader.read(0, 9)
    await client.delete(ledger.ledger_id)


async def test_the_end_of_an_open_ledger_that_too_few_bookies_can_tell(cluster, client, impatient):
    ledger = await written(client)
    async with impatient.open(ledger.ledger_id, password=PASSWORD) as reader:
        # Two of three cover every ack quorum of two; one does not.
        with cluster.paused(ledger.metadata.last_ensemble[:1]):
            assert await reader.read_last_add_confirmed() == 3
        with cluster.paused(ledger.metadata.last_ensemble[:2]):
            too_few = f"ledger {ledger.ledger_id}: .*few"
            with pytest.raises(BookieUnavailable, match=too_few):
                await reader.read_last_add_confirmed()
            with pytest.raises(BookieUnavailable, match=too_few):
                await impatient.open(ledger.ledger_id, password=PASSWORD)
            assert await reader.try_read_last_add_confirmed() == 3
        with cluster.paused(cluster.bookies), pytest.raises(BookieUnavailable, match=f"ledger {ledger.ledger_id}"):
            await reader.try_read_last_add_confirmed()
    await ledger.close()


async def test_tails_whose_ledger_or_handle_goes(client):
    ledger = await written(client)
    async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
        tail = asyncio.ensure_future(anext(reader.tail(5)))
        await client.delete(ledger.ledger_id)
        with pytest.raises(NoSuchLedger, match=f"ledger {ledger.ledger_id} .*deleted"):
            await tail
    other = await written(client)
    reader = await client.open(other.ledger_id, password=PASSWORD)
    tail = asyncio.ensure_future(anext(reader.tail(5)))
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(LedgerClosed, match=f"ledger {other.ledger_id}: .*reader"):
        await tail
    await other.close()


async def moved(client, ledger_id):
    """The last segment's first bookie gives way to the one that is left."""
    fragment = fragments(ledger_id, await client.metadata(ledger_id), -1)[-1]
    return await FragmentReplicator(client).replicate(fragment, {0: fragment.ensemble[0]})


async def test_a_copy_of_what_may_still_grow(client):
    ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
    await ledger.append(b"zero")
    with pytest.raises(LedgerNotClosed, match=f"ledger {ledger.ledger_id} is OPEN"):
        await moved(client, ledger.ledger_id)
    assert await ledger.append(b"the writer does not notice") == 1
    await ledger.close()
    assert (await moved(client, ledger.ledger_id)).entries == 2


async def test_a_copy_of_what_nobody_has(client):
    """The ledger's metadata promise more entries than its bookies were given."""
    ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
    await ledger.append_many([b"%d" % i for i in range(5)])
    stored = await client.context.ledgers.read(ledger.ledger_id)
    promised = (await client.context.ledgers.write(stored.value.closed(7, 8), stored.identity)).value
    with pytest.raises(EntriesUnreadable, match=f"ledger {ledger.ledger_id}: entry 5 ") as failure:
        await moved(client, ledger.ledger_id)
    assert failure.value.entries == (5, 6, 7)
    assert (await client.metadata(ledger.ledger_id)).ensembles == promised.ensembles
    await client.delete(ledger.ledger_id)


async def test_a_recovery_that_reaches_too_few_bookies(cluster, client, impatient):
    ledger = await written(client)
    with cluster.paused(ledger.metadata.last_ensemble[:2]):
        for attempt in (
            impatient.recover(ledger.ledger_id, password=PASSWORD),
            impatient.open(ledger.ledger_id, password=PASSWORD, recover=True),
        ):
            with pytest.raises(RecoveryFailed, match=f"ledger {ledger.ledger_id}.*stays IN_RECOVERY"):
                await attempt
    assert (await client.recover(ledger.ledger_id, password=PASSWORD)).last_entry_id == 4
