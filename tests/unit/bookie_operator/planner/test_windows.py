"""Maintenance windows: when they are open, and what a roll does outside of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bookie_operator.crds.cluster_spec import Update
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import windows
from bookie_operator.planner.actions import EvictPod
from bookie_operator.planner.decision import Wait
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.flows import acted, at_step

NIGHTS = {"windows": [{"start": "22:30", "hours": 3}]}
WIDE = {"ensembleSize": 5, "writeQuorum": 5, "ackQuorum": 3}
WEEKEND = {
    "windows": [{"days": ["Sat"], "start": "23:00", "hours": 24}, {"days": ["Wed"], "start": "00:00", "hours": 1}]
}


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("given", "moment", "is_open", "opens"),
    [
        ({}, "2026-11-28T12:00", True, "2026-11-28T12:00"),
        (NIGHTS, "2026-11-28T22:29", False, "2026-11-28T22:30"),
        (NIGHTS, "2026-11-28T22:30", True, "2026-11-29T22:30"),
        (NIGHTS, "2026-11-29T01:29", True, "2026-11-29T22:30"),
        (NIGHTS, "2026-11-29T01:30", False, "2026-11-29T22:30"),
        (NIGHTS, "2026-12-31T23:00", True, "2027-01-01T22:30"),
        (WEEKEND, "2026-11-28T22:59", False, "2026-11-28T23:00"),  # a Saturday
        (WEEKEND, "2026-11-29T22:59", True, "2026-12-02T00:00"),
        (WEEKEND, "2026-11-29T23:00", False, "2026-12-02T00:00"),
        (WEEKEND, "2026-12-02T00:59", True, "2026-12-05T23:00"),
    ],
)
def test_when_a_window_is_open(given: dict[str, object], moment: str, is_open: bool, opens: str) -> None:
    update = Update.model_validate(given)
    assert windows.is_open(update, at(moment)) is is_open
    assert windows.next_opening(update, at(moment)) == at(opens)


def outside(hours_until_open: int, hours: int = 1) -> Simulation:
    """A cluster at rest whose window opens so many hours later."""
    sim = resting()
    begins = datetime.fromtimestamp(sim.now + 3600 * hours_until_open, UTC)
    sim.change(update={"windows": [{"start": f"{begins:%H}:{begins:%M}", "hours": hours}]})
    sim.run_until_rest()
    return sim


def restarted(sim: Simulation, before: dict[str, str]) -> int:
    return sum(pod.uid != before.get(name) for name, pod in sim.kubernetes.pods.items())


def uids(sim: Simulation) -> dict[str, str]:
    return {name: pod.uid for name, pod in sim.kubernetes.pods.items()}


def test_a_roll_waits_for_its_window() -> None:
    sim = outside(hours_until_open=2)
    before = uids(sim)
    sim.change(version="1.1")
    for _ in range(5):
        decision = sim.run_pass().plan.decision
        sim.advance(60)
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("MaintenanceWindow", False)
    assert uids(sim) == before
    sim.advance(7200)
    sim.run_until_rest()
    assert restarted(sim, before) == len(before)


def test_a_roll_that_is_not_through_goes_on_in_the_next_window() -> None:
    sim = outside(hours_until_open=0)
    before = uids(sim)
    delay = sim.bookkeeper.recovery_delay
    sim.change(version="1.1")
    sim.run(lambda one, _: restarted(one, before) == 1)
    sim.advance(3600)
    sim.run(lambda one, _: one.status.operation is None)
    assert sim.status.history[0].outcome == "Cancelled"
    assert sim.bookkeeper.recovery_delay == delay, "a bookie that is lost meanwhile heals as ever"
    assert 0 < restarted(sim, before) < len(before)
    sim.run(lambda one, decision: isinstance(decision, Wait) and decision.reason == "MaintenanceWindow")
    sim.advance(22 * 3600)
    sim.run_until_rest()
    assert restarted(sim, before) == len(before)


def test_a_bookie_that_still_waits_to_be_stopped_when_the_window_closes_is_not_restarted() -> None:
    """Whatever it waited for is over in the middle of the day."""
    sim = outside(hours_until_open=0)
    before = uids(sim)
    sim.change(version="1.1")
    at_step(sim, "Stop")
    sim.advance(3600)
    sim.run(lambda one, _: one.status.operation is None)
    assert restarted(sim, before) == 0
    assert sim.status.history[0].outcome == "Cancelled"


def test_of_several_at_once_those_that_were_not_stopped_yet_wait_for_the_next_window() -> None:
    sim = outside(hours_until_open=0)
    sim.change(update={"maxUnavailable": 2, "canary": 0}, disruption={"maxUnavailable": 2}, replicas=6, durability=WIDE)
    sim.run_until_rest()
    sim.bookkeeper.writes = False
    sim.bookkeeper.ledgers.clear()
    before = uids(sim)
    sim.change(version="1.1")
    at_step(sim, "Stop")
    sim.run(lambda one, _: any(isinstance(each, EvictPod) for each in acted(one)))
    sim.now += 3600
    sim.run(lambda one, _: one.status.operation is None)
    assert restarted(sim, before) == 1


def test_a_task_and_a_pod_that_is_broken_wait_for_no_window() -> None:
    sim = outside(hours_until_open=6)
    before = uids(sim)
    task = sim.ask(TaskType.RESTART, "c-bookie-1")
    sim.run(lambda one, _: one.phase(task) == "Done")
    assert restarted(sim, before) == 1
    sim.change(image="broken@2")
    sim.kubernetes.sets["c-bookie"].image = "broken@2"
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-2"])
    sim.advance(30)
    assert sim.kubernetes.pods["c-bookie-2"].fault
    sim.change(image="good")

    def is_up(one: Simulation, _: object) -> bool:
        pod = one.kubernetes.pods.get("c-bookie-2")
        return pod is not None and pod.ready_since is not None

    sim.run(is_up)
