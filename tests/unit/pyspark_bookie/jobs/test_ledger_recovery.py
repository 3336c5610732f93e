"""Restoring ledgers under their locks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_client.replication.check import LedgerChecker
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import (
    LedgerStateUnknown,
    MetadataUnavailable,
    RecoveryFailed,
    StorageFault,
    TooManyRequests,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service import findings as reasons
from pyspark_bookie.jobs.recover import job
from pyspark_bookie.jobs.recover.job import Recovery, recover_ledgers
from pyspark_bookie.jobs.recover.ledger_recovery import LedgerWork, RecoveryOptions, State, table_of, worst
from pyspark_bookie.jobs.replicas.deep import ScanLimits
from pyspark_bookie.jobs.replicas.findings import Finding, Verdict
from pyspark_bookie.jobs.replicas.inspection import InspectionOptions, Inspector
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import PASSWORD, close_now, emptied_in_two_segments, written

NOW = RecoveryOptions(lock_wait=0.0)


async def recovered(client, *works, options=NOW, digests=True, rate=None):
    found = await recover_ledgers(client, Recovery(options=options, verify_digests=digests), works, rate)
    return found[0] if len(works) == 1 else sorted(found, key=lambda each: each.ledger_id)


async def audited(client, *ledger_ids):
    inspector = Inspector(client, InspectionOptions(digests=True), ScanLimits(ReplicationThrottle()))
    return [finding for ledger_id in ledger_ids for finding in (await inspector.inspect(ledger_id)).findings]


async def ensemble(client, ledger_id):
    return (await client.metadata(ledger_id)).ensemble_for(0)


async def work_of(client, ledger_id):
    return LedgerWork(ledger_id, 0, findings=tuple(await audited(client, ledger_id)))


async def test_damaged_copies_are_made_again_elsewhere(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        hurt = (await ensemble(client, ledger_id))[1]
        models.model(hurt).damage(ledger_id, 17)
        outcome = await recovered(client, await work_of(client, ledger_id))
        assert (outcome.state, outcome.segments, outcome.entries) == (State.RECOVERED, 1, 40)
        assert hurt not in await ensemble(client, ledger_id)
        assert await audited(client, ledger_id) == []
        again = await recovered(client, LedgerWork(ledger_id, 0, findings=(_finding(ledger_id, hurt),)))
        assert (again.state, again.nbytes) == (State.NOTHING_TO_DO, 0)


async def test_what_is_read_and_written_passes_the_throttle_of_the_task(models, monkeypatch):
    made = []

    class Noted(ReplicationThrottle):
        def __init__(self, rate):
            super().__init__(rate)
            made.append(self)

    monkeypatch.setattr(job, "ReplicationThrottle", Noted)
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        hurt = (await ensemble(client, ledger_id))[1]
        models.model(hurt).damage(ledger_id, 17)
        outcome = await recovered(client, await work_of(client, ledger_id), rate=1e9)
    (throttle,) = made
    assert throttle.bytes_per_second == 1e9
    assert throttle.bytes_written >= outcome.nbytes > 0
    assert throttle.bytes_read >= 2 * outcome.nbytes  # what is suspected is looked at once more, then another is copied


def _finding(ledger_id, bookie, verdict=Verdict.DAMAGED):
    return Finding(ledger_id, 0, 17, 17, 1, bookie, 1, verdict)


async def test_what_lost_bookies_held_is_copied_from_the_others(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        gone = (await ensemble(client, ledger_id))[2]
        await models.lose(client, gone)
        work = await work_of(client, ledger_id)
        assert {finding.verdict for finding in work.findings} == {Verdict.LOST}
        assert (await recovered(client, work)).state is State.RECOVERED
        assert gone not in await ensemble(client, ledger_id)
        assert await audited(client, ledger_id) == []


async def test_a_bookie_that_came_back_with_its_copies_is_left_alone(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        before = await ensemble(client, ledger_id)
        work = LedgerWork(ledger_id, 0, findings=(_finding(ledger_id, before[1], Verdict.LOST),))
        assert (await recovered(client, work)).state is State.NOTHING_TO_DO
        assert await ensemble(client, ledger_id) == before


async def test_a_replica_that_differs_gets_what_the_others_hold(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 40)
        before = await ensemble(client, ledger_id)
        kept = models.model(before[0]).ledgers[ledger_id].entries
        right = kept[17]
        kept[17] = digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger_id, 17, 16, 1, b"another payload")
        divergent = Finding(ledger_id, 0, 17, 17, 1, before[0], 0, Verdict.DIVERGENT)
        outcome = await recovered(client, LedgerWork(ledger_id, 0, findings=(divergent,)))
        assert outcome.state is State.RECOVERED
        assert await ensemble(client, ledger_id) == before, "there is no spare, so it was filled again"
        assert kept[17] == right


async def test_without_a_spare_the_bookie_itself_is_filled_again(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 40)
        hurt, empty, _ = await ensemble(client, ledger_id)
        models.model(hurt).damage(ledger_id, 17)
        models.model(empty).ledgers[ledger_id].entries.clear()
        outcome = await recovered(client, await work_of(client, ledger_id))
        assert outcome.state is State.RECOVERED
        assert models.held_at(empty, ledger_id) == set(range(40))


async def test_an_emptied_bookie_that_cannot_be_filled_is_replaced(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        empty = (await ensemble(client, ledger_id))[1]
        models.model(empty).ledgers[ledger_id].entries.clear()
        models.model(empty).fail_adds = StorageFault
        outcome = await recovered(client, await work_of(client, ledger_id))
        assert (outcome.state, outcome.entries) == (State.RECOVERED, 40)
        assert empty not in await ensemble(client, ledger_id)
        assert await audited(client, ledger_id) == []


async def test_only_what_an_emptied_bookie_lacks_is_copied_to_it(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        bookie = (await ensemble(client, ledger_id))[1]
        for entry_id in range(30, 40):
            del models.model(bookie).ledgers[ledger_id].entries[entry_id]
        outcome = await recovered(client, await work_of(client, ledger_id))
        assert (outcome.state, outcome.entries) == (State.RECOVERED, 10)
        assert await audited(client, ledger_id) == []


@pytest.mark.parametrize("refusal", [LedgerStateUnknown, TooManyRequests])
async def test_reported_damage_that_the_bookie_cannot_confirm_now_is_left_over(models, refusal):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        hurt = (await ensemble(client, ledger_id))[1]
        models.model(hurt).damage(ledger_id, 17)
        work = await work_of(client, ledger_id)
        models.model(hurt).fail_reads, models.model(hurt).lists = refusal, False
        assert (await recovered(client, work)).state.is_left_over


async def test_reported_difference_of_a_bookie_that_cannot_tell_now_is_repaired_elsewhere(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        before = await ensemble(client, ledger_id)
        divergent = Finding(ledger_id, 0, 17, 17, 1, before[0], 0, Verdict.DIVERGENT)
        models.model(before[0]).fail_reads, models.model(before[0]).lists = LedgerStateUnknown, False
        outcome = await recovered(client, LedgerWork(ledger_id, 0, findings=(divergent,)))
        assert (outcome.state, outcome.segments) == (State.RECOVERED, 1)
        assert before[0] not in await ensemble(client, ledger_id)


@pytest.mark.parametrize("digests", [False, True])
async def test_what_a_bookie_has_damaged_is_restored_too_if_it_lacks_other_entries(models, digests):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 40)
        model = models.model((await ensemble(client, ledger_id))[1])
        model.damage(ledger_id, 2)
        del model.ledgers[ledger_id].entries[35]
        outcome = await recovered(client, await work_of(client, ledger_id), digests=digests)
        assert (outcome.state, await audited(client, ledger_id)) == (State.RECOVERED, [])


@pytest.mark.parametrize(("spares", "verdict"), [("", Verdict.MISSING), ("e", Verdict.MISSING), ("e", Verdict.LOST)])
async def test_a_bookie_that_lost_entries_of_an_open_ledger_is_not_believed_when_they_are_restored(
    models, spares, verdict
):
    await models.add(*"abcd", *spares)
    async with models.client() as client:
        ledger_id, first, second = await emptied_in_two_segments(models, client)
        position = (await ensemble(client, ledger_id)).index(second)
        if verdict is Verdict.LOST:
            await models.lose(client, second)
        lost = Finding(ledger_id, 0, 0, 9, 10, second, position, verdict)
        outcome = await recovered(client, LedgerWork(ledger_id, 0, findings=(lost,)))
        assert (outcome.state, outcome.segments) == (State.RECOVERED, 1)
        if verdict is Verdict.LOST:
            await models.add(second)
            await until(lambda: second in client.bookies.known_writable)
        await models.lose(client, first)
        with pytest.raises(RecoveryFailed):
            await close_now(client, LedgerChecker(client), ledger_id)


async def test_a_bookie_is_replaced_wherever_it_is_named(served):
    async with served.of(*"abcd") as client:
        ledgers = [await written(client, count) for count in (30, 0, 7)]
        leaving = (await ensemble(client, ledgers[0]))[0]
        works = [LedgerWork(each, 0, bookies=frozenset({leaving})) for each in ledgers]
        for outcome in await recovered(client, *works):
            assert outcome.state in (State.RECOVERED, State.NOTHING_TO_DO)
        for ledger_id in ledgers:
            assert leaving not in (await client.metadata(ledger_id)).all_bookies()
        assert await audited(client, *ledgers) == []
        assert (await recovered(client, works[0])).state is State.NOTHING_TO_DO


async def test_entries_that_nobody_has_are_told_and_nothing_is_exchanged(models):
    async with models.of(*"abcd") as client:
        ledger_id, whole = await written(client, 30), await written(client, 20)
        before = await ensemble(client, ledger_id)
        for bookie in before:
            models.model(bookie).damage(ledger_id, 11)
        leaving = frozenset({before[0]})
        bad, good = await recovered(
            client, LedgerWork(ledger_id, 0, bookies=leaving), LedgerWork(whole, 0, bookies=leaving)
        )
        assert bad.state is State.UNRECOVERABLE
        assert "entry 11" in bad.detail
        assert await ensemble(client, ledger_id) == before
        assert not good.state.is_left_over, "one ledger does not hold up the others"


@pytest.mark.parametrize("is_registered", [True, False])
async def test_entries_that_a_silent_bookie_may_have_are_not_called_unrecoverable(models, is_registered):
    async with models.of(*"abcde", read_timeout=0.3) as client:
        ledger_id = await written(client, 30)
        leaving, damaged, silent = before = await ensemble(client, ledger_id)
        for bookie in (leaving, damaged):
            models.model(bookie).damage(ledger_id, 11)
        await (models.stop(silent) if is_registered else models.lose(client, silent))
        outcome = await recovered(client, LedgerWork(ledger_id, 0, bookies=frozenset({leaving})))
        assert outcome.state is (State.FAILED if is_registered else State.UNRECOVERABLE)
        assert await ensemble(client, ledger_id) == before


async def test_no_spare_is_told(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        before = await ensemble(client, ledger_id)
        outcome = await recovered(client, LedgerWork(ledger_id, 0, bookies=frozenset(before[:1])))
        assert outcome.state is State.NO_SPARE
        assert await ensemble(client, ledger_id) == before


@pytest.mark.parametrize("include_open", [False, True])
async def test_open_ledgers_are_fenced_only_if_that_was_asked_for(models, include_open):
    async with models.of(*"abcd") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many(b"%d" % each for each in range(10))
        await until(lambda: all(len(models.held_at(b, ledger.ledger_id)) == 10 for b in ledger.metadata.last_ensemble))
        leaving = (await ensemble(client, ledger.ledger_id))[0]
        work = LedgerWork(ledger.ledger_id, 0, bookies=frozenset({leaving}))
        outcome = await recovered(client, work, options=replace(NOW, include_open=include_open))
        metadata = await client.metadata(ledger.ledger_id)
        if include_open:
            assert outcome.state is State.RECOVERED
            assert metadata.state is LedgerState.CLOSED
            assert leaving not in metadata.all_bookies()
        else:
            assert outcome.state is State.OPEN
            assert metadata.state is LedgerState.OPEN
            assert await ledger.append(b"its writer noticed nothing") == 10


async def test_a_ledger_that_a_worker_has_locked_is_left_to_it_and_waited_for(models):
    await models.add(*"abcd")
    marks = models.service.under_replication
    async with models.client() as client:
        ledger_id = await written(client, 10)
        leaving = (await ensemble(client, ledger_id))[0]
        work = LedgerWork(ledger_id, 0, bookies=frozenset({leaving}))
        lock = await marks.lock(ledger_id)
        outcome = await recovered(client, work)
        assert outcome.state is State.LOCKED
        assert "has its lock" in outcome.detail
        waiting = asyncio.create_task(recovered(client, work, options=replace(NOW, lock_wait=60.0)))
        await asyncio.sleep(0)
        await marks.release(lock)
        assert (await waiting).state is State.RECOVERED
        assert await marks.locks() == {}


@pytest.mark.parametrize("others", [False, True])
async def test_a_mark_goes_only_if_it_tells_of_nothing_else(models, others):
    await models.add(*"abcd")
    marks = models.service.under_replication
    async with models.client() as client:
        ledger_id = await written(client, 10)
        leaving, other, _ = await ensemble(client, ledger_id)
        if others:
            models.model(other).damage(ledger_id, 5)
        await marks.mark(ledger_id, [leaving, other] if others else [leaving], ctime_ms=1)
        await recovered(client, LedgerWork(ledger_id, 0, bookies=frozenset({leaving})))
        assert (await marks.read(ledger_id) is None) is not others
        assert await marks.locks() == {}


async def test_an_interrupted_recovery_gives_its_lock_back_and_is_gone_on_with(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 200)
        before = await ensemble(client, ledger_id)
        (target,) = set("abcd") - set(before)
        work = LedgerWork(ledger_id, 0, bookies=frozenset(before[:1]))
        models.bookies[target].hold = True
        running = asyncio.create_task(recovered(client, work))
        await until(lambda: models.bookies[target].held)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        models.bookies[target].hold = False
        models.bookies[target].release()
        assert await models.service.under_replication.locks() == {}
        assert await ensemble(client, ledger_id) == before
        assert (await recovered(client, work)).state is State.RECOVERED
        assert await audited(client, ledger_id) == []


async def test_a_copy_that_does_not_last_is_told(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 30)
        before = await ensemble(client, ledger_id)
        (target,) = set("abcd") - set(before)
        model = models.model(target)
        add = model.add

        def forgetful(key, entry, **flags):
            add(key, entry, **flags)
            if entry[8:16] == (5).to_bytes(8, "big"):
                model.damage(ledger_id, 5)

        model.add = forgetful
        outcome = await recovered(client, LedgerWork(ledger_id, 0, bookies=frozenset(before[:1])))
        assert outcome.state is State.FAILED
        assert f"new copy on {target} are DAMAGED" in outcome.detail


async def test_deleted_ledgers_are_no_trouble(models):
    async with models.of(*"abc") as client:
        outcome = await recovered(client, LedgerWork(99, 0, bookies=frozenset("a")))
        assert outcome.state is State.DELETED
        assert not outcome.state.is_left_over
        assert await models.service.under_replication.locks() == {}


def test_the_worst_of_a_ledgers_segments_counts():
    assert worst([]) is State.NOTHING_TO_DO
    assert worst([State.RECOVERED, State.UNRECOVERABLE, State.OPEN]) is State.UNRECOVERABLE
    assert worst([State.RECOVERED, State.NOTHING_TO_DO]) is State.RECOVERED
    assert all(state in {worst([state]), State.NOTHING_TO_DO} for state in (State.FAILED, State.OPEN, State.LOCKED))
    assert table_of([]).num_rows == 0


async def test_a_mark_goes_when_its_bookie_was_filled_again(models):
    """It is still named, and has all that it should."""
    await models.add(*"abc")
    marks = models.service.under_replication
    async with models.client() as client:
        ledger_id = await written(client, 20)
        x = (await client.stored_metadata(ledger_id)).value.ensemble_for(0)[0]
        del models.model(x).ledgers[ledger_id].entries[7]
        await marks.mark(ledger_id, [x], ctime_ms=1)
        report = tuple(await audited(client, ledger_id))
        assert [each.verdict for each in report] == [Verdict.MISSING]
        assert (await recovered(client, LedgerWork(ledger_id, 0, findings=report))).state is State.RECOVERED
        assert x in (await client.stored_metadata(ledger_id)).value.ensemble_for(0)
        assert await marks.read(ledger_id) is None


async def test_a_mark_stays_that_is_about_more_than_was_restored(models):
    """The report knows one damaged entry of the bookie; since then it was lost, and another segment names it, too."""
    await models.add(*"abcde")
    marks = models.service.under_replication
    async with models.client() as client:
        ledger_id = await written(client, 40)
        stored = await client.stored_metadata(ledger_id)
        x, y, z = stored.value.ensemble_for(0)
        two = replace(stored.value, ensembles={0: (x, y, z), 20: (y, x, z)})
        await client.metadata_service.ledgers.write(two, stored.identity)
        report = (Finding(ledger_id, 0, 17, 17, 1, x, 0, Verdict.DAMAGED),)
        await models.lose(client, x)
        await marks.mark(ledger_id, [x], ctime_ms=1)
        assert (await recovered(client, LedgerWork(ledger_id, 0, findings=report))).state is State.RECOVERED
        assert {each.fragment for each in await audited(client, ledger_id)} == {20}
        assert (await marks.read(ledger_id)).replicas == (x,)
        assert (await recovered(client, LedgerWork(ledger_id, 0, bookies=frozenset({x})))).state is State.RECOVERED
        assert await audited(client, ledger_id) == []
        assert await marks.read(ledger_id) is None


async def test_a_mark_stays_while_nobody_can_see_what_its_bookie_lacks(models):
    """Of an open ledger entries behind the last add confirmed may be acknowledged; nobody looks at them."""
    await models.add(*"abc")
    marks = models.service.under_replication
    async with models.client() as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many(b"%d" % each for each in range(10))
        x = ledger.metadata.last_ensemble[0]
        await until(lambda: len(models.held_at(x, ledger.ledger_id)) == 10)
        del models.model(x).ledgers[ledger.ledger_id].entries[9]
        reason = reasons.Finding(x, reasons.Reason.MISSING, ((9, 9),))
        await marks.mark(ledger.ledger_id, ctime_ms=1, findings=[reason])
        work = LedgerWork(
            ledger.ledger_id, 0, findings=(Finding(ledger.ledger_id, 0, 0, 9, 10, x, 0, Verdict.MISSING),)
        )
        assert (await recovered(client, work)).state is State.NOTHING_TO_DO
        assert (await marks.read(ledger.ledger_id)).replicas == (x,)
        await ledger.close()


async def test_what_was_recovered_is_told_though_its_mark_could_not_be_looked_at(models, monkeypatch):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 10)
        leaving = (await ensemble(client, ledger_id))[0]
        await models.service.under_replication.mark(ledger_id, [leaving], ctime_ms=1)

        async def read(*_arguments):
            raise MetadataUnavailable("no answer")

        monkeypatch.setattr(client.metadata_service.under_replication, "read", read)
        outcome = await recovered(client, LedgerWork(ledger_id, 0, bookies=frozenset({leaving})))
        assert (outcome.state, outcome.entries) == (State.RECOVERED, 10)
    assert await models.service.under_replication.locks() == {}
