"""What background work reads ledgers with."""

import pytest

from bookie_client.access import replica_access
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.replicator import FragmentReplicator
from bookie_protocol.digest import DigestType
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from tests.unit.bookie_client.replication.cluster import PASSWORD, written
from tests.unit.bookie_client.replication.restoring import fragment_of


def ledger(**recorded):
    return LedgerMetadata(7, 1, 1, 1, {0: ("a",)}, LedgerState.CLOSED, last_entry_id=0, length=1, **recorded)


@pytest.mark.parametrize("digest", list(DigestType))
def test_what_the_ledger_recorded_counts(digest):
    access = replica_access(ledger(digest_type=digest, password=b"mine"), DigestType.CRC32, b"other")
    assert (access.digest.type, access.master_key) == (digest, master_key(b"mine"))


def test_a_ledger_that_recorded_nothing():
    assert replica_access(ledger(), None, b"").digest.type is DigestType.DUMMY
    access = replica_access(ledger(), DigestType.CRC32, b"configured")
    assert (access.digest.type, access.master_key) == (DigestType.CRC32, master_key(b"configured"))


async def test_copies_of_a_ledger_that_recorded_nothing(models):
    """Format 1 of the metadata has neither digest type nor password: the bytes are copied as they are."""
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 30)
        stored = await client.stored_metadata(ledger_id)
        value = stored.value
        old = LedgerMetadata(
            ledger_id,
            3,
            3,
            3,
            value.ensembles,
            LedgerState.CLOSED,
            last_entry_id=value.last_entry_id,
            length=value.length,
            format_version=1,
        )
        await client.metadata_service.ledgers.write(old, stored.identity)
        assert (await client.metadata(ledger_id)).digest_type is None
        fragment = await fragment_of(client, ledger_id)
        result = await FragmentReplicator(client).replicate(fragment, {0: fragment.ensemble[0]})
        target, source = (models.model(result.ensemble[i]).ledgers[ledger_id] for i in (0, 1))
        assert target.entries == source.entries
        checked = CheckOptions(verification_percentage=100, digest=DigestType.CRC32C, password=PASSWORD)
        assert (await LedgerChecker(client, checked).check(ledger_id)).is_healthy
