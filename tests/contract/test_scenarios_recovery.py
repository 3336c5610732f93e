"""Recovery of ledgers whose writers are gone, hang or come back: real bookies, real writers, stopped and killed."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import LedgerFenced, RecoveryFailed
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.versioned import LedgerLife
from tests.support import ledger_program
from tests.support.cluster_fixtures import bookies as cluster
from tests.support.cluster_fixtures import metadata_service
from tests.support.ledger_program import LedgerProgram

__all__ = ["cluster", "metadata_service"]

BOOKIES = 5
PASSWORD = b"pw"
ENTRIES = [b"one", b"two", b"three"]
NEEDED = {(5, 5, 3): 3, (3, 3, 2): 2, (3, 3, 3): 1, (3, 2, 2): 2}
"""How many bookies of the ensemble a recovery must reach, by ensemble size, write quorum and ack quorum."""
IMPATIENT = ClientOptions(read_timeout=0.3, add_timeout=0.3)
"""For recoveries that must fail: how long they wait does not change what they find."""


def patient(**options):
    """For what must succeed: another replica is asked soon, and only a bookie that hangs is given up."""
    return ClientOptions(
        **{"add_timeout": 0.7, "read_timeout": 20.0, "first_speculative_read_timeout": 0.05, **options}
    )


async def abandoned(client, quorums, bookies=None):
    """A writer that stops after three entries; with `bookies`: whose ensemble is these."""
    ensemble, write_quorum, ack_quorum = quorums
    while True:
        writer = await client.create(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
        )
        if bookies is None or set(writer.metadata.last_ensemble) == set(bookies):
            break
        await client.delete(writer.ledger_id)
    for entry in ENTRIES:
        await writer.append(entry)
    return writer


async def assert_recovered(client, ledger_id, payloads):
    metadata = await client.recover(ledger_id, password=PASSWORD)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, len(payloads) - 1)
    assert metadata.length == sum(map(len, payloads))
    async with client.open(ledger_id, password=PASSWORD) as reader:
        assert [e.payload async for e in reader.entries()] == payloads


async def assert_not_recovered(client, ledger_id):
    with pytest.raises(RecoveryFailed, match=f"ledger {ledger_id} .* stays IN_RECOVERY"):
        await client.recover(ledger_id, password=PASSWORD)
    assert (await client.metadata(ledger_id)).state is LedgerState.IN_RECOVERY


# --- the writer that comes back ------------------------------------------------------------------------------------


async def test_a_writer_that_was_stopped_while_another_recovered_its_ledger_gets_nothing_in(cluster, tmp_path):
    with LedgerProgram(cluster.uri, tmp_path / "notes", (3, 3, 2), 10_000_000) as zombie:
        await asyncio.to_thread(zombie.wait_for, "acknowledged", 500)
        zombie.pause()  # its window is full of adds in flight
        ledger_id, acknowledged = zombie.ledger_id, zombie.acknowledged()
        async with Client(cluster.uri, patient()) as client:
            metadata = await client.recover(ledger_id, password=ledger_program.PASSWORD)
            last = metadata.last_entry_id
            assert metadata.is_closed
            assert last >= acknowledged[-1] >= 499
            zombie.resume()
            await asyncio.to_thread(zombie.wait_for, "done")
            # What was in flight, and answered before the fence, it still hears of: that is part of the ledger.
            assert max(zombie.acknowledged()) <= last
            assert zombie.acknowledged() == list(range(len(zombie.acknowledged())))
            failed = zombie.noted("failed")
            assert failed
            assert {kind for _, kind in failed} == {"LedgerFenced"}
            assert [kind for _, kind in zombie.noted("refused")] == ["LedgerClosed"]
            assert await client.metadata(ledger_id) == metadata
            async with client.open(ledger_id, password=ledger_program.PASSWORD) as reader:
                found = [e.payload async for e in reader.entries()]
            assert found == [ledger_program.payload(i) for i in range(last + 1)]


async def test_the_last_entry_of_a_killed_writer_is_known_to_the_recovery_alone(cluster, tmp_path):
    """Each entry carries the one before it as its LAC."""
    count = 20
    with LedgerProgram(cluster.uri, tmp_path / "notes", (3, 3, 3), count, window=1) as writer:
        await asyncio.to_thread(writer.wait_for, "done")
        assert writer.acknowledged() == list(range(count))
        writer.kill()
        async with Client(cluster.uri, patient()) as client:
            async with client.open(writer.ledger_id, password=ledger_program.PASSWORD) as reader:
                assert await reader.read_last_add_confirmed() == count - 2
                assert not reader.is_closed
            metadata = await client.recover(writer.ledger_id, password=ledger_program.PASSWORD)
            assert metadata.last_entry_id == count - 1
            assert metadata.length == sum(len(ledger_program.payload(i)) for i in range(count))


# --- fencing -------------------------------------------------------------------------------------------------------


async def test_a_recovery_works_exactly_where_every_write_set_answers(cluster):
    """Every subset of the ensemble hangs, for each of the quorums; adds find spare bookies where there are any."""
    five = sorted(cluster.bookies)
    three = five[:3]
    cases = {}
    async with Client(cluster.uri, patient()) as writing:
        for size in range(6):
            for dead in combinations(five, size):
                here = cases[dead] = [((5, 5, 3), await abandoned(writing, (5, 5, 3)))]
                if set(dead) <= set(three):
                    here += [(q, await abandoned(writing, q, three)) for q in NEEDED if q[0] == 3]
        assert sum(map(len, cases.values())) == 32 + 3 * 8
        async with Client(cluster.uri, patient()) as able, Client(cluster.uri, IMPATIENT) as unable:
            for dead, ledgers in cases.items():
                with cluster.paused(dead):
                    await asyncio.gather(*(fence(able, unable, q, len(dead), w) for q, w in ledgers))
            failed = 0
            for dead, ledgers in cases.items():
                for quorums, writer in ledgers:
                    failed += quorums[0] - len(dead) < NEEDED[quorums]
                    await assert_recovered(able, writer.ledger_id, ENTRIES)  # the others are closed already
                    with pytest.raises(LedgerFenced):
                        await writer.append(b"too late")
            assert failed == 16 + 4 + 1 + 4


async def fence(able, unable, quorums, dead, writer):
    if quorums[0] - dead >= NEEDED[quorums]:
        await assert_recovered(able, writer.ledger_id, ENTRIES)
    else:
        await assert_not_recovered(unable, writer.ledger_id)


# --- the decision on one entry -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("copies", "silent"), [(1, 1), (2, 0), (2, 1), (3, 0)])
async def test_an_entry_that_any_bookie_has_is_recovered(cluster, copies, silent):
    """Two bookies that have it not would end the ledger in front of it, if they answered first."""
    async with Client(cluster.uri, patient()) as client:
        writer = await abandoned(client, (3, 3, 2))
        ensemble = writer.metadata.last_ensemble
        await store_unacknowledged(client, writer, ensemble[:copies])
        with cluster.paused(ensemble[3 - silent :]):
            await assert_recovered(client, writer.ledger_id, [*ENTRIES, b"four"])
        # It has its ack quorum now, whoever held it before.
        metadata = await client.metadata(writer.ledger_id)
        holders = [b for b in metadata.bookies_for(3) if await holds(client, b, writer.ledger_id, 3)]
        assert len(holders) >= 2


async def test_two_bookies_that_have_it_not_end_the_ledger_in_front_of_it(cluster):
    async with Client(cluster.uri, patient()) as client:
        writer = await abandoned(client, (3, 3, 2))
        with cluster.paused(writer.metadata.last_ensemble[1:2]):
            await assert_recovered(client, writer.ledger_id, ENTRIES)


@pytest.mark.parametrize("copies", [0, 1])
async def test_one_bookie_that_has_it_not_decides_nothing(cluster, copies):
    """Two are silent. Whether they have the next entry turns up when they are back."""
    async with Client(cluster.uri, patient()) as client, Client(cluster.uri, IMPATIENT) as impatient:
        writer = await abandoned(client, (3, 3, 2))
        ensemble = writer.metadata.last_ensemble
        await store_unacknowledged(client, writer, ensemble[:copies])
        with cluster.paused(ensemble[:2]):
            await assert_not_recovered(impatient, writer.ledger_id)
        await assert_recovered(client, writer.ledger_id, [*ENTRIES, b"four"] if copies else ENTRIES)


async def store_unacknowledged(client, writer, bookies):
    """Entry 3 as its writer would send it, at these bookies alone."""
    length = sum(map(len, ENTRIES)) + len(b"four")
    entry = digest_manager(DigestType.CRC32C, PASSWORD).encode(writer.ledger_id, 3, 2, length, b"four")
    for bookie in bookies:
        await client.context.operations.add_entry(
            bookie, LedgerLife(writer.ledger_id, 0), 3, entry, master_key(PASSWORD)
        )


async def holds(client, bookie, ledger_id, entry_id):
    return entry_id in list(await client.context.operations.entries_of_ledger(bookie, ledger_id))
