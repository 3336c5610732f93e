"""A template that does not work, one that is taken back, and pods that are broken before anything began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner.actions import DeletePod, EvictPod, LookAtReturned
from bookie_operator.planner.decision import Act, Record, Wait
from bookie_operator.planner.flows import rollout, rollout_state
from bookie_operator.planner.giving_way import unstick
from bookie_operator.planner.run import Run
from bookie_operator.world.model import NodeView, PodFault, World
from tests.support.operator_sim import Simulation, killed_everywhere, spec
from tests.support.operator_sim.flows import acted, at_step, every_step, steps_taken
from tests.support.operator_sim.kubernetes import BAD_IMAGE


def upgrade(sim: Simulation) -> None:
    sim.change(version="1.1")


def break_it(sim: Simulation) -> None:
    sim.change(version="1.1", image=BAD_IMAGE)


def end(sim: Simulation) -> object:
    wanted = sim.desired().stateful_sets[0].template_hash
    up_to_date = {one.template_hash for one in sim.kubernetes.pods.values()} == {wanted}
    return up_to_date, sim.bookkeeper.writable, sim.bookkeeper.recovery_delay, sim.status.operation


# --- the canary -------------------------------------------------------------------------------------------------------


def test_a_canary_that_fails_stops_it_and_nothing_else_is_touched(four: Simulation) -> None:
    uids = {name: pod.uid for name, pod in four.kubernetes.pods.items()}
    break_it(four)
    four.run_until_stalled("CanaryFailed")
    wait = four.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert wait.message.startswith("waits until c-bookie-3 is ready: its image cannot be pulled")
    assert "see that spec.version or spec.image names one that exists" in wait.message
    assert wait.message.endswith("No other bookie is touched; change spec, or put it back, and the pod is replaced")
    for _ in range(20):
        four.run_pass()
        four.advance(30)
    assert [name for name, uid in uids.items() if four.kubernetes.pods[name].uid != uid] == ["c-bookie-3"]


@pytest.mark.parametrize("version", ["1.0", "1.2"])
def test_what_is_put_back_or_mended_replaces_only_the_broken_pod_at_first(four: Simulation, version: str) -> None:
    uids = {name: pod.uid for name, pod in four.kubernetes.pods.items()}
    break_it(four)
    four.run_until_stalled("CanaryFailed")
    four.change(version=version, image="")
    four.run_until_rest()
    assert end(four) == (True, sorted(four.bookkeeper.writable), 300, None)
    changed = [name for name, uid in sorted(uids.items()) if four.kubernetes.pods[name].uid != uid]
    assert changed == (["c-bookie-3"] if version == "1.0" else sorted(uids))
    deleted = [one.name for one in acted(four) if isinstance(one, DeletePod)]
    assert deleted == ["c-bookie-3"]
    assert not four.accidents


def test_what_is_put_back_survives_the_operator(four: Simulation) -> None:
    break_it(four)
    four.bookkeeper.writes = False
    four.run_until_stalled("CanaryFailed")
    assert killed_everywhere(four, lambda sim: sim.change(version="1.0", image=""), end) > 5


@pytest.mark.parametrize("version", ["1.0", "1.2"])
def test_spec_changes_again_at_any_step(four: Simulation, version: str) -> None:
    for _, sim in every_step(four, upgrade):
        sim.change(version=version)
        sim.run_until_rest()
        assert end(sim) == (True, sorted(sim.bookkeeper.writable), 300, None)
        assert not sim.accidents


def test_a_bookie_that_fails_after_the_canary_is_no_canary(four: Simulation) -> None:
    upgrade(four)
    four.run(lambda sim, _: len([one for one in acted(sim) if isinstance(one, EvictPod)]) == 2)
    four.kubernetes.cordoned.add("node-2")
    four.run_until_stalled("UpdateFailed")
    wait = four.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert "c-bookie-2 is ready: no node takes it" in wait.message
    four.kubernetes.cordoned.clear()
    four.run_until_rest()
    assert four.status.history[0].outcome == "Done"


def test_a_cordoned_node_is_no_reason_for_a_rollout(four: Simulation) -> None:
    """Another template does not bring its bookie back: nothing is raised or deleted, and more bookies come."""
    four.kubernetes.cordoned.add("node-1")
    four.kubernetes.kill_pod("c-bookie-1")
    four.advance(5)
    pod = four.kubernetes.pods["c-bookie-1"]
    four.change(replicas=5, version="2.0")
    four.run(lambda sim, _: len(sim.bookkeeper.writable) == 4, most=100)
    assert four.kubernetes.pods["c-bookie-1"].uid == pod.uid
    assert four.bookkeeper.recovery_delay == 300
    assert [one.type for one in four.status.history] in ([], [OperationType.SCALE_UP])
    four.kubernetes.cordoned.clear()
    four.run_until_rest()
    assert {one.template_hash for one in four.kubernetes.pods.values()} == {
        four.desired().stateful_sets[0].template_hash
    }


def test_the_metadata_service_may_be_away_at_any_step(four: Simulation) -> None:
    for step, sim in every_step(four, upgrade):
        sim.bookkeeper.up = False
        stopped = len([one for one in acted(sim) if isinstance(one, EvictPod)])
        for _ in range(12):
            sim.run_pass()
            sim.advance(5)
        assert len([one for one in acted(sim) if isinstance(one, EvictPod)]) == stopped, step
        sim.bookkeeper.up = True
        sim.run_until_rest()
        assert end(sim) == (True, sorted(sim.bookkeeper.writable), 300, None)


def test_another_bookie_that_is_away_holds_the_next_one_up(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Stop")
    four.kubernetes.cordoned.add("node-0")
    four.kubernetes.kill_pod("c-bookie-0")
    four.advance(3)
    assert isinstance(four.run_pass().plan.decision, Act), "the budget is closed first"
    decision = four.run_pass().plan.decision
    assert isinstance(decision, Wait)
    assert "every other bookie serves: c-bookie-0 is not ready" in decision.message
    four.kubernetes.cordoned.clear()
    four.run_until_rest()
    assert not four.accidents


def test_one_that_the_old_template_does_not_bring_up_again_goes_first_before_it_is_waited_for_in_vain(
    four: Simulation,
) -> None:
    upgrade(four)
    at_step(four, "Stop")
    broken, before = "c-bookie-0", four.kubernetes.pods["c-bookie-0"].uid
    four.kubernetes.faults[broken] = PodFault.IMAGE
    four.kubernetes.kill_pod(broken)
    four.run(lambda sim, _: broken not in sim.kubernetes.pods or sim.kubernetes.pods[broken].uid != before, most=900)
    four.kubernetes.faults.clear()
    four.run_until_rest()
    assert four.status.history[0].outcome == "Done"
    assert not four.accidents


def test_a_pod_that_hangs_on_a_dead_node_is_told(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Await")
    four.kubernetes.lose_node("node-3")
    four.run_until_stalled("RestartingBookie")
    wait = four.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert "node node-3 does not answer" in wait.message
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in wait.message


# --- broken before anything began -------------------------------------------------------------------------------------


def test_a_cluster_that_was_made_with_a_bad_image_comes_up_once_spec_is_mended() -> None:
    sim = Simulation(spec(image=BAD_IMAGE))
    sim.run_until_stalled("ImagePullFailed")
    sim.change(image="")
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 4
    assert sum(isinstance(one, DeletePod) for one in acted(sim)) == 4
    assert sim.status.operation is None


def test_bookies_that_end_again_and_again_are_seen_between_two_starts() -> None:
    """While their containers run for a moment nothing shows, and nobody can be asked."""
    sim = Simulation(spec(image=BAD_IMAGE))
    sim.run_until_stalled("ImagePullFailed")
    sim.change(image="")
    at_step(sim, "Choose")
    assert sim.status.operation is not None
    looks_well = replace(sim.world(), pods=tuple(replace(one, fault=PodFault.NONE) for one in sim.world().pods))
    decision = rollout.proceed(looks_well, sim.desired(), sim.status.operation)
    assert isinstance(decision, Record)
    assert decision.operation.step == "Audit"
    back = rollout.proceed(sim.world(), sim.desired(), decision.operation)
    assert isinstance(back, Record)
    assert back.operation.step == "Choose"


def test_broken_pods_are_replaced_before_the_others_are_looked_at(four: Simulation) -> None:
    break_it(four)
    four.run_until_stalled("CanaryFailed")
    four.status = four.status.model_copy(update={"operation": None})  # somebody removed it
    four.change(version="1.2", image="")
    decision = unstick(four.world(), four.desired())
    assert isinstance(decision, Record)
    assert decision.reason == "c-bookie-3 cannot work with the template that they have, and spec has another one"
    four.run_until_rest()
    assert end(four)[0] is True  # type: ignore[index]


def faulty(world: World, fault: PodFault, message: str = "") -> World:
    pods = [
        replace(one, ready=False, fault=fault, fault_message=message) if one.ordinal == 1 else one for one in world.pods
    ]
    return replace(world, pods=tuple(pods))


@pytest.mark.parametrize(
    ("fault", "said", "reason", "words"),
    [
        (
            PodFault.IMAGE,
            "not found",
            "ImagePullFailed",
            "c-bookie-1: its image cannot be pulled (not found): see that spec.version or spec.image names one that"
            " exists, and that spec.imagePullSecrets may read it",
        ),
        (
            PodFault.CONFIG,
            'secret "tls" not found',
            "PodCannotStart",
            'c-bookie-1: it cannot be started (secret "tls" not found): create what is missing, or change spec so that'
            " it is not referred to",
        ),
        (
            PodFault.CRASHING,
            "exit code 1",
            "BookieCrashing",
            "c-bookie-1: it ends again and again (exit code 1): see `kubectl logs c-bookie-1 --previous`",
        ),
        (
            PodFault.UNSCHEDULABLE,
            "0/3 nodes",
            "Unschedulable",
            "c-bookie-1: no node takes it (0/3 nodes): each bookie needs a node of its own that fits spec.pod, and its"
            " volumes may bind it to one. Uncordon that, or make room on it; or add a node, or lower"
            " spec.replicas",
        ),
    ],
)
def test_each_fault_has_its_remedy(four: Simulation, fault: PodFault, said: str, reason: str, words: str) -> None:
    decision = unstick(faulty(four.world(), fault, said), four.desired())
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.message, decision.stalled) == (reason, words, True)


@pytest.mark.parametrize("fault", [PodFault.VOLUME, PodFault.COOKIE, PodFault.NONE])
def test_lost_bookies_are_another_flows(four: Simulation, fault: PodFault) -> None:
    assert unstick(faulty(four.world(), fault), four.desired()) is None


def test_pods_that_are_broken_with_the_desired_template_are_left_alone(four: Simulation) -> None:
    assert rollout.mend(faulty(four.world(), PodFault.CRASHING), four.desired()) is None


def test_by_hand_nothing_is_replaced(four: Simulation) -> None:
    four.change(version="1.1", update={"strategy": "Manual"})
    assert rollout.mend(faulty(four.world(), PodFault.CRASHING), four.desired()) is None


def test_a_pod_that_may_serve_is_evicted_also_when_it_is_not_ready(four: Simulation) -> None:
    """Registered, but not ready: who deletes it may take a bookie away that serves."""
    upgrade(four)
    at_step(four, "Choose")
    world = faulty(four.world(), PodFault.NONE)
    assert four.status.operation is not None
    decision = rollout.proceed(world, four.desired(), four.status.operation)
    assert not (isinstance(decision, Act) and isinstance(decision.action, DeletePod))
    assert "Stop" not in steps_taken(four)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (None, False),
        ({"node-3": NodeView("node-3", True)}, False),
        ({"node-3": NodeView("node-3", False, True)}, False),
        ({"node-3": NodeView("node-3", False)}, True),
    ],
)
def test_a_node_is_blamed_only_if_it_does_not_answer(
    four: Simulation, nodes: dict[str, NodeView] | None, told: bool
) -> None:
    upgrade(four)
    at_step(four, "Await")
    assert four.status.operation is not None
    decision = rollout.proceed(replace(four.world(), nodes=nodes), four.desired(), four.status.operation)
    assert isinstance(decision, Wait)
    assert ("does not answer" in decision.message) is told


def test_a_bookie_that_comes_back_before_it_is_stopped_waits_for_those_before_it(four: Simulation) -> None:
    """It was down when it was chosen, so nobody had asked what the one before it lacks, and the budget is closed."""
    upgrade(four)
    at_step(four, "Await")
    at_step(four, "Choose")
    crashed = four.kubernetes.pods["c-bookie-1"]
    crashed.ready_since, runs = None, four.bookkeeper.running.pop(four.desired().bookie_id("c-bookie-1"))
    at_step(four, "Stop")
    operation = four.status.operation
    assert operation is not None
    assert rollout_state.read(operation.saved[rollout_state.STOPPING]) == {"c-bookie-1": crashed.uid}
    crashed.ready_since = four.now
    four.bookkeeper.running[four.desired().bookie_id("c-bookie-1")] = runs
    four.run_until_rest()
    done = [one for one in acted(four) if isinstance(one, EvictPod | LookAtReturned)]
    assert [type(one) for one in done] == [EvictPod, LookAtReturned] * 4
    assert end(four) == (True, sorted(four.bookkeeper.writable), 300, None)


def test_what_a_roll_of_a_thousand_bookies_saves_fits_into_the_status(four: Simulation) -> None:
    """Every pod is broken by its template, and none of those that are back was looked at."""
    upgrade(four)
    at_step(four, "Choose")
    world, desired, operation = four.world(), four.desired(), four.status.operation
    assert operation is not None
    facts, (one,) = world.facts, world.stateful_sets
    assert facts is not None
    names = [f"c-bookie-{ordinal}" for ordinal in range(1000)]
    pods = tuple(
        replace(world.pods[0], name=name, ordinal=ordinal, uid=f"{ordinal:036}", ready=False, fault=PodFault.IMAGE)
        for ordinal, name in enumerate(names)
    )
    facts = replace(
        facts, writable=frozenset(), read_only=frozenset(), cookies=frozenset(map(desired.bookie_id, names))
    )
    all_down = replace(world, pods=pods, facts=facts, stateful_sets=(replace(one, replicas=1000),))
    decision = rollout.proceed(all_down, desired, operation)
    assert isinstance(decision, Record)
    assert decision.operation.step == "Stop"
    assert Operation.model_validate(decision.operation.model_dump()) == decision.operation

    stopped = {rollout_state.BACK: "c-bookie-7.old.ns.svc:3181"}
    for part in (names[::2], names[1::3], names):
        uids = {rollout_state.STOPPING: rollout_state.written(dict.fromkeys(part, "uid"))}
        run = Run(world, desired, operation.model_copy(update={"saved": {**stopped, **uids}}))
        stopped = rollout_state.owed(run)
        assert len(stopped[rollout_state.BACK]) < 4_096
        kept = Run(world, desired, operation.model_copy(update={"saved": stopped}))
        assert rollout_state.back(kept) >= {"c-bookie-7.old.ns.svc:3181", *map(desired.bookie_id, part)}
    assert stopped[rollout_state.BACK] == "c-bookie=0-999,c-bookie-7.old.ns.svc:3181"
