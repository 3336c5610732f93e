"""A bookie that never served, and is not asked for any more: it is taken away, unless that is not so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_spec import DecommissionMode
from bookie_operator.planner.actions import ScaleStatefulSet
from bookie_operator.planner.decision import Act, Decision, Finish, Record, Wait
from bookie_operator.planner.flows import decommission
from bookie_operator.planner.flows.decommission_steps import MODE, WITHDRAWN
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting

NEW = "c-bookie-4"


@pytest.fixture(scope="module")
def sim() -> Simulation:
    return resting()


def withdrawing(sim: Simulation) -> World:
    """A fifth one was asked for, and never came up; nothing names it."""
    (one,) = sim.world().stateful_sets
    five = replace(sim.world(), stateful_sets=(replace(one, replicas=5),))
    begun = decommission.withdrawal(five, sim.desired())
    assert begun is not None
    status = sim.status.model_copy(update={"operation": begun.operation})
    bookie_id = sim.desired().bookie_id(NEW)
    proof = Proof(bookie_id, 0, 0, False, "auditor", None, "instance-1")
    return replace(five, cluster=replace(sim.view(), status=status), proofs={bookie_id: proof})


def decided(sim: Simulation, world: World, replicas: int = 4) -> Decision:
    """`replicas`: of `spec`."""
    desired = sim.desired()
    sets = tuple(replace(one, replicas=replicas) for one in desired.stateful_sets)
    operation = world.cluster.status.operation
    assert operation is not None
    return decommission.proceed(world, replace(desired, stateful_sets=sets), operation)


def test_it_is_taken_away_with_a_proof_alone(sim: Simulation) -> None:
    world = withdrawing(sim)
    found = decided(sim, world)
    assert isinstance(found, Act)
    one = world.stateful_sets[0]
    assert found.action == ScaleStatefulSet(one.name, one.resource_version, 5, 4)
    assert found.operation is not None
    assert found.operation.step == "Leave"
    unknown = decided(sim, replace(world, proofs={}))
    assert isinstance(unknown, Wait)
    assert unknown.reason == "WaitingForProof"


@pytest.mark.parametrize(("replicas", "spec"), [(5, 5), (6, 4), (6, 6)])
def test_one_that_is_asked_for_again_stays(sim: Simulation, replicas: int, spec: int) -> None:
    world = withdrawing(sim)
    sets = (replace(world.stateful_sets[0], replicas=replicas),)
    found = decided(sim, replace(world, stateful_sets=sets), spec)
    assert isinstance(found, Finish)
    assert (found.outcome, found.message) == ("Cancelled", f"{NEW} is asked for again")


def test_what_its_statefulset_is_decides_what_is_next(sim: Simulation) -> None:
    world = withdrawing(sim)
    one = world.stateful_sets[0]
    for sets in ((), (replace(one, generation=9, observed_generation=8),)):
        waiting = decided(sim, replace(world, stateful_sets=sets))
        assert isinstance(waiting, Wait)
        assert waiting.reason == "StatefulSetNotObserved"
    gone = decided(sim, replace(world, stateful_sets=(replace(one, replicas=4),)))
    assert isinstance(gone, Record)
    assert gone.operation.step == "Leave"


def test_one_that_came_up_or_is_named_is_drained(sim: Simulation) -> None:
    world, bookie_id = withdrawing(sim), sim.desired().bookie_id(NEW)
    assert world.facts is not None
    up = replace(world, facts=replace(world.facts, cookies=world.facts.cookies | {bookie_id}))
    found = decided(sim, up)
    assert isinstance(found, Finish)
    assert found.message == f"{NEW} has come up, and is drained before it goes"
    proof = world.proofs[bookie_id]
    assert proof is not None
    named = decided(sim, replace(world, proofs={bookie_id: replace(proof, ledgers=2)}))
    assert isinstance(named, Record)
    assert (named.operation.step, named.operation.saved[MODE]) == ("Audit", DecommissionMode.STOP_FIRST.value)
    assert WITHDRAWN not in named.operation.saved
    assert not any(key.startswith("replicas/") for key in named.operation.saved)


def test_it_is_withdrawn_only_while_it_never_served(sim: Simulation) -> None:
    world, desired = withdrawing(sim), sim.desired()
    assert decommission.withdrawal(sim.world(), desired) is None, "there is no surplus"
    assert world.facts is not None
    served = replace(world.facts, cookies=world.facts.cookies | {desired.bookie_id(NEW)})
    assert decommission.withdrawal(replace(world, facts=served), desired) is None
    assert decommission.withdrawal(replace(world, facts=None), desired) is None
