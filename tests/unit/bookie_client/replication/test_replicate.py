"""Fragments are restored, or left as they were: sources that fail, targets that fail, metadata that changed."""

import asyncio
from dataclasses import replace

import pytest

from bookie_client import PlacementOptions
from bookie_client.metadata_update import update_metadata
from bookie_client.placement.policy import Adherence
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import (
    BadRequest,
    BookieReadOnly,
    BookieUnavailable,
    EntriesUnreadable,
    LedgerFenced,
    LedgerNotClosed,
    LedgerStateUnknown,
    MetadataVersionConflict,
    NoSuchLedger,
    NotEnoughBookies,
    StorageFault,
    TooManyRequests,
    Unauthorized,
)
from bookie_protocol.metadata_service.records import DECOMMISSION
from tests.support.until import until
from tests.unit.bookie_client.conftest import tasks_of_handles
from tests.unit.bookie_client.replication.cluster import PASSWORD, payload, written

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


# --- what is copied -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", [(3, 3), (3, 2), (5, 3), (4, 1), (2, 2)], ids=str)
async def test_only_what_striping_puts_there_is_copied(models, version, quorums):
    await models.add(*"abcdefg")
    ensemble, write = quorums
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 500, ensemble=ensemble, write_quorum=write, ack_quorum=1)
        before = await fragment_of(client, ledger_id)
        await FragmentReplicator(client).replicate(before, {0: before.ensemble[0], 1: before.ensemble[1]})
        after = await fragment_of(client, ledger_id)
        assert set(before.ensemble[:2]).isdisjoint(after.ensemble)
        for position in (0, 1):
            assert models.held_at(after.ensemble[position], ledger_id) == set(after.entries_of(position))
        # The copies are the bytes that the writer sent.
        new, old = (models.model(f.ensemble[0]).ledgers[ledger_id] for f in (after, before))
        assert (new.entries, new.key) == (old.entries, old.key)
        await is_whole(client, ledger_id)


async def test_two_lost_bookies_of_three(models, version):
    await models.add(*"abcde")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 300)
        lost = (await fragment_of(client, ledger_id)).ensemble[:2]
        await models.lose(client, *lost)
        result = await restored(client, ledger_id)
        assert result.entries == 300
        assert set(lost).isdisjoint(result.ensemble)
        await is_whole(client, ledger_id)


async def test_an_empty_segment_only_changes_the_metadata(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 0)
        result = await restored(client, ledger_id, [1])
        assert (result.entries, result.nbytes) == (0, 0)
        assert (await fragment_of(client, ledger_id)).ensemble == result.ensemble
        assert all(not models.held_at(name, ledger_id) for name in "abcd")


async def test_entries_of_every_size_within_few_bytes_in_flight(models, version):
    await models.add(*"abcd")
    async with models.client(protocol_version=version, batch_read_bytes=20_000) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD) as ledger:
            await ledger.append_many([bytes(10)] * 500 + [bytes(300_000)] + [bytes(3_000)] * 200 + [b""])
        throttle = ReplicationThrottle()
        options = ReplicationOptions(max_bytes_in_flight=100_000, entry_batch_size=70, throttle=throttle)
        result = await restored(client, ledger.ledger_id, [2], options)
        assert result.entries == 702
        assert throttle.bytes_written == result.nbytes <= throttle.bytes_read
        assert (await LedgerChecker(client, FULL).check(ledger.ledger_id)).is_healthy


# --- sources --------------------------------------------------------------------------------------------------


async def test_damaged_and_missing_entries_come_from_other_replicas(models, version):
    await models.add(*"abcd")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 300)
        bad, first, second = (await fragment_of(client, ledger_id)).ensemble
        for entry_id in range(0, 300, 3):
            models.model(first).damage(ledger_id, entry_id)
        for entry_id in range(1, 300, 3):
            del models.model(second).ledgers[ledger_id].entries[entry_id]
        models.model(bad).ledgers.clear()
        result = await restored(client, ledger_id, [0])
        assert set(models.model(result.ensemble[0]).ledgers[ledger_id].entries) == set(range(300))
        async with client.open(ledger_id, password=PASSWORD) as reader:
            assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(300)]


async def test_bookies_without_batch_reads_are_read_singly(models, version):
    await models.add(*"abcd")
    for name in "abcd":
        models.model(name).knows_batch_reads = False
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 600)
        await restored(client, ledger_id, [1])
        await is_whole(client, ledger_id)


async def test_batches_are_used_where_every_bookie_holds_every_entry(models):
    await models.add(*"abcd")

    def reads():
        return sum(models.model(name).reads for name in "abcd")

    async with models.client() as client:
        ledger_id = await written(client, 600)
        before = reads()
        await restored(client, ledger_id, [1])
        assert sum(models.model(name).batch_reads for name in "abcd") >= 1
        assert reads() == before + 1  # the copy that is read back
        await restored(client, ledger_id, [2], ReplicationOptions(batch_reads=False))
        assert reads() == before + 602


async def test_the_bookie_to_be_replaced_gives_what_nobody_else_has(models, version):
    """As in a drain, where it holds the only copies."""
    await models.add(*"ab")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 200, ensemble=1, write_quorum=1, ack_quorum=1)
        old = (await fragment_of(client, ledger_id)).ensemble[0]
        result = await restored(client, ledger_id, [0])
        assert result.ensemble != (old,)
        await is_whole(client, ledger_id)


async def test_a_busy_source_is_asked_again(models, monkeypatch):
    await models.add(*"ab")
    async with models.client() as client:
        ledger_id = await written(client, 50, ensemble=1, write_quorum=1, ack_quorum=1)
        source = models.model((await fragment_of(client, ledger_id)).ensemble[0])
        source.fail_reads = TooManyRequests
        copying = asyncio.create_task(restored(client, ledger_id, [0]))
        await until(lambda: source.batch_reads > 1 or source.reads > 1)
        source.fail_reads = None
        await copying
        await is_whole(client, ledger_id)


async def test_entries_that_nobody_has_are_named_and_nothing_is_exchanged(models, version):
    await models.add(*"abcd")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 300)
        before = await client.stored_metadata(ledger_id)
        for entry_id in (17, 18, 299):
            for name in before.value.ensemble_for(0):
                del models.model(name).ledgers[ledger_id].entries[entry_id]
        with pytest.raises(EntriesUnreadable, match=r"entry 17 .*does not have it") as failure:
            await restored(client, ledger_id, [0])
        assert failure.value.entries == (17, 18, 299)
        assert await client.stored_metadata(ledger_id) == before
        fragment = await fragment_of(client, ledger_id)
        replicator = FragmentReplicator(client)
        assert await replicator.unreadable(fragment, [5, 18, 299, 1000]) == (18, 299)
        keeper = models.model(fragment.ensemble[1]).ledgers[ledger_id].entries
        other = await written(client, 300)
        assert set(keeper).isdisjoint({17, 18, 299})
        assert await replicator.unreadable(await fragment_of(client, other), [17, 18]) == ()


async def test_an_entry_whose_replicas_are_unreachable_is_not_given_up_as_lost(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 20, ensemble=2, write_quorum=2)
        ensemble = (await fragment_of(client, ledger_id)).ensemble
        await models.stop(ensemble[0])
        models.model(ensemble[1]).fail_reads = LedgerStateUnknown
        with pytest.raises(EntriesUnreadable) as failure:
            await restored(client, ledger_id, [0])
        assert len(failure.value.entries) == 20
        assert "does not have it" not in str(failure.value)


# --- targets --------------------------------------------------------------------------------------------------


async def test_without_a_spare_nothing_happens(models):
    await models.add(*"abc")
    async with models.client() as client:
        ledger_id = await written(client, 20)
        before = await client.stored_metadata(ledger_id)
        await models.lose(client, "b")
        with pytest.raises(NotEnoughBookies, match="b: no spare"):
            await restored(client, ledger_id)
        assert await client.stored_metadata(ledger_id) == before


async def test_one_spare_for_two_lost_bookies_is_used(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 20)
        lost = (await fragment_of(client, ledger_id)).ensemble[:2]
        await models.lose(client, *lost)
        result = await restored(client, ledger_id)
        (left,) = result.unfilled
        assert left in (0, 1)
        report = (await LedgerChecker(client, FULL).check(ledger_id)).fragments[0]
        assert report.bad == {left: lost[left]}


async def test_nobody_copies_to_a_bookie_that_leaves_or_is_excluded(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 20)
        (spare,) = set("abcd") - set((await fragment_of(client, ledger_id)).ensemble)
        with pytest.raises(NotEnoughBookies, match="not today"):
            await restored(client, ledger_id, [0], excluded={spare: "not today"})
        await models.service.records(DECOMMISSION).create(spare, b"{}")
        with pytest.raises(NotEnoughBookies, match="being decommissioned"):
            await restored(client, ledger_id, [0])
        await models.service.records(DECOMMISSION).delete(spare)
        await restored(client, ledger_id, [0])


async def test_a_spare_that_is_registered_and_dead_is_passed_over(models):
    await models.add(*"abcde")
    async with models.client() as client:
        ledger_id = await written(client, 20)
        spares = sorted(set("abcde") - set((await fragment_of(client, ledger_id)).ensemble))
        await models.stop(spares[0])
        for position in (0, 1, 2):
            with pytest.raises(NotEnoughBookies, match="could not be reached"):
                await restored(client, ledger_id, [position], excluded={spares[1]: "not this one"})
        assert spares[1] in (await restored(client, ledger_id, [0])).ensemble


@pytest.mark.parametrize("error", [StorageFault, BookieReadOnly, Unauthorized])
async def test_a_target_that_refuses_leaves_the_ledger_as_it_was(models, version, error):
    await models.add(*"abcd")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 600)
        before = await client.stored_metadata(ledger_id)
        (spare,) = set("abcd") - set(before.value.ensemble_for(0))
        models.model(spare).fail_adds = error
        with pytest.raises(error, match=spare):
            await restored(client, ledger_id, [0])
        assert await client.stored_metadata(ledger_id) == before
        models.model(spare).fail_adds = None
        await restored(client, ledger_id, [0])
        await is_whole(client, ledger_id)


async def test_a_target_that_dies_under_way(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 600)
        before = await client.stored_metadata(ledger_id)
        (spare,) = set("abcd") - set(before.value.ensemble_for(0))
        models.bookies[spare].hold = True
        copying = asyncio.create_task(restored(client, ledger_id, [0]))
        await until(lambda: models.bookies[spare].held)
        await models.stop(spare)
        with pytest.raises(BookieUnavailable):
            await copying
        assert await client.stored_metadata(ledger_id) == before


@pytest.mark.parametrize("error", [StorageFault, BookieReadOnly, LedgerFenced])
async def test_another_target_takes_the_place_of_one_that_fails(models, error):
    await models.add(*"abcdef")
    async with models.client() as client:
        ledger_id = await written(client, 300)
        before = (await fragment_of(client, ledger_id)).ensemble
        spares = sorted(set("abcdef") - set(before))
        for spare in spares[:2]:
            models.model(spare).fail_adds = error
        result = await restored(client, ledger_id, [0])
        assert result.ensemble == (spares[2], *before[1:])
        await is_whole(client, ledger_id)


async def test_a_busy_target_gets_its_entries_later(models, version):
    await models.add(*"abcd")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 100)
        (spare,) = set("abcd") - set((await fragment_of(client, ledger_id)).ensemble)
        target = models.model(spare)
        target.fail_adds = TooManyRequests
        copying = asyncio.create_task(restored(client, ledger_id, [0]))
        await until(lambda: target.adds > 150)
        target.fail_adds = None
        await copying
        await is_whole(client, ledger_id)


async def test_a_target_that_lost_what_it_acknowledged_is_not_named(models, monkeypatch):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 100)
        before = await client.stored_metadata(ledger_id)
        (spare,) = set("abcd") - set(before.value.ensemble_for(0))
        forgets = models.model(spare)
        monkeypatch.setattr(forgets, "add", lambda *args, **options: forgets.ledgers.clear())
        with pytest.raises(Exception, match=r"entry 99 on .* cannot be read back"):
            await restored(client, ledger_id, [0])
        assert await client.stored_metadata(ledger_id) == before


async def test_cancelled_copies_leave_nothing_under_way(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 600)
        (spare,) = set("abcd") - set((await fragment_of(client, ledger_id)).ensemble)
        models.bookies[spare].hold = True
        replicator = FragmentReplicator(client)
        fragment = await fragment_of(client, ledger_id)
        before = tasks_of_handles()
        copying = asyncio.create_task(replicator.replicate(fragment, {0: fragment.ensemble[0]}))
        await until(lambda: models.bookies[spare].held)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert tasks_of_handles() == before
        models.bookies[spare].release()
        # The same replicator has all its room again.
        await replicator.replicate(fragment, {0: fragment.ensemble[0]})
        await is_whole(client, ledger_id)


# --- in place -------------------------------------------------------------------------------------------------


async def test_damaged_copies_are_written_again_in_place(models, version):
    await models.add(*"abc")
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 90, write_quorum=2)
        before = await client.stored_metadata(ledger_id)
        hurt = before.value.ensemble_for(0)[2]
        for entry_id in models.held_at(hurt, ledger_id):
            models.model(hurt).damage(ledger_id, entry_id)
        result = await restored(client, ledger_id, in_place=[2])
        assert (result.entries, result.ensemble) == (60, before.value.ensemble_for(0))
        assert await client.stored_metadata(ledger_id) == before
        await is_whole(client, ledger_id)


async def test_bookies_are_filled_in_place_though_there_is_no_spare_for_another(models):
    await models.add(*"abc")
    async with models.client() as client:
        ledger_id = await written(client, 40)
        lost, emptied, _ = (await fragment_of(client, ledger_id)).ensemble
        await models.lose(client, lost)
        models.model(emptied).ledgers.clear()
        result = await restored(client, ledger_id, in_place=[1])
        assert (result.entries, set(result.unfilled)) == (40, {0})
        assert (await LedgerChecker(client, FULL).check(ledger_id)).fragments[0].bad == {0: lost}
        with pytest.raises(BadRequest, match="in place"):
            await restored(client, ledger_id, [0], in_place=[1])


async def test_only_a_writable_bookie_is_filled_in_place(models):
    await models.add(*"abc")
    async with models.client() as client:
        ledger_id = await written(client, 10)
        bookie = (await fragment_of(client, ledger_id)).ensemble[1]
        await models.read_only(bookie)
        await until(lambda: bookie not in client.bookies.known_writable)
        with pytest.raises(BookieReadOnly, match=bookie):
            await restored(client, ledger_id, [1], in_place=[1])


# --- metadata -------------------------------------------------------------------------------------------------


async def test_the_last_segment_of_an_open_ledger_is_its_writers(models):
    await models.add(*"abcde")
    async with models.client() as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD)
        await ledger.append_many(payload(i) for i in range(50))
        failed = (await client.metadata(ledger.ledger_id)).last_ensemble[0]
        await models.lose(client, failed)
        await ledger.append_many(payload(i) for i in range(50, 100))
        assert list((await client.metadata(ledger.ledger_id)).ensembles) == [0, 50]
        # The segment in front of it is done with, and is restored beside the writer.
        await restored(client, ledger.ledger_id)
        assert failed not in (await client.metadata(ledger.ledger_id)).all_bookies()
        with pytest.raises(LedgerNotClosed, match="may still grow"):
            last = (await fragment_of(client, ledger.ledger_id, -1)).ensemble[1]
            await FragmentReplicator(client).replicate(await fragment_of(client, ledger.ledger_id, -1), {1: last})
        await ledger.append(payload(100))
        await ledger.close()
        await is_whole(client, ledger.ledger_id)


async def test_a_segment_that_was_changed_by_somebody_else_is_left_alone(models):
    await models.add(*"abcde")
    async with models.client() as client:
        ledger_id = await written(client, 50)
        fragment = await fragment_of(client, ledger_id)
        replicator = FragmentReplicator(client)
        await replicator.replicate(fragment, {0: fragment.ensemble[0]})
        with pytest.raises(MetadataVersionConflict, match="check the ledger again"):
            await replicator.replicate(fragment, {1: fragment.ensemble[1]})
        now = await fragment_of(client, ledger_id)
        with pytest.raises(MetadataVersionConflict, match="does not name"):
            await replicator.replicate(now, {1: now.ensemble[2]})
        with pytest.raises(MetadataVersionConflict, match="exists no more"):
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
    await models.add(*"abcde")
    async with models.client() as client:
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
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 50)
        copying, before = await held_copy(models, client, ledger_id, 0)
        (spare,) = set("abcd") - set(before.ensemble)
        await exchanged_meanwhile(client, ledger_id, 2, spare)
        models.bookies[spare].release()
        with pytest.raises(MetadataVersionConflict, match="one of the new bookies"):
            await copying
        assert (await fragment_of(client, ledger_id)).ensemble == (*before.ensemble[:2], spare)


async def test_a_ledger_deleted_meanwhile(models):
    await models.add(*"abcd")
    async with models.client() as client:
        ledger_id = await written(client, 50)
        copying, _ = await held_copy(models, client, ledger_id, 0)
        await client.delete(ledger_id)
        for server in models.bookies.values():
            server.release()
        # The exchange is what notices, or the compare-and-set behind it.
        with pytest.raises(NoSuchLedger):
            await copying


# --- placement ------------------------------------------------------------------------------------------------


async def test_an_ensemble_on_one_rack_is_mended(models):
    models.locations = {"a": "/r1", "b": "/r1", "c": "/r1"}
    await models.add(*"abc")
    async with models.client(placement=PlacementOptions(policy="rack-aware")) as client:
        ledger_id = await written(client, 80, write_quorum=2)
        replicator = FragmentReplicator(client)
        with pytest.raises(NotEnoughBookies, match="obey the placement policy"):
            await replicator.mend(await fragment_of(client, ledger_id))
        models.locations |= {"d": "/r2", "e": "/r3"}
        await models.add(*"de")
        await until(lambda: {"d", "e"} <= client.bookies.known_writable)
        result = await replicator.mend(await fragment_of(client, ledger_id))
        assert {"d", "e"} < set(result.ensemble)
        await is_whole(client, ledger_id)
        again = await replicator.mend(await fragment_of(client, ledger_id))
        assert (again.entries, again.ensemble) == (0, result.ensemble)


async def test_a_lost_copy_goes_where_the_placement_stays_valid(models):
    """One spare stands where the lost bookie stood; any of the others would put all copies on one rack."""
    models.locations = {"a": "/r1", "b": "/r1", "c": "/r2"}
    await models.add(*"abc")
    async with models.client(placement=PlacementOptions(policy="rack-aware")) as client:
        ids = [await written(client, 40) for _ in range(4)]
        await models.lose(client, "c")
        models.locations |= {**dict.fromkeys("defg", "/r1"), "h": "/r2"}
        await models.add(*"defgh")
        await until(lambda: set("defgh") <= client.bookies.known_writable)
        for ledger_id in ids:
            before = (await fragment_of(client, ledger_id)).ensemble
            result = await restored(client, ledger_id)
            assert result.ensemble == tuple("h" if bookie == "c" else bookie for bookie in before)
            fragment = await fragment_of(client, ledger_id)
            report = client.placement.check(fragment.ensemble, fragment.quorums, await client.cluster_view())
            assert report.adherence is Adherence.MEETS_STRICT
            await is_whole(client, ledger_id)


def test_options_make_sense():
    for bad in ({"entry_batch_size": 0}, {"max_bytes_in_flight": 0}):
        with pytest.raises(BadRequest):
            ReplicationOptions(**bad)
