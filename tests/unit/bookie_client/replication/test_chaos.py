"""Random damage, random losses: whatever some replica still has is whole afterwards, and otherwise nothing changes."""

from random import Random

import pytest

from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import DigestMismatch, EntriesUnreadable
from tests.unit.bookie_client.replication.cluster import payload, written

DIGEST = digest_manager(DigestType.CRC32C, b"")
NAMES = "abcdefgh"


def good_copies(models, ledger_id, metadata, entry_id):
    """Bookies of the write set that have the entry undamaged and still live."""
    found = set()
    for bookie in metadata.bookies_for(entry_id):
        if bookie not in models.bookies or ledger_id not in models.model(bookie).ledgers:
            continue
        entry = models.model(bookie).ledgers[ledger_id].entries.get(entry_id)
        try:
            if entry is not None and DIGEST.verify(entry, ledger_id, entry_id) == payload(entry_id):
                found.add(bookie)
        except DigestMismatch:
            continue
    return found


def spoil(models, random, ledger_id, metadata):
    """Entries vanish or rot; and perhaps a bookie forgets everything."""
    held = [name for name in metadata.ensemble_for(0) if ledger_id in models.model(name).ledgers]
    for _ in range(random.randrange(12)):
        bookie = random.choice(held)
        entries = models.model(bookie).ledgers[ledger_id].entries
        if entries:
            entry_id = random.choice(sorted(entries))
            if random.random() < 0.5:
                del entries[entry_id]
            else:
                models.model(bookie).damage(ledger_id, entry_id)
    if random.random() < 0.3:
        models.model(random.choice(held)).ledgers.clear()


@pytest.mark.parametrize("seed", range(16))
async def test_whatever_some_replica_has_is_restored(models, seed):
    random = Random(seed)
    for name in NAMES:
        await models.add(name)
        models.model(name).knows_batch_reads = random.random() < 0.7
    write = random.randint(1, 4)
    ensemble, count = random.randint(write, 5), random.randint(1, 120)
    async with models.client(protocol_version=random.choice([2, 3])) as client:
        ledger_id = await written(
            client, count, ensemble=ensemble, write_quorum=write, ack_quorum=random.randint(1, write)
        )
        before = await client.metadata(ledger_id)
        spoil(models, random, ledger_id, before)
        await models.lose(client, *random.sample(before.ensemble_for(0), random.randint(0, min(2, ensemble - 1))))
        lost = {e for e in range(count) if not good_copies(models, ledger_id, before, e)}

        checker = LedgerChecker(client, CheckOptions(verification_percentage=100))
        (report,) = (await checker.check(ledger_id)).fragments
        places = [(p, b) for p, b in report.bad.items() if b in models.bookies]
        in_place = {p for p, _ in places if random.random() < 0.5}
        options = ReplicationOptions(entry_batch_size=random.choice([1, 7, 1000]), max_bytes_in_flight=5_000)
        needed = {e for p in report.bad for e in report.fragment.entries_of(p)}
        copying = FragmentReplicator(client, options).replicate(report.fragment, report.bad, in_place=in_place)
        if lost & needed:
            with pytest.raises(EntriesUnreadable) as failure:
                await copying
            assert set(failure.value.entries) == lost & needed
            assert await client.metadata(ledger_id) == before
            return
        await copying
        after = await client.metadata(ledger_id)
        for entry_id in range(count):
            assert good_copies(models, ledger_id, after, entry_id) == set(after.bookies_for(entry_id))
        assert (await LedgerChecker(client, CheckOptions(verification_percentage=100)).check(ledger_id)).is_healthy
