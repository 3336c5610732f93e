"""A cluster that was deleted with its volumes retained is taken over, with all its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.planner.actions import RecordState
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.flows import adopt
from bookie_operator.planner.plan import plan
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, killed_everywhere, resting


def deleted(**changes: object) -> Simulation:
    """The resource is applied again after its deletion, as a new one that adopts."""
    sim = resting(**changes)
    sim.delete()
    sim.run_until_rest()
    sim.passes.clear()
    sim.deleting, sim.finalizer, sim.generation = False, True, 1
    sim.status = BookieClusterStatus()
    sim.kubernetes.sets.clear()
    kept = {key: one for key, one in sim.kubernetes.objects.items() if key == "Secret/c-identity"}
    sim.kubernetes.objects = kept
    sim.job_ends_at = None
    sim.change(bootstrap={"mode": "Adopt"})
    return sim


def end(sim: Simulation) -> object:
    return sorted(sim.bookkeeper.running.items()), sorted(sim.kubernetes.pods), sim.status.instance_id


def test_everything_is_there_again_whoever_dies() -> None:
    sim = deleted()
    data, ledgers = dict(sim.bookkeeper.cookies), sorted(sim.bookkeeper.ledgers)
    assert killed_everywhere(sim, lambda _: None, end) > 5
    sim.run_until_rest()
    assert sim.bookkeeper.running == data
    assert set(ledgers) <= set(sim.bookkeeper.ledgers)
    assert sim.status.instance_id == "instance-1"
    assert sim.job_ends_at is None
    assert not sim.accidents


@pytest.mark.parametrize(("replicas", "type_"), [(6, "ScaleUp"), (3, "Decommission")])
def test_it_starts_as_it_was_and_then_becomes_what_spec_says(replicas: int, type_: str) -> None:
    sim = deleted()
    sim.change(replicas=replicas)
    sim.run_until_rest()
    assert [one.type.value for one in sim.status.history] == [type_]
    assert len(sim.kubernetes.pods) == replicas
    assert not sim.accidents


def test_a_cluster_of_the_same_name_without_adopt_touches_nothing() -> None:
    sim = deleted()
    sim.change(bootstrap={"mode": "New"})
    objects = dict(sim.kubernetes.objects)
    sim.run_until_stalled("AdoptRequired")
    assert sim.kubernetes.objects == objects
    assert not sim.kubernetes.sets


def changed(sim: Simulation, **fields: object) -> World:
    return replace(sim.world(), **fields)  # type: ignore[arg-type]


def reason(sim: Simulation, world: World) -> str:
    found = plan(world, sim.desired()).decision
    assert isinstance(found, Wait)
    assert found.stalled
    return found.reason


def test_what_stops_an_adoption() -> None:
    sim = deleted()
    world = sim.world()
    identity = dict(world.identity or {})
    assert reason(sim, changed(sim, identity=None)) == "AdoptUnknown"
    foreign = replace(world.claims[0], instance_id="instance-0")
    assert reason(sim, changed(sim, claims=(foreign, *world.claims[1:]))) == "AdoptMismatch"
    assert reason(sim, changed(sim, claims=world.claims[:2])) == "AdoptIncomplete"
    lost = tuple(replace(one, lost=one.ordinal > 0) for one in world.claims)
    assert reason(sim, changed(sim, claims=lost)) == "AdoptIncomplete"
    assert reason(sim, changed(sim, claims=())) == "AdoptIncomplete"
    sim.change(bootstrap={"instanceId": "instance-7"})
    assert reason(sim, changed(sim, identity=identity)) == "AdoptMismatch"


def test_as_many_bookies_as_a_ledger_can_bear_may_be_missing() -> None:
    sim = deleted()
    world = sim.world()
    two = tuple(one for one in world.claims if one.ordinal < 2)
    found = adopt.begin(replace(world, claims=two), sim.desired())
    assert isinstance(found, Act)
    assert found.action == RecordState(instance_id="instance-1")


def test_metadata_of_another_cluster_stop_it() -> None:
    sim = deleted()
    sim.bookkeeper.instance_id = "instance-2"
    sim.run_until_stalled("InstanceMismatch")
    stopped = len(sim.passes)
    for _ in range(5):
        assert isinstance(sim.run_pass().plan.decision, Wait)
        sim.advance(30)
    assert len(sim.passes) == stopped + 5
    assert sim.bookkeeper.cookies


def without(sim: Simulation, *bookies: str) -> None:
    for bookie in bookies:
        for claim in sim.kubernetes.claims_of(bookie):
            del sim.kubernetes.claims[claim.name]


def no_identity(sim: Simulation) -> Callable[[], object]:
    sim.kubernetes.objects.clear()
    return lambda: sim.change(bootstrap={"instanceId": "instance-1"})


def wrong_instance(sim: Simulation) -> Callable[[], object]:
    sim.change(bootstrap={"instanceId": "instance-7"})
    return lambda: sim.change(bootstrap={"instanceId": "instance-1"})


def foreign_claim(sim: Simulation) -> Callable[[], object]:
    sim.forgiven = True
    sim.kubernetes.claims_of("c-bookie-3")[0].instance_id = "instance-0"
    return lambda: without(sim, "c-bookie-3")


def missing_claims(sim: Simulation) -> Callable[[], object]:
    claims = dict(sim.kubernetes.claims)
    without(sim, "c-bookie-1", "c-bookie-2", "c-bookie-3")
    return lambda: sim.kubernetes.claims.update(claims)


@pytest.mark.parametrize(
    ("trouble", "reason", "words"),
    [
        (no_identity, "AdoptUnknown", "tell bootstrap.instanceId"),
        (wrong_instance, "AdoptMismatch", "apply the right one"),
        (foreign_claim, "AdoptMismatch", "delete the claims that do not belong to it"),
        (missing_claims, "AdoptIncomplete", "restore the claims of c-bookie-1, c-bookie-2, c-bookie-3"),
    ],
)
def test_what_is_advised_lets_an_adoption_go_on(
    trouble: Callable[[Simulation], Callable[[], object]], reason: str, words: str
) -> None:
    sim = deleted(repair={"autoReplaceAfterSeconds": 20})
    remedy = trouble(sim)
    sim.run_until_stalled(reason)
    assert words in str(sim.passes[-1].plan)
    remedy()
    sim.run_until_rest(most=900)
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents
