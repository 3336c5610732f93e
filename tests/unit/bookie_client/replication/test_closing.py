"""Closing ledgers on behalf of healing: who lost its disk does not say where a ledger ends."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client import patience
from bookie_client.connection.operations import BookieOperations
from bookie_client.replication.check import LedgerChecker
from bookie_client.replication.closing import close_checked
from bookie_client.replication.replicator import FragmentReplicator
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.node.integrity.replicas import Replicas
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    BookieTimeout,
    LedgerStateUnknown,
    MetadataReplaced,
    MetadataVersionConflict,
    RecoveryFailed,
    StorageFault,
    TooManyRequests,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.findings import Finding, Reason, distrusted
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from pyspark_bookie.jobs.recover.job import Recovery, recover_ledgers
from pyspark_bookie.jobs.recover.ledger_recovery import LedgerRecovery, LedgerWork, RecoveryOptions, State
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import (
    PASSWORD,
    LookThen,
    close_now,
    emptied_in_two_segments,
    half_acknowledged,
    life_of,
    marked,
    noted_pauses,
    payload,
    stored,
)


async def worker(client, ledger_id):
    await close_now(client, LedgerChecker(client), ledger_id)


async def drain(client, ledger_id):
    await ClientMover(client).recover(await life_of(client, ledger_id))


async def integrity_check(client, ledger_id):
    replicas = Replicas(client.metadata_service, "the one that lost its disks")
    replicas._client = client
    await replicas.recover(await life_of(client, ledger_id))


async def spark(client, ledger_id):
    going = (await client.metadata(ledger_id)).last_ensemble[0]
    options = RecoveryOptions(include_open=True)
    recovery = LedgerRecovery(client, None, None, None, options)  # type: ignore[arg-type]
    outcome = await recovery.recover(LedgerWork(ledger_id, 0, frozenset({going})))
    raise RecoveryFailed(outcome.detail)


async def used_again(client, ledger_id):
    """The ledger is deleted, and another one has its id."""
    await client.delete(ledger_id)
    return await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD, ledger_id=ledger_id)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    "close", [close_checked, lambda client, checker, life: ClientMover(client).recover(life)], ids=["all", "drain"]
)
async def test_next_ledger_of_the_id_is_left_alone(models, close, is_closed):
    """A healer read the metadata some time ago. Of a closed ledger it would take the end for that of its own."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD, ledger_id=7)
        await ledger.append(payload(0))
        former = await life_of(client, 7)
        another = await used_again(client, 7)
        if is_closed:
            await another.close()
        with pytest.raises(MetadataReplaced):
            await close(client, LedgerChecker(client), former)
        assert (await client.metadata(7)).is_closed == is_closed
        if not is_closed:
            await another.append(payload(0))


async def test_end_of_the_next_ledger_of_the_id_is_not_taken_for_that_of_the_former(models):
    """It is made during the look."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD, ledger_id=7)
        await ledger.append(payload(0))

        async def again(report):
            await (await used_again(client, 7)).close()

        with pytest.raises(MetadataReplaced):
            await close_now(client, LookThen(client, again), 7)


async def test_next_ledger_of_the_id_is_not_closed_by_a_job_that_took_a_copy_of_the_former_for_lost(
    models, monkeypatch
):
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD, ledger_id=7)
        going, made, lost_now = ledger.metadata.last_ensemble[0], [], LedgerRecovery._lost_now

        async def look(*arguments):
            found = await lost_now(*arguments)
            if not made:
                made.append(await used_again(client, 7))
            return found

        monkeypatch.setattr(LedgerRecovery, "_lost_now", look)
        recovery = LedgerRecovery(client, None, None, None, RecoveryOptions(include_open=True))  # type: ignore[arg-type]
        assert (await recovery.recover(LedgerWork(7, 0, frozenset({going})))).state is State.FAILED
        await made[0].append(payload(0))


@pytest.mark.parametrize("filled", [None, Reason.MISSING, Reason.UNKNOWN])
@pytest.mark.parametrize("close", [worker, drain, integrity_check, spark])
async def test_acknowledged_entries_are_not_cut_off_on_the_word_of_an_empty_disk(models, close, filled):
    """Five entries were acknowledged by the first two bookies; the first is away, the second lost its disk. A worker
    may have filled in what is confirmed, which makes the second one look sound. Marks of Java's auditors have no
    reason, which may have been this one."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        await ledger.append_many(payload(i) for i in range(10, 15))
        first, second, third = (await client.metadata(ledger.ledger_id)).last_ensemble
        await stored(client, third, ledger.ledger_id, 14)
        for entry_id in range(10, 15):
            del models.model(third).ledgers[ledger.ledger_id].entries[entry_id]
        models.model(second).ledgers.clear()
        if filled:
            findings = [Finding(second, filled, ((0, 0),))]
            await models.service.under_replication.mark(ledger.ledger_id, ctime_ms=1, findings=findings)
            (segment,) = (await LedgerChecker(client).check(ledger.ledger_id)).bad_fragments
            await FragmentReplicator(client).replicate(segment.fragment, segment.bad, in_place=segment.bad.keys())
            assert (await LedgerChecker(client).check(ledger.ledger_id)).is_healthy
        await models.lose(client, first)
        with pytest.raises(RecoveryFailed, match=f"recover {ledger.ledger_id}`"):
            await close(client, ledger.ledger_id)
        assert (await client.metadata(ledger.ledger_id)).state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("close", [worker, drain, integrity_check, spark])
async def test_the_look_compares_the_list_of_a_bookie_that_the_mark_names(models, close):
    """The second bookie was away, and came back without one of its disks: it has the first and the last confirmed
    entry. The first one, with which it acknowledged the last five entries, is away now."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        await ledger.append_many(payload(i) for i in range(10, 15))
        first, second, third = ledger.metadata.last_ensemble
        for bookie, lost in ((second, {3, 4, *range(10, 15)}), (third, range(10, 15))):
            await stored(client, bookie, ledger.ledger_id, 14)
            for entry_id in lost:
                del models.model(bookie).ledgers[ledger.ledger_id].entries[entry_id]
        await marked(models, ledger.ledger_id, second, Reason.ABSENT)
        await models.lose(client, first)
        with pytest.raises(RecoveryFailed):
            await close(client, ledger.ledger_id)
        assert not (await client.metadata(ledger.ledger_id)).is_closed


MARKS = pytest.mark.parametrize("mark", [None, Reason.ABSENT, Reason.UNTOLD])


@pytest.fixture
def first_to_answer(monkeypatch):
    """The answers of all others arrive after those of the bookies that the test puts in here."""
    first: set[str] = set()

    def later(method):
        async def asked(self, bookie, *given, **options):
            answer = await method(self, bookie, *given, **options)
            if first and bookie not in first:
                await asyncio.sleep(0.02)
            return answer

        return asked

    for name in ("read_entry", "read_lac"):
        monkeypatch.setattr(BookieOperations, name, later(getattr(BookieOperations, name)))
    return first


@pytest.mark.parametrize("mark", [None, Reason.ABSENT])
@pytest.mark.parametrize("copies", [3, 2])
async def test_one_empty_bookie_ends_no_ledger_because_it_answers_first(models, first_to_answer, copies, mark):
    """Each bookie acknowledged each entry, so the word of one is enough for the rules of a reader."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=copies, write_quorum=copies, ack_quorum=copies, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        first = (await client.metadata(ledger.ledger_id)).last_ensemble[0]
        await models.empty(client, first)
        await marked(models, ledger.ledger_id, first, mark)
        first_to_answer.add(first)
        assert (await LedgerChecker(client).check(ledger.ledger_id)).lac == 8
        assert (await close_now(client, LedgerChecker(client), ledger.ledger_id)).last_entry_id == 9


@MARKS
async def test_a_look_that_saw_nothing_closes_nothing(models, monkeypatch, mark):
    """No bookie told the last add confirmed, so the look could not see that the second one lost its disk."""
    noted_pauses(monkeypatch, patience, "HEARD_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, ensemble = await half_acknowledged(models, client)
        await models.empty(client, ensemble[1])
        await marked(models, ledger_id, ensemble[1], mark)
        for bookie in ensemble:
            models.model(bookie).fail_reads = TooManyRequests

        async def have_time(report):
            assert isinstance(report.lac_error, TooManyRequests)
            for bookie in ensemble:
                models.model(bookie).fail_reads = None

        with pytest.raises(RecoveryFailed):
            await close_now(client, LookThen(client, have_time), ledger_id)
        assert (await client.metadata(ledger_id)).state is LedgerState.OPEN
        closed = await close_now(client, LedgerChecker(client), ledger_id)
        assert closed.last_entry_id == 10


async def test_a_look_that_saw_nothing_is_no_error_if_the_ledger_is_closed_meanwhile(models, monkeypatch):
    noted_pauses(monkeypatch, patience, "HEARD_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, ensemble = await half_acknowledged(models, client)
        for bookie in ensemble:
            models.model(bookie).fail_reads = TooManyRequests

        async def close(report):
            for bookie in ensemble:
                models.model(bookie).fail_reads = None
            await close_now(client, LedgerChecker(client), ledger_id)

        assert (await close_now(client, LookThen(client, close), ledger_id)).last_entry_id == 10


@pytest.mark.parametrize("is_there", [True, False], ids=["the other answers", "the other is away"])
@pytest.mark.parametrize("how", ["lost", "silent"])
async def test_a_bookie_that_the_look_did_not_see_is_not_believed(models, how, is_there):
    """The second bookie comes back with an empty disk between the look and the fence."""
    async with models.of(*"abc", read_timeout=0.1) as client:
        ledger_id, (first, second, _) = await half_acknowledged(models, client)
        await marked(models, ledger_id, second, Reason.ABSENT)
        if how == "lost":
            await models.lose(client, second)
        else:
            models.bookies[second].silent = True

        async def back(report):
            if how == "lost":
                await models.add(second)
            else:
                models.bookies[second].silent = False
                models.model(second).ledgers.clear()
            if not is_there:
                await models.stop(first)

        async with models.client() as other:
            closing = close_now(other, LookThen(client, back), ledger_id)
            if is_there:
                assert (await closing).last_entry_id == 10
                return
            with pytest.raises(RecoveryFailed):
                await closing


async def young_segment(models, client, count=1):
    """The second bookie joined the ledger with its last segment, of so many entries from 10 on, which it acknowledged
    with the first one; the last one did not reach the third. Then it came back with an empty disk."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    for i in range(10):
        await ledger.append(payload(i))
    before = (await client.metadata(ledger.ledger_id)).last_ensemble
    models.model(before[1]).fail_adds = StorageFault
    await ledger.append(payload(10))
    await until(lambda: not {*"abcd"}.difference(before).isdisjoint(ledger.metadata.last_ensemble))
    for i in range(11, 10 + count):
        await ledger.append(payload(i))
    first, second, third = (await client.metadata(ledger.ledger_id)).last_ensemble
    for bookie in (first, second, third):
        await stored(client, bookie, ledger.ledger_id, 9 + count)
    del models.model(third).ledgers[ledger.ledger_id].entries[9 + count]
    await models.empty(client, second)
    return ledger.ledger_id, first, second, third


@MARKS
async def test_any_copy_counts_where_nothing_vouches_for_those_that_deny_it(models, mark):
    async with models.of(*"abcd") as client:
        ledger_id, _, second, _ = await young_segment(models, client)
        await marked(models, ledger_id, second, mark)
        assert (await close_now(client, LedgerChecker(client), ledger_id)).last_entry_id == 10


@pytest.mark.parametrize("mark", Reason)
async def test_a_marked_bookie_is_not_believed_where_no_confirmed_entry_vouches_for_it(models, mark):
    async with models.of(*"abcd") as client:
        ledger_id, first, second, _ = await young_segment(models, client)
        await marked(models, ledger_id, second, mark)
        await models.stop(first)
        with pytest.raises(RecoveryFailed):
            await close_now(client, LedgerChecker(client), ledger_id)


@pytest.mark.parametrize("confirmed", [0, 10])
@pytest.mark.parametrize("how", ["lost", "away", "silent"])
async def test_one_bookie_that_never_answers_again_keeps_no_ledger_open(models, how, confirmed):
    """A silent one costs time-outs."""
    async with models.of(*"abc", read_timeout=0.1) as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(confirmed):
            await ledger.append(payload(i))
        first = ledger.metadata.last_ensemble[0]
        await marked(models, ledger.ledger_id, first, Reason.ABSENT)
        if how == "silent":
            models.bookies[first].silent = True
        elif how == "away":
            await models.stop(first)
        else:
            await models.lose(client, first)
        closed = await close_now(client, LedgerChecker(client), ledger.ledger_id)
        assert closed.last_entry_id == confirmed - 1


async def unconfirmed(models, client):
    """An open ledger of three entries, of which none is confirmed; its second bookie was away, by its mark."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    await ledger.append_many(payload(i) for i in range(3))
    ensemble = ledger.metadata.last_ensemble
    for bookie in ensemble:
        await stored(client, bookie, ledger.ledger_id, 2)
    await marked(models, ledger.ledger_id, ensemble[1], Reason.ABSENT)
    return ledger.ledger_id, ensemble


async def test_a_bookie_that_came_back_with_its_entries_is_believed_although_none_is_confirmed(models):
    async with models.of(*"abc") as client:
        ledger_id, (first, *_) = await unconfirmed(models, client)
        await models.lose(client, first)
        closed = await close_now(client, LedgerChecker(client), ledger_id)
        assert closed.last_entry_id == 2


@pytest.mark.parametrize("answer", [BookieTimeout, LedgerStateUnknown])
async def test_one_time_out_is_no_reason_to_believe_a_bookie_no_more(models, monkeypatch, answer):
    """The first bookie is gone for good, so without the word of the second one the ledger has no end. If that one does
    not tell because it is in limbo, it may have lost entries."""
    async with models.of(*"abc") as client:
        ledger_id, (first, second, _) = await unconfirmed(models, client)
        await models.lose(client, first)
        untold(monkeypatch, client, second, answer)
        with pytest.raises(RecoveryFailed):
            await close_now(client, LedgerChecker(client), ledger_id)
        mark = await models.service.under_replication.read(ledger_id)
        if answer is LedgerStateUnknown:
            assert second in distrusted(mark.doubts)
            return
        assert second not in distrusted(mark.doubts)
        assert (await client.metadata(ledger_id)).state is LedgerState.OPEN
        assert (await close_now(client, LedgerChecker(client), ledger_id)).last_entry_id == 2


@pytest.mark.parametrize("second_is", ["empty", "silent for a moment", "back behind the look"])
async def test_what_an_attempt_to_close_stored_again_vouches_for_no_bookie(models, monkeypatch, second_is):
    """The first bookie, which is away, alone has the last entry: the second one, empty now, acknowledged it too."""
    async with models.of(*"abc") as client:
        ledger_id, (first, second, third) = await unconfirmed(models, client)
        del models.model(third).ledgers[ledger_id].entries[2]
        models.model(second).ledgers.clear()

        async def behind_the_look(report):
            if second_is == "back behind the look":
                await models.add(second)
                await until(lambda: second in client.bookies.known_writable)
            await models.lose(client, first)

        if second_is == "back behind the look":
            await models.lose(client, second)
        if second_is == "silent for a moment":
            untold(monkeypatch, client, second)
        for checker in (LookThen(client, behind_the_look), LedgerChecker(client)):
            with pytest.raises(RecoveryFailed):
                await close_now(client, checker, ledger_id)
        assert models.held_at(second, ledger_id) == {0, 1}
        mark = await models.service.under_replication.read(ledger_id)
        assert second in distrusted(mark.doubts)


def untold(monkeypatch, client, bookie, error=BookieTimeout):
    """The bookie does not tell its last entry when it is asked for it first, without a fence."""
    read, left = client.operations.read_entry, [bookie]

    async def read_entry(asked, ledger_id, entry_id, **options):
        if asked in left and entry_id == LAST_ENTRY and not options:
            left.clear()
            raise error(f"bookie {asked} does not tell")
        return await read(asked, ledger_id, entry_id, **options)

    monkeypatch.setattr(client.operations, "read_entry", read_entry)


async def test_who_denied_a_confirmed_entry_is_not_believed_when_the_attempt_stored_it_again(models):
    """Entries 10 and 11 of a segment that begins with 10 were acknowledged by the first two bookies. The second one is
    empty now. The first one, which alone tells that 10 is confirmed, goes behind the look."""
    async with models.of(*"abcd") as client:
        ledger_id, first, second, third = await young_segment(models, client, 2)
        models.model(third).ledgers[ledger_id].lac = 9
        await marked(models, ledger_id, second, Reason.ABSENT)

        async def gone(report):
            assert report.lac == 10
            await models.lose(client, first)

        for checker in (LookThen(client, gone), LedgerChecker(client)):
            with pytest.raises(RecoveryFailed):
                await close_now(client, checker, ledger_id)
        assert models.held_at(second, ledger_id) == {10}


async def test_a_writer_that_exchanged_a_bookie_behind_the_look_is_not_fenced(models):
    """The look did not see the new bookie, so nothing is known of what that one denies."""
    async with (
        models.of(
            *"abcd",
        ) as writer,
        models.client() as client,
    ):
        ledger = await writer.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        ensemble = ledger.metadata.last_ensemble

        async def exchange(report):
            models.model(ensemble[1]).fail_adds = StorageFault
            await ledger.append(payload(10))
            await until(lambda: ledger.metadata.last_ensemble != ensemble)

        with pytest.raises(MetadataVersionConflict):
            await close_now(client, LookThen(client, exchange), ledger.ledger_id)
        assert (await client.metadata(ledger.ledger_id)).state is LedgerState.OPEN
        await ledger.append(payload(11))
        assert (await close_now(client, LedgerChecker(client), ledger.ledger_id)).last_entry_id == 11


async def test_what_a_mark_gets_during_the_look_is_looked_at_too(models):
    async with models.of(*"abc") as client:
        ledger_id, (_, second, _) = await half_acknowledged(models, client)
        asked = []

        class Asked(LookThen):
            async def check(self, *given, **options):
                asked.append({each.bookie for each in options["findings"]})
                return await super().check(*given, **options)

        checker = Asked(client, lambda report: marked(models, ledger_id, second, Reason.ABSENT))
        assert (await close_now(client, checker, ledger_id)).last_entry_id == 10
        assert asked == [set(), {second}]


async def moved_by_drain(client, ledger_id, bookie):
    guard = LedgerGuard(client.metadata_service)
    lock = await guard.lock(ledger_id)
    assert lock is not None
    async with guard.holding(lock):
        metadata = await client.metadata(ledger_id)
        await ClientMover(client).move(metadata, [bookie], lock.session_id, lambda nbytes: None)


async def moved_by_spark(client, ledger_id, bookie):
    work = LedgerWork(ledger_id, 0, bookies=frozenset({bookie}))
    await recover_ledgers(client, Recovery(options=RecoveryOptions(lock_wait=0.0), verify_digests=True), [work], None)


@pytest.mark.parametrize("move", [moved_by_drain, moved_by_spark])
@pytest.mark.parametrize("at_the_look", ["there", "gone", "silent", "in limbo"])
async def test_a_bookie_that_is_drained_is_not_believed_because_its_earlier_segments_moved(models, at_the_look, move):
    """Its copies move while the writer has time to leave the last segment. It may not tell then what it lost."""
    async with models.of(*"abcde", read_timeout=0.3) as client:
        ledger_id, first, second = await emptied_in_two_segments(models, client)
        if at_the_look == "gone":
            await models.lose(client, second)
        elif at_the_look == "silent":
            models.bookies[second].silent = True
        elif at_the_look == "in limbo":
            models.model(second).fail_reads = LedgerStateUnknown
        await move(client, ledger_id, second)
        assert second not in (await client.metadata(ledger_id)).ensemble_for(0)
        if at_the_look == "gone":
            await models.add(second)
            await until(lambda: second in client.bookies.known_writable)
        models.bookies[second].silent = False
        models.model(second).fail_reads = None
        await models.lose(client, first)
        with pytest.raises(RecoveryFailed):
            await close_now(client, LedgerChecker(client), ledger_id)
