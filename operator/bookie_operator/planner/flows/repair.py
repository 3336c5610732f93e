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
from bookie_operator.planner import auditing, draining, gates, operations, proving, view
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, DeletePod, SetReadOnly, UndoDrain
from bookie_operator.planner.decision import Decision, Event, EventType, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import repair_gates
from bookie_operator.planner.proving import Claims, disproof, unproven
from bookie_operator.planner.remedies import remedy, stuck_on_node
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.world.facts import DrainFacts, Proof
from bookie_operator.world.model import PodFault, World

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
        return run.blocked(missing, run.patience)
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


POD_UID: Final = "podUid"
WHY_NOT: Final = "whyNot"
"""Why it is not replaced after all."""
_COOKIE_GONE: Final = "cookieGone"


def check(run: Run) -> Decision:
    obstacle = repair_gates.obstacle(run.world, run.desired, run.bookie)
    if obstacle is not None:
        return run.blocked(obstacle, run.patience)
    safety = run.world.safety.get(frozenset({run.bookie_id}))
    lost = safety.unrecoverable if safety is not None else ()
    saved = draining.accepting(lost)
    return run.forget(*draining.KEYS).go("Drain", f"every ledger has a copy beside {run.bookie}", saved=saved)


def drain(run: Run) -> Decision:
    following = draining.drain(run, stopped=True, stall_s=run.patience)
    return following or run.go("Prove", f"what {run.bookie} held has its copies elsewhere")


def prove(run: Run) -> Decision:
    # Those that no node or quota lets in may wait for the room of a surplus bookie, which leaves when this one is back.
    crowded = gates.without_room(run.world, run.desired, run.bookie)
    away = frozenset({run.bookie, *repair_gates.lost_bookies(run.world, run.desired), *crowded})
    audited = auditing.audit(run, away, run.patience, writable=False)
    if audited is not None:
        return audited
    proof = proving.told(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        return run.forget(*auditing.KEYS, *draining.KEYS).go("Drain", f"{run.bookie} is drained again: {named}")
    if (why := unproven(run, proof)) is not None:
        return run.wait_at_most(run.patience, "WaitingForProof", why)
    return run.forget(*auditing.KEYS).go("Claims", f"no ledger needs what {run.bookie} had")


def claims(run: Run) -> Decision:
    """They stay until the pod is gone, and then their successors are empty."""
    left = [one for one in Claims.read(run.operation).left(run.world) if not one.deleting]
    if not left:
        return run.go("Pod", f"the claims of {run.bookie} are deleted")
    proof = proving.standing(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    claim = left[0]
    return run.act(DeleteClaim(claim.name, claim.uid, proof), f"{run.bookie} starts anew; no ledger needs what it had")


def pod(run: Run) -> Decision:
    left, found = Claims.read(run.operation).left(run.world), run.pod
    if found is not None and (found.uid == run.saved(POD_UID) or (left and found.node)):
        if not found.deleting:
            return run.act(DeletePod(found.name, found.uid), f"{run.bookie} lets go of its claims")
        stuck = stuck_on_node(run.world, found)
        return run.wait_at_most(run.patience, "StoppingBookie", f"waits until the pod of {run.bookie} is gone{stuck}")
    if left:
        gone = ", ".join(one.name for one in left)
        return run.wait_at_most(run.patience, "DeletingClaims", f"waits until {gone} are gone")
    return run.go("Cookie", f"{run.bookie} has nothing of what it had")


def cookie(run: Run) -> Decision:
    """Only now: a bookie whose directories are empty would start at once, on volumes that are about to go."""
    assert run.world.facts is not None
    now = {_COOKIE_GONE: operations.written(run.world.now)}
    if run.bookie_id not in run.world.facts.cookies:
        return run.go("Start", f"{run.bookie} has no cookie any more", saved=now)
    proof = proving.standing(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    action = DeleteCookie(run.bookie_id, proof, draining.accepted_by(run.operation))
    return run.act(action, f"{run.bookie} may start anew", then="Start", saved=now)


def start(run: Run) -> Decision:
    found = run.pod
    late = operations.overdue(run.world, run.operation, run.world.cluster.spec.update.progress_deadline_seconds)
    helped = _helped(run)
    if helped is not None:
        helped = run.in_time(helped, f"{run.bookie} is helped to take new data")
    if helped is not None:
        return helped
    if found is not None and found.ready and gates.is_writable(run.world, run.desired, run.bookie):
        message = f"{run.bookie} was started anew with empty disks; what it held has its copies elsewhere"
        return run.finish(message, event=Event("BookieReplaced", message))
    why = remedy(found) if found is not None and found.fault and found.fault is not PodFault.COOKIE else ""
    if late:
        look = f"`kubectl describe pod {run.bookie}` and its log say why, or the events of its StatefulSet"
        message = (
            f"{run.bookie} has empty disks, and what it held has its copies elsewhere; but it did not take new data in"
            f" time: {why or look}"
        )
        return run.finish(message, outcome="Failed", event=Event("ReplacementFailed", message, EventType.WARNING))
    return run.wait("StartingBookie", f"waits until the new {run.bookie} takes new data{f': {why}' if why else ''}")


def _helped(run: Run) -> Decision | None:
    """What keeps it from taking new data is put right."""
    found, drained = run.pod, run.world.drains.get(run.bookie_id)
    if drained is not None and drained.phase in draining.UNDER_WAY:
        return run.act(UndoDrain(run.bookie_id), f"{run.bookie} is a new bookie, and must not be drained")
    assert run.world.facts is not None
    if found is not None and found.ready and run.bookie_id in run.world.facts.read_only:
        return run.act(SetReadOnly(run.bookie, False), f"{run.bookie} is a new bookie, and takes new data")
    if found is not None and not found.deleting and _waits_to_restart(run):
        return run.act(
            DeletePod(found.name, found.uid), f"{run.bookie} may start now: it need not wait to be restarted"
        )
    return None


def _waits_to_restart(run: Run) -> bool:
    """Its container ended because of the old cookie, and Kubernetes lets it wait for minutes."""
    found = run.pod
    return (
        found is not None
        and not found.ready
        and found.fault is PodFault.COOKIE
        and found.created_at < run.saved_time(_COOKIE_GONE)
    )


def undo(run: Run) -> Decision:
    """It came back, or nobody asks for it any more; nothing of it was deleted yet."""
    facts = run.world.drains.get(run.bookie_id)
    if facts is None:
        return run.wait_at_most(run.patience, gates.METADATA_UNREACHABLE, f"nobody could tell who drains {run.bookie}")
    message = f"{run.bookie} is not replaced: {run.saved(WHY_NOT) or 'it is back, or nobody asks for it any more'}"
    wanted = _taken_back(run, facts)
    if wanted is None:
        return run.finish(message, outcome="Cancelled", event=Event("ReplacementCancelled", message))
    following = run.in_time(wanted, message)
    if following is not None:
        return following
    message = f"{message}. {draining.stays_drained(run)}"
    return run.finish(message, outcome="Failed", event=Event("ReplacementFailed", message, EventType.WARNING))


def _taken_back(run: Run, facts: DrainFacts) -> Decision | None:
    """None: nothing is left of the drain."""
    if facts.phase in draining.UNDER_WAY:
        return run.act(UndoDrain(run.bookie_id), f"{run.bookie} is not replaced: its drain is taken back")
    assert run.world.facts is not None
    if run.bookie_id in run.world.facts.read_only and run.saved(draining.SINCE):
        return run.forget(draining.SINCE).act(SetReadOnly(run.bookie, False), f"{run.bookie} is not replaced")
    return None


_STEPS: Final = {
    "Check": check,
    "Drain": drain,
    "Prove": prove,
    "Claims": claims,
    "Pod": pod,
    "Cookie": cookie,
    "Start": start,
    "Undo": undo,
}
