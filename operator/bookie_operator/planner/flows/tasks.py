"""`BookieTask`: one-off work that a person asks for, done by the flows that do such work anyway.

Invariants
- A task is done for the cluster that there was when it was created: it has that as its owner, and goes with it.
- A task goes from nothing to `Running` to `Done` or `Failed`, each written by a decision of its own.
- The operations that bear its UID in the history show what was done for it; tasks are short for that reason. A name
  may be used again, and the clocks of the operator and of the API server differ.
- One task that has to wait does not hold up the others, and one that waits in vain fails: no cluster is judged by it.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import operations, view
from bookie_operator.planner.actions import TriggerAudit, UpdateTask
from bookie_operator.planner.decision import Act, Decision, Finish, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import decommission, relocate, repair, rollout
from bookie_operator.planner.run import Run, unknown_step
from bookie_operator.world.model import TaskView, World

MOST_BOOKIES: Final = 5
"""Bookies of a task that rebuilds or takes out bookies: the history has to bear the result of each."""

IMPOSSIBLE: Final = frozenset({decommission.NOT_GIVEN_UP, relocate.BLOCKED})
"""Reasons for which a task waits in vain, unless `spec` or the world changes: not a fault of the cluster."""
PATIENCE_SECONDS: Final = 600.0
"""Seconds that a task may be ahead of the `spec` that goes with it."""

TRIGGER: Final = "Trigger"
AWAIT: Final = "Await"

_LOSSY: Final = frozenset({OperationType.DECOMMISSION, OperationType.REPLACE})


def begin(world: World, desired: Desired) -> Decision | None:
    """The oldest task that can go on; None: there is none."""
    for task in world.outlived_tasks:
        why = f"it was made for an earlier BookieCluster {world.cluster.name}: create it again if this one is to do it"
        return _ended(task, "Failed", why)
    waiting: Wait | None = None
    for task in world.tasks:
        found = _begin(world, desired, task)
        if isinstance(found, Wait) and found.reason in IMPOSSIBLE:
            if world.now - task.created_at >= PATIENCE_SECONDS:
                return _ended(task, "Failed", found.message)
            found = replace(found, stalled=False)
        if found is not None and not isinstance(found, Wait):
            return found
        waiting = waiting or found
    return waiting


def accept(world: World) -> Act | None:
    """While an operation runs: what may help it is taken note of at once, accepted losses and replacements."""
    for task in world.tasks:
        if task.type in (TaskType.ACCEPT_LOSS, TaskType.REPLACE) and not task.phase and not _refused(world, task):
            return _running(task)
    return None


def replacement(world: World, desired: Desired) -> Decision | None:
    """Return what a task that replaces a lost bookie would do if no operation ran. One that serves has time."""
    running = (one for one in world.tasks if one.type is TaskType.REPLACE and one.phase)
    found = (_one_by_one(world, desired, one) for one in running)
    return next((one for one in found if isinstance(one, Record) and not repair.is_move(one.operation)), None)


def _begin(world: World, desired: Desired, task: TaskView) -> Decision | None:
    if not task.phase:
        refused = _refused(world, task)
        return _ended(task, "Failed", refused) if refused else _running(task, _in_vain(world, desired, task))
    match task.type:
        case TaskType.RESTART:
            return _restart(world, desired, task)
        case TaskType.REPLACE | TaskType.DECOMMISSION:
            return _one_by_one(world, desired, task)
        case TaskType.AUDIT:
            return _audit(world, task)
        case TaskType.ACCEPT_LOSS:
            return _accepted(world, task)


def _refused(world: World, task: TaskView) -> str:
    if task.type is TaskType.ACCEPT_LOSS:
        if not task.ledgers:
            return "it names no ledgers: tell the ids whose loss is accepted in spec.ledgers"
        if not view.lapsed(world, task) and not set(task.ledgers) <= set(view.accepted_losses(world)):
            return (
                f"with those of other tasks more than {view.MOST_LOSSES} losses would be accepted: wait for their end"
            )
        return ""
    known = _there(world) | _taken_out(world)
    strangers = [name for name in task.bookies if name not in known]
    if strangers:
        return f"there is no bookie {', '.join(strangers[:3])}: name pods as `kubectl get pods` shows them"
    if task.type in (TaskType.REPLACE, TaskType.DECOMMISSION):
        if not task.bookies:
            return "it names no bookies: tell their pods in spec.bookies"
        if len(task.bookies) > MOST_BOOKIES:
            return f"it names {len(task.bookies)} bookies, and at most {MOST_BOOKIES} go in one task: make several"
    return ""


def _there(world: World) -> set[str]:
    return {*view.expected_pods(world), *(one.name for one in world.pods)}


def _taken_out(world: World) -> set[str]:
    """Bookies that are gone already, as those that `spec` gave up at the same time as the task: no clock tells when."""
    return {one.bookie for one in world.cluster.status.history if one.type is OperationType.DECOMMISSION}


def _in_vain(world: World, desired: Desired, task: TaskView) -> str:
    """Return what has to be done before it can go on; empty: nothing."""
    if task.type not in (TaskType.REPLACE, TaskType.DECOMMISSION):
        return ""
    found = _one_by_one(world, desired, task)
    return found.message if isinstance(found, Wait) and found.reason in IMPOSSIBLE else ""


def _running(task: TaskView, message: str = "") -> Act:
    return Act(UpdateTask(task.name, task.uid, "Running", message), f"task {task.name} ({task.type}) begins")


def _ended(task: TaskView, phase: str, message: str) -> Act:
    return Act(UpdateTask(task.name, task.uid, phase, message), f"task {task.name} ends: {message}")


def _gone(task: TaskView, name: str) -> Act:
    return _ended(task, "Failed", f"there is no bookie {name} any more: it was taken out")


def _signed(decision: Decision, task: TaskView) -> Decision:
    if isinstance(decision, Record):
        return replace(decision, operation=operations.for_task(decision.operation, task))
    return decision


def _restart(world: World, desired: Desired, task: TaskView) -> Decision:
    asked = task.bookies or tuple(view.expected_pods(world))
    there = _there(world)
    pods = tuple(name for name in asked if name in there)
    failed = [one for one in operations.done_for(world, task) if one.outcome == "Failed"]
    if failed:
        return _ended(task, "Failed", failed[-1].message)
    if asked and not pods:
        return _gone(task, asked[0])
    left = tuple(name for name in pods if not _restarted(world, name, task.created_at))
    if not left:
        return _ended(task, "Done", f"{len(pods)} bookies were restarted")
    everyone = set(view.expected_pods(world)) <= set(pods)
    return _signed(rollout.restart(world, desired, left, task.name, everyone=everyone), task)


def _restarted(world: World, name: str, since: float) -> bool:
    found = view.pod(world, name)
    return found is not None and found.created_at >= since and found.ready and not found.deleting


def _one_by_one(world: World, desired: Desired, task: TaskView) -> Decision:
    over = operations.done_for(world, task)
    failed = [one for one in over if one.outcome != "Done"]
    if failed:
        return _ended(task, "Failed", f"{failed[-1].bookie}: {failed[-1].message}")
    done, there = {one.bookie for one in over}, _there(world)
    if task.type is TaskType.DECOMMISSION:
        done |= set(task.bookies) - there
    gone = [name for name in task.bookies if name not in done and name not in there]
    left = [name for name in task.bookies if name not in done and name not in gone]
    if not left:
        return _gone(task, gone[0]) if gone else _ended(task, "Done", f"{', '.join(task.bookies)}: done")
    if task.type is TaskType.REPLACE:
        return _signed(repair.replace(world, desired, left[0], task.name), task)
    return decommission.awaited(desired, left[0])


def _accepted(world: World, task: TaskView) -> Decision | None:
    """Keep the task until an operation that copies the rest of such ledgers is over, and no longer than a day."""
    if view.lapsed(world, task):
        return _ended(task, "Done", f"the loss of {len(task.ledgers)} ledgers was accepted for a day, which is over")
    over = [one for one in world.cluster.status.history if one.type in _LOSSY and one.outcome == "Done"]
    if any(operations.read_time(one.finished_at) >= task.started_at for one in over):
        return _ended(task, "Done", f"the loss of {len(task.ledgers)} ledgers was accepted")
    return None


# --- audits -----------------------------------------------------------------------------------------------------------


def _audit(world: World, task: TaskView) -> Decision:
    over = operations.done_for(world, task)
    if over:
        return _ended(task, "Done" if over[-1].outcome == "Done" else "Failed", over[-1].message)
    operation = operations.for_task(operations.new(world, OperationType.AUDIT, TRIGGER), task)
    return Record(operation, f"task {task.name} asks for an audit")


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    """Go on with an audit."""
    if operation.step == TRIGGER:
        return Act(TriggerAudit(), "an audit was asked for", operation=operations.stepped(world, operation, AWAIT))
    if operation.step != AWAIT:
        return unknown_step(Run(world, desired, operation))
    began = operations.read_time(operation.started_at)
    if world.facts is not None and view.audited(world.facts, began):
        return Finish(operation, "Done", f"{world.facts.under_replicated} ledgers are under-replicated")
    if operations.overdue(world, operation, world.cluster.spec.update.progress_deadline_seconds):
        return Finish(operation, "Failed", "no audit ended in time: is an auditor elected, and does it run?")
    return operations.wait(operation, "AuditPending", "waits for the auditor")


def needs(operation: Operation, desired: Desired) -> Needs:
    return Needs()
