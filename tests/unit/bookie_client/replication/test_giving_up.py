"""Which failures of a drain are reasons to give up a ledger whose loss was accepted: those that no registered bookie
may take back."""

from __future__ import annotations

import pytest

from bookie_pod.autorecovery.decommission.drain import Unreadable, reason_of
from bookie_pod.autorecovery.decommission.moving import ClientMover, Passing
from bookie_protocol.errors import LedgerStateUnknown, PodkeeperError
from tests.unit.bookie_client.replication.cluster import PASSWORD, ReplicationCluster, life_of, payload, written


async def emptied(models, client, ledger_id, silent):
    for name in (await client.metadata(ledger_id)).ensemble_for(0):
        if name != silent:
            models.model(name).ledgers[ledger_id].entries.clear()


async def cannot_tell(models: ReplicationCluster, client, name):
    models.model(name).fail_reads = LedgerStateUnknown


async def stop(models: ReplicationCluster, client, name):
    await models.stop(name)


async def lose(models: ReplicationCluster, client, name):
    await models.lose(client, name)


async def have_nothing(models: ReplicationCluster, client, name):
    models.model(name).ledgers.clear()


@pytest.mark.parametrize(
    ("trouble", "leaving", "kind"),
    [
        (cannot_tell, True, Passing),
        (cannot_tell, False, Unreadable),  # it stays, and may never be able to
        (stop, True, Passing),
        (stop, False, Passing),
        (lose, True, Unreadable),
        (lose, False, Unreadable),
        (have_nothing, True, Unreadable),
        (have_nothing, False, Unreadable),
    ],
)
async def test_entries_are_unreadable_only_if_no_registered_bookie_may_have_them(models, trouble, leaving, kind):
    async with models.of(*"abcd", read_timeout=0.3) as client:
        ledger_id = await written(client, 10, ensemble=2, write_quorum=2)
        metadata = await client.metadata(ledger_id)
        goes, stays = metadata.ensemble_for(0)
        silent = goes if leaving else stays
        await emptied(models, client, ledger_id, silent)
        await trouble(models, client, silent)
        lock = await client.metadata_service.under_replication.lock(ledger_id)
        with pytest.raises(PodkeeperError) as failure:
            await ClientMover(client).move(metadata, [goes], lock.session_id, lambda nbytes: None)
        assert type(reason_of(failure.value)) is kind
        assert await client.metadata(ledger_id) == metadata


@pytest.mark.parametrize(("trouble", "kind"), [(stop, Passing), (lose, str)])
async def test_an_end_cannot_be_found_only_if_no_registered_bookie_may_tell_it(models, trouble, kind):
    async with models.of(*"abc", read_timeout=0.3) as client:
        ledger = await client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
        await ledger.append_many(payload(i) for i in range(10))
        for name in (await client.metadata(ledger.ledger_id)).last_ensemble:
            await trouble(models, client, name)
        with pytest.raises(PodkeeperError) as failure:
            await ClientMover(client).recover(await life_of(client, ledger.ledger_id))
        assert type(reason_of(failure.value)) is kind
