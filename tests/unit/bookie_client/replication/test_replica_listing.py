"""What bookies really hold, beside what the metadata say."""

import asyncio

import pytest

from bookie_client.bookies import Registration
from bookie_client.replication import check, replica_listing
from bookie_client.replication.replica_listing import EntryRuns, replicas_of
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire.availability import GROUP, HEADER, decode_availability, encode_availability
from tests.unit.bookie_client.replication.cluster import PASSWORD, written

DIGEST = digest_manager(DigestType.CRC32C, b"")


async def put(client, bookie, ledger_id, *entry_ids):
    for entry_id in entry_ids:
        entry = DIGEST.encode(ledger_id, entry_id, entry_id - 1, 0, b"")
        await client.operations.add_entry(
            bookie, LedgerLife(ledger_id, 0), entry_id, entry, master_key(PASSWORD), recovery=True
        )


async def test_missing_and_surplus_copies(served):
    async with served.of(*"abcd") as client:
        ledger_id = await written(client, 12, write_quorum=2)
        ensemble = (await client.metadata(ledger_id)).ensemble_for(0)
        (other,) = set("abcd") - set(ensemble)
        await put(client, ensemble[0], ledger_id, 1, 20, 21)
        await put(client, other, ledger_id, 3)
        await served.empty(client, ensemble[2])
        await put(client, ensemble[2], ledger_id, 1, 4)
        found = {each.bookie: each for each in (await replicas_of(client, ledger_id)).bookies}
        assert set(found) == set(ensemble)
        first, second, third = (found[bookie] for bookie in ensemble)
        assert first.expected == EntryRuns(8, ((0, 0), (2, 3), (5, 6), (8, 9), (11, 11)))
        assert (first.missing, first.surplus) == (EntryRuns(0, ()), EntryRuns(3, ((1, 1), (20, 21))))
        assert (second.missing, second.surplus, second.held.count) == (EntryRuns(0, ()), EntryRuns(0, ()), 8)
        assert third.missing == EntryRuns(6, ((2, 2), (5, 5), (7, 8), (10, 11)))
        everywhere = await replicas_of(client, ledger_id, everywhere=True)
        assert {each.bookie: each.surplus for each in everywhere.bookies}[other] == EntryRuns(1, ((3, 3),))
        assert (everywhere.last_entry, everywhere.metadata.is_closed) == (11, True)


async def test_bookies_that_are_gone_silent_or_empty(served):
    async with served.of(*"abcd") as client:
        ledger_id = await written(client, 9)
        gone, silent, empty = (await client.metadata(ledger_id)).ensemble_for(0)
        await served.lose(client, gone)
        await served.stop(silent)
        await served.empty(client, empty)
        found = {each.bookie: each for each in (await replicas_of(client, ledger_id, everywhere=True)).bookies}
        assert set(found) == {gone, silent, empty}  # the fourth one holds nothing
        assert (found[gone].registration, found[gone].error) == (Registration.NOWHERE, "it is registered nowhere")
        assert found[silent].registration is Registration.WRITABLE
        assert (found[silent].held, found[silent].missing) == (None, None)
        assert "cannot connect" in found[silent].error or "connection" in found[silent].error
        assert (found[empty].held.count, found[empty].missing) == (0, EntryRuns(9, ((0, 8),)))


async def test_an_open_ledger(served):
    async with served.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD)
        for _ in range(5):
            await ledger.append(b"x")
        listing = await replicas_of(client, ledger.ledger_id)
        assert listing.last_entry == 3
        assert all(each.surplus == EntryRuns(1, ((4, 4),)) for each in listing.bookies)
        await ledger.close()


async def test_of_many_runs_the_first_are_told_and_all_entries_counted(models, monkeypatch):
    await models.add(*"abc")
    monkeypatch.setattr(replica_listing, "MAX_RUNS", 2)
    async with models.client() as client:
        ledger_id = await written(client, 7)

        async def entries_of_ledger(bookie, ledger_id):
            return decode_availability(encode_availability([0, 3, 6, 10, 12, 14, 16]))

        monkeypatch.setattr(client.operations, "entries_of_ledger", entries_of_ledger)
        for found in (await replicas_of(client, ledger_id)).bookies:
            assert found.held == EntryRuns(7, ((0, 0), (3, 3)))
            assert found.missing == EntryRuns(4, ((1, 2), (4, 5)))
            assert found.surplus == EntryRuns(4, ((10, 10), (12, 12)))


async def test_who_cannot_ask_the_metadata_service_lists_nothing(models, monkeypatch):
    await models.add(*"abc")

    async def away(*_, **__):
        raise MetadataUnavailable("it is away")

    monkeypatch.setattr(check, "read_last_confirmed", away)
    async with models.client() as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        with pytest.raises(MetadataUnavailable):
            await replicas_of(client, ledger.ledger_id)


@pytest.mark.parametrize("most", [5, 4], ids=["what one can hold", "more than one can hold"])
async def test_of_an_open_ledger_whose_end_nobody_knows_nothing_is_expected(models, monkeypatch, most):
    await models.add(*"abc")
    monkeypatch.setattr(replica_listing, "MAX_HELD", most)
    async with models.client() as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many([b"x"] * 5)
        await models.lose(client, "a", "b")

        async def entries_of_ledger(bookie, ledger_id):
            return decode_availability(encode_availability(range(5)))

        monkeypatch.setattr(client.operations, "entries_of_ledger", entries_of_ledger)
        listing = await replicas_of(client, ledger.ledger_id)
        assert (listing.last_entry, [each.bookie for each in listing.bookies]) == (-1, ["a", "b", "c"])
        claims = listing.bookies[2]
        assert claims.expected == EntryRuns(0, ())
        assert (claims.surplus, claims.error) == (
            (EntryRuns(5, ((0, 4),)), None) if most == 5 else (None, "it claims 5 entries")
        )


@pytest.mark.parametrize("period", [2, 0], ids=["runs of one entry", "one run"])
async def test_a_list_that_claims_billions_of_entries_costs_no_more_than_it_names(models, monkeypatch, period):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 3)
        claimed = 2**31 - 1
        size, last = (1, (claimed - 1) * 2) if period else (claimed, 0)
        encoding = HEADER.pack(0, 1) + GROUP.pack(0, last, size, period)

        async def entries_of_ledger(bookie, ledger_id):
            return decode_availability(encoding)

        monkeypatch.setattr(client.operations, "entries_of_ledger", entries_of_ledger)
        async with asyncio.timeout(10):
            listing = await replicas_of(client, ledger_id)
        held = {each.held.count for each in listing.bookies}
        assert held == {claimed}
        assert {each.surplus.count for each in listing.bookies} == {claimed - (2 if period else 3)}
        assert {len(each.surplus.runs) for each in listing.bookies} == {replica_listing.MAX_RUNS if period else 1}
