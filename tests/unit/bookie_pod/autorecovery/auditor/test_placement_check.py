"""The check of placement, run by an auditor."""

from __future__ import annotations

from bookie_pod.autorecovery.auditor.runs import Check
from tests.support.auditor_rig import AuditorRig, FastClock, ledger
from tests.unit.bookie_pod.autorecovery.auditor.test_ledgers_check import DAY, complete

NOT_ADHERING = "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY"
SOFTLY = "auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY"
OVERDUE = "auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"
LEDGERS = (
    ledger(1, (0, "012")),
    ledger(2, (0, "123")),
    ledger(3, (0, "012"), last=None),
    ledger(4, (0, "123"), (10, "012")),  # the second segment stores nothing
)


async def test_it_counts_and_marks_nothing_unless_asked_for(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    rig.placement.never = {"b0:1", "b1:1"}
    rig.placement.soft = True
    auditor = await rig.auditor(auditor_placement_check_interval_s=DAY)
    last = await complete(rig, auditor, Check.PLACEMENT)
    assert await rig.marked() == {}
    assert last.counts == {"ledgers": 3, "open": 1, "not_adhering": 1, "softly_adhering": 2, "overdue": 0}
    assert (rig.metric(NOT_ADHERING), rig.metric(SOFTLY)) == (1, 2)


async def test_ledgers_are_marked_without_a_replica(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    rig.placement.never = {"b0:1", "b1:1"}
    auditor = await rig.auditor(auditor_placement_check_interval_s=DAY, repair_placement=True)
    last = await complete(rig, auditor, Check.PLACEMENT)
    assert await rig.marked() == {1: ()}
    assert last.counts["marked"] == 1


async def test_what_nobody_can_mend_is_not_marked(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.leave("b3:1", "b4:1")
    rig.placement.never = {"b0:1", "b1:1"}
    auditor = await rig.auditor(
        auditor_placement_check_interval_s=DAY, repair_placement=True, lost_bookie_recovery_delay_s=3600
    )
    last = await complete(rig, auditor, Check.PLACEMENT)
    assert await rig.marked() == {}
    assert last.counts["cannot_be_mended"] == 1


async def test_marks_that_wait_too_long_are_counted(rig: AuditorRig) -> None:
    now = FastClock().now_ms()
    await rig.marks.mark(7, ("b0:1",), ctime_ms=now - DAY * 1000)
    await rig.marks.mark(8, ("b0:1",), ctime_ms=None)
    await rig.marks.mark(9, ("b0:1",), ctime_ms=now)  # it is a day old in an hour of the test
    auditor = await rig.auditor(auditor_placement_check_interval_s=DAY, underreplicated_grace_period_s=DAY)
    last = await complete(rig, auditor, Check.PLACEMENT)
    assert last.counts == {"overdue": 1}
    assert rig.metric(OVERDUE) == 1
