"""A bookie that is to stay after all, at every step of its way out."""

from __future__ import annotations

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, ScaleStatefulSet, UndoDrain
from bookie_operator.world.facts import DrainPhase
from tests.support.operator_sim import Simulation, killed_everywhere
from tests.support.operator_sim.bookkeeper import Refused, SimDrain
from tests.support.operator_sim.flows import acted, at_step
from tests.support.operator_sim.going import GOING, fewer, settled, what_is_left

# --- taken back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["Audit", "ReadOnly", "Drain", "Prove", "ProveAgain", "Scale"])
def test_replicas_are_raised_before_it_is_stopped(five: Simulation, step: str) -> None:
    fewer(five)
    at_step(five, step)
    uid = five.kubernetes.pods[GOING].uid
    five.change(replicas=5)
    five.run_until_rest()
    assert [(one.type, one.outcome) for one in five.status.history] == [(OperationType.DECOMMISSION, "Cancelled")]
    assert five.kubernetes.pods[GOING].uid == uid
    assert five.desired().bookie_id(GOING) in five.bookkeeper.writable
    assert not any(isinstance(one, DeleteCookie | DeleteClaim | ScaleStatefulSet) for one in acted(five))


def test_a_drain_under_way_is_undone(five: Simulation) -> None:
    five.bookkeeper.drain_seconds = 100.0
    fewer(five)
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    five.change(replicas=5)
    five.run_until_rest()
    assert sum(isinstance(one, UndoDrain) for one in acted(five)) == 1
    assert not five.bookkeeper.drains


def test_a_way_back_that_is_refused_ends_some_time(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    undo, bookie_id = five.bookkeeper.undo_drain, five.desired().bookie_id(GOING)

    def refused(bookie_id: str) -> None:
        raise Refused(f"{bookie_id} cannot be asked")

    def goes_on(sim: Simulation) -> None:
        sim.bookkeeper.drains[bookie_id] = SimDrain(False, DrainPhase.RUNNING)

    five.bookkeeper.undo_drain = refused  # type: ignore[method-assign]
    five.change(replicas=5)
    five.run(lambda sim, _: bool(sim.status.history), each=goes_on, most=900)
    ended = five.status.history[0]
    assert ended.outcome == "Failed"
    assert f"`bookie cluster decommission {bookie_id} --undo`" in ended.message
    undo(bookie_id)
    five.run_until_rest()
    assert len(five.bookkeeper.writable) == 5
    assert len(five.status.history) == 1


@pytest.mark.parametrize("step", ["Leave", "ProveGone", "Cookie", "Claims"])
def test_replicas_are_raised_after_it_was_stopped(five: Simulation, step: str) -> None:
    fewer(five)
    at_step(five, step)
    five.change(replicas=5)
    five.run_until_rest()
    assert [(one.type, one.outcome) for one in reversed(five.status.history)] == [
        (OperationType.DECOMMISSION, "Done"),
        (OperationType.SCALE_UP, "Done"),
    ]
    assert len(five.bookkeeper.writable) == 5
    assert not five.accidents


@pytest.mark.parametrize("step", ["Stop", "Leave", "ProveGone"])
def test_one_that_was_stopped_first_comes_back_until_its_cookie_goes(step: str) -> None:
    sim = settled(replicas=5, decommission={"mode": "StopFirst"})
    fewer(sim)
    at_step(sim, step)
    sim.change(replicas=5)
    sim.run_until_rest()
    assert sim.status.history[0].outcome == "Cancelled"
    assert len(sim.bookkeeper.writable) == 5
    assert not sim.accidents


def test_the_way_back_survives_the_operator(five: Simulation) -> None:
    five.bookkeeper.writes = False
    fewer(five)
    at_step(five, "Prove")
    assert killed_everywhere(five, lambda sim: sim.change(replicas=5), what_is_left) > 2


def test_a_bookie_that_was_read_only_before_stays_so(five: Simulation) -> None:
    fewer(five)
    bookie_id = five.desired().bookie_id(GOING)
    five.bookkeeper.read_only.add(bookie_id)
    at_step(five, "Prove")
    five.change(replicas=5)
    five.run(lambda sim, _: sim.status.operation is None)
    assert bookie_id in five.bookkeeper.read_only
    assert five.status.history[0].outcome == "Cancelled"


def test_somebody_who_scales_the_set_meanwhile_ends_it(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Scale")
    five.kubernetes.scale("c-bookie", 6)
    five.run(lambda sim, _: sim.status.operation is None)
    assert five.status.history[0].outcome == "Cancelled"
    assert not five.accidents
