"""Lost replicas are found and restored on real bookies: every replica of every entry is read afterwards."""

import pytest

from bookie_client.reading.maintenance import replicas
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.replica_listing import replicas_of
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.report import ReplicaVerdict
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
    await served.add(*"abcde")
    async with served.client(protocol_version=version) as client:
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
    await served.add(*"abc")
    async with served.client(protocol_version=version) as client:
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
