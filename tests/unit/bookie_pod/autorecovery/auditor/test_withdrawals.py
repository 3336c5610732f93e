"""Marks that are taken back when the bookies they name are there again with their copies."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.replication.check import ReplicaVerdict
from bookie_pod.autorecovery.auditor import withdrawals
from bookie_pod.autorecovery.auditor.withdrawals import Withdrawals
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataUnavailable
from bookie_protocol.metadata_service.findings import absences
from bookie_protocol.metadata_service.tree.under_replication.formats import mark_path
from tests.support.auditor_rig import AuditorRig, ledger

LEDGERS = tuple(ledger(n, (0, "012")) for n in range(1, 6))


async def no_locks(rig: AuditorRig) -> None:
    """Each goes right after its mark."""
    async with asyncio.timeout(5):
        while await rig.marks.locks():  # noqa: ASYNC110 - locks have no event
            await asyncio.sleep(0.01)


async def test_a_bookie_that_is_back_with_its_copies_clears_its_marks(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until_marked(dict.fromkeys(range(1, 6), ("b0:1",)))
    await rig.until(lambda: all(each.is_audited for each in auditor.status().absent))
    await rig.come("b0:1")
    await rig.until_marked({})
    await rig.until(lambda: auditor.status().withdrawn_marks == 5)
    assert rig.checker.findings == dict.fromkeys(range(1, 6), absences(["b0:1"]))
    await no_locks(rig)


async def test_what_a_worker_works_on_and_what_is_really_missing_stays(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS, ledger(6, (0, "013")))
    auditor = await rig.auditor()
    await rig.leave("b0:1", "b3:1")
    await rig.until_marked(dict.fromkeys(range(1, 6), ("b0:1",)) | {6: ("b0:1", "b3:1")})
    await rig.until(lambda: all(each.is_audited for each in auditor.status().absent))
    lock = await rig.marks.lock(1)
    await rig.marks.mark(7, (), ctime_ms=None)
    rig.checker.verdicts = {
        (2, "b0:1"): ReplicaVerdict.MISSING,  # back with an empty disk
        (3, "b1:1"): ReplicaVerdict.DAMAGED,
        (4, "b0:1"): ReplicaVerdict.UNREACHABLE,
    }
    rig.checker.errors = {5: MetadataDamaged("what")}
    await rig.come("b0:1")
    await rig.until(lambda: {2, 3, 4, 5} <= set(rig.checker.checked))
    await asyncio.sleep(0.1)
    left = dict.fromkeys(range(1, 6), ("b0:1",)) | {6: ("b0:1", "b3:1"), 7: ()}
    assert await rig.marked() == left
    assert 1 not in rig.checker.checked
    assert await rig.marks.locks() == {1: next(iter((await rig.marks.locks()).values()))}
    await rig.marks.release(lock)


async def test_marks_of_bookies_that_came_back_while_there_was_no_auditor(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    first = await rig.auditor("a1")
    await rig.leave("b0:1", "b2:1")
    await rig.until(lambda: sum(each.is_audited for each in first.status().absent) == 2)
    await rig.until_marked(dict.fromkeys(range(1, 6), ("b0:1", "b2:1")))
    await rig.stop("a1")
    await rig.come("b0:1")
    await rig.come("b2:1")
    await rig.auditor("a2")
    await rig.until_marked({})


async def test_two_bookies_that_come_back_one_after_the_other(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await rig.leave("b0:1", "b1:1")
    await rig.until_marked(dict.fromkeys(range(1, 6), ("b0:1", "b1:1")))
    await rig.until(lambda: all(each.is_audited for each in auditor.status().absent))
    await rig.come("b0:1")
    await rig.until(lambda: len(auditor.status().absent) == 1)
    assert len(await rig.marked()) == 5
    await rig.come("b1:1")
    await rig.until_marked({})


async def test_marks_that_did_not_come_from_an_absence_stay(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.marks.mark(1, ("b1:1",), ctime_ms=5)  # b1 never left
    await rig.marks.mark(2, ("b0:1",), ctime_ms=5)  # a check missed something there before it left
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until(lambda: any(each.is_audited for each in auditor.status().absent))
    marked = {1: ("b0:1", "b1:1")} | dict.fromkeys(range(2, 6), ("b0:1",))
    assert await rig.marked() == marked
    await rig.come("b0:1")
    await rig.until_marked({1: ("b0:1", "b1:1"), 2: ("b0:1",)})
    assert not {1, 2} & set(rig.checker.checked)


async def test_a_mark_that_is_renewed_meanwhile_stays(rig: AuditorRig) -> None:
    await rig.store(ledger(1, (0, "012")))
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until(lambda: any(each.is_audited for each in auditor.status().absent))
    rig.checker.hold.clear()
    await rig.come("b0:1")
    await rig.until(lambda: rig.checker.under_way == 1)
    await rig.marks.mark(1, ("b1:1",), ctime_ms=6)
    rig.checker.hold.set()
    await rig.until(lambda: rig.checker.under_way == 0)
    await no_locks(rig)
    assert await rig.marked() == {1: ("b0:1", "b1:1")}


@pytest.mark.parametrize("kind", [MetadataUnavailable, MetadataDamaged])
async def test_marks_that_could_not_be_looked_at_are_looked_at_again(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch, kind: type[MetadataError]
) -> None:
    """After a pause if nobody answered; else when the next bookie is back."""
    monkeypatch.setattr(withdrawals, "PAUSE_SECONDS", 0.01)
    withdraw, failed = Withdrawals.withdraw, asyncio.Event()

    async def fails_once(self: Withdrawals) -> int:
        if failed.is_set():
            return await withdraw(self)
        failed.set()
        raise kind("no answer")

    monkeypatch.setattr(Withdrawals, "withdraw", fails_once)
    await rig.store(ledger(1, (0, "012")), ledger(2, (0, "134")))
    auditor = await rig.auditor()
    for bookie in ("b0:1", "b3:1") if kind is MetadataDamaged else ("b0:1",):
        await rig.leave(bookie)
        await rig.until(lambda: [each.is_audited for each in auditor.status().absent] == [True])
        await rig.come(bookie)
        await rig.until(failed.is_set)
    await rig.until_marked({})


async def test_a_mark_that_cannot_be_read_keeps_no_other_from_being_taken_back(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until(lambda: [each.is_audited for each in auditor.status().absent] == [True])
    node = f"{rig.service.root}/underreplication/ledgers{mark_path(1)}"
    await rig.service.tree.overwrite(node, b"{ nonsense")
    await rig.come("b0:1")
    await rig.until(lambda: auditor.status().withdrawn_marks == 4)
    assert await rig.marks.count() == 1
