"""A fragment is restored, and the ledger looked at whether it is whole."""

from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import FragmentReplicator
from tests.unit.bookie_client.replication.cluster import PASSWORD, payload

FULL = CheckOptions(verification_percentage=100)


async def fragment_of(client, ledger_id, number=0):
    return fragments(ledger_id, await client.metadata(ledger_id), -1)[number]


async def restored(client, ledger_id, bad=None, options=None, **more):
    """Replicate what is bad in the first segment; `bad`: positions."""
    fragment = await fragment_of(client, ledger_id)
    if bad is None:
        bad = (await LedgerChecker(client).check(ledger_id)).fragments[0].bad
    else:
        bad = {position: fragment.ensemble[position] for position in bad}
    return await FragmentReplicator(client, options).replicate(fragment, bad, **more)


async def is_whole(client, ledger_id):
    report = await LedgerChecker(client, FULL).check(ledger_id)
    assert report.is_healthy, report
    async with client.open(ledger_id, password=PASSWORD) as reader:
        assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(reader.last_add_confirmed + 1)]
