"""How far ledgers can be read: open ones, and those that go while they are looked at."""

from __future__ import annotations

import pytest

from bookie_protocol.errors import NoSuchLedger, StorageFault
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.selection import choose
from pyspark_bookie.source.snapshots import readable_ranges, snapshot_of
from tests.support.archiving import archive
from tests.unit.pyspark_bookie.source.reads import looked, options

THREE = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3}


@pytest.mark.parametrize("confirmed", [0, 1, 2])
async def test_an_open_ledger_is_read_to_its_last_add_confirmed_left_out_or_recovered(client, confirmed):
    async with client.create(**THREE) as ledger:
        for payload in [b"a", b"bc", b"def"][: confirmed + 1]:
            await ledger.append(payload)
        found = await looked(client, options(ledgers=ledger.ledger_id))
        assert [(each.first, each.last) for each in found.ranges] == ([(0, confirmed - 1)] if confirmed else [])
        stored = await client.stored_metadata(ledger.ledger_id)
        snapshot = await snapshot_of(client, stored, options(ledgers=1))
        assert (snapshot.entries, snapshot.length, snapshot.is_closed) == (confirmed, (0, 1, 3)[confirmed], False)
        skipped = await looked(client, options(ledgers=ledger.ledger_id, openLedgers="skip"))
        assert (skipped.ranges, skipped.lost) == ([], [])
        recovered = await looked(client, options(ledgers=ledger.ledger_id, openLedgers="recover"))
        assert [(each.first, each.last, each.ledger.is_closed) for each in recovered.ranges] == [(0, confirmed, True)]
        assert recovered.ranges[0].ledger.length == (1, 3, 6)[confirmed]


@pytest.mark.parametrize("archived", [False, True])
async def test_a_ledger_that_goes_between_the_looks_is_lost_unless_the_archive_has_it(client, tmp_path, archived):
    """One that was open when it was chosen, and is to be recovered."""
    async with client.create(**THREE) as ledger:
        await ledger.append(b"a")
        wanted = options(ledgers=ledger.ledger_id, openLedgers="recover", failOnDataLoss="false")
        chosen = await choose(client, wanted)
    if archived:
        await archive(client, ledger.ledger_id, f"file://{tmp_path}/archive")
    await client.delete(ledger.ledger_id)
    found = await readable_ranges(client, chosen, wanted)
    lost = [] if archived else [("NO_SUCH_LEDGER", f"ledger {ledger.ledger_id}")]
    assert [(each.code, each.text[: len(f"ledger {ledger.ledger_id}")]) for each in found.lost] == lost
    assert [(each.last, each.ledger.archive is not None) for each in found.ranges] == ([(0, True)] if archived else [])


async def test_a_ledger_that_is_closed_while_it_is_looked_at_is_read_to_its_end(client, three):
    async with client.create(**THREE) as ledger:
        await ledger.append_many([b"a", b"bc"])
        before = await client.stored_metadata(ledger.ledger_id)
    for name in three.servers:
        three.bookie(name).fail_reads = StorageFault
    found = await snapshot_of(client, before, options(ledgers=1), "orders")
    assert (found.entries, found.length, found.is_closed, found.stream) == (2, 3, True, "orders")


async def test_what_cannot_be_told_of_a_ledger_names_it(client, three):
    async with client.create(**THREE) as ledger:
        await ledger.append(b"a")
        for name in three.servers:
            three.bookie(name).fail_reads = StorageFault
        with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_STORAGE_FAULT\] ledger {ledger.ledger_id}: "):
            await looked(client, options(ledgers=ledger.ledger_id, failOnDataLoss="false"))


async def test_recovery_of_a_ledger_that_went_is_told_as_that(client):
    async with client.create(**THREE) as ledger:
        await ledger.append(b"a")
        stored = await client.stored_metadata(ledger.ledger_id)
    await client.delete(ledger.ledger_id)
    with pytest.raises(NoSuchLedger):
        await snapshot_of(client, stored, options(ledgers=1, openLedgers="recover"))
