"""The budget follows the state of the data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act
from bookie_operator.planner.desired import Evictions
from bookie_operator.planner.flows import disruption
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting

BUDGET = "PodDisruptionBudget/c-bookie"


def facts(sim: Simulation, **changes: object) -> World:
    found = sim.bookkeeper.facts()
    assert found is not None
    return replace(sim.world(), facts=replace(found, **changes))  # type: ignore[arg-type]


def test_while_all_is_well_as_spec_says() -> None:
    sim = resting(disruption={"maxUnavailable": 2})
    assert disruption.allowed(sim.world(), sim.desired()) == Evictions(2)
    assert disruption.begin(sim.world(), sim.desired()) is None


@pytest.mark.parametrize(
    "changes", [{"under_replicated": 1}, {"auditor": None}, {"last_audit": None}, {"writable": frozenset()}]
)
def test_nobody_is_evicted_while_a_copy_may_be_missing(changes: dict[str, object]) -> None:
    sim = resting()
    world = facts(sim, **changes)
    assert disruption.allowed(world, sim.desired()) == Evictions(0)
    begun = disruption.begin(world, sim.desired())
    assert isinstance(begun, Act)
    assert begun.action == ApplyObjects((BUDGET,))


def test_not_knowing_closes_it() -> None:
    sim = resting()
    assert disruption.allowed(replace(sim.world(), facts=None), sim.desired()) == Evictions(0)


def test_a_read_only_bookie_serves() -> None:
    sim = resting()
    found = sim.bookkeeper.facts()
    assert found is not None
    world = facts(sim, writable=frozenset(), read_only=found.writable)
    assert disruption.allowed(world, sim.desired()) == Evictions(1)


def test_without_auto_recovery_of_its_own_no_auditor_is_waited_for() -> None:
    sim = resting(autorecovery={"enabled": False})
    assert disruption.allowed(facts(sim, auditor=None, last_audit=None), sim.desired()) == Evictions(1)


@pytest.mark.parametrize(
    ("kind", "pod_is_down", "wanted"),
    [
        (None, False, 1),
        (None, True, 0),
        (OperationType.DECOMMISSION, False, 0),
        (OperationType.REPLACE, False, 0),
        (OperationType.ROLLOUT, False, 1),
        (OperationType.ROLLOUT, True, 1),
        (OperationType.EXPAND, True, 0),
    ],
)
def test_what_runs_counts(kind: OperationType | None, pod_is_down: bool, wanted: int) -> None:
    sim = resting()
    operation = Operation(id="X-1", type=kind, step="x") if kind is not None else None
    world = replace(
        sim.world(), cluster=replace(sim.view(), status=sim.status.model_copy(update={"operation": operation}))
    )
    if pod_is_down:
        world = replace(world, pods=(replace(world.pods[0], ready=False), *world.pods[1:]))
    assert disruption.allowed(world, sim.desired()) == Evictions(wanted)


def test_an_eviction_storm_takes_one_bookie_at_most() -> None:
    sim = resting()
    for _ in range(20):
        for pod in sim.kubernetes.pods.values():
            if pod.gone_at is None and sim.evictable(pod):
                sim.kubernetes.stop_pod(pod)
        assert sum(pod.ready_since is None for pod in sim.kubernetes.pods.values()) <= 1
        sim.run_pass()
        sim.advance(1)
    sim.run_until_rest()
    assert not sim.accidents
