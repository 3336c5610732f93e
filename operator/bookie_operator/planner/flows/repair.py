"""Starts a bookie anew that lost a disk or its node, once its ledgers have their copies elsewhere.

The loss of a journal or a ledger volume is the loss of the bookie: what was not flushed may have been in the journal.

 1. Gates, before anything is recorded: the bookie is lost and registered nowhere, an auditor is there, each ledger has
    another bookie to go to, and none has its only copy there: those that have are told, until the annotation
    `podkeeper.dev/accept-ledger-loss` or a task of type AcceptLoss gives them up.
    By itself only after `repair.autoReplaceAfterSeconds`, else for a task of type Replace.
 2. Record: its pod, and the UIDs of its claims.
 3. `Check`: the same once more.
 4. `Drain`: its copies are made elsewhere from the others.
 5. `Prove`: after a newer audit an uncached listing finds no ledger and no mark that names it. All others that served
    have to be there for the audit, but for those that wait for a node or for a quota.
 6. `Claims`: deleted by UID, each with a proof of the same pass.
 7. `Pod`: deleted by UID, never forced; waits until it and the claims are gone.
 8. `Cookie`: deleted, with a proof of the same pass. Not before 7: a bookie with empty directories and no cookie
    starts at once, and would do so on volumes that are about to go.
 9. `Start`: a new pod with new claims takes new data; a record that holds it read-only is removed. One that does not
    come up in time is like any new bookie that does not, and holds up nothing: the operation ends.

A bookie that comes back before 6, or a task that is deleted before, ends it (`Undo`); so does what it gives way to
(`giving_way`), after which it begins anew. A pod on a node that does not answer is never forced away: a person says
that the node is gone, by deleting it or by its out-of-service taint.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import draining, gates, operations, view
from bookie_operator.planner.decision import Decision, Event, EventType, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import repair_gates, repair_steps
from bookie_operator.planner.flows.repair_steps import POD_UID, WHY_NOT, patience
from bookie_operator.planner.proving import Claims
from bookie_operator.planner.remedies import stuck_on_node
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.world.model import World

_ASKED_ABOUT: Final = 4
_ASKED_FOR_S: Final = 60.0
CANCELLABLE: Final = frozenset({"Check", "Drain", "Prove"})
"""Steps in which nothing of the bookie was deleted yet."""


def begin(world: World, desired: Desired) -> Decision | None:
    """By itself, or a word on what people have to do."""
    waiting = _claim_deleted(world, desired) or _stuck(world)
    for name in repair_gates.lost_bookies(world, desired):
        found = _by_itself(world, desired, name)
        if not isinstance(found, Wait):
            return found
        waiting = waiting or found
    return waiting


def _claim_deleted(world: World, desired: Desired) -> Wait | None:
    """Told before the next restart makes a lost bookie of it."""
    obstacle = gates.claims_stay(world, desired, tuple(view.expected_pods(world)))
    return refused(obstacle) if obstacle is not None else None


def _stuck(world: World) -> Wait | None:
    for pod in world.pods:
        if stuck := stuck_on_node(world, pod):
            return Wait("NodeLost", f"{pod.name} is not gone yet{stuck}", seconds=15.0, stalled=True)
    return None


def _by_itself(world: World, desired: Desired, name: str) -> Decision:
    why, pod = repair_gates.why_lost(world, desired, name), view.pod(world, name)
    patience_s = world.cluster.spec.repair.auto_replace_after_seconds
    if _asked_for(world, name):
        return Wait("BookieLost", f"{name} is lost: {why}; a task replaces it", seconds=10.0)
    if not patience_s:
        return Wait(
            "BookieLost",
            f"{name} is lost: {why}. Bring its volumes back, or replace it with a BookieTask of type Replace that names"
            f" {name}; with repair.autoReplaceAfterSeconds that is done without one",
            seconds=15.0,
            stalled=True,
        )
    if pod is None or world.now - repair_gates.lost_since(pod) < patience_s:
        return Wait("BookieLost", f"{name} is lost: {why}; it is replaced after {patience_s} s", seconds=10.0)
    doubt = gates.first(repair_gates.nodes_known(world, name), repair_gates.template_works(world, desired, pod))
    return refused(doubt) if doubt is not None else _begin(world, desired, name, f"it is lost: {why}", {})


def _asked_for(world: World, name: str) -> bool:
    return any(task.type is TaskType.REPLACE and name in task.bookies for task in world.tasks)


def replace(world: World, desired: Desired, bookie: str, task: str) -> Decision:
    """For a task."""
    return _begin(world, desired, bookie, f"task {task} asks for it", {operations.TASK: task})


def _begin(world: World, desired: Desired, name: str, why: str, saved: dict[str, str]) -> Decision:
    obstacle = repair_gates.obstacle(world, desired, name)
    if obstacle is not None:
        return refused(obstacle)
    pod = view.pod(world, name)
    kept = {POD_UID: pod.uid if pod is not None else "", **Claims.of(world, name).saved(), **saved}
    operation = operations.new(world, OperationType.REPLACE, "Check", bookie=name, saved=kept)
    message = f"{name} is started anew with empty disks: {why}"
    return Record(operation, message, Event("ReplacementBegun", message, EventType.WARNING))


def needs_to_begin(world: World, desired: Desired) -> Needs:
    """What would be lost with bookies that might be replaced now."""
    asked = {name for task in world.tasks if task.type is TaskType.REPLACE for name in task.bookies}
    known = frozenset(view.expected_pods(world))
    candidates = {name for name in asked & known if repair_gates.stopped(world, desired, name) is None}
    patience_s = world.cluster.spec.repair.auto_replace_after_seconds
    for name in repair_gates.lost_bookies(world, desired):
        pod = view.pod(world, name)
        if patience_s and pod is not None and world.now - repair_gates.lost_since(pod) >= patience_s:
            candidates.add(name)
    ids = frozenset(desired.bookie_id(name) for name in _some(sorted(candidates), world.now))
    return Needs(outlooks=ids, safety=frozenset(frozenset({one}) for one in ids))


def _some(names: list[str], now: float) -> list[str]:
    """So many as may be asked about in one pass, others a while later: each answer takes a listing of all ledgers."""
    if len(names) <= _ASKED_ABOUT:
        return names
    first = int(now // _ASKED_FOR_S) * _ASKED_ABOUT % len(names)
    return (names[first:] + names[:first])[:_ASKED_ABOUT]


def needs(operation: Operation, desired: Desired) -> Needs:
    bookie, step = frozenset({desired.bookie_id(operation.bookie)}), operation.step
    return Needs(
        proofs=bookie if step in ("Prove", "Claims", "Cookie") else frozenset(),
        drains=bookie if step in ("Drain", "Start", "Undo") else frozenset(),
        outlooks=bookie if step == "Check" or draining.asks(operation) else frozenset(),
        safety=frozenset({bookie}) if step == "Check" else frozenset(),
        accepted_losses=draining.accepted_by(operation),
    )


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    run = Run(world, desired, operation)
    missing = gates.told(world)
    if missing is not None:
        return run.blocked(missing, patience(run))
    if operation.step in CANCELLABLE and (why := _over(run)):
        return run.go("Undo", why, saved={WHY_NOT: why})
    return take(_STEPS, run)


def given_back(world: World, desired: Desired, operation: Operation, why: str) -> Record:
    """For other work; a task that asked for it is not judged by that, and asks again."""
    return Run(world, desired, operation).forget(operations.TASK).go("Undo", why, saved={WHY_NOT: why})


def _over(run: Run) -> str:
    """Why nobody wants it replaced any more; empty: it is wanted."""
    if run.pod is not None and run.pod.ready and gates.is_registered(run.world, run.desired, run.bookie):
        return f"{run.bookie} is back"
    task = run.saved(operations.TASK)
    if task and all(one.name != task for one in run.world.tasks):
        return f"task {task} is gone"
    if all(name != run.bookie for name in view.expected_pods(run.world)):
        return f"{run.bookie} is not wanted any more"
    return ""


_STEPS: Final = {
    "Check": repair_steps.check,
    "Drain": repair_steps.drain,
    "Prove": repair_steps.prove,
    "Claims": repair_steps.claims,
    "Pod": repair_steps.pod,
    "Cookie": repair_steps.cookie,
    "Start": repair_steps.start,
    "Undo": repair_steps.undo,
}
