"""Another release of the operator that makes pods in its own way: nobody restarts before somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import Condition, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import holding
from bookie_operator.planner.actions import ApplyTemplate, EvictPod, RecordInputs, TriggerAudit
from bookie_operator.planner.decision import Act, Rest
from bookie_operator.planner.plan import plan
from bookie_operator.status import conditions, reporting
from tests.support.operator_sim import Simulation, killed_everywhere
from tests.support.operator_sim.flows import acted, at_step
from tests.support.operator_sim.going import settled

Change = Callable[[Simulation], object]
ZONES: dict[str, object] = {"replicas": 5, "placement": {"zones": [{"name": "a"}, {"name": "b"}]}}


def newer(sim: Simulation) -> None:
    sim.release = "newer"


def uids(sim: Simulation) -> dict[str, str]:
    return {name: one.uid for name, one in sim.kubernetes.pods.items()}


def templates(sim: Simulation) -> set[str]:
    """Of pods and StatefulSets."""
    return {one.template_hash for one in (*sim.kubernetes.pods.values(), *sim.kubernetes.sets.values())}


def newest(sim: Simulation) -> set[str]:
    return {one.template_hash for one in sim.desired().stateful_sets}


def restarted(sim: Simulation) -> list[str]:
    return [one.name for one in acted(sim) if isinstance(one, EvictPod)]


def end(sim: Simulation) -> object:
    inputs = {one.inputs_hash for one in sim.kubernetes.sets.values()}
    known = inputs == {one.inputs_hash for one in sim.desired().stateful_sets}
    return templates(sim) == newest(sim), known, sorted(sim.bookkeeper.writable), sim.status.operation


def told(sim: Simulation) -> dict[str, Condition]:
    desired = holding.hold(sim.world(), sim.desired())
    status = reporting.status_after(sim.world(), desired, plan(sim.world(), desired), sim.status, "")
    assert status.updated_replicas == status.replicas == len(sim.kubernetes.pods)
    return {each.type: each for each in status.conditions}


# --- nobody asks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, ZONES, {"update": {"strategy": "Manual"}}], ids=["one", "zones", "manual"])
def test_a_newer_release_alone_changes_nothing(changes: dict[str, object]) -> None:
    sim = settled(**changes)
    before, had = uids(sim), templates(sim)
    newer(sim)
    for _ in range(20):
        assert isinstance(sim.run_pass().plan.decision, Rest)
        sim.advance(30)
    assert (uids(sim), templates(sim)) == (before, had)
    assert templates(sim).isdisjoint(newest(sim))


def test_it_is_told_that_a_newer_template_waits_and_for_what(four: Simulation) -> None:
    assert told(four)["Upgrading"].reason == "NotUnderWay"
    newer(four)
    condition = told(four)["Upgrading"]
    assert (condition.status, condition.reason) == (conditions.FALSE, "NewerTemplateWaits")
    assert "c-bookie" in condition.message
    assert "BookieTask of type Restart" in condition.message
    assert told(four)["Ready"].status == conditions.TRUE


def test_a_bookie_that_is_lost_meanwhile_comes_back_as_it_was(four: Simulation) -> None:
    had = templates(four)
    newer(four)
    four.kubernetes.stop_pod(four.kubernetes.pods["c-bookie-2"])
    four.run_until_rest()
    assert templates(four) == had


def test_the_release_before_takes_over_again_and_restarts_nobody(four: Simulation) -> None:
    newer(four)
    four.change(version="1.1")
    four.run_until_rest()
    before = uids(four)
    four.release = ""
    four.run_until_rest()
    assert uids(four) == before
    assert told(four)["Upgrading"].reason == "NewerTemplateWaits"


@pytest.mark.parametrize(
    "change",
    [
        lambda sim: sim.change(replicas=6),
        lambda sim: sim.change(replicas=3),
        lambda sim: sim.change(storage={"ledger": {"size": "20Gi"}}),
        lambda sim: sim.change(config={"gcWaitTime": "7"}),
        lambda sim: sim.change(update={"soakSeconds": 6}),
        lambda sim: sim.ask(TaskType.AUDIT),
    ],
    ids=["more", "fewer", "volumes", "dynamic keys", "how to roll", "audit"],
)
def test_a_change_that_is_not_about_pods_restarts_nobody(four: Simulation, change: Change) -> None:
    before, had = uids(four), templates(four)
    newer(four)
    change(four)
    four.run_until_rest()
    assert all(before[name] == uid for name, uid in uids(four).items() if name in before)
    assert templates(four) == had
    assert len(four.kubernetes.pods) == four.spec.replicas
    assert {one.actual for one in four.kubernetes.claims.values() if one.volume == "ledger"} == {
        four.spec.storage.ledger.size
    }
    assert not four.accidents


# --- somebody asks ----------------------------------------------------------------------------------------------------


def version(sim: Simulation) -> None:
    newer(sim)
    sim.change(version="1.1")


def image(sim: Simulation) -> None:
    newer(sim)
    sim.change(image="repaired@sha256:00")


def annotation(sim: Simulation) -> None:
    newer(sim)
    sim.annotations[names.RESTART] = "now"


def restart_all(sim: Simulation) -> None:
    newer(sim)
    sim.ask(TaskType.RESTART)


def restart_each(sim: Simulation) -> None:
    newer(sim)
    sim.ask(TaskType.RESTART, *sorted(sim.kubernetes.pods))


@pytest.mark.parametrize("change", [version, image, annotation, restart_all, restart_each])
def test_whoever_asks_gets_the_newest_template_bookie_by_bookie(four: Simulation, change: Change) -> None:
    change(four)
    four.run_until_rest()
    assert templates(four) == newest(four)
    assert sorted(restarted(four)) == sorted(four.kubernetes.pods)
    gated = [type(one) for one in acted(four) if isinstance(one, EvictPod | TriggerAudit)]
    assert gated == [TriggerAudit, EvictPod] * 4
    assert told(four)["Upgrading"].reason == "NotUnderWay"
    assert not four.accidents
    assert isinstance(four.run_pass().plan.decision, Rest)


def test_a_change_that_waited_for_its_gates_before_still_comes(four: Simulation) -> None:
    four.change(version="1.1")
    four.bookkeeper.marks.add(0)
    four.bookkeeper.up = False
    four.run_pass()
    assert four.status.operation is None
    newer(four)
    four.bookkeeper.up = True
    four.run_until_rest()
    assert templates(four) == newest(four)


def test_a_task_for_one_bookie_restarts_that_one_with_the_template_that_all_have(four: Simulation) -> None:
    had, before = templates(four), uids(four)
    newer(four)
    four.ask(TaskType.RESTART, "c-bookie-1")
    four.run_until_rest()
    assert restarted(four) == ["c-bookie-1"]
    assert templates(four) == had
    assert {name for name, uid in uids(four).items() if before[name] != uid} == {"c-bookie-1"}


def test_a_roll_that_another_release_began_goes_on_with_its_template(four: Simulation) -> None:
    four.change(version="1.1")
    at_step(four, "Await")
    staged = {one.template_hash for one in four.kubernetes.sets.values()}
    newer(four)
    four.run_until_rest()
    assert templates(four) == staged
    assert sorted(restarted(four)) == sorted(four.kubernetes.pods)


@pytest.mark.parametrize("change", [newer, version, restart_all])
def test_whenever_the_operator_dies_it_ends_alike(four: Simulation, change: Change) -> None:
    four.bookkeeper.writes = False
    whole = killed_everywhere(four, change, end)
    assert whole == 1 if change is newer else whole > 40


# --- StatefulSets that an earlier release made, which writes nothing down ---------------------------------------------


def unrecorded(sim: Simulation, **status: object) -> None:
    """`status`: what that release said last, other than that all is well."""
    for one in sim.kubernetes.sets.values():
        one.inputs_hash = ""
    count = len(sim.kubernetes.pods)
    said = {"observed_generation": sim.generation, "replicas": count, "updated_replicas": count, **status}
    sim.status = sim.status.model_copy(update=said)


def written_down(sim: Simulation) -> list[str]:
    return [one.name for one in acted(sim) if isinstance(one, RecordInputs)]


@pytest.mark.parametrize("release", ["", "newer"])
@pytest.mark.parametrize("changes", [{}, ZONES], ids=["one", "zones"])
def test_they_are_taken_over_as_they_are(release: str, changes: dict[str, object]) -> None:
    sim = settled(**changes)
    before, had = uids(sim), templates(sim)
    unrecorded(sim)
    sim.release = release
    sim.run_until_rest()
    assert written_down(sim) == sorted(sim.kubernetes.sets)
    assert (uids(sim), templates(sim)) == (before, had)
    sim.change(version="1.1")
    sim.run_until_rest()
    assert templates(sim) == newest(sim)


def test_they_are_taken_over_whenever_the_operator_dies(four: Simulation) -> None:
    unrecorded(four)
    before = uids(four)
    assert killed_everywhere(four, newer, lambda sim: (end(sim), uids(sim) == before)) == 2


REFUSED = Condition(type="SpecValid", status="False", reason="InvalidSpec")


@pytest.mark.parametrize(
    "status",
    [
        {"observed_generation": 0},
        {"updated_replicas": 3},
        {"replicas": 0, "updated_replicas": 0},
        {"conditions": [REFUSED]},
    ],
    ids=["a generation that nobody looked at", "a roll under way", "nothing was said", "a spec that was refused"],
)
def test_what_may_be_a_wish_of_people_counts(four: Simulation, status: dict[str, object]) -> None:
    unrecorded(four, **status)
    newer(four)
    four.run_until_rest()
    assert templates(four) == newest(four)
    assert sorted(restarted(four)) == sorted(four.kubernetes.pods)


def test_a_restart_that_was_asked_for_meanwhile_counts(four: Simulation) -> None:
    unrecorded(four)
    annotation(four)
    four.run_until_rest()
    assert templates(four) == newest(four)


# --- what is written down ---------------------------------------------------------------------------------------------


def test_inputs_that_make_no_other_template_are_written_down_at_once(four: Simulation) -> None:
    """Else a later release would take the old change for a new one."""
    (name,) = four.kubernetes.sets
    four.kubernetes.sets[name].inputs_hash = "of another spec that makes the same template"
    decision = four.run_pass().plan.decision
    assert isinstance(decision, Act)
    assert isinstance(decision.action, RecordInputs)
    newer(four)
    four.advance(2)
    assert isinstance(four.run_pass().plan.decision, Rest)


def test_the_template_and_what_it_was_made_for_come_together(four: Simulation) -> None:
    version(four)
    four.run(lambda sim, _: any(isinstance(one, ApplyTemplate) for one in acted(sim)))
    assert written_down(four) == []
    assert {one.inputs_hash for one in four.kubernetes.sets.values()} == {
        one.inputs_hash for one in four.desired().stateful_sets
    }
    assert [one.type for one in four.status.history] == []
    four.run_until_rest()
    assert [one.type for one in four.status.history] == [OperationType.ROLLOUT]
    assert written_down(four) == []
