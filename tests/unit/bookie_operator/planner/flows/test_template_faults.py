"""A template may keep bookies from their volumes and directories: it is put right, and nothing of them is replaced."""

from __future__ import annotations

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.actions import DeleteClaim, DeletePod, ScaleStatefulSet
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.flows import repair
from bookie_operator.world.model import PodFault
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.flows import acted, at_step
from tests.support.operator_sim.kubernetes import BAD_IMAGE, BROKEN

AUTO = {"repair": {"autoReplaceAfterSeconds": 30}}
OF_VOLUMES = [kind for kind, fault in BROKEN.items() if fault in (PodFault.VOLUME, PodFault.COOKIE)]


def passes(sim: Simulation, number: int) -> None:
    for _ in range(number):
        decision = sim.run_pass().plan.decision
        sim.advance(min(decision.seconds, 20.0) if isinstance(decision, Wait) else 1.0)


def begun(sim: Simulation, kind: OperationType) -> int:
    return sum(one.type is kind for one in sim.status.history)


@pytest.mark.parametrize("kind", OF_VOLUMES)
@pytest.mark.parametrize("more", [False, True])
def test_nobody_is_replaced_by_himself_while_no_bookie_works_with_its_template(kind: str, more: bool) -> None:
    """`more`: and more bookies are asked for meanwhile."""
    sim = resting(**AUTO)
    sim.change(image=kind)
    passes(sim, 70)
    if more:
        sim.change(replicas=5)
        passes(sim, 70)
    assert not any(isinstance(one, DeleteClaim) for one in acted(sim))
    sim.change(image="")
    sim.run_until_rest()
    assert not begun(sim, OperationType.REPLACE)
    assert len(sim.bookkeeper.writable) == sim.spec.replicas
    assert not sim.accidents


@pytest.mark.parametrize("kind", OF_VOLUMES)
def test_one_that_does_not_come_up_with_empty_disks_is_not_given_others_again_and_again(kind: str) -> None:
    """Others work with the same template, so it looks lost."""
    sim = resting(**AUTO)
    sim.change(image=f"{kind}@1")
    passes(sim, 120)
    assert begun(sim, OperationType.REPLACE) == 1
    told = [one.message for one in (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes) if isinstance(one, Wait)]
    assert any("also with empty disks: change spec, or put it back" in each for each in told), told
    sim.change(image="")
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


@pytest.mark.parametrize("fault", [PodFault.VOLUME, PodFault.COOKIE])
def test_a_bookie_that_is_the_only_one_of_its_zone_is_replaced_while_those_of_others_work(fault: PodFault) -> None:
    """Each zone has a template of its own, of the same wishes."""
    sim = resting(placement={"zones": [{"name": zone} for zone in "abcd"]}, **AUTO)
    sim.advance(60)
    lost = "c-bookie-b-0"
    sim.kubernetes.faults[lost] = fault
    sim.kubernetes.kill_pod(lost)
    sim.run(lambda one, _: any(isinstance(each, DeletePod) for each in acted(one)), most=300)
    sim.kubernetes.faults.clear()
    sim.run_until_rest()
    assert begun(sim, OperationType.REPLACE) == 1
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


def test_templates_of_two_releases_are_not_the_same_though_people_asked_for_the_same() -> None:
    """A StatefulSet that vanished is made anew by the newer release, while those of other zones are held."""
    sim = resting(placement={"zones": [{"name": zone} for zone in "abcd"]}, **AUTO)
    sim.advance(60)
    sim.release = "2"
    passes(sim, 20)
    del sim.kubernetes.sets["c-bookie-b"]
    for _ in range(80):
        pods = sim.kubernetes.pods
        newer = "c-bookie-b-0" in pods and pods["c-bookie-b-0"].template_hash != pods["c-bookie-a-0"].template_hash
        if newer and not sim.kubernetes.faults:
            sim.kubernetes.faults["c-bookie-b-0"] = PodFault.VOLUME
            sim.kubernetes.kill_pod("c-bookie-b-0")
        passes(sim, 1)
    assert "c-bookie-b-0" in sim.kubernetes.faults
    assert not any(isinstance(one, DeleteClaim) for one in acted(sim))


def test_nor_while_all_are_about_to_get_the_newest() -> None:
    """Nothing is held then, and those that are not staged yet are the earlier release's all the same."""
    sim = resting(placement={"zones": [{"name": zone} for zone in "abcd"]}, **AUTO)
    sim.release = "2"
    passes(sim, 20)
    del sim.kubernetes.sets["c-bookie-b"]
    sim.run_until_rest()
    sim.ask(TaskType.RESTART)
    at_step(sim, "Stage")
    sim.kubernetes.faults["c-bookie-b-0"] = PodFault.VOLUME
    sim.kubernetes.kill_pod("c-bookie-b-0")
    sim.advance(10)
    world, desired = sim.world(), sim.desired()
    assert not desired.held
    pod = world.pods_by_name["c-bookie-b-0"]
    assert pod.template_hash != world.pods_by_name["c-bookie-a-0"].template_hash
    doubt = repair.template_works(world, desired, pod)
    assert doubt is not None
    assert "no bookie works with the template" in doubt.message


@pytest.mark.parametrize("kind", OF_VOLUMES)
@pytest.mark.parametrize("step", ["Check", "Drain", "Prove"])
def test_a_template_that_is_put_right_ends_the_replacement_before_anything_is_deleted(kind: str, step: str) -> None:
    sim = resting(**AUTO)
    sim.change(image=f"{kind}@1")
    at_step(sim, step, most=600)
    uids = {one.uid for one in sim.kubernetes.claims.values()}
    sim.change(image="")
    sim.run_until_rest()
    assert {one.uid for one in sim.kubernetes.claims.values()} == uids
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


@pytest.mark.parametrize("kind", OF_VOLUMES)
def test_whoever_knows_that_the_volumes_are_gone_says_so_by_a_task(kind: str) -> None:
    sim = resting(**AUTO)
    sim.change(image=f"{kind}@3")
    passes(sim, 70)
    told = [one.message for one in (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes) if isinstance(one, Wait)]
    assert not any(isinstance(one, DeleteClaim) for one in acted(sim)), told
    task = sim.ask(TaskType.REPLACE, "c-bookie-3")
    sim.run(lambda one, _: any(isinstance(each, DeleteClaim) for each in acted(one)), most=300)
    sim.change(image="")
    sim.run_until_rest()
    assert sim.phase(task) in ("Done", "Failed")
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


@pytest.mark.parametrize("kind", [BAD_IMAGE, *OF_VOLUMES])
def test_new_bookies_are_not_made_of_a_template_that_is_to_be_put_right(kind: str) -> None:
    """Also where the pod that it broke stays, because its claim goes with it; and the rollout that waits for it lets
    the others come."""
    sim = resting()
    sim.change(image=kind)
    at_step(sim, "Await")
    passes(sim, 3)
    broken = "c-bookie-3"
    assert sim.kubernetes.pods[broken].fault is BROKEN[kind]
    sim.kubernetes.claims[f"ledger-0-{broken}"].deleting = True
    sim.change(image="", replicas=5)
    sim.run(lambda one, _: begun(one, OperationType.SCALE_UP) > 0, most=300)
    (wanted,) = sim.desired().stateful_sets
    assert sim.kubernetes.pods["c-bookie-4"].template_hash == wanted.template_hash
    passes(sim, 100)
    assert begun(sim, OperationType.SCALE_UP) == 1
    assert sum(isinstance(one, ScaleStatefulSet) for one in acted(sim)) == 1
    assert sim.status.operations_begun < 8
    (claim,) = [one for one in sim.kubernetes.claims_of(broken) if one.deleting]
    sim.forgiven = True
    task = sim.ask(TaskType.REPLACE, broken)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert claim.uid not in {one.uid for one in sim.kubernetes.claims.values()}
    assert len(sim.bookkeeper.writable) == 5
    assert not sim.accidents


@pytest.mark.parametrize("kind", [BAD_IMAGE, "wrong-flags", *OF_VOLUMES])
@pytest.mark.parametrize("zones", ["", "abc"])
def test_no_new_bookie_is_made_of_a_template_with_which_none_works(kind: str, zones: str) -> None:
    """Nor in another zone, whose bookies have it not yet."""
    sim = resting(placement={"zones": [{"name": zone} for zone in zones]})
    sim.change(image=kind)
    passes(sim, 60)
    sim.change(replicas=6)
    passes(sim, 70)
    assert not any(isinstance(one, ScaleStatefulSet) for one in acted(sim))
    sim.change(image="")
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 6
    assert not sim.accidents


def test_where_no_bookie_works_with_any_template_more_of_them_may_be_made() -> None:
    """It need not be the template, and copies may have nowhere to go without."""
    sim = resting()
    for name in list(sim.kubernetes.pods):
        sim.kubernetes.faults[name] = PodFault.CRASHING
        sim.kubernetes.kill_pod(name)
    sim.advance(5)
    sim.change(replicas=5)
    sim.run(lambda one, _: "c-bookie-4" in one.kubernetes.pods, most=100)
