"""Whole runs of the simulated cluster, until nothing is left to do."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner.actions import ApplyObjects, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Rest, Wait
from bookie_operator.planner.plan import plan, unsteady
from bookie_operator.world.facts import BookieFacts
from bookie_operator.world.model import RefusedAction, World
from tests.support.operator_sim import Simulation, resting, spec
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.kubernetes import SimClaim


def created(**changes: object) -> Simulation:
    sim = Simulation(spec(**changes))
    sim.run_until_rest()
    return sim


def test_a_cluster_is_created_in_order() -> None:
    sim = created()
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{n}" for n in range(4)]
    assert len(sim.bookkeeper.writable) == 4
    assert sim.status.instance_id == "instance-1"
    assert not sim.accidents


def reason(decision: object) -> str:
    assert isinstance(decision, Wait)
    return decision.reason


def test_the_same_world_gives_the_same_plan() -> None:
    sim = resting()
    sim.change(replicas=3, version="2.0")
    assert plan(sim.world(), sim.desired()) == plan(sim.world(), sim.desired())


def test_at_rest_it_rests_for_ever_and_writes_nothing() -> None:
    sim = resting()
    before = sim.status
    for _ in range(50):
        assert isinstance(sim.run_pass().plan.decision, Rest)
        sim.advance(60)
    assert sim.status == before


# --- pause ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [0, 3, 6, 9, 12, 15])
def test_a_pause_stops_whatever_runs_and_it_goes_on_from_there(passes: int) -> None:
    sim = resting()
    sim.change(replicas=3, version="2.0")
    for _ in range(passes):
        sim.run_pass()
        sim.advance(2)
    sim.annotations[names.PAUSED] = "true"
    sim.advance(10)
    before, operation = copy.deepcopy(sim.kubernetes), sim.status.operation
    for _ in range(5):
        decision = sim.run_pass().plan.decision
        assert reason(decision) == "Paused"
        assert "the disruption budget stays as it is: see that LedgersReplicated is True" in str(decision)
    assert sim.kubernetes == before
    assert sim.status.operation == operation
    del sim.annotations[names.PAUSED]
    sim.run_until_rest()
    assert len(sim.kubernetes.pods) == 3
    assert not sim.accidents


# --- what is refused --------------------------------------------------------------------------------------------------


def refusing(world: World, *actions: object) -> World:
    return replace(
        world, refused_actions=tuple(RefusedAction(one, "exceeded quota", world.now + 30) for one in actions)
    )


def test_what_was_refused_holds_up_nothing_that_comes_behind_it() -> None:
    sim = resting()
    del sim.kubernetes.objects["Deployment/c-autorecovery"]
    sim.change(gateway={"enabled": True})
    sim.run(lambda one, _: "Service/c-gateway" in one.kubernetes.objects)
    first = plan(sim.world(), sim.desired())
    assert isinstance(first.decision, Act)
    assert first.decision.action == ApplyObjects(("Deployment/c-autorecovery",))
    then = plan(refusing(sim.world(), first.decision.action), sim.desired())
    assert isinstance(then.decision, Act)
    assert then.decision.action == ApplyObjects(("Deployment/c-gateway",))
    (told,) = then.notes
    assert (told.reason, told.stalled, told.seconds) == ("ActionFailed", True, 30.0)
    assert "exceeded quota" in told.message
    both = plan(refusing(sim.world(), first.decision.action, then.decision.action), sim.desired())
    assert [reason(one) for one in (both.decision, *both.notes)][:2] == ["ActionFailed", "ActionFailed"]


def test_what_bookies_need_and_is_refused_holds_up_all_but_what_protects_data() -> None:
    sim = resting()
    del sim.kubernetes.objects["Service/c-client"]
    sim.change(replicas=6)
    first = plan(sim.world(), sim.desired()).decision
    assert isinstance(first, Act)
    refused = first.action
    assert isinstance(refused, ApplyObjects)
    waits = plan(refusing(sim.world(), refused), sim.desired())
    assert (reason(waits.decision), waits.notes) == ("ActionFailed", ())
    sim.kubernetes.scale("c-bookie", 2)
    sim.advance(2)
    put_back = plan(refusing(sim.world(), refused), sim.desired())
    assert isinstance(put_back.decision, Act)
    assert isinstance(put_back.decision.action, ScaleStatefulSet)
    assert [one.reason for one in put_back.notes] == ["ActionFailed"]


def test_an_operation_whose_action_is_refused_gives_way_as_one_that_stalls() -> None:
    """A volume that a quota does not let grow; meanwhile what runs beside the bookies is made again."""
    sim = resting()
    sim.change(storage={"ledger": {"size": "20Gi"}})
    at_step(sim, "Request")
    patch = sim.run_pass(crash="before").plan.decision
    assert isinstance(patch, Act)
    del sim.kubernetes.objects["Deployment/c-autorecovery"]
    told = plan(refusing(sim.world(), patch.action), sim.desired()).decision
    assert isinstance(told, Wait)
    assert (told.reason, told.stalled) == ("ActionFailed", True)
    assert told.operation is not None
    assert told.operation.stalled
    sim.status = sim.status.model_copy(update={"operation": told.operation})
    beside = plan(refusing(sim.world(), patch.action), sim.desired()).decision
    assert isinstance(beside, Act)
    assert beside.action == ApplyObjects(("Deployment/c-autorecovery",))


# --- spec and metadata that are wrong ---------------------------------------------------------------------------------


def test_a_wrong_spec_changes_nothing_and_what_protects_data_goes_on() -> None:
    sim = resting()
    sim.change(replicas=6)
    sim.spec_errors = ("spec.replicas: too many",)
    assert reason(sim.run_pass().plan.decision) == "InvalidSpec"
    sim.kubernetes.scale("c-bookie", 2)
    sim.advance(2)
    put_back = sim.run_pass().plan.decision
    assert isinstance(put_back, Act)
    assert isinstance(put_back.action, ScaleStatefulSet)
    assert put_back.action.after == 4


def test_a_wrong_spec_creates_nothing() -> None:
    sim = Simulation(spec())
    sim.spec_errors = ("spec.config: unknown key",)
    decision = sim.run_pass().plan.decision
    assert reason(decision) == "InvalidSpec"
    assert not sim.kubernetes.objects


@pytest.mark.parametrize("field", ["facts", "job"])
def test_another_instance_id_stops_everything(field: str) -> None:
    sim = resting()
    sim.change(replicas=3, version="2.0")
    world = sim.world()
    assert world.facts is not None
    foreign = (
        replace(world, facts=replace(world.facts, instance_id="instance-2"))
        if field == "facts"
        else replace(world, metadata_instance_id="instance-2")
    )
    found = plan(foreign, sim.desired())
    assert reason(found.decision) == "InstanceMismatch"
    assert "instance-2" in str(found.decision)


def test_a_minute_without_metadata_changes_nothing() -> None:
    sim = resting()
    before = {name: one.uid for name, one in sim.kubernetes.pods.items()}
    sim.bookkeeper.up = False
    for _ in range(12):
        sim.run_pass()
        sim.advance(5)
    assert disruption_budget(sim) == 0
    sim.bookkeeper.up = True
    sim.run_until_rest()
    assert {name: one.uid for name, one in sim.kubernetes.pods.items()} == before
    assert disruption_budget(sim) == 1


def disruption_budget(sim: Simulation) -> int:
    return int(sim.kubernetes.objects["PodDisruptionBudget/c-bookie"][0].rpartition("-")[2])


# --- the order of a pass ----------------------------------------------------------------------------------------------


def test_what_is_blocked_is_noted_and_the_pass_goes_on() -> None:
    sim = resting()
    sim.change(replicas=6)
    sim.kubernetes.claims["ledger-0-c-bookie-4"] = SimClaim(
        "ledger-0-c-bookie-4", "uid-x", "c-bookie-4", "ledger", "1Gi", "1Gi", "instance-1", "old"
    )
    sim.change(config={"gcWaitTime": "5"})
    sim.run_until_stalled("LeftoverClaims")
    for _ in range(12):
        sim.run_pass()
        sim.advance(1)
    assert {one.config["gcWaitTime"] for one in sim.kubernetes.pods.values()} == {"5"}


def test_growing_comes_before_an_upgrade_and_an_upgrade_before_shrinking() -> None:
    sim = resting(placement={"zones": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 3}]}, replicas=5)
    zones = [{"name": "a", "replicas": 3}, {"name": "b", "replicas": 2}]
    sim.change(placement={"zones": zones}, version="2.0")
    sim.run_until_rest()
    kinds = [one.type for one in reversed(sim.status.history)]
    assert kinds == [OperationType.SCALE_UP, OperationType.ROLLOUT, OperationType.DECOMMISSION]
    assert not sim.accidents


def test_space_comes_first() -> None:
    sim = resting()
    sim.change(replicas=5, version="2.0", storage={"ledger": {"size": "12Gi"}})
    sim.run_until_rest()
    assert sim.status.history[-1].type is OperationType.EXPAND
    assert {one.actual for one in sim.kubernetes.claims.values() if one.volume == "ledger"} == {"12Gi"}


def test_an_upgrade_goes_between_two_bookies_that_are_taken_out_and_never_inside_one() -> None:
    sim = resting(replicas=6)
    sim.change(replicas=4)
    sim.run(lambda s, _: s.status.operation is not None)
    sim.change(version="2.0")
    sim.run_until_rest()
    kinds = [one.type for one in reversed(sim.status.history)]
    assert kinds == [OperationType.DECOMMISSION, OperationType.ROLLOUT, OperationType.DECOMMISSION]


def test_more_replicas_half_way_give_the_bookie_back() -> None:
    sim = resting()
    sim.change(replicas=3)
    sim.run(lambda s, _: s.status.operation is not None and s.status.operation.step == "Drain")
    sim.change(replicas=4)
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 4
    assert [one.outcome for one in sim.status.history] == ["Cancelled"]


def test_twelve_bookies_are_counted_as_integers() -> None:
    sim = resting(replicas=12)
    sim.change(replicas=9)
    sim.run_until_rest()
    assert [one.bookie for one in reversed(sim.status.history)] == ["c-bookie-11", "c-bookie-10", "c-bookie-9"]
    assert not sim.accidents


def test_another_operator_version_restarts_nobody() -> None:
    sim = resting()
    before = {name: one.uid for name, one in sim.kubernetes.pods.items()}
    for key in ("Service/c-bookie", "Deployment/c-autorecovery", "ServiceAccount/c-bookie"):
        sim.kubernetes.objects[key] = ("of another release", sim.kubernetes.objects[key][1])
    sim.run_until_rest()
    assert {name: one.uid for name, one in sim.kubernetes.pods.items()} == before


def test_an_unfinished_step_is_told_by_what_is_missing() -> None:
    sim = resting()
    world = sim.world()
    assert world.facts is not None
    cases = {
        "MetadataUnreachable": replace(world, facts=None),
        "BookiesNotReady": replace(world, pods=world.pods[1:]),
        "BookiesReadOnly": replace(
            world,
            facts=replace(
                world.facts,
                read_only=frozenset(list(world.facts.writable)[:1]),
                writable=frozenset(list(world.facts.writable)[1:]),
            ),
        ),
        "UnderReplicated": replace(world, facts=replace(world.facts, under_replicated=2)),
        "AuditPending": replace(world, facts=replace(world.facts, last_audit=None)),
        "AutorecoveryNotReady": replace(world, autorecovery=replace(world.autorecovery, ready=0)),
    }
    for wanted, changed in cases.items():
        found = unsteady(changed, sim.desired())
        assert reason(found) == wanted


@pytest.mark.parametrize(("used", "words"), [(12.0, "--undo"), (97.0, "are their disks full")])
def test_a_bookie_that_is_read_only_though_it_has_room_is_told_with_the_remedy(used: float, words: str) -> None:
    sim = resting()
    world = sim.world()
    assert world.facts is not None
    name = "c-bookie-1"
    bookie_id = sim.desired().bookie_id(name)
    facts = replace(world.facts, read_only=frozenset({bookie_id}), writable=world.facts.writable - {bookie_id})
    told = BookieFacts(read_only=True, used_bytes=int(used), total_bytes=100, used_percent=used)
    found = unsteady(replace(world, facts=facts, bookies={name: told}), sim.desired())
    assert found is not None
    assert words in found.message
