"""Fragments whose ledger is written, changed or deleted while they are restored."""

import asyncio
from dataclasses import replace

import pytest

from bookie_client.metadata_update import update_metadata
from bookie_client.replication.replicator import FragmentReplicator
from bookie_protocol.errors import LedgerNotClosed, MetadataVersionConflict, NoSuchLedger
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import PASSWORD, payload, written
from tests.unit.bookie_client.replication.restoring import fragment_of, is_whole, restored


async def test_the_last_segment_of_an_open_ledger_is_its_writers(models):
    async with models.of(*"abcde") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD)
        await ledger.append_many(payload(i) for i in range(50))
        failed = (await client.metadata(ledger.ledger_id)).last_ensemble[0]
        await models.lose(client, failed)
        await ledger.append_many(payload(i) for i in range(50, 100))
        assert list((await client.metadata(ledger.ledger_id)).ensembles) == [0, 50]
        # The segment in front of it is done with, and is restored beside the writer.
        await restored(client, ledger.ledger_id)
        assert failed not in (await client.metadata(ledger.ledger_id)).all_bookies()
        with pytest.raises(LedgerNotClosed):
            last = (await fragment_of(client, ledger.ledger_id, -1)).ensemble[1]
            await FragmentReplicator(client).replicate(await fragment_of(client, ledger.ledger_id, -1), {1: last})
        await ledger.append(payload(100))
        await ledger.close()
        await is_whole(client, ledger.ledger_id)


async def test_a_segment_that_was_changed_by_somebody_else_is_left_alone(models):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 50)
        fragment = await fragment_of(client, ledger_id)
        replicator = FragmentReplicator(client)
        await replicator.replicate(fragment, {0: fragment.ensemble[0]})
        with pytest.raises(MetadataVersionConflict, match="check"):
            await replicator.replicate(fragment, {1: fragment.ensemble[1]})
        now = await fragment_of(client, ledger_id)
        with pytest.raises(MetadataVersionConflict, match="name"):
            await replicator.replicate(now, {1: now.ensemble[2]})
        with pytest.raises(MetadataVersionConflict, match="exists"):
            await replicator.replicate(replace(now, first_entry=7), {1: now.ensemble[1]})
        await client.delete(ledger_id)
        with pytest.raises(NoSuchLedger):
            await replicator.replicate(now, {1: now.ensemble[1]})


async def held_copy(models, client, ledger_id, position):
    """A copying under way whose target has not answered yet, and the target."""
    fragment = await fragment_of(client, ledger_id)
    spares = set(models.bookies) - set(fragment.ensemble)
    for spare in spares:
        models.bookies[spare].hold = True
    copying = asyncio.create_task(
        FragmentReplicator(client).replicate(fragment, {position: fragment.ensemble[position]})
    )
    await until(lambda: any(models.bookies[spare].held for spare in spares))
    return copying, fragment


async def exchanged_meanwhile(client, ledger_id, position, bookie):
    stored = await client.stored_metadata(ledger_id)
    ensemble = list(stored.value.ensemble_for(0))
    ensemble[position] = bookie
    await update_metadata(
        client.metadata_service.ledgers, stored, lambda _: True, lambda m: m.with_ensemble(0, tuple(ensemble))
    )


async def test_another_position_may_change_meanwhile(models):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 50)
        copying, before = await held_copy(models, client, ledger_id, 0)
        await exchanged_meanwhile(client, ledger_id, 2, "elsewhere:3181")
        for server in models.bookies.values():
            server.release()
        result = await copying
        assert result.ensemble[1:] == (before.ensemble[1], "elsewhere:3181")
        assert result.ensemble[0] not in before.ensemble
        assert (await fragment_of(client, ledger_id)).ensemble == result.ensemble


async def test_no_bookie_comes_to_stand_twice(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        copying, before = await held_copy(models, client, ledger_id, 0)
        (spare,) = set("abcd") - set(before.ensemble)
        await exchanged_meanwhile(client, ledger_id, 2, spare)
        models.bookies[spare].release()
        with pytest.raises(MetadataVersionConflict, match=r"\bnew\b"):
            await copying
        assert (await fragment_of(client, ledger_id)).ensemble == (*before.ensemble[:2], spare)


async def test_a_ledger_deleted_meanwhile(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        copying, _ = await held_copy(models, client, ledger_id, 0)
        await client.delete(ledger_id)
        for server in models.bookies.values():
            server.release()
        # The exchange is what notices, or the compare-and-set behind it.
        with pytest.raises(NoSuchLedger):
            await copying
