"""What a bookie may have lost behind the last add confirmed: its mark stays until that is known or filled in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import product

import pytest

from bookie_client.healing.settling import settle
from bookie_client.replication import replica_reads, tail
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.replication.tail import Tail
from bookie_protocol.errors import BookieTimeout, RecoveryFailed, StorageFault, TooManyRequests
from bookie_protocol.metadata_service.findings import Finding, Reason
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import (
    PASSWORD,
    CountingThrottle,
    close_now,
    noted_pauses,
    payload,
    stored,
)


async def half_acknowledged(models, client, reason=Reason.MISSING):
    """An open ledger of 15 entries, the last five of them acknowledged by the first two bookies alone and confirmed by
    none. The second bookie lost its disk, and a worker filled in what is confirmed."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    for i in range(10):
        await ledger.append(payload(i))
    await ledger.append_many(payload(i) for i in range(10, 15))
    ensemble = (await client.metadata(ledger.ledger_id)).last_ensemble
    _, second, third = ensemble
    await stored(client, third, ledger.ledger_id, 14)
    lost = {entry_id: models.model(second).ledgers[ledger.ledger_id].entries[entry_id] for entry_id in range(10, 15)}
    for entry_id in lost:
        del models.model(third).ledgers[ledger.ledger_id].entries[entry_id]
    models.model(second).ledgers.clear()
    finding = Finding(second, reason, ((0, 0),))
    await models.service.under_replication.mark(ledger.ledger_id, ctime_ms=1, findings=[finding])
    (segment,) = (await LedgerChecker(client).check(ledger.ledger_id)).bad_fragments
    await FragmentReplicator(client).replicate(segment.fragment, segment.bad, in_place=segment.bad.keys())
    return ledger.ledger_id, ensemble, lost


async def settled(models, client, ledger_id):
    """Whether the mark is gone after a look."""
    guard = LedgerGuard(models.service)
    lock = await guard.lock(ledger_id)
    assert lock is not None
    async with guard.holding(lock):
        return await settle(models.service, lock, LedgerChecker(client))


async def test_a_bookie_that_lost_entries_stays_doubted_while_it_lacks_some_behind_the_end(models, monkeypatch):
    """Else its "no such entry" would end the ledger below entries that the first bookie alone has, and is away with."""
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, (first, _, _), _ = await half_acknowledged(models, client)
        assert not await settled(models, client, ledger_id)
        await models.lose(client, first)
        with pytest.raises(RecoveryFailed):
            await close_now(client, LedgerChecker(client), ledger_id)


async def test_the_finding_is_answered_when_the_bookie_has_what_the_others_have(models, monkeypatch):
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, (first, second, _), lost = await half_acknowledged(models, client)
        report = await LedgerChecker(client).check(ledger_id)
        doubts = (await models.service.under_replication.read(ledger_id)).doubts
        found = await LedgerChecker(client).tail(report, doubts)
        assert (found.lacking, found.fragment.last_entry) == ({1: second}, 14)
        await FragmentReplicator(client).replicate(found.fragment, found.lacking, in_place=found.lacking.keys())
        assert models.held_at(second, ledger_id) == set(range(15))
        assert await settled(models, client, ledger_id)
        await models.lose(client, first)
        closed = await close_now(client, LedgerChecker(client), ledger_id)
        assert closed.last_entry_id == max(lost)


async def test_entries_on_their_way_are_not_lacking(models, monkeypatch):
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, (_, second, _), lost = await half_acknowledged(models, client)
        again = tail.Patience.again

        async def arrived(patience):
            models.model(second).ledgers[ledger_id].entries.update(lost)
            return await again(patience)

        monkeypatch.setattr(tail.Patience, "again", arrived)
        assert await settled(models, client, ledger_id)


async def test_while_a_bookie_is_silent_nobody_knows_what_the_other_lost(models):
    async with models.of(*"abc") as client:
        ledger_id, (first, _, _), _ = await half_acknowledged(models, client)
        await models.stop(first)
        assert not await settled(models, client, ledger_id)


@pytest.mark.parametrize("reason", Reason)
async def test_whatever_a_bookie_is_marked_for_it_is_asked_what_it_lacks_behind_the_end(models, monkeypatch, reason):
    """One whose entries were damaged may have lost others, and one that was away may have come back with less."""
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, (_, second, _), _ = await half_acknowledged(models, client, reason)
        assert not await settled(models, client, ledger_id)
        checker = LedgerChecker(client)
        report = await checker.check(ledger_id)
        doubts = (await models.service.under_replication.read(ledger_id)).doubts
        assert (await checker.tail(report, doubts)).lacking == {1: second}
        assert (await checker.tail(report, [Finding("z", reason)])).left is None


async def test_a_bookie_that_gives_no_list_is_read(models, monkeypatch):
    """By what reads of a check pass: the throttle, few at a time."""
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, (_, second, _), lost = await half_acknowledged(models, client)
        throttle = CountingThrottle()
        checker = LedgerChecker(client, CheckOptions(throttle=throttle, max_reads=2))
        report = await checker.check(ledger_id)
        monkeypatch.setattr(checker._lists, "of", lambda *_: asyncio.sleep(0, None))
        doubts = [Finding(second, Reason.MISSING)]
        assert (await checker.tail(report, doubts)).lacking == {1: second}
        models.model(second).ledgers[ledger_id].entries.update(lost)
        models.model(second).damage(ledger_id, 12)
        assert (await checker.tail(report, doubts)).lacking == {1: second}
        models.model(second).ledgers[ledger_id].entries.update(lost)
        throttle.requests, before = 0, models.requests()
        assert (await checker.tail(report, doubts)).left is None
        assert throttle.requests == models.requests() - before >= 3


@pytest.mark.parametrize("at", [0, 1])
async def test_a_bookie_that_is_too_busy_lacks_nothing_and_denies_nothing(models, monkeypatch, at):
    """Neither the one in question nor another one."""
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abc") as client:
        ledger_id, ensemble, lost = await half_acknowledged(models, client)
        if at == 1:
            models.model(ensemble[1]).ledgers[ledger_id].entries.update(lost)
        checker = LedgerChecker(client)
        report = await checker.check(ledger_id)
        monkeypatch.setattr(checker._lists, "of", lambda *_: asyncio.sleep(0, None))
        model, pauses = models.model(ensemble[at]), noted_pauses(monkeypatch, replica_reads)
        read = model.read

        def busy(ledger_id, entry_id, fence_key=None):
            if entry_id >= 10:
                raise TooManyRequests("not now")
            return read(ledger_id, entry_id, fence_key)

        monkeypatch.setattr(model, "read", busy)
        monkeypatch.setattr(model, "read_batch", lambda *_: busy(ledger_id, 10))
        found = await checker.tail(report, [Finding(ensemble[1], Reason.MISSING)])
        assert (found.lacking, found.unknown is None) == ({}, False)
        assert pauses[:3] == [1, 2, 4]


async def test_a_last_entry_is_asked_for_again_by_and_by(models, monkeypatch):
    async with models.of(*"abc") as client:
        ledger_id, (first, second, _), lost = await half_acknowledged(models, client)
        checker = LedgerChecker(client)
        report = await checker.check(ledger_id)
        models.model(first).fail_reads = TooManyRequests
        models.model(second).ledgers[ledger_id].entries.update(lost)
        pauses, again = noted_pauses(monkeypatch, replica_reads), replica_reads.Patience.again

        async def served(patience):
            models.model(first).fail_reads = None
            return await again(patience)

        monkeypatch.setattr(replica_reads.Patience, "again", served)
        assert (await checker.tail(report, [Finding(second, Reason.MISSING)])).left is None
        assert pauses == [1]


async def test_nothing_is_filled_in_while_the_last_add_confirmed_is_unknown(models):
    async with models.of(*"abc") as client:
        ledger_id, (_, second, _), _ = await half_acknowledged(models, client)
        checker = LedgerChecker(client)
        report = replace(await checker.check(ledger_id), lac_error=BookieTimeout("nobody told it"))
        found = await checker.tail(report, [Finding(second, Reason.MISSING)])
        assert (found.lacking, found.unknown is None) == ({}, False)


async def test_a_look_at_a_segment_that_the_writer_left_meanwhile_answers_nothing(models, monkeypatch):
    """The bookie that the writer took instead may have acknowledged entries with one that lost them."""
    noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
    async with models.of(*"abcd") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        first, second, _ = before = ledger.metadata.last_ensemble
        doubts, checker = [Finding(second, Reason.MISSING, ((0, 0),))], LedgerChecker(client)
        report = await checker.check(ledger.ledger_id)
        assert (await checker.tail(report, doubts)).left is None
        models.model(first).fail_adds = StorageFault
        await ledger.append(payload(10))
        await until(lambda: ledger.metadata.last_ensemble != before)
        assert (await checker.tail(report, doubts)).unknown is not None


class TestDamagedEntries:
    """Of an idle writer, whose last entries, from 10 to 14, are on all bookies and confirmed by none."""

    async def idle(self, models, client, monkeypatch):
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        await ledger.append_many(payload(i) for i in range(10, 15))
        for bookie in ledger.metadata.last_ensemble:
            await stored(client, bookie, ledger.ledger_id, 14)
        return ledger.ledger_id, ledger.metadata.last_ensemble

    async def mark(self, models, ledger_id, *finding):
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=[Finding(*finding)])

    async def fill(self, models, client, ledger_id):
        checker = LedgerChecker(client)
        doubts = (await models.service.under_replication.read(ledger_id)).doubts
        found = await checker.tail(await checker.check(ledger_id), doubts)
        if found.lacking:
            await FragmentReplicator(client).replicate(
                found.fragment, found.lacking, in_place=found.lacking.keys(), by_lists=True
            )
        return found.lacking

    @pytest.mark.parametrize("verifies", [False, True])
    async def test_the_last_entry_of_another_one_keeps_no_mark(self, models, monkeypatch, verifies):
        """That bookie tells by its list which entry that is."""
        async with models.of(*"abc") as client:
            ledger_id, (first, second, _) = await self.idle(models, client, monkeypatch)
            models.model(first).verifies = verifies
            models.model(first).damage(ledger_id, 14)
            await self.mark(models, ledger_id, second, Reason.MISSING, ((0, 0),))
            assert await settled(models, client, ledger_id)

    @pytest.mark.parametrize("run", [(), ((0, 0),), ((14, 14),)])
    @pytest.mark.parametrize("verifies", [False, True])
    async def test_the_last_entry_of_the_one_in_question_is_lacking(self, models, monkeypatch, verifies, run):
        async with models.of(*"abc") as client:
            ledger_id, (_, second, _) = await self.idle(models, client, monkeypatch)
            models.model(second).verifies = verifies
            models.model(second).damage(ledger_id, 14)
            await self.mark(models, ledger_id, second, Reason.DAMAGED, run)
            assert not await settled(models, client, ledger_id)
            assert await self.fill(models, client, ledger_id) == {1: second}
            assert await settled(models, client, ledger_id)

    @pytest.mark.parametrize("is_damaged", [True, False])
    async def test_an_entry_for_which_a_bookie_is_marked_is_read(self, models, monkeypatch, is_damaged):
        async with models.of(*"abc") as client:
            ledger_id, (_, second, _) = await self.idle(models, client, monkeypatch)
            if is_damaged:
                models.model(second).damage(ledger_id, 12)
            await self.mark(models, ledger_id, second, Reason.DAMAGED, ((12, 12),))
            assert await self.fill(models, client, ledger_id) == ({1: second} if is_damaged else {})
            assert await settled(models, client, ledger_id)

    async def test_an_entry_that_no_bookie_has_any_more_keeps_its_mark(self, models, monkeypatch):
        async with models.of(*"abc") as client:
            ledger_id, (_, second, _) = await self.idle(models, client, monkeypatch)
            await self.mark(models, ledger_id, second, Reason.DAMAGED, ((15, 15),))
            assert not await settled(models, client, ledger_id)

    async def test_entries_in_front_of_one_that_is_left_damaged_alone_are_filled_in(self, models, monkeypatch):
        """Only the first bookie has entry 14, damaged, and 13, which the second one lost."""
        async with models.of(*"abc") as client:
            ledger_id, (first, second, third) = await self.idle(models, client, monkeypatch)
            models.model(first).damage(ledger_id, 14)
            for bookie, entry_id in product((second, third), (13, 14)):
                del models.model(bookie).ledgers[ledger_id].entries[entry_id]
            await self.mark(models, ledger_id, second, Reason.MISSING, ((0, 0),))
            assert await self.fill(models, client, ledger_id) == {1: second}
            assert 13 in models.held_at(second, ledger_id)
            assert not await settled(models, client, ledger_id)


class TestEntriesThatNoBookieHas:
    """Entries of a writer that died: each was sent to two of four bookies, and reached one that lost its disk, or
    none."""

    async def in_flight(self, models, client, missing: dict[int, str]):
        """An open ledger whose entries from 10 to 15 are confirmed by none. `missing`: positions, as digits, at which
        each of these is not."""
        ledger = await client.create(ensemble=4, write_quorum=2, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        await ledger.append_many(payload(i) for i in range(10, 16))
        ensemble = (await client.metadata(ledger.ledger_id)).last_ensemble
        for entry_id in range(10, 16):
            for position in (entry_id % 4, (entry_id + 1) % 4):
                await stored(client, ensemble[position], ledger.ledger_id, entry_id)
        for entry_id, positions in missing.items():
            for position in map(int, positions):
                del models.model(ensemble[position]).ledgers[ledger.ledger_id].entries[entry_id]
        return ledger.ledger_id, ensemble

    async def test_they_keep_no_mark_if_they_were_never_acknowledged(self, models, monkeypatch):
        """Entry 10 is nowhere, and one whom the loss does not concern denies it."""
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            ledger_id, ensemble = await self.in_flight(models, client, {10: "23", 11: "3", 14: "2"})
            marks = models.service.under_replication
            await marks.mark(ledger_id, ctime_ms=1, findings=[Finding(ensemble[2], Reason.MISSING, ((0, 0),))])
            assert await settled(models, client, ledger_id)
            assert (await close_now(client, LedgerChecker(client), ledger_id)).last_entry_id == 9

    @pytest.mark.parametrize("doubted", [(2,), (2, 1), (1, 2)])
    async def test_what_is_in_front_of_them_is_filled_in(self, models, monkeypatch, doubted):
        """Entry 14 is nowhere; 10 and 13 were acknowledged."""
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            ledger_id, ensemble = await self.in_flight(models, client, {10: "2", 13: "2", 14: "23"})
            report, checker = await LedgerChecker(client).check(ledger_id), LedgerChecker(client)
            found = await checker.tail(report, [Finding(ensemble[each], Reason.MISSING, ((0, 0),)) for each in doubted])
            assert (found.lacking, found.fragment.last_entry, found.unknown) == ({2: ensemble[2]}, 13, None)
            await FragmentReplicator(client).replicate(found.fragment, found.lacking, in_place=found.lacking.keys())
            assert models.held_at(ensemble[2], ledger_id) >= {10, 13}

    async def test_what_is_behind_them_needs_no_copy(self, models, monkeypatch):
        """Position 1 lacks entry 12, which is behind entry 10."""
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            ledger_id, ensemble = await self.in_flight(models, client, {10: "23", 12: "1"})
            report, checker = await LedgerChecker(client).check(ledger_id), LedgerChecker(client)
            doubts = [Finding(ensemble[1], Reason.ABSENT), Finding(ensemble[2], Reason.ABSENT)]
            assert await checker.tail(report, doubts) == Tail()

    async def test_they_keep_no_mark_if_all_bookies_were_away_and_have_what_is_in_front_of_them(
        self, models, monkeypatch
    ):
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            missing = {10: "23", 11: "3", 13: "2", 14: "23", 15: "3"}
            ledger_id, ensemble = await self.in_flight(models, client, missing)
            report, checker = await LedgerChecker(client).check(ledger_id), LedgerChecker(client)
            assert await checker.tail(report, [Finding(each, Reason.ABSENT) for each in ensemble]) == Tail()

    @pytest.mark.parametrize("later", [(), (3,)])
    async def test_who_was_away_and_lacks_what_its_writer_sent_before_says_nothing_of_them(
        self, models, monkeypatch, later
    ):
        """Three bookies acknowledged each entry. Two lost their disks; one of these may have got the last entry again.
        The third one is away."""
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            ledger = await client.create(ensemble=4, write_quorum=3, ack_quorum=3, password=PASSWORD)
            await ledger.append_many(payload(i) for i in range(4))
            first, second, third, _ = ledger.metadata.last_ensemble
            for bookie, left in ((first, ()), (second, later)):
                entries = models.model(bookie).ledgers[ledger.ledger_id].entries
                for entry_id in entries.keys() - {*left}:
                    del entries[entry_id]
                finding = Finding(bookie, Reason.ABSENT)
                await models.service.under_replication.mark(ledger.ledger_id, ctime_ms=1, findings=[finding])
            await models.lose(client, third)
            assert not await settled(models, client, ledger.ledger_id)
            with pytest.raises(RecoveryFailed):
                await close_now(client, LedgerChecker(client), ledger.ledger_id)

    async def test_they_keep_the_mark_if_all_that_had_them_may_have_lost_them(self, models, monkeypatch):
        """What is behind them may be acknowledged, and is not cut off unseen; what is in front of them is filled in."""
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            ledger_id, ensemble = await self.in_flight(models, client, {10: "3", 14: "23"})
            report, checker = await LedgerChecker(client).check(ledger_id), LedgerChecker(client)
            found = await checker.tail(report, [Finding(ensemble[each], Reason.MISSING, ((0, 0),)) for each in (2, 3)])
            assert (found.lacking, found.fragment.last_entry) == ({3: ensemble[3]}, 13)
            assert found.unknown is not None

    async def test_what_one_bookie_has_is_filled_in_while_another_is_silent(self, models, monkeypatch):
        noted_pauses(monkeypatch, tail, "TAIL_SECONDS")
        async with models.of(*"abcd") as client:
            ledger_id, ensemble = await self.in_flight(models, client, {10: "2", 13: "2"})
            report, checker = await LedgerChecker(client).check(ledger_id), LedgerChecker(client)
            await models.stop(ensemble[1])
            found = await checker.tail(report, [Finding(ensemble[2], Reason.MISSING, ((0, 0),))])
            assert found.lacking == {2: ensemble[2]}
            assert found.unknown is not None
