"""The check of all ledgers, run by an auditor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie_client.replication.check import LedgerReport, ReplicaVerdict
from bookie_pod.autorecovery.auditor.runs import (
    AuditRecords,
    Check,
    Running,
    Runs,
    force_checks,
    recorded_checks,
    set_enabled,
)
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from tests.support.auditor_rig import DAY, AuditorRig, FastClock, complete, ledger, of

LEDGERS = tuple(ledger(n, (0, "012")) for n in range(1, 8))


async def test_what_a_bookie_denies_twice_is_marked(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    rig.checker.verdicts = {(2, "b1:1"): ReplicaVerdict.MISSING, (3, "b2:1"): ReplicaVerdict.DAMAGED}
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    last = await complete(rig, auditor)
    assert await rig.marked() == {2: ("b1:1",), 3: ("b2:1",)}
    assert last.counts == {"ledgers": 7, "suspicious": 2, "marked": 2}
    assert rig.checker.checked.count(2) == 2
    assert await rig.marks.check_time(AuditorCheck.ALL_LEDGERS) == last.finished_ms
    assert rig.metric("auditor_NUM_LEDGERS_CHECKED") == 7
    assert rig.metric('auditor_LAST_RUN_TIMESTAMP_MS{check="ledgers"}') > 0


async def test_who_does_not_answer_is_not_missing(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    rig.checker.verdicts = {(n, "b1:1"): ReplicaVerdict.UNREACHABLE for n in range(8)}
    rig.checker.errors = {5: MetadataDamaged("what")}
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    last = await complete(rig, auditor)
    assert await rig.marked() == {}
    assert last.counts == {"ledgers": 7, "unreachable": 6, "could_not_tell": 1}


async def test_what_is_denied_once_is_not_marked(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    rig.checker.verdicts = {(2, "b1:1"): ReplicaVerdict.MISSING, (3, "b1:1"): ReplicaVerdict.MISSING}
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    await rig.until(lambda: len(rig.checker.checked) >= len(LEDGERS) and rig.checker.under_way == 0)
    rig.checker.verdicts = {(3, "b2:1"): ReplicaVerdict.MISSING}  # another bookie: that is its first time
    last = await complete(rig, auditor)
    assert await rig.marked() == {}
    assert last.counts == {"ledgers": 7, "suspicious": 2, "withdrawn": 2}


async def test_a_bookie_within_its_delay_is_left_to_the_delay(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.leave("b0:1")
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=3600, auditor_check_interval_s=DAY)
    last = await complete(rig, auditor)
    assert await rig.marked() == {}
    assert last.counts == {"ledgers": 7}


async def test_a_check_does_not_hold_up_the_audit_of_a_lost_bookie(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    rig.checker.hold.clear()
    auditor = await rig.auditor(auditor_check_interval_s=DAY, auditor_max_concurrent_opens=2)
    await rig.until(lambda: rig.checker.under_way == 2)
    await rig.leave("b0:1")
    await rig.until_marked(dict.fromkeys(range(1, 8), ("b0:1",)))
    assert of(auditor).is_running
    assert rig.checker.under_way == 2


async def test_another_auditor_goes_on_where_the_first_ended(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.sweep.SAVE_SECONDS", 0.0)
    await rig.store(*LEDGERS)
    first = await rig.auditor("a1", auditor_check_interval_s=DAY, auditor_max_concurrent_opens=1, elected=False)
    original = rig.checker.check

    async def check(ledger_id: int, **options: Any) -> LedgerReport:
        if ledger_id == 5 and first.is_auditor:
            rig.checker.hold.clear()
        return await original(ledger_id, **options)

    rig.checker.check = check  # type: ignore[method-assign]
    await rig.until(lambda: not rig.checker.hold.is_set() and rig.checker.checked[-1] == 5)
    second = await rig.auditor("a2", auditor_check_interval_s=DAY, elected=False)
    seen = list(rig.checker.checked)
    await rig.stop("a1")
    rig.checker.hold.set()
    last = await complete(rig, second)
    assert [n for n in rig.checker.checked[len(seen) :] if n < 4] == []
    assert last.counts == {"ledgers": 7}
    assert last.started_ms < (second.status().elected_ms or 0)


async def test_a_cursor_that_is_too_old_is_dropped(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    now = FastClock().now_ms()
    await AuditRecords(rig.service).write(
        Check.LEDGERS, Runs("a0", Running(now - 8 * DAY * 1000, 6, 0, {"ledgers": 5}))
    )
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    await complete(rig, auditor)
    assert set(rig.checker.checked) == set(range(1, 8))


async def test_a_run_that_is_not_due_waits_and_a_request_is_served_at_once(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.marks.set_check_time(AuditorCheck.ALL_LEDGERS, FastClock().now_ms())
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    await asyncio.sleep(0.1)
    assert rig.checker.checked == []
    assert (of(auditor).next_ms or 0) > FastClock().now_ms()
    await force_checks(rig.service, [Check.LEDGERS])
    last = await complete(rig, auditor)
    (recorded,) = [each for each in await recorded_checks(rig.service) if each.check is Check.LEDGERS]
    assert recorded.runs.auditor == "a1"
    assert recorded.runs.last == last
    assert recorded.last_complete_ms == last.finished_ms


async def test_a_time_of_the_last_run_that_cannot_be_read_counts_as_never(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await rig.marks.set_check_time(AuditorCheck.ALL_LEDGERS, FastClock().now_ms())
    node = f"{rig.service.root}/underreplication/{AuditorCheck.ALL_LEDGERS.value}"
    await rig.service.tree.overwrite(node, b"\xff")
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    last = await complete(rig, auditor)
    assert await rig.marks.check_time(AuditorCheck.ALL_LEDGERS) == last.finished_ms


async def test_last_run_that_lies_in_the_future_counts_as_never(rig: AuditorRig) -> None:
    """The auditor of one pass had a clock that was a year ahead: the check must not rest for a year."""
    await rig.store(*LEDGERS)
    await rig.marks.set_check_time(AuditorCheck.ALL_LEDGERS, FastClock().now_ms() + 365 * DAY * 1000)
    auditor = await rig.auditor(auditor_check_interval_s=7 * DAY)
    last = await complete(rig, auditor)
    assert (of(auditor).next_ms or 0) <= FastClock().now_ms() + 8 * DAY * 1000
    assert await rig.marks.check_time(AuditorCheck.ALL_LEDGERS) == last.finished_ms


async def test_a_check_that_is_off_runs_when_it_is_asked_for(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    auditor = await rig.auditor()
    await asyncio.sleep(0.1)
    assert rig.checker.checked == []
    assert of(auditor).next_ms is None
    await force_checks(rig.service, [Check.LEDGERS])
    await complete(rig, auditor)


async def test_javas_shell_resets_the_time_and_the_check_runs(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.periodic.POLL_SECONDS", 0.05)
    await rig.store(*LEDGERS)
    await rig.marks.set_check_time(AuditorCheck.ALL_LEDGERS, FastClock().now_ms())
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    await rig.marks.set_check_time(AuditorCheck.ALL_LEDGERS, FastClock().now_ms() - 21 * DAY * 1000)
    await complete(rig, auditor)


async def test_a_metadata_service_that_fails_breaks_off_and_the_check_goes_on_later(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.periodic.FIRST_PAUSE", 0.2)
    await rig.store(*LEDGERS)
    rig.checker.errors = {5: MetadataUnavailable("no answer")}
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    await rig.until(lambda: of(auditor).runs.failure is not None)
    failure = of(auditor).runs.failure
    assert failure is not None
    assert failure.reason == "no answer"
    assert await rig.marks.check_time(AuditorCheck.ALL_LEDGERS) is None
    rig.checker.errors = {}
    last = await complete(rig, auditor)
    assert last.counts == {"ledgers": 7}
    assert rig.checker.checked.count(1) == 1


async def test_a_check_that_is_due_waits_for_auto_recovery_to_be_enabled(rig: AuditorRig) -> None:
    await rig.store(*LEDGERS)
    await set_enabled(rig.service, False)
    auditor = await rig.auditor(auditor_check_interval_s=DAY, elected=False)
    await rig.until(lambda: auditor.is_auditor and rig.metric("auditor_NUM_SKIPPING_CHECK_TASK_TIMES") >= 1)
    assert rig.checker.checked == []
    await set_enabled(rig.service, True)
    await complete(rig, auditor)


async def test_a_ledger_that_a_worker_has_locked_is_not_marked_under_its_hands(
    rig: AuditorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.store(*LEDGERS)
    rig.checker.verdicts = {(2, "b1:1"): ReplicaVerdict.MISSING}
    lock = await rig.marks.lock(2)
    auditor = await rig.auditor(auditor_check_interval_s=DAY)
    await rig.until(lambda: rig.checker.checked.count(2) >= 2)
    assert await rig.marked() == {}
    await rig.marks.release(lock)
    await complete(rig, auditor)
    assert await rig.marked() == {2: ("b1:1",)}
