"""Lost replicas are found and restored on real bookies: every replica of every entry is read afterwards."""

from dataclasses import replace

import pytest

from bookie_client.reading.maintenance import replicas
from bookie_client.replication.check import CheckOptions, LedgerChecker, ReplicaVerdict
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replica_listing import replicas_of
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.entry import read_header
from bookie_protocol.errors import LedgerFenced, LedgerNotClosed, Unauthorized
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from tests.unit.bookie_client.replication.cluster import PASSWORD, payload, written

COUNT = 2_000


async def every_replica(client, ledger_id):
    """Payloads as each bookie of each write set gives them."""
    async with client.open(ledger_id, password=PASSWORD) as reader:
        for entry_id in range(reader.last_add_confirmed + 1):
            for answer in await replicas(reader).read_all(entry_id):
                assert answer.error is None, (answer.bookie, entry_id, answer.error)
                assert answer.entry.payload == payload(entry_id)


@pytest.mark.parametrize("ensemble", [3, 4])
async def test_a_lost_bookie_is_replaced(served, version, ensemble):
    async with served.of(*"abcde", protocol_version=version) as client:
        ledger_id = await written(client, COUNT, ensemble=ensemble)
        before = (await client.metadata(ledger_id)).ensemble_for(0)
        lost = before[1]
        await served.lose(client, lost)
        checker, replicator = LedgerChecker(client), FragmentReplicator(client)
        report = await checker.check(ledger_id)
        (bad,) = report.bad_fragments
        assert bad.bad == {1: lost}
        assert [f.verdict for f in bad.findings].count(ReplicaVerdict.GOOD) == ensemble - 1
        seen = []
        result = await replicator.replicate(bad.fragment, bad.bad, progress=seen.append)
        after = (await client.metadata(ledger_id)).ensemble_for(0)
        assert result.ensemble == after
        assert [a == b for a, b in zip(before, after, strict=True)] == [i != 1 for i in range(ensemble)]
        held = len(bad.fragment.entries_of(1))
        assert (result.entries, result.unfilled) == (held, {})
        assert (seen[-1].entries, seen[-1].entries_total) == (held, held)
        assert seen[-1].nbytes == result.nbytes
        assert (await LedgerChecker(client, CheckOptions(verification_percentage=100)).check(ledger_id)).is_healthy
        await every_replica(client, ledger_id)
        listing = {each.bookie: each for each in (await replicas_of(client, ledger_id, everywhere=True)).bookies}
        assert all(each.missing.count == 0 == each.surplus.count for each in listing.values()), listing
        assert listing[after[1]].held.count == held


async def test_a_bookie_that_came_back_empty_is_filled_in_place(served, version):
    async with served.of(*"abc", protocol_version=version) as client:
        ledger_id = await written(client, COUNT)
        before = await client.stored_metadata(ledger_id)
        await served.empty(client, "b")
        (bad,) = (await LedgerChecker(client).check(ledger_id)).bad_fragments
        (position,) = bad.bad
        assert bad.findings[position].verdict is ReplicaVerdict.MISSING
        options = ReplicationOptions(entry_batch_size=50)
        result = await FragmentReplicator(client, options).replicate(bad.fragment, bad.bad, in_place=[position])
        assert result.entries == COUNT
        assert await client.stored_metadata(ledger_id) == before
        await every_replica(client, ledger_id)


async def test_confirmed_entries_of_an_open_segment_are_filled_in_and_no_others(served, version):
    """Those that the bookie has are not copied again; the writer goes on, and names the same bookies."""
    async with served.of(*"abc", protocol_version=version) as client:
        writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        async with writer as ledger:
            await ledger.append_many([b"%d" % number for number in range(COUNT)])
            before = await client.stored_metadata(ledger.ledger_id)
            lac = COUNT - 5
            (fragment,) = fragments(ledger.ledger_id, before.value, lac)
            (position,) = fragment.positions("b")
            await served.empty(client, "b")
            key = master_key(PASSWORD)
            for entry_id in range(10):
                entry = (await client.operations.read_entry("a", ledger.ledger_id, entry_id)).entry
                await client.operations.add_entry(
                    "b", LedgerLife(ledger.ledger_id, 0), entry_id, entry, key, recovery=True
                )
            replicator = FragmentReplicator(client)
            with pytest.raises(LedgerNotClosed):
                await replicator.replicate(fragment, {position: "b"})
            result = await replicator.replicate(fragment, {position: "b"}, in_place=[position], by_lists=True)
            assert result.entries == lac + 1 - 10
            assert await client.stored_metadata(ledger.ledger_id) == before
            held = await client.operations.entries_of_ledger("b", ledger.ledger_id)
            assert [entry_id in held for entry_id in range(COUNT)] == [entry_id <= lac for entry_id in range(COUNT)]
            await ledger.append(b"it is open still")
            # Its bookies would take another key than the writer's for the right one.
            old = replace(before.value, digest_type=None, password=None)
            await client.metadata_service.ledgers.write(old, before.identity)
            with pytest.raises(LedgerNotClosed):
                await replicator.replicate(fragment, {position: "b"}, in_place=[position])


async def test_copies_of_a_ledger_that_is_hot_obey_the_same_rules_as_its_writers_adds(served, version):
    """Whether the bookie takes the hot path or the other one must not show."""
    await served.add("a")
    digest, key = digest_manager(DigestType.CRC32C, b""), master_key(PASSWORD)
    entries = {i: digest.encode(9, i, i - 1, 3 * (i + 1), b"abc") for i in range(60)}
    async with served.client(protocol_version=version) as client:
        operations = client.operations
        for entry_id in range(20):
            await operations.add_entry("a", LedgerLife(9, 0), entry_id, entries[entry_id], key)
        for entry_id in range(20, 40):
            await operations.add_entry("a", LedgerLife(9, 0), entry_id, entries[entry_id], key, recovery=True)
        with pytest.raises(Unauthorized):
            await operations.add_entry("a", LedgerLife(9, 0), 40, entries[40], master_key(b"another"), recovery=True)
        answer = await operations.read_entry("a", 9, -1, fence_key=key)
        assert read_header(answer.entry).entry_id == 39
        with pytest.raises(LedgerFenced):
            await operations.add_entry("a", LedgerLife(9, 0), 40, entries[40], key)
        await operations.add_entry("a", LedgerLife(9, 0), 40, entries[40], key, recovery=True)
        assert [(await operations.read_entry("a", 9, i)).entry for i in range(41)] == [entries[i] for i in range(41)]
        await served.bookies["a"].crash()
        await served.bookies["a"].start()
        await served.unregister("a")
        await served.register("a")
        assert [e async for e in _entries(client, range(41))] == [entries[i] for i in range(41)]


async def _entries(client, ids):
    for entry_id in ids:
        yield (await client.operations.read_entry("a", 9, entry_id)).entry
