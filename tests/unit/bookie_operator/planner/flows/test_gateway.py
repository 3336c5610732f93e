"""Gateways in a Deployment of their own: when it comes, waits and goes, whoever dies meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.planner import holding, plan
from bookie_operator.planner.actions import ApplyObjects, CreateStatefulSet, DeleteObject, EvictPod, ScaleStatefulSet
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.flows import support
from bookie_operator.world.model import DeploymentView
from tests.support.operator_sim import Simulation, killed_everywhere, resting, spec
from tests.support.operator_sim.flows import acted, at_step
from tests.support.operator_sim.kubernetes import BAD_IMAGE

AUTORECOVERY, GATEWAY = "Deployment/c-autorecovery", "Deployment/c-gateway"
OTHERS = {"Service/c-gateway", "PodDisruptionBudget/c-gateway"}
ON: dict[str, object] = {"enabled": True}


def parts(sim: Simulation) -> set[str]:
    return {key for key in sim.kubernetes.objects if key.endswith("-gateway")}


def applied(sim: Simulation) -> list[str]:
    return [key for one in acted(sim) if isinstance(one, ApplyObjects) for key in one.keys]


def enable(sim: Simulation) -> None:
    sim.change(gateway=ON)


def disable(sim: Simulation) -> None:
    sim.change(gateway={"enabled": False})


# --- it comes and goes ------------------------------------------------------------------------------------------------


def test_it_comes_last_when_a_cluster_comes_to_be() -> None:
    sim = Simulation(spec(gateway=ON))
    sim.run_until_rest()
    assert [key for key in applied(sim) if key.startswith("Deployment/")] == [AUTORECOVERY, GATEWAY]
    done = acted(sim)
    made = next(place for place, one in enumerate(done) if isinstance(one, CreateStatefulSet))
    assert ApplyObjects((GATEWAY,)) in done[made:]
    assert parts(sim) == {GATEWAY, *OTHERS}


def test_it_is_made_beside_bookies_that_stay_as_they_are_whoever_dies() -> None:
    sim = resting()
    uids = {name: one.uid for name, one in sim.kubernetes.pods.items()}
    killed_everywhere(sim, enable, parts)
    enable(sim)
    sim.run_until_rest()
    assert parts(sim) == {GATEWAY, *OTHERS}
    assert {name: one.uid for name, one in sim.kubernetes.pods.items()} == uids
    assert not any(isinstance(one, EvictPod) for one in acted(sim))


def test_nothing_of_it_is_left_when_it_is_switched_off_whoever_dies() -> None:
    sim = resting(gateway=ON)
    others = sim.kubernetes.objects.keys() - parts(sim)
    killed_everywhere(sim, disable, parts)
    disable(sim)
    sim.run_until_rest()
    assert sim.kubernetes.objects.keys() == others
    gone = [one.key for one in acted(sim) if isinstance(one, DeleteObject)]
    assert (gone[0], set(gone)) == (GATEWAY, {GATEWAY, *OTHERS})


def test_a_service_of_bookies_is_never_garbage() -> None:
    sim = resting()
    sim.kubernetes.objects["Service/c-other"] = ("of another release", "uid-other")
    sim.run_until_rest()
    assert "Service/c-other" in sim.kubernetes.objects


def test_it_is_made_again_when_it_is_gone_also_while_an_operation_waits() -> None:
    sim = resting(gateway=ON)
    sim.change(version="2.0", image=BAD_IMAGE)
    sim.run_until_stalled("CanaryFailed")
    del sim.kubernetes.objects[GATEWAY]
    sim.run(lambda one, _: GATEWAY in one.kubernetes.objects, most=5)
    assert sim.status.operation is not None
    assert sim.status.operation.step == "Await"


def test_it_begins_when_an_ensemble_can_be_written() -> None:
    sim = resting(gateway=ON)
    facts = sim.bookkeeper.facts()
    assert facts is not None
    status = sim.status.model_copy(update={"ledgers": type(sim.status.ledgers)()})
    hashes = {key: one for key, one in sim.world().object_hashes.items() if key != GATEWAY}
    missing = replace(sim.world(), object_hashes=hashes, cluster=replace(sim.view(), status=status))
    two = replace(facts, writable=frozenset(sorted(facts.writable)[:2]))
    assert support.gateway(replace(missing, facts=two), sim.desired()) is None
    assert support.gateway(missing, sim.desired()) is not None


# --- another version --------------------------------------------------------------------------------------------------


def test_it_gets_a_new_version_after_the_bookies_and_not_before() -> None:
    sim = resting(gateway=ON)
    sim.advance(60)
    before = sim.kubernetes.objects[GATEWAY]
    sim.change(version="2.0")
    at_step(sim, "Autorecovery")
    assert sim.kubernetes.objects[GATEWAY] == before
    sim.run_until_rest()
    done = acted(sim)
    last = max(place for place, one in enumerate(done) if isinstance(one, EvictPod))
    applied = [one.keys for one in done[last:] if isinstance(one, ApplyObjects)]
    assert [keys for keys in applied if keys != (sim.desired().budget,)] == [(AUTORECOVERY, GATEWAY)]
    assert sim.kubernetes.objects[GATEWAY] != before


def held_back(sim: Simulation) -> None:
    """A new version is wanted, and a claim that somebody deleted stops no bookie for it."""
    sim.kubernetes.claims["ledger-0-c-bookie-1"].deleting = True
    sim.change(version="2.0")
    sim.run_until_stalled("ClaimBeingDeleted")


def passes(sim: Simulation, number: int = 30) -> None:
    for _ in range(number):
        sim.run_pass()
        sim.advance(10)


def test_it_waits_for_a_rollout_that_is_held_back_and_auto_recovery_too() -> None:
    sim = resting(gateway=ON)
    before = {key: sim.kubernetes.objects[key] for key in (AUTORECOVERY, GATEWAY)}
    held_back(sim)
    passes(sim)
    assert {key: sim.kubernetes.objects[key] for key in (AUTORECOVERY, GATEWAY)} == before
    sim.kubernetes.claims["ledger-0-c-bookie-1"].deleting = False
    sim.run_until_rest()
    applied = [one.keys for one in acted(sim) if isinstance(one, ApplyObjects)]
    assert applied[-1] == (AUTORECOVERY, GATEWAY)


def test_more_of_it_come_while_a_rollout_is_held_back_and_with_the_template_that_it_has() -> None:
    sim = resting(gateway=ON)
    template = sim.gateway.inputs.rpartition("/")[0]
    held_back(sim)
    before = sim.kubernetes.objects[AUTORECOVERY]
    sim.change(gateway={"replicas": 5})
    passes(sim)
    assert sim.gateway.inputs == f"{template}/5"
    assert sim.kubernetes.objects[AUTORECOVERY] == before
    assert applied(sim).count(GATEWAY) == 1
    sim.kubernetes.claims["ledger-0-c-bookie-1"].deleting = False
    sim.run_until_rest()
    assert sim.gateway.inputs == sim.desired().gateway.inputs != f"{template}/5"


def test_auto_recovery_that_does_not_work_waits_for_no_rollout_which_may_wait_for_it() -> None:
    sim = resting()
    held_back(sim)
    world = replace(sim.world(), autorecovery=replace(sim.world().autorecovery, ready=0))
    held = holding.hold(world, sim.desired())
    assert support.autorecovery(sim.world(), holding.hold(sim.world(), sim.desired())) is None
    found = support.autorecovery(world, held)
    assert found is not None
    assert (found.action, held.autorecovery.keeps_template) == (ApplyObjects((AUTORECOVERY,)), False)


def test_auto_recovery_waits_for_no_rollout_that_waits_for_its_copies() -> None:
    """Else what makes them sooner, or at all, would come when they are made."""
    sim = resting(gateway=ON)
    sim.change(version="2.0")
    before = {key: sim.kubernetes.objects[key] for key in (AUTORECOVERY, GATEWAY)}
    for _ in range(30):
        sim.bookkeeper.marks.add(min(sim.bookkeeper.ledgers))
        sim.run_pass()
        sim.advance(10)
    assert sim.kubernetes.objects[AUTORECOVERY] != before[AUTORECOVERY]
    assert sim.kubernetes.objects[GATEWAY] == before[GATEWAY]
    assert not any(isinstance(one, EvictPod) for one in acted(sim))
    assert applied(sim).count(AUTORECOVERY) == 1
    sim.run_until_rest()
    assert applied(sim).count(AUTORECOVERY) == 1


def test_it_waits_with_the_bookies_for_what_another_operator_makes() -> None:
    sim = resting(gateway=ON)
    before = dict(sim.kubernetes.objects)
    sim.release = "newer"
    sim.run_until_rest()
    assert sim.kubernetes.objects[GATEWAY] == before[GATEWAY]
    held = holding.hold(sim.world(), sim.desired())
    assert held.gateway.object_hash == before[GATEWAY][0] != sim.desired().gateway.object_hash
    sim.change(gateway={"replicas": 5})
    assert holding.hold(sim.world(), sim.desired()).gateway == sim.desired().gateway
    sim.run_until_rest()
    assert sim.kubernetes.objects[GATEWAY] != before[GATEWAY]
    assert sim.kubernetes.objects[AUTORECOVERY] == before[AUTORECOVERY]


def test_pods_that_are_not_ready_are_told() -> None:
    sim = resting(gateway=ON)
    world = sim.world()
    assert plan.unsteady(world, sim.desired()) is None
    found = plan.unsteady(replace(world, gateway=replace(world.gateway, ready=0)), sim.desired())
    assert isinstance(found, Wait)
    assert (found.reason, found.message) == ("GatewayNotReady", "waits for 2 gateway pods")
    assert plan.unsteady(replace(world, gateway=DeploymentView(pods=2)), sim.desired()) is None


# --- the cluster is deleted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False], ids=["as spec says", "switched off meanwhile"])
def test_it_has_stopped_before_the_first_bookie_does(enabled: bool) -> None:
    sim = resting(gateway=ON)
    sim.change(gateway={"enabled": enabled})
    sim.delete()
    sim.run_until_rest()
    assert not sim.finalizer
    done = acted(sim)
    stopped = next(place for place, one in enumerate(done) if isinstance(one, DeleteObject) and one.key == GATEWAY)
    scaled = [place for place, one in enumerate(done) if isinstance(one, ScaleStatefulSet)]
    assert len(scaled) == 4
    assert stopped < min(scaled)
    seen = [one.world.gateway.pods for one in sim.passes if one.world.cluster.status.operation is not None]
    assert max(seen) == 2
    shrinks = [
        one.world.gateway.pods
        for one in sim.passes
        if isinstance(getattr(one.plan.decision, "action", None), ScaleStatefulSet)
    ]
    assert set(shrinks) == {0}


def test_a_pod_of_it_that_does_not_stop_holds_the_deletion_up_for_a_while_only() -> None:
    sim = resting(gateway=ON)
    sim.delete()
    sim.run(lambda one, _: GATEWAY not in one.kubernetes.objects)
    sim.gateway.gone_at = sim.now + 1e6
    begun = sim.now
    sim.run(lambda one, _: not one.finalizer)
    assert 100 < sim.now - begun < 300
