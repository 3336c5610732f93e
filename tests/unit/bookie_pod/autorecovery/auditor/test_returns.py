"""Copies of bookies that were away: looked at when they are back, and when somebody asks."""

from __future__ import annotations

import pytest

from bookie_pod.autorecovery.auditor.returns import Returns
from bookie_pod.autorecovery.auditor.runs import MAX_RETURNED, AuditRecords, Returned, look_at_returned
from bookie_protocol.errors import BookieTimeout, MetadataDamaged, Refused
from bookie_protocol.metadata_service.findings import Finding, Reason
from tests.support.auditor_rig import AuditorRig, ledger


async def until_looked_at(rig: AuditorRig, *bookies: str) -> None:
    """Return once none of them waits any more."""
    records = AuditRecords(rig.service)
    async with records.watch_returned() as changes:
        async for _ in changes:
            if not set(bookies) & (await records.returned()).waiting.keys():
                return


async def test_what_was_written_while_a_bookie_was_away_is_marked_when_it_is_back(rig: AuditorRig) -> None:
    await rig.store(
        ledger(1, (0, "012")),
        ledger(2, (0, "012"), (6, "312"), last=None),
        ledger(3, (0, "012"), last=None),
        ledger(4, (0, "123")),
        ledger(5, (0, "012"), last=None),
    )
    rig.ends = {2: 8, 3: 9, 5: 9}
    rig.lists.stored = {("b0:1", 1): range(8), ("b0:1", 2): range(4), ("b0:1", 3): (0, 1, 2, 7, 8, 9)}
    rig.lists.stored[("b1:1", 4)] = ()
    await rig.auditor(lost_bookie_recovery_delay_s=3600, auditor_replicas_check_interval_s=0)
    await rig.leave("b0:1")
    await rig.until_absent("b0:1")
    await rig.come("b0:1")
    await rig.until_marked({1: ("b0:1",), 2: ("b0:1",), 3: ("b0:1",)})
    await until_looked_at(rig, "b0:1")
    assert {bookie for bookie, _ in rig.lists.asked} == {"b0:1"}


async def test_one_that_is_asked_about_waits_until_a_pass_has_ended(rig: AuditorRig) -> None:
    await rig.store(ledger(1, (0, "012")), ledger(2, (0, "123")))
    rig.lists.stored = {("b0:1", 1): range(8)}
    await rig.auditor(auditor_replicas_check_interval_s=0)
    await look_at_returned(rig.service, ["b0:1"])
    await until_looked_at(rig, "b0:1")
    assert await rig.marked() == {1: ("b0:1",)}
    assert rig.lists.asked == [("b0:1", 1), ("b0:1", 1)], "twice, and nobody else"
    returned, term = await AuditRecords(rig.service).returned(), await rig.service.auditor_election.current_term()
    assert term is not None
    assert (returned.auditor, returned.term) == (term.bookie_id, term.name) == ("a1", term.name)


async def test_an_open_segment_is_marked_only_for_entries_that_stay_away(rig: AuditorRig) -> None:
    """The copies of a slow bookie are on their way."""
    await rig.store(ledger(1, (0, "012"), last=None))
    rig.ends = {1: 9}
    rig.lists.stored = {("b0:1", 1): range(5)}
    rig.lists.then = {("b0:1", 1): range(7)}
    await rig.auditor(auditor_replicas_check_interval_s=0)
    await look_at_returned(rig.service, ["b0:1"])
    await until_looked_at(rig, "b0:1")
    assert await rig.marked() == {}


async def test_a_bookie_that_does_not_tell_waits_on(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.returns.FIRST_PAUSE", 0.01)
    await rig.store(ledger(1, (0, "012")))
    rig.lists.stored = {("b0:1", 1): BookieTimeout("silence")}
    await rig.auditor(auditor_replicas_check_interval_s=0)
    await look_at_returned(rig.service, ["b0:1"])
    await rig.until(lambda: len(rig.lists.asked) >= 3)
    assert (await AuditRecords(rig.service).returned()).waiting.keys() == {"b0:1"}
    rig.lists.stored = {}
    await until_looked_at(rig, "b0:1")


async def test_nobody_waits_for_ever(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.returns.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.returns.MAX_AGE_MS", 1000)
    await rig.store(ledger(1, (0, "012")))
    rig.lists.stored = {("b0:1", 1): BookieTimeout("silence")}
    await rig.auditor(auditor_replicas_check_interval_s=0)
    await look_at_returned(rig.service, ["b0:1", "it never was:1"])
    await until_looked_at(rig, "b0:1", "it never was:1")
    assert await rig.marked() == {}


async def test_a_ledger_that_is_marked_for_another_bookie_is_looked_at_too(rig: AuditorRig) -> None:
    """Two bookies were away: the mark for the one that was back first says nothing of the other one."""
    await rig.store(ledger(1, (0, "012")), ledger(2, (0, "012")))
    await rig.marks.mark(1, findings=(Finding("b1:1", Reason.MISSING, ((3, 3),)),), ctime_ms=None)
    await rig.marks.mark(2, (), ctime_ms=None)
    rig.lists.stored = {("b0:1", 1): (0, 1, 9), ("b0:1", 2): (0, 1, 9)}
    await rig.auditor(auditor_replicas_check_interval_s=0)
    await look_at_returned(rig.service, ["b0:1"])
    await until_looked_at(rig, "b0:1")
    assert await rig.marked() == {1: ("b0:1", "b1:1"), 2: ("b0:1",)}


@pytest.mark.parametrize("why", ["locked", "unreadable", "marks nothing"])
async def test_a_bookie_waits_until_what_it_lacks_is_marked(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.sweep.MAX_LOOKS", 2)
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.returns.FIRST_PAUSE", 0.01)
    passes: list[set[str]] = []
    look_at = Returns._pass

    async def noted(self: Returns, bookies: frozenset[str]) -> set[str]:
        passes.append(await look_at(self, bookies))
        return passes[-1]

    monkeypatch.setattr(Returns, "_pass", noted)
    await rig.store(ledger(1, (0, "012")), ledger(2, (0, "123")))
    rig.lists.stored = {("b0:1", 1): range(8)}
    lock = await rig.marks.lock(1) if why == "locked" else None
    auditor = await rig.auditor(
        auditor_replicas_check_interval_s=0,
        auditor_second_look_s=0,
        auditor_replicas_check_marks=why != "marks nothing",
    )
    if why == "unreadable":

        async def unreadable(ledger_id: int) -> None:
            raise MetadataDamaged("the lock is no lock")

        assert auditor._term is not None
        monkeypatch.setattr(auditor._term.marker._marks, "locked_by", unreadable)
    await look_at_returned(rig.service, ["b0:1", "b3:1"])
    await rig.until(lambda: len(passes) > 1)
    assert passes[0] == {"b0:1"}
    assert (await AuditRecords(rig.service).returned()).waiting.keys() == {"b0:1"}
    if lock is not None:
        await rig.marks.release(lock)
        await until_looked_at(rig, "b0:1")
        assert await rig.marked() == {1: ("b0:1",)}


async def test_a_full_record_stops_no_look(rig: AuditorRig) -> None:
    """It is filled during a look, and another bookie comes back meanwhile."""
    await rig.store(ledger(1, (0, "012")))
    rig.lists.stored = {("b0:1", 1): range(8)}
    records = AuditRecords(rig.service)
    auditor = await rig.auditor(auditor_replicas_check_interval_s=0)
    await rig.marks.disable()
    await look_at_returned(rig.service, ["b1:1"])
    assert auditor._term is not None
    returns = auditor._term.returns
    await rig.until(lambda: returns._seen_ms)
    full = {f"it never was {number}:1": 1 for number in range(MAX_RETURNED)}
    await records.change_returned(lambda returned: Returned(returned.auditor, full))
    with pytest.raises(Refused):
        await look_at_returned(rig.service, ["one more:1"])
    returns.request(["b0:1"])
    await rig.marks.enable()
    await rig.until_marked({1: ("b0:1",)})
    await until_looked_at(rig, "b0:1", *full)


async def test_its_own_changes_of_the_record_cause_no_round(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[bool] = []
    look = Returns._round

    async def counted(self: Returns) -> bool:
        rounds.append(await look(self))
        return rounds[-1]

    monkeypatch.setattr(Returns, "_round", counted)
    await rig.store(ledger(1, (0, "012")))
    await rig.auditor(auditor_replicas_check_interval_s=0)
    await rig.until(lambda: rounds)
    await look_at_returned(rig.service, ["b0:1"])
    await until_looked_at(rig, "b0:1")
    await look_at_returned(rig.service, ["b1:1"])
    await until_looked_at(rig, "b1:1")
    await rig.until(lambda: len(rounds) >= 3)
    assert rounds == [True] * 3


class TestTheRecord:
    def test_a_request_that_was_made_again_is_not_answered_by_an_earlier_pass(self) -> None:
        first = Returned().asked(["a", "b"], 10)
        again = first.asked(["a"], 9)
        assert again.answered(first.waiting).waiting.keys() == {"a"}
        assert again.answered(again.waiting).waiting == {}
