"""Zones of nodes, told to pods that wait for them."""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.crds import names
from bookie_operator.planner import invariants
from bookie_operator.planner.actions import TellPod
from bookie_operator.planner.decision import Act, Plan
from bookie_operator.planner.flows import location
from bookie_operator.planner.plan import plan
from bookie_operator.world.model import NodeView, RefusedAction, World
from tests.support.operator_sim import Simulation, resting

POD = "c-bookie-1"


def waiting(sim: Simulation, zone: str = "eu-1") -> World:
    world = sim.world()
    pods = tuple(replace(one, awaits_location=one.name == POD) for one in world.pods)
    node = next(one.node for one in pods if one.name == POD)
    return replace(world, pods=pods, nodes={**(world.nodes or {}), node: NodeView(node, True, zone=zone)})


def told(world: World, sim: Simulation) -> TellPod | None:
    found = location.begin(world, sim.desired())
    assert found is None or isinstance(found.action, TellPod)
    return found.action if found is not None else None


def test_a_pod_that_waits_is_told_also_that_there_is_no_zone() -> None:
    sim = resting()
    uid = sim.kubernetes.pods[POD].uid
    assert told(waiting(sim), sim) == TellPod(POD, uid, names.NETWORK_LOCATION, "/eu-1")
    assert told(waiting(sim, zone=""), sim) == TellPod(POD, uid, names.NETWORK_LOCATION, "")
    assert told(sim.world(), sim) is None


def test_what_is_not_known_of_a_node_is_not_told() -> None:
    sim = resting()
    world = waiting(sim)
    assert told(replace(world, nodes=None), sim) is None
    assert told(replace(world, nodes={}), sim) is None


def test_it_is_told_while_an_operation_runs() -> None:
    """A pod that is restarted waits for it, and the operation for the pod."""
    sim = resting()
    sim.change(version="1.1")
    sim.run(lambda one, _: one.status.operation is not None)
    world = waiting(sim)
    planned = plan(world, sim.desired())
    assert isinstance(planned.decision, Act)
    assert isinstance(planned.decision.action, TellPod)
    assert invariants.check(world, sim.desired(), planned) == []
    other = Plan(Act(TellPod(POD, "another", names.NETWORK_LOCATION, "/eu-1"), "why"))
    assert invariants.check(world, sim.desired(), other) != []


def test_it_is_told_though_spec_is_wrong() -> None:
    sim = resting()
    planned = plan(replace(waiting(sim), spec_errors=("spec: wrong",)), sim.desired())
    assert isinstance(planned.decision, Act)
    assert isinstance(planned.decision.action, TellPod)


def test_where_it_is_refused_everything_else_goes_on() -> None:
    sim = resting()
    world = waiting(sim)
    action = told(world, sim)
    assert action is not None
    refused = replace(world, refused_actions=(RefusedAction(action, "pods is forbidden", world.now + 60),))
    assert told(refused, sim) is None
