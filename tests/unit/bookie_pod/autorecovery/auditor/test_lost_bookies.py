"""Bookies that leave and come back, and what becomes of the ledgers that name them.

Who is registered, asked in three looks at two groups that nobody sees at one moment.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.auditor import lost_bookies, membership
from bookie_pod.autorecovery.auditor.bookie_audit import BookieAudit
from bookie_pod.autorecovery.auditor.lost_bookies import Registrations
from bookie_pod.autorecovery.auditor.runs import AuditRecords, set_enabled, trigger_audit
from bookie_protocol.errors import MetadataUnavailable, Refused
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.tree.bookies import BookieRegistry
from bookie_protocol.metadata_service.tree.under_replication.formats import mark_path
from bookie_protocol.metadata_service.tree.under_replication.manager import UnderReplication
from tests.support.auditor_rig import QUIET, AuditorRig, R, audits, ledger

LEDGERS = (
    ledger(1, (0, "012")),
    ledger(2, (0, "123"), last=None),
    ledger(3, (0, "234"), (5, "034")),
    ledger(4, (0, "134"), last=-1),
    ledger(2**40, (0, "120")),
)
NAMING_B0 = {1: ("b0:1",), 3: ("b0:1",), 2**40: ("b0:1",)}


async def test_without_a_delay_a_lost_bookie_is_marked_at_once(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    assert await rig.marked() == {}
    await rig.leave("b0:1")
    await rig.until_marked(NAMING_B0)
    await rig.until(lambda: all(each.is_audited for each in auditor.status().absent))
    mark = await rig.marks.read(1)
    assert mark is not None
    assert mark.ctime_ms is not None
    assert rig.metric('auditor_NUM_UNDER_REPLICATED_LEDGERS_sum{success="true"}') == 3
    assert rig.metric('auditor_UNDER_REPLICATED_LEDGERS_TOTAL_SIZE_sum{success="true"}') == 3000


@pytest.mark.parametrize(
    ("asker", "question"),
    [
        (AuditRecords, "write_absences"),
        (BookieAudit, "run"),
        (BookieRegistry, "watch"),
        (UnderReplication, "watch_lost_bookie_recovery_delay"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_an_auditor_that_gets_no_answer_asks_again(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch, asker: type, question: str
) -> None:
    for pause in ("FIRST_PAUSE", "SAVE_PAUSE", "FOLLOW_PAUSE", "SETTING_PAUSE"):
        monkeypatch.setattr(lost_bookies, pause, 0.01)
    ask, asked = getattr(asker, question), 0

    def silent_once(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise MetadataUnavailable("no answer")
        return ask(*args)

    monkeypatch.setattr(asker, question, silent_once)
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until_marked(NAMING_B0)
    await rig.until(lambda: asked > 1)
    assert auditor.is_auditor


async def test_the_time_of_a_mark_is_left_out_if_that_is_asked_for(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.auditor(store_mark_time=False)
    await rig.leave("b0:1")
    await rig.until_marked(NAMING_B0)
    mark = await rig.marks.read(1)
    assert mark is not None
    assert mark.ctime_ms is None


async def test_empty_and_open_ledgers_are_marked_too(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.auditor()
    await rig.leave("b1:1")
    await rig.until_marked({1: ("b1:1",), 2: ("b1:1",), 4: ("b1:1",), 2**40: ("b1:1",)})


async def test_a_bookie_that_is_back_within_the_delay_costs_nothing(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=30)
    before = audits(auditor.status())
    await rig.leave("b0:1", "b1:1")  # two at a time: each has a delay of its own
    await rig.until(lambda: len(auditor.status().absent) == 2)
    await asyncio.sleep(0.5)  # 10 seconds of the auditor's time
    await rig.come("b0:1")
    await rig.come("b1:1")
    await rig.until(lambda: not auditor.status().absent)
    await asyncio.sleep(1.5)
    assert await rig.marked() == {}
    assert audits(auditor.status()) == before
    assert rig.metric("auditor_NUM_BOOKIE_AUDITS_DELAYED") >= 1
    assert rig.metric("auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED") >= 1
    assert rig.checker.checked == []


async def test_after_the_delay_it_is_marked(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=10)
    await rig.leave("b0:1")
    await rig.until_marked(NAMING_B0)
    (absent,) = auditor.status().absent
    assert absent.is_lost
    mark = await rig.marks.read(1)
    assert mark is not None
    assert (mark.ctime_ms or 0) >= absent.since_ms + 10_000


async def test_the_delay_goes_on_with_the_next_auditor(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    first = await rig.auditor("a1", lost_bookie_recovery_delay_s=3600)
    second = await rig.auditor("a2", elected=False)
    await rig.leave("b0:1")
    await rig.until(lambda: first.status().absent)
    since = first.status().absent[0].since_ms
    await asyncio.sleep(0.1)
    await rig.stop("a1")
    await rig.until(lambda: second.status().absent)
    (absent,) = second.status().absent
    assert absent.since_ms == since < (second.status().elected_ms or 0)
    assert not absent.is_lost
    assert await rig.marked() == {}


async def test_an_auditor_whose_session_ends_stops_and_another_takes_over(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    first = await rig.auditor("a1")
    second = await rig.auditor("a2", elected=False)
    await rig.expire("a1")
    await rig.until(lambda: second.is_auditor and not first.is_auditor)
    await rig.leave("b0:1")
    await rig.until_marked(NAMING_B0)


async def test_a_shorter_delay_counts_for_who_is_already_absent(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=3600)
    await rig.leave("b0:1")
    await rig.until(lambda: auditor.status().absent)
    await rig.marks.set_lost_bookie_recovery_delay(3)
    await rig.until_marked(NAMING_B0)
    assert auditor.status().lost_bookie_recovery_delay_s == 3


@pytest.mark.parametrize("how", ["trigger", "zero"])
async def test_an_audit_that_is_asked_for_does_not_wait(rig: AuditorRig, how: str) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=3600)
    await rig.leave("b0:1")
    await rig.until(lambda: auditor.status().absent)
    if how == "trigger":
        assert await trigger_audit(rig.service) == "a1"
    else:
        await rig.marks.set_lost_bookie_recovery_delay(0)
    await rig.until_marked(NAMING_B0)


async def test_an_audit_cannot_be_asked_for_in_vain(rig: AuditorRig) -> None:
    with pytest.raises(Refused, match="no auditor"):
        await trigger_audit(rig.service)
    await set_enabled(rig.service, False)
    await set_enabled(rig.service, False)
    with pytest.raises(Refused, match="disabled"):
        await trigger_audit(rig.service)


async def test_nothing_is_marked_while_auto_recovery_is_disabled(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await set_enabled(rig.service, False)
    await rig.leave("b0:1")
    await rig.until(lambda: auditor.status().absent)
    await asyncio.sleep(0.3)
    assert await rig.marked() == {}
    await set_enabled(rig.service, True)
    await rig.until_marked(NAMING_B0)


async def test_delays_run_while_auto_recovery_is_disabled_and_go_on_with_the_next_auditor(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    first = await rig.auditor("a1", lost_bookie_recovery_delay_s=5)
    await set_enabled(rig.service, False)
    await rig.leave("b0:1")
    await rig.until(lambda: any(each.is_lost for each in first.status().absent))
    since = first.status().absent[0].since_ms
    await rig.leave("b4:1")  # the first audit waits by now
    await rig.until(lambda: len(first.status().absent) == 2)
    await asyncio.sleep(0.1)
    await rig.stop("a1")
    second = await rig.auditor("a2", elected=False)
    await rig.until(lambda: len(second.status().absent) == 2)
    assert second.status().absent[0].since_ms == since
    assert second.status().absent[1].since_ms < (second.status().elected_ms or 0)
    assert await rig.marked() == {}
    await set_enabled(rig.service, True)
    await rig.until_marked({**NAMING_B0, 3: ("b0:1", "b4:1"), 4: ("b4:1",)})


async def test_turning_read_only_is_no_loss(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await rig.turn_read_only("b0:1")
    await rig.until(lambda: not auditor.status().absent)
    before = audits(auditor.status())
    await trigger_audit(rig.service)
    await rig.until(lambda: audits(auditor.status()) > before)
    assert await rig.marked() == {}
    assert (await rig.service.bookies.list(R)).bookies == {"b0:1"}


async def test_who_left_before_the_auditor_began_has_its_delay_and_is_then_marked(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.leave("b0:1")
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=20)
    assert await rig.marked() == {}
    assert [each.bookie_id for each in auditor.status().absent] == ["b0:1"]
    await rig.until_marked(NAMING_B0)


async def test_a_bookie_without_cookie_that_ledgers_name_is_found(rig: AuditorRig) -> None:
    await rig.leave("b0:1")
    await rig.service.cookies.delete("b0:1")
    await rig.store(*LEDGERS)
    await rig.auditor()
    await rig.until_marked(NAMING_B0)


async def test_a_bookie_that_left_for_good_is_forgotten(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LATE_MS", 10_000)
    await rig.store(ledger(1, (0, "123")))
    auditor = await rig.auditor()
    await rig.service.cookies.delete("b0:1")
    await rig.leave("b0:1")
    await rig.until(lambda: auditor.status().absent)
    await rig.until(lambda: not auditor.status().absent)
    assert await rig.marked() == {}


async def test_a_ledger_that_names_a_bookie_late_which_left_for_good_is_noticed(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "LATE_MS", 10_000)
    await rig.store(ledger(1, (0, "123")))
    auditor = await rig.auditor()
    await rig.service.cookies.delete("b0:1")
    await rig.leave("b0:1")
    await rig.until(lambda: [each.is_audited for each in auditor.status().absent] == [True])
    stored = await rig.service.ledgers.read(1)
    late = stored.value.with_ensemble(0, ("b0:1", "b2:1", "b3:1"))  # an exchange that was under way
    await rig.service.ledgers.write(late, stored.identity)
    await rig.until_marked({1: ("b0:1",)})


async def test_when_nobody_at_all_is_registered_nothing_is_concluded(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=1)
    await rig.leave(*(f"b{n}:1" for n in range(5)))
    await rig.until(lambda: len(auditor.status().absent) == 5)
    await asyncio.sleep(0.3)
    assert await rig.marked() == {}
    await rig.come("b4:1")
    await rig.until_marked(
        {
            1: ("b0:1", "b1:1", "b2:1"),
            2: ("b1:1", "b2:1", "b3:1"),
            3: ("b0:1", "b2:1", "b3:1"),
            4: ("b1:1", "b3:1"),
            2**40: ("b0:1", "b1:1", "b2:1"),
        }
    )


async def test_a_locked_ledger_is_marked_when_its_lock_is_gone_if_it_still_needs_it(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.marking.RETRY_SECONDS", 0.05)
    await rig.store(*LEDGERS)
    locks = [await rig.marks.lock(1), await rig.marks.lock(3)]
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until_marked({2**40: ("b0:1",)})
    await rig.until(lambda: auditor.status().deferred_marks == 2)
    stored = await rig.service.ledgers.read(3)  # its worker has replaced b0
    await rig.service.ledgers.write(stored.value.with_ensemble(5, ("b1:1", "b3:1", "b4:1")), stored.identity)
    for lock in locks:
        await rig.marks.release(lock)
    await rig.until(lambda: auditor.status().deferred_marks == 0)
    assert await rig.marked() == {1: ("b0:1",), 2**40: ("b0:1",)}


async def test_a_mark_that_says_it_already_is_left_alone(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.marks.mark(1, ("b0:1",), ctime_ms=5)
    await rig.leave("b0:1")
    await rig.auditor()
    await rig.until_marked(NAMING_B0)
    mark = await rig.marks.read(1)
    assert mark is not None
    assert mark.ctime_ms == 5


async def test_the_periodic_audit_runs_again(rig: AuditorRig) -> None:
    auditor = await rig.auditor("a1", QUIET, auditor_bookie_check_interval_s=2)
    first = audits(auditor.status())
    await rig.until(lambda: audits(auditor.status()) >= first + 2000)


async def test_a_mark_that_cannot_be_read_holds_up_no_other_ledger(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.marks.mark(1, ("b1:1",), ctime_ms=5)
    node = f"{rig.service.root}/underreplication/ledgers{mark_path(1)}"
    await rig.service.tree.overwrite(node, b"{ nonsense")
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=1)
    before = audits(auditor.status())
    await rig.leave("b0:1")
    await rig.until(lambda: audits(auditor.status()) > before)
    counts = auditor.status().checks[0].runs.last
    assert counts is not None
    assert (counts.counts["marked"], counts.counts["damaged"]) == (2, 1)
    await rig.service.tree.overwrite(node, b"")
    assert await rig.marked() == {1: (), 3: ("b0:1",), 2**40: ("b0:1",)}


async def test_a_mark_that_is_renewed_while_a_worker_holds_the_lock_outlives_its_round(rig: AuditorRig) -> None:
    """The worker looked while the bookie was back; it left again since."""
    await rig.store(ledger(1, (0, "012")))
    await rig.marks.mark(1, ("b0:1",), ctime_ms=5)
    lock = await rig.marks.lock(1)
    auditor = await rig.auditor()
    await rig.leave("b0:1")
    await rig.until(lambda: all(each.is_audited for each in auditor.status().absent) and auditor.status().absent)
    await rig.marks.mark_replicated(lock)
    assert await rig.marked() == {1: ("b0:1",)}


async def test_a_bookie_for_which_ledgers_were_skipped_is_audited_again(rig: AuditorRig) -> None:
    """For a moment its copies did not count as missing: here because nobody at all is registered."""
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    lost = auditor._term.lost_bookies  # type: ignore[union-attr]
    is_lost, asked = lost.is_lost, []

    def not_always(bookie: str) -> bool:
        asked.append(bookie)
        return is_lost(bookie) and len(asked) != 2

    lost.is_lost = not_always
    await rig.leave("b0:1")
    await rig.until_marked(NAMING_B0)
    assert len(asked) > 3


async def test_an_audit_that_is_asked_for_counts_whom_only_a_ledger_names(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=3600)
    await rig.store(ledger(9, (0, "127")))  # b7 has neither a cookie nor a registration
    assert not auditor.status().absent
    await trigger_audit(rig.service)
    await rig.until_marked({9: ("b7:1",)})


async def test_an_audit_completes_while_auto_recovery_is_disabled_if_nobody_is_lost(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor("a1", QUIET, auditor_bookie_check_interval_s=2)
    await set_enabled(rig.service, False)
    audit = auditor._term.lost_bookies.audit  # type: ignore[union-attr]
    async with asyncio.timeout(10):
        assert (await audit.run()).ledgers == len(LEDGERS)


class Told:
    """Answers of `list`, one after the other, of either group; the last one stays."""

    def __init__(self, writable: list[str], read_only: list[str]) -> None:
        self._answers = {BookieGroup.WRITABLE: writable, BookieGroup.READ_ONLY: read_only}
        self.asked = 0

    async def list(self, group: BookieGroup) -> BookieSet:
        self.asked += 1
        answers = self._answers[group]
        return BookieSet(frozenset(answers.pop(0) if len(answers) > 1 else answers[0]), self.asked)


async def looked(told: Told) -> set[str]:
    found: list[frozenset[str]] = []
    service: Any = SimpleNamespace(bookies=told)
    await Registrations(service, found.append).look()
    (last,) = found
    return set(last)


async def test_where_nobody_moves_one_look_is_enough() -> None:
    told = Told(["ab"], ["c"])
    assert await looked(told) == set("abc")
    assert told.asked == 3


async def test_who_turns_read_only_meanwhile_is_looked_for_once_more() -> None:
    """`b` has left the writable ones before the third look, and came to the others behind the second."""
    told = Told(["ab", "a"], ["c", "bc"])
    assert await looked(told) == set("abc")
    assert told.asked == 6


async def test_who_is_gone_is_gone() -> None:
    told = Told(["ab", "a"], [""])
    assert await looked(told) == {"a"}
    assert told.asked == 6
