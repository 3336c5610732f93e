"""Where copies go: spares that fail, bookies that are filled in place, places that keep the placement valid."""

import asyncio

import pytest

from bookie_client import PlacementOptions
from bookie_client.placement.policy import Adherence
from bookie_client.replication.check import LedgerChecker
from bookie_client.replication.copying import FragmentCopy
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.replication.targets import Leaving
from bookie_protocol.errors import (
    BadRequest,
    BookieReadOnly,
    BookieUnavailable,
    LedgerDeleted,
    LedgerFenced,
    MetadataReplaced,
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
from tests.unit.bookie_client.replication.cluster import written
from tests.unit.bookie_client.replication.restoring import FULL, fragment_of, is_whole, restored


async def test_without_a_spare_nothing_happens(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 20)
        before = await client.stored_metadata(ledger_id)
        await models.lose(client, "b")
        with pytest.raises(NotEnoughBookies, match="b: no"):
            await restored(client, ledger_id)
        assert await client.stored_metadata(ledger_id) == before


async def test_one_spare_for_two_lost_bookies_is_used(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 20)
        lost = (await fragment_of(client, ledger_id)).ensemble[:2]
        await models.lose(client, *lost)
        result = await restored(client, ledger_id)
        (left,) = result.unfilled
        assert left in (0, 1)
        report = (await LedgerChecker(client, FULL).check(ledger_id)).fragments[0]
        assert report.bad == {left: lost[left]}


async def test_nobody_copies_to_a_bookie_that_leaves_or_is_excluded(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 20)
        (spare,) = set("abcd") - set((await fragment_of(client, ledger_id)).ensemble)
        with pytest.raises(NotEnoughBookies, match="today"):
            await restored(client, ledger_id, [0], excluded={spare: "not today"})
        await models.service.records(DECOMMISSION).create(spare, b"{}")
        with pytest.raises(NotEnoughBookies, match="decommissioned"):
            await restored(client, ledger_id, [0])
        await models.service.records(DECOMMISSION).delete(spare)
        await restored(client, ledger_id, [0])


async def test_who_leaves_is_asked_once_for_many_fragments(models, monkeypatch):
    """Asking costs as much as copying a small ledger."""
    await models.add(*"abcd")
    asked = []
    records = models.service.records

    def counted(kind):
        asked.append(kind)
        return records(kind)

    async with models.client() as client:
        monkeypatch.setattr(models.service, "records", counted)
        leaving = Leaving(client)
        for _ in range(10):
            await leaving.names()
        assert asked == [DECOMMISSION]
        await leaving.names(now=True)
        assert asked == [DECOMMISSION] * 2


async def test_a_spare_that_is_registered_and_dead_is_passed_over(models):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 20)
        spares = sorted(set("abcde") - set((await fragment_of(client, ledger_id)).ensemble))
        await models.stop(spares[0])
        for position in (0, 1, 2):
            with pytest.raises(NotEnoughBookies, match="reached"):
                await restored(client, ledger_id, [position], excluded={spares[1]: "not this one"})
        assert spares[1] in (await restored(client, ledger_id, [0])).ensemble


@pytest.mark.parametrize(
    ("error", "version"), [(StorageFault, 3), (StorageFault, 2), (BookieReadOnly, 3), (Unauthorized, 2)]
)
async def test_a_target_that_refuses_leaves_the_ledger_as_it_was(models, version, error):
    async with models.of(*"abcd", protocol_version=version) as client:
        ledger_id = await written(client, 60)
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
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 200)
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
    async with models.of(*"abcdef") as client:
        ledger_id = await written(client, 100)
        before = (await fragment_of(client, ledger_id)).ensemble
        spares = sorted(set("abcdef") - set(before))
        for spare in spares[:2]:
            models.model(spare).fail_adds = error
        result = await restored(client, ledger_id, [0])
        assert result.ensemble == (spares[2], *before[1:])
        await is_whole(client, ledger_id)


@pytest.mark.parametrize(("made_again", "error"), [(False, LedgerDeleted), (True, MetadataReplaced)])
async def test_copies_of_a_ledger_that_was_deleted_meanwhile_try_no_other_target(models, made_again, error):
    await models.add(*"abcde")
    async with models.client(add_timeout=60.0) as client:
        ledger_id = await written(client, 100)
        before = (await fragment_of(client, ledger_id)).ensemble
        spares = sorted(set("abcde") - set(before))
        for spare in spares:
            models.model(spare).fail_adds = NoSuchLedger
            models.bookies[spare].hold = True
        copying = asyncio.create_task(restored(client, ledger_id, [0]))
        await until(lambda: any(models.bookies[spare].held for spare in spares))
        await client.delete(ledger_id)
        if made_again:
            await client.create(ledger_id=ledger_id)
        for spare in spares:
            models.bookies[spare].release()
        with pytest.raises(error):
            await copying
        assert min(models.model(spare).adds for spare in spares) == 0


async def test_a_busy_target_gets_its_entries_later(models, version):
    async with models.of(*"abcd", protocol_version=version) as client:
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
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 100)
        before = await client.stored_metadata(ledger_id)
        (spare,) = set("abcd") - set(before.value.ensemble_for(0))
        forgets = models.model(spare)
        monkeypatch.setattr(forgets, "add", lambda *args, **options: forgets.ledgers.clear())
        with pytest.raises(Exception, match="entry 99 on "):
            await restored(client, ledger_id, [0])
        assert await client.stored_metadata(ledger_id) == before


async def test_cancelled_copies_leave_nothing_under_way(models, monkeypatch):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 200)
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
        waiting = asyncio.Event()

        async def throttled(nbytes, operations=1):
            waiting.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(replicator.options.throttle, "read", throttled)
        copying = asyncio.create_task(replicator.replicate(fragment, {0: fragment.ensemble[0]}))
        await waiting.wait()
        copying.cancel()
        await asyncio.wait([copying])
        monkeypatch.undo()
        assert (replicator._limits.window.entries, replicator._limits.window.nbytes) == (0, 0)
        # The same replicator has all its room again.
        await replicator.replicate(fragment, {0: fragment.ensemble[0]})
        await is_whole(client, ledger_id)


async def test_damaged_copies_are_written_again_in_place(models, version):
    async with models.of(*"abc", protocol_version=version) as client:
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
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 40)
        lost, emptied, _ = (await fragment_of(client, ledger_id)).ensemble
        await models.lose(client, lost)
        models.model(emptied).ledgers.clear()
        result = await restored(client, ledger_id, in_place=[1])
        assert (result.entries, set(result.unfilled)) == (40, {0})
        assert (await LedgerChecker(client, FULL).check(ledger_id)).fragments[0].bad == {0: lost}
        with pytest.raises(BadRequest, match="in place"):
            await restored(client, ledger_id, [0], in_place=[1])


async def test_a_bookie_that_is_filled_in_place_and_fails_is_told_at_once(models, monkeypatch):
    """Nobody takes its place: another try would copy everything again."""
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 10)
        emptied = (await fragment_of(client, ledger_id)).ensemble[1]
        models.model(emptied).ledgers.clear()
        models.model(emptied).fail_adds = StorageFault
        runs, run = [], FragmentCopy.run

        async def counted(copy):
            runs.append(copy)
            await run(copy)

        monkeypatch.setattr(FragmentCopy, "run", counted)
        with pytest.raises(StorageFault):
            await restored(client, ledger_id, [1], in_place=[1])
        assert len(runs) == 1


async def test_only_a_bookie_that_can_be_reached_is_filled_in_place(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 20)
        bookie = (await fragment_of(client, ledger_id)).ensemble[1]
        await models.stop(bookie)
        with pytest.raises(BookieUnavailable, match=bookie):
            await restored(client, ledger_id, [1], in_place=[1])


async def test_only_a_writable_bookie_is_filled_in_place(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        bookie = (await fragment_of(client, ledger_id)).ensemble[1]
        await models.read_only(bookie)
        await until(lambda: bookie not in client.bookies.known_writable)
        with pytest.raises(BookieReadOnly):
            await restored(client, ledger_id, [1], in_place=[1])


async def test_an_ensemble_on_one_rack_is_mended(models):
    models.locations = {"a": "/r1", "b": "/r1", "c": "/r1"}
    async with models.of(*"abc", placement=PlacementOptions(policy="rack-aware")) as client:
        ledger_id = await written(client, 80, write_quorum=2)
        replicator = FragmentReplicator(client)
        with pytest.raises(NotEnoughBookies, match="placement"):
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
    async with models.of(*"abc", placement=PlacementOptions(policy="rack-aware")) as client:
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


async def test_a_bookie_that_is_not_where_it_was_found_is_not_exchanged(models):
    async with models.of(*"abcd") as client:
        fragment = await fragment_of(client, await written(client, 5))
        replicator = FragmentReplicator(client)
        for bad in ({0: fragment.ensemble[1]}, {3: fragment.ensemble[0]}, {-1: fragment.ensemble[2]}):
            for work in (replicator.replicate, replicator.mend):
                with pytest.raises(MetadataVersionConflict, match="name"):
                    await work(fragment, bad)
        with pytest.raises(BadRequest, match="place"):
            await replicator.replicate(fragment, {0: fragment.ensemble[0]}, in_place=[1])
