"""Closing ledgers on behalf of healing: who lost its disk does not say where a ledger ends."""

from __future__ import annotations

import pytest

from bookie_client.replication.check import LedgerChecker, close_checked
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.node.integrity.replicas import Replicas
from bookie_protocol.errors import RecoveryFailed
from bookie_protocol.ledger_metadata.model import LedgerState
from pyspark_bookie.jobs.recover.ledger_recovery import LedgerRecovery, LedgerWork, RecoveryOptions
from tests.unit.bookie_client.replication.cluster import PASSWORD, payload, stored


async def worker(client, ledger_id):
    await close_checked(client, await LedgerChecker(client).check(ledger_id))


async def drain(client, ledger_id):
    await ClientMover(client).recover(ledger_id)


async def integrity_check(client, ledger_id):
    replicas = Replicas(client.metadata_service, "the one that lost its disks")
    replicas._client = client
    await replicas.recover(ledger_id)


async def spark(client, ledger_id):
    going = (await client.metadata(ledger_id)).last_ensemble[0]
    options = RecoveryOptions(include_open=True)
    recovery = LedgerRecovery(client, None, None, None, options)  # type: ignore[arg-type]
    outcome = await recovery.recover(LedgerWork(ledger_id, 0, frozenset({going})))
    raise RecoveryFailed(outcome.detail)


@pytest.mark.parametrize("close", [worker, drain, integrity_check, spark])
async def test_acknowledged_entries_are_not_cut_off_on_the_word_of_an_empty_disk(models, close):
    """Five entries were acknowledged by the first two bookies; the first is away, the second lost its disk."""
    await models.add(*"abc")
    async with models.client() as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        await ledger.append_many(payload(i) for i in range(10, 15))
        first, second, third = (await client.metadata(ledger.ledger_id)).last_ensemble
        await stored(client, third, ledger.ledger_id, 14)
        for entry_id in range(10, 15):
            del models.model(third).ledgers[ledger.ledger_id].entries[entry_id]
        models.model(second).ledgers.clear()
        await models.lose(client, first)
        with pytest.raises(RecoveryFailed, match="stays IN_RECOVERY"):
            await close(client, ledger.ledger_id)
        assert (await client.metadata(ledger.ledger_id)).state is LedgerState.IN_RECOVERY
