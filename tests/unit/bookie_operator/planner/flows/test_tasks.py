"""One-off work: each kind of task from its wish to its end, with the operator killed in each pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import view
from bookie_operator.planner.actions import UpdateTask
from bookie_operator.planner.decision import Act, Record, Wait
from bookie_operator.planner.flows import rollout, rollout_state, tasks
from bookie_operator.planner.plan import plan
from bookie_operator.world.model import TaskView
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import at_step


def end(sim: Simulation) -> object:
    return [one.phase for one in sim.tasks], sorted(sim.kubernetes.pods), len(sim.bookkeeper.writable)


def uids(sim: Simulation) -> dict[str, str]:
    return {name: one.uid for name, one in sim.kubernetes.pods.items()}


def test_restart_of_some_bookies_leaves_the_others_alone() -> None:
    sim = resting()
    before = uids(sim)
    asked = ("c-bookie-1", "c-bookie-3")
    task = sim.ask(TaskType.RESTART, *asked)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert {name for name, uid in uids(sim).items() if before[name] != uid} == set(asked)
    assert [one.task for one in sim.status.history] == [task]


def test_restart_of_all() -> None:
    sim = resting()
    before = uids(sim)
    task = sim.ask(TaskType.RESTART)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert not set(uids(sim).values()) & set(before.values())


def replace_lost(sim: Simulation) -> None:
    sim.kubernetes.lose_volume("c-bookie-1")
    sim.ask(TaskType.REPLACE, "c-bookie-1")


def take_out(sim: Simulation) -> None:
    sim.change(replicas=3)
    sim.ask(TaskType.DECOMMISSION, "c-bookie-3")


@pytest.mark.parametrize("change", [replace_lost, take_out])
def test_a_bookie_that_is_lost_or_that_spec_gives_up(change: Callable[[Simulation], None]) -> None:
    sim = resting()
    change(sim)
    sim.run_until_rest()
    assert sim.phase("task-1") == "Done"
    assert not sim.accidents


@pytest.mark.parametrize(
    "change", [replace_lost, take_out, lambda sim: sim.ask(TaskType.RESTART, "c-bookie-1", "c-bookie-3")]
)
def test_whenever_the_operator_dies_it_ends_alike(change: Callable[[Simulation], object]) -> None:
    assert killed_everywhere(resting(), change, end) > 15


def test_audit() -> None:
    sim = resting()
    begun = sim.bookkeeper.last_audit or 0.0
    killed_everywhere(sim, lambda s: s.ask(TaskType.AUDIT), end)
    task = sim.ask(TaskType.AUDIT)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert (sim.bookkeeper.last_audit or 0.0) > begun
    assert "0 ledgers are under-replicated" in sim.task_messages[task]


def clock_ahead(sim: Simulation) -> None:
    """The API server's, by which the last task was created."""
    sim.tasks[-1] = replace(sim.tasks[-1], created_at=sim.now + 3600)


def test_a_bookie_that_is_gone_before_the_task_is_taken_up_was_taken_out_whatever_the_clocks_say() -> None:
    sim = resting()
    sim.change(replicas=3)
    sim.run(lambda s, _: s.status.operation is not None)
    task = sim.ask(TaskType.DECOMMISSION, "c-bookie-3")
    clock_ahead(sim)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"


def test_a_loss_that_is_accepted_lets_the_replacement_go_on() -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 0})
    lost = "c-bookie-1"
    bookie_id = sim.desired().bookie_id(lost)
    sim.bookkeeper.writes = False
    sim.bookkeeper.ledgers[7] = SimLedger([bookie_id], {sim.bookkeeper.running[bookie_id]})
    sim.kubernetes.lose_volume(lost)
    sim.forgiven = True
    replacing = sim.ask(TaskType.REPLACE, lost)
    sim.run_until_stalled("LedgersUnrecoverable")
    assert sim.kubernetes.claims_of(lost)[0].uid
    accept = sim.ask(TaskType.ACCEPT_LOSS, ledgers=(7,))
    clock_ahead(sim)
    sim.run(lambda s, _: s.phase(replacing) == "Done" and s.phase(accept) == "Done")
    assert not sim.accidents


@pytest.mark.parametrize(
    ("kind", "bookies", "told"),
    [
        (TaskType.RESTART, ("c-bookie-9",), "there is no bookie c-bookie-9"),
        (TaskType.REPLACE, (), "it names no bookies"),
        (TaskType.DECOMMISSION, (), "it names no bookies"),
        (TaskType.ACCEPT_LOSS, (), "it names no ledgers"),
    ],
)
def test_a_task_that_makes_no_sense_fails_with_a_word_why(kind: TaskType, bookies: tuple[str, ...], told: str) -> None:
    sim = resting()
    before = uids(sim)
    task = sim.ask(kind, *bookies)
    sim.run_until_rest()
    assert sim.phase(task) == "Failed"
    assert told in sim.task_messages[task]
    assert uids(sim) == before


def test_too_many_bookies_for_one_task() -> None:
    sim = resting(replicas=7)
    task = sim.ask(TaskType.REPLACE, *[f"c-bookie-{n}" for n in range(6)])
    sim.run_until_rest()
    assert sim.phase(task) == "Failed"
    assert "at most 5" in sim.task_messages[task]


@pytest.mark.parametrize(
    ("kind", "bookie", "told"),
    [
        (TaskType.DECOMMISSION, "c-bookie-3", "lower spec.replicas to 3"),
        (TaskType.DECOMMISSION, "c-bookie-1", "lower spec.replicas to 1"),
    ],
)
def test_a_task_that_waits_in_vain_fails_and_no_cluster_is_judged_by_it(kind: TaskType, bookie: str, told: str) -> None:
    sim = resting()
    before = uids(sim)
    task = sim.ask(kind, bookie)
    while sim.phase(task) in ("", "Running"):
        planned = sim.run_pass().plan
        assert not any(isinstance(one, Wait) and one.stalled for one in (planned.decision, *planned.notes))
        assert told in sim.task_messages[task], "only the task tells it"
        sim.advance(30)
    assert sim.phase(task) == "Failed"
    assert told in sim.task_messages[task]
    assert uids(sim) == before


def test_what_a_decommission_waits_for_helps() -> None:
    sim = resting()
    task = sim.ask(TaskType.DECOMMISSION, "c-bookie-3")
    sim.run(lambda s, _: s.phase(task) == "Running")
    assert "lower spec.replicas to 3" in sim.task_messages[task]
    sim.change(replicas=3)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"


def test_a_task_that_waits_does_not_hold_up_another() -> None:
    sim = resting()
    waits, goes = sim.ask(TaskType.DECOMMISSION, "c-bookie-3"), sim.ask(TaskType.AUDIT)
    sim.run(lambda s, _: s.phase(goes) == "Done")
    assert sim.phase(waits) == "Running"


def test_a_name_that_is_used_again_is_another_task() -> None:
    sim = resting()
    task = sim.ask(TaskType.AUDIT)
    sim.run_until_rest()
    sim.tasks.clear()
    sim.advance(60)
    assert sim.ask(TaskType.AUDIT) == task
    sim.run_until_rest()
    assert [one.id for one in sim.status.history] == ["Audit-2", "Audit-1"]


def test_a_bookie_is_moved_again_by_a_task_of_the_same_name() -> None:
    sim = resting()
    for _ in range(2):
        before = {one.uid for one in sim.kubernetes.claims_of("c-bookie-1")}
        task = sim.ask(TaskType.REPLACE, "c-bookie-1")
        sim.run_until_rest()
        assert sim.phase(task) == "Done"
        assert before.isdisjoint(one.uid for one in sim.kubernetes.claims_of("c-bookie-1"))
        sim.tasks.clear()
        sim.run_until_rest()


@pytest.mark.parametrize(("kind", "bookies"), [(TaskType.REPLACE, ("c-bookie-1",)), (TaskType.AUDIT, ())])
def test_the_clock_of_the_operator_may_be_behind(kind: TaskType, bookies: tuple[str, ...]) -> None:
    sim = resting()
    task = sim.ask(kind, *bookies)
    sim.tasks = [replace(one, created_at=sim.now + 3600) for one in sim.tasks]
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert len(sim.status.history) == 1
    assert sim.status.history[0].task_uid == sim.tasks[0].uid


def test_a_loss_is_accepted_for_a_day() -> None:
    sim = resting()
    task = sim.ask(TaskType.ACCEPT_LOSS, ledgers=(7,))
    sim.run_until_rest()
    assert view.accepted_losses(sim.world()) == (7,)
    sim.now += view.ACCEPTED_SECONDS
    assert view.accepted_losses(sim.world()) == ()
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert "for a day" in sim.task_messages[task]


def test_an_earlier_clusters_task_counts_for_nothing() -> None:
    sim = resting()
    sim.ask(TaskType.ACCEPT_LOSS, ledgers=(7,))
    world = replace(sim.world(), tasks=(), outlived_tasks=tuple(sim.tasks))
    assert view.accepted_losses(world) == ()
    decision = plan(world, sim.desired()).decision
    assert isinstance(decision, Act)
    assert isinstance(decision.action, UpdateTask)
    assert decision.action.phase == "Failed"


def test_a_restart_of_a_thousand_bookies_fits_into_a_status() -> None:
    sim = resting()
    world, count = sim.world(), 1000
    assert world.facts is not None
    pods = tuple(
        replace(world.pods[0], name=f"c-bookie-{number}", ordinal=number, uid=f"{number:036}")
        for number in range(count)
    )
    ids = frozenset(sim.desired().bookie_id(pod.name) for pod in pods)
    (one,) = world.stateful_sets
    task = TaskView("restart", "uid", TaskType.RESTART, (), "Running", sim.now)
    world = replace(
        world,
        pods=pods,
        stateful_sets=(replace(one, replicas=count),),
        facts=replace(world.facts, writable=ids),
        tasks=(task,),
    )
    begun = tasks.begin(world, sim.desired())
    assert isinstance(begun, Record)
    assert len(rollout_state.read(begun.operation.saved[rollout_state.RESTART])) == rollout.MOST_AT_ONCE
    Operation.model_validate(begun.operation.model_dump())


@pytest.mark.parametrize(
    ("wrong", "words", "right"),
    [
        ((TaskType.RESTART, ("bookie-1",), ()), "name pods as `kubectl get pods` shows them", [("c-bookie-1",)]),
        ((TaskType.RESTART, ("c-bookie-9",), ()), "name pods as", [("c-bookie-0",)]),
        ((TaskType.DECOMMISSION, (), ()), "tell their pods in spec.bookies", [("c-bookie-6",)]),
        (
            (TaskType.DECOMMISSION, tuple(f"c-bookie-{number}" for number in range(6, 0, -1)), ()),
            "make several",
            [("c-bookie-6",), ("c-bookie-5",)],
        ),
    ],
)
def test_what_a_task_that_failed_asks_for_helps(
    wrong: tuple[TaskType, tuple[str, ...], tuple[int, ...]], words: str, right: list[tuple[str, ...]]
) -> None:
    kind, bookies, ledgers = wrong
    sim = resting(replicas=7)
    first = sim.ask(kind, *bookies, ledgers=ledgers)
    sim.run(lambda one, _: one.phase(first) == "Failed")
    assert words in sim.task_messages[first]
    better = [sim.ask(kind, *each) for each in right]
    if kind is TaskType.DECOMMISSION:
        sim.change(replicas=7 - len(right))
    sim.run_until_rest(most=900)
    assert [sim.phase(each) for each in better] == ["Done"] * len(right)


def test_a_loss_that_names_ledgers_is_accepted() -> None:
    sim = resting()
    first = sim.ask(TaskType.ACCEPT_LOSS)
    sim.run(lambda one, _: one.phase(first) == "Failed")
    assert "tell the ids whose loss is accepted in spec.ledgers" in sim.task_messages[first]
    sim.ask(TaskType.ACCEPT_LOSS, ledgers=(7,))
    sim.run_pass()
    assert view.accepted_losses(sim.world()) == (7,)


@pytest.mark.parametrize("kind", [TaskType.REPLACE, TaskType.RESTART])
def test_a_task_whose_bookie_was_taken_out_meanwhile_ends(kind: TaskType) -> None:
    sim = resting(replicas=5)
    if kind is TaskType.RESTART:
        sim.bookkeeper.read_only.add(sim.desired().bookie_id("c-bookie-0"))  # so that nothing is restarted yet
    task = sim.ask(kind, "c-bookie-4")
    sim.run(lambda one, _: one.phase(task) == "Running")
    sim.bookkeeper.read_only.clear()
    sim.change(replicas=4)
    sim.run(lambda one, _: "c-bookie-4" not in one.kubernetes.pods and one.status.operation is None)
    if sim.phase(task) == "Running":
        sim.run_until_rest()
    assert sim.phase(task) == "Failed"
    assert "there is no bookie c-bookie-4 any more" in sim.task_messages[task]


def test_a_restart_of_some_goes_on_without_one_that_was_taken_out() -> None:
    sim = resting(replicas=5)
    before = sim.kubernetes.pods["c-bookie-1"].uid
    sim.change(replicas=4)
    at_step(sim, "Audit")
    task = sim.ask(TaskType.RESTART, "c-bookie-4", "c-bookie-1")
    sim.tasks = [replace(one, phase="Running") for one in sim.tasks]
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert sim.kubernetes.pods["c-bookie-1"].uid != before


def test_a_replacement_of_several_goes_on_without_one_that_was_taken_out() -> None:
    sim = resting(replicas=5)
    sim.advance(60)
    sim.change(replicas=4)
    task = sim.ask(TaskType.REPLACE, "c-bookie-4", "c-bookie-1")
    sim.run(lambda one, _: "c-bookie-4" not in one.kubernetes.pods and one.status.operation is None)
    sim.kubernetes.lose_volume("c-bookie-1")
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 4
    assert "there is no bookie c-bookie-4 any more" in sim.task_messages[task]
    assert not sim.accidents
