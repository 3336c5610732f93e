"""The check of placement, run by an auditor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView, Placement, ReplacementRequest
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.marking import Marked
from bookie_pod.autorecovery.auditor.placement_check import VIEW_SECONDS, PlacementCheck, count_overdue
from bookie_pod.autorecovery.auditor.runs import Check
from bookie_pod.autorecovery.auditor.sweep import Look
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from tests.support.auditor_rig import DAY, AuditorRig, FastClock, complete, ledger
from tests.support.clock import Clock

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


# --- one ledger -----------------------------------------------------------------------------------------------


class Says:
    """A policy that thinks of ensembles what it is told, and of each that it would make the same."""

    def __init__(self) -> None:
        self.of: dict[Ensemble, Adherence] = {}
        self.mended = Adherence.MEETS_STRICT
        self.asked_to_mend: list[Ensemble] = []

    def check(self, ensemble: Ensemble, quorums: object, cluster: ClusterView) -> AdherenceReport:
        return AdherenceReport(self.of.get(ensemble, Adherence.MEETS_STRICT))

    def mend(self, request: ReplacementRequest) -> Placement:
        assert request.failed == {}
        self.asked_to_mend.append(request.ensemble)
        return Placement(request.ensemble, AdherenceReport(self.mended))


class Marks:
    def __init__(self, outcome: Marked) -> None:
        self.outcome = outcome
        self.marked: list[tuple[int, tuple[str, ...]]] = []

    async def mark(self, ledger_id: int, replicas: tuple[str, ...]) -> Marked:
        self.marked.append((ledger_id, replicas))
        return self.outcome


def a_check(
    metadata: LedgerMetadata, policy: Says, marks: Marks | None = None, time: Callable[[], float] = lambda: 0.0
) -> tuple[PlacementCheck, list[float]]:
    """And when the view of the cluster was asked for."""
    views: list[float] = []

    async def read(ledger_id: int) -> Any:
        return SimpleNamespace(value=metadata)

    async def view() -> ClusterView:
        views.append(time())
        return ClusterView(writable=frozenset({"b0:1"}))

    async def overdue() -> int:
        return 5

    ledgers: Any = SimpleNamespace(read=read)
    its_policy: Any = policy
    marker: Any = marks
    return PlacementCheck(ledgers, its_policy, view, ReplicationThrottle(), marker, time, Random(1), overdue), views


TWO = ledger(1, (0, "012"), (5, "034"))
FIRST, SECOND = (TWO.ensembles[first] for first in (0, 5))


@pytest.mark.parametrize(
    ("first", "second", "mended", "counts"),
    [
        (Adherence.MEETS_STRICT, Adherence.MEETS_STRICT, None, {"ledgers": 1}),
        (Adherence.MEETS_STRICT, Adherence.MEETS_SOFT, None, {"ledgers": 1, "softly_adhering": 1}),
        (Adherence.MEETS_SOFT, Adherence.FAIL, Adherence.MEETS_SOFT, {"ledgers": 1, "not_adhering": 1}),
        (Adherence.FAIL, Adherence.FAIL, Adherence.FAIL, {"ledgers": 1, "not_adhering": 1, "cannot_be_mended": 1}),
    ],
)
async def test_what_is_said_of_a_ledger(
    first: Adherence, second: Adherence, mended: Adherence | None, counts: dict[str, int]
) -> None:
    policy = Says()
    policy.of = {FIRST: first, SECOND: second}
    policy.mended = mended or Adherence.FAIL
    suspects = frozenset({(0, Finding("", Reason.UNKNOWN))}) if mended is Adherence.MEETS_SOFT else frozenset()
    check, _ = a_check(TWO, policy, Marks(Marked.NEW))
    assert await check.look(1) == Look(counts, suspects)
    counting, _ = a_check(TWO, policy)
    assert await counting.look(1) == Look(counts)
    assert await counting.look_again(1, frozenset({(0, Finding("", Reason.UNKNOWN))})) == Look()
    assert await check.finish() == {"overdue": 5}
    assert bool(policy.asked_to_mend) == (mended is not None)


@pytest.mark.parametrize(("last", "counts"), [(4, {"ledgers": 1}), (5, {"ledgers": 1, "not_adhering": 1})])
async def test_a_segment_that_stores_nothing_does_not_count(last: int, counts: dict[str, int]) -> None:
    policy = Says()
    policy.of = {SECOND: Adherence.FAIL}
    check, _ = a_check(ledger(1, (0, "012"), (5, "034"), last=last), policy)
    assert (await check.look(1)).counts == counts


async def test_an_open_ledger_is_left_to_its_writer() -> None:
    policy = Says()
    policy.of = {FIRST: Adherence.FAIL}
    check, views = a_check(ledger(1, (0, "012"), last=None), policy, Marks(Marked.NEW))
    assert await check.look(1) == Look({"open": 1})
    assert views == []


@pytest.mark.parametrize(
    ("outcome", "look"),
    [(Marked.NEW, Look({"marked": 1})), (Marked.ALREADY, Look()), (Marked.LOCKED, Look(later=True))],
)
async def test_what_breaks_the_policy_twice_is_marked(outcome: Marked, look: Look) -> None:
    policy, marks = Says(), Marks(outcome)
    policy.of = {FIRST: Adherence.FAIL}
    check, _ = a_check(TWO, policy, marks)
    assert await check.look_again(1, frozenset({(0, Finding("", Reason.UNKNOWN))})) == look
    assert marks.marked == [(1, ())]
    policy.of = {}
    assert await check.look_again(1, frozenset({(0, Finding("", Reason.UNKNOWN))})) == Look()
    assert len(marks.marked) == 1


async def test_a_view_of_the_cluster_serves_for_a_while() -> None:
    clock = Clock(0.0)
    check, views = a_check(TWO, Says(), time=clock)
    for clock.now in (0.0, VIEW_SECONDS, VIEW_SECONDS + 1, 2 * VIEW_SECONDS + 1, 2 * VIEW_SECONDS + 2):
        await check.look(1)
    assert views == [0.0, VIEW_SECONDS + 1, 2 * VIEW_SECONDS + 2]


async def test_a_mark_is_overdue_when_its_grace_has_passed() -> None:
    async def marks() -> AsyncGenerator[UnderreplicatedLedger, None]:
        for number, time_ms in enumerate((None, 39_999, 40_000, 40_001)):
            yield UnderreplicatedLedger(number, (), ctime_ms=time_ms)

    assert await count_overdue(marks(), 100_000, 60) == 1
    assert await count_overdue(marks(), 100_000, -1) == 0
