"""Any moment of any flow, with things otherwise than they were: every plan is allowed, and none fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import holding, invariants
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.plan import needs, plan
from tests.support.operator_sim import NAME, Pass, Simulation, desired_of, resting
from tests.support.operator_sim.perturbations import PERTURBATIONS

Change = Callable[[Simulation], object]


def replaced(sim: Simulation) -> None:
    sim.kubernetes.lose_volume("c-bookie-1")
    sim.ask(TaskType.REPLACE, "c-bookie-1")


def deleted_with_data(sim: Simulation) -> None:
    sim.change(storage={"retention": {"whenDeleted": "Delete"}})
    sim.annotations[names.CONFIRM_DELETE] = NAME
    sim.delete()


FLOWS: tuple[Change, ...] = (
    lambda sim: sim.change(replicas=6),
    lambda sim: sim.change(replicas=3),
    lambda sim: sim.change(replicas=3, decommission={"mode": "StopFirst"}),
    lambda sim: sim.change(version="2.0"),
    lambda sim: sim.change(storage={"ledger": {"size": "20Gi"}}),
    lambda sim: sim.change(replicas=3, version="2.0", config={"gcWaitTime": "7"}),
    lambda sim: sim.ask(TaskType.AUDIT),
    replaced,
    deleted_with_data,
    lambda sim: sim.delete(),
)


@lru_cache(maxsize=len(FLOWS))
def passes_of(flow: int) -> tuple[Pass, ...]:
    sim = resting()
    FLOWS[flow](sim)
    sim.run_until_rest()
    assert not sim.accidents
    return tuple(sim.passes)


@given(
    st.integers(0, len(FLOWS) - 1),
    st.integers(0, 10_000),
    st.lists(st.tuples(st.sampled_from(PERTURBATIONS), st.integers(0, 50)), max_size=4),
)
def test_no_plan_breaks_an_invariant(flow: int, moment: int, changes: list[tuple[object, int]]) -> None:
    seen = passes_of(flow)
    world = seen[moment % len(seen)].world
    for change, number in changes:
        world = change(world, number)  # type: ignore[operator]
    wanted = holding.hold(world, desired_of(world.cluster))
    needs(world, wanted)
    planned = plan(world, wanted)
    assert not invariants.check(world, wanted, planned), planned
    assert plan(world, wanted) == planned


@pytest.mark.parametrize("flow", range(len(FLOWS)))
def test_every_wait_says_for_what_and_asks_again_soon_enough(flow: int) -> None:
    for one in passes_of(flow):
        decision = one.plan.decision
        if isinstance(decision, Wait):
            assert decision.reason.isidentifier()
            assert decision.message
            assert 0 < decision.seconds <= 60
        if isinstance(decision, Act):
            assert decision.reason


@pytest.mark.parametrize("kind", list(OperationType))
def test_a_step_that_this_release_does_not_know_is_waited_for(kind: OperationType) -> None:
    sim = copy.deepcopy(resting())
    saved = {"set": "c-bookie", "from": "4", "to": "6", "statefulSet": "c-bookie", "ordinal": "3", "mode": "Drain"}
    at = "2023-11-14T22:13:47.000000Z"
    unknown = Operation(
        id=f"{kind.value}-1",
        type=kind,
        step="Unheard",
        bookie="c-bookie-3",
        started_at=at,
        last_progress_at=at,
        saved=saved,
    )
    sim.deleting = kind is OperationType.DELETE
    sim.status = sim.status.model_copy(update={"operation": unknown, "operations_begun": 1})
    told = sim.run_until_stalled("UnknownStep", most=5)
    assert told <= 5
    assert len(sim.kubernetes.pods) == 4
    assert len(sim.kubernetes.claims) == 8
