"""Starts a bookie again with empty disks, once its ledgers have their copies elsewhere.

It is a bookie that lost a disk or its node, or, for a task, one that serves and is to have other volumes.

The loss of a journal or a ledger volume is the loss of the bookie: what was not flushed may have been in the journal.
Lost is a bookie that is registered nowhere and cannot come back by itself: a volume of it is gone, or it refuses its
directories (`why_lost`). One whose node does not answer is not: it may still run there, and two bookies must never
share an id.

One that serves is drained first, as `relocate` says (`ReadOnly`, `DrainServing`, `Stop`), and then goes on with 5; its
cookie is gone by then.

 1. Gates, before anything is recorded: the bookie is lost and registered nowhere, an auditor is there, each ledger has
    another bookie to go to, and none has its only copy there: those that have are reported, until the annotation
    `podkeeper.dev/accept-ledger-loss` or a task of type AcceptLoss gives them up. By itself only after
    `repair.autoReplaceAfterSeconds`, else for a task of type Replace.
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
(`giving_way`), after which it begins again. A pod on a node that does not answer is never forced away: a person says
that the node is gone, by deleting it or by its out-of-service taint.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import draining, gates, operations, proving, view
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, DeletePod, SetReadOnly, UndoDrain
from bookie_operator.planner.decision import Decision, Event, EventType, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import relocate, rollout_state
from bookie_operator.planner.flows.relocate import POD_UID
from bookie_operator.planner.proving import Claims, disproof, unproven
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.planner.view import remedy, stuck_on_node
from bookie_operator.world.facts import DrainFacts, Proof, SafetyFacts
from bookie_operator.world.model import PodFault, PodView, World

_ASKED_ABOUT: Final = 4
_ASKED_FOR_S: Final = 60.0
_CANCELLABLE: Final = frozenset({"Check", "Drain", "Prove"})


def begin(world: World, desired: Desired) -> Decision | None:
    """Begin a replacement by itself, or say what people have to do."""
    waiting = _claim_deleted(world, desired) or _stuck(world)
    for name in lost_bookies(world, desired):
        found = _by_itself(world, desired, name)
        if not isinstance(found, Wait):
            return found
        waiting = waiting or found
    return waiting


def _claim_deleted(world: World, desired: Desired) -> Wait | None:
    """Report a deleted claim before the next restart makes a lost bookie of it."""
    obstacle = gates.claims_stay(world, desired, tuple(view.expected_pods(world)))
    return refused(obstacle) if obstacle is not None else None


def _stuck(world: World) -> Wait | None:
    for pod in world.pods:
        if stuck := stuck_on_node(world, pod):
            return Wait("NodeLost", f"{pod.name} is not gone yet{stuck}", seconds=15.0, stalled=True)
    return None


def _by_itself(world: World, desired: Desired, name: str) -> Decision:
    why, pod = why_lost(world, desired, name), view.pod(world, name)
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
    if pod is None or world.now - lost_since(pod) < patience_s:
        return Wait("BookieLost", f"{name} is lost: {why}; it is replaced after {patience_s} s", seconds=10.0)
    doubt = gates.first(nodes_known(world, name), template_works(world, desired, pod))
    return refused(doubt) if doubt is not None else _begin(world, desired, name, f"it is lost: {why}")


def _asked_for(world: World, name: str) -> bool:
    """A task that was through with it before it was lost does nothing for it any more."""
    return any(name in left for left in _left_of_tasks(world))


def replace(world: World, desired: Desired, bookie: str, task: str) -> Decision:
    """Begin a replacement for a task."""
    if relocate.serves(world, desired, bookie):
        obstacle = relocate.why_not(world, desired, bookie)
        if obstacle is not None:
            return refused(obstacle)
        saved = relocate.saved(world, desired, bookie)
        return _record(world, bookie, relocate.READ_ONLY, f"task {task} asks for it, and it is drained first", saved)
    if _is_restarted(world, desired, bookie):
        return refused(
            gates.Obstacle("BookieUnavailable", f"{bookie} is restarted: waits until it serves, or does not")
        )
    return _begin(world, desired, bookie, f"task {task} asks for it")


def _is_restarted(world: World, desired: Desired, name: str) -> bool:
    """Return whether it may only be away for a moment: to be drained while it serves is better than to count as
    lost."""
    pod = view.pod(world, name)
    if pod is None:
        return not gates.is_down(world, desired, name)
    if pod.deleting:
        return not stuck_on_node(world, pod)
    return not pod.ready and not pod.fault and world.now - pod.created_at < gates.ROOM_SECONDS


def _begin(world: World, desired: Desired, name: str, why: str) -> Decision:
    obstacle = why_not_anew(world, desired, name)
    return refused(obstacle) if obstacle is not None else _record(world, name, "Check", why, {})


def _record(world: World, name: str, step: str, why: str, saved: dict[str, str]) -> Record:
    pod = view.pod(world, name)
    kept = {POD_UID: pod.uid if pod is not None else "", **Claims.of(world, name).saved(), **saved}
    operation = operations.new(world, OperationType.REPLACE, step, bookie=name, saved=kept)
    message = f"{name} is started again with empty disks: {why}"
    return Record(operation, message, Event("ReplacementBegun", message, EventType.WARNING))


def cancellable(operation: Operation) -> bool:
    """Return whether nothing of the bookie was deleted yet."""
    if relocate.SERVES in operation.saved:
        return operation.step in relocate.CANCELLABLE
    return operation.step in _CANCELLABLE


def is_move(operation: Operation) -> bool:
    """Return whether the bookie can still serve as it is: nothing waits for its replacement."""
    return relocate.SERVES in operation.saved and operation.step in relocate.CANCELLABLE


def needs_to_begin(world: World, desired: Desired) -> Needs:
    """Return what shows the losses with bookies that might be replaced now, and what a drain of those that serve would
    refuse."""
    asked = {name for task in world.tasks if task.type is TaskType.REPLACE for name in task.bookies}
    asked &= frozenset(view.expected_pods(world))
    candidates = {name for name in asked if stopped(world, desired, name) is None}
    moved = [
        name
        for name in _next_of_tasks(world)
        if relocate.serves(world, desired, name) and relocate.at_hand(world, desired, name) is None
    ]
    patience_s = world.cluster.spec.repair.auto_replace_after_seconds
    for name in lost_bookies(world, desired):
        pod = view.pod(world, name)
        if patience_s and pod is not None and world.now - lost_since(pod) >= patience_s:
            candidates.add(name)
    ids = frozenset(desired.bookie_id(name) for name in _some(sorted(candidates), world.now))
    outlooks = ids | {desired.bookie_id(name) for name in moved[:1]}
    return Needs(outlooks=outlooks, safety=frozenset(frozenset({one}) for one in ids))


def _next_of_tasks(world: World) -> list[str]:
    """The bookie that each task would replace next."""
    known = set(view.expected_pods(world))
    return [names[0] for names in _left_of_tasks(world) if names and names[0] in known]


def _left_of_tasks(world: World) -> Iterator[list[str]]:
    """The bookies that each task has yet to replace, in its order."""
    for task in world.tasks:
        if task.type is TaskType.REPLACE:
            over = {one.bookie for one in operations.done_for(world, task)}
            yield [name for name in task.bookies if name not in over]


def _some(names: list[str], now: float) -> list[str]:
    """Return as many as may be asked about in one pass, others a while later: each answer takes a listing of all
    ledgers."""
    if len(names) <= _ASKED_ABOUT:
        return names
    first = int(now // _ASKED_FOR_S) * _ASKED_ABOUT % len(names)
    return (names[first:] + names[:first])[:_ASKED_ABOUT]


def needs(operation: Operation, desired: Desired) -> Needs:
    bookie, step = frozenset({desired.bookie_id(operation.bookie)}), operation.step
    return Needs(
        proofs=bookie if step in ("Prove", "Claims", "Cookie") else frozenset(),
        drains=bookie if step in ("Drain", relocate.DRAIN, "Start", "Undo") else frozenset(),
        outlooks=bookie if step in ("Check", relocate.READ_ONLY) or draining.asks(operation) else frozenset(),
        safety=frozenset({bookie}) if step == "Check" else frozenset(),
        accepted_losses=draining.accepted_by(operation),
    )


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    run = Run(world, desired, operation)
    missing = gates.told(world)
    if missing is not None:
        return run.blocked(missing, run.patience)
    if cancellable(operation) and not relocate.has_left(run):
        if relocate.SERVES in operation.saved and why_lost(world, desired, run.bookie):
            return given_back(world, desired, operation, f"{run.bookie} was lost before it was drained")
        if why := _over(run):
            return run.go("Undo", why, saved={WHY_NOT: why})
    return take(_STEPS, run)


def given_back(world: World, desired: Desired, operation: Operation, why: str) -> Record:
    """Give the bookie back for other work; a task that asked for it is not judged by that, and asks again."""
    return (
        Run(world, desired, operation)
        .forget(operations.TASK, operations.TASK_UID)
        .go("Undo", why, saved={WHY_NOT: why})
    )


def _over(run: Run) -> str:
    """Return why it is not to be replaced any more; empty: it is wanted."""
    if not run.saved(relocate.SERVES) and relocate.serves(run.world, run.desired, run.bookie):
        return f"{run.bookie} is back"
    task, uid = run.saved(operations.TASK), run.saved(operations.TASK_UID)
    if task and all(one.name != task or (uid and one.uid != uid) for one in run.world.tasks):
        return f"task {task} is gone"
    if all(name != run.bookie for name in view.expected_pods(run.world)):
        return f"{run.bookie} is not wanted any more"
    return ""


WHY_NOT: Final = "whyNot"
"""Key for the reason why it is not replaced after all."""
_COOKIE_GONE: Final = "cookieGone"


def check(run: Run) -> Decision:
    obstacle = why_not_anew(run.world, run.desired, run.bookie)
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
    away = frozenset({run.bookie, *lost_bookies(run.world, run.desired), *crowded})
    audited = proving.audit(run, away, run.patience, writable=False)
    if audited is not None:
        return audited
    proof = proving.told(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        return run.forget(*proving.AUDIT_KEYS, *draining.KEYS).go("Drain", f"{run.bookie} is drained again: {named}")
    if (why := unproven(run, proof)) is not None:
        return run.wait_at_most(run.patience, "WaitingForProof", why)
    return run.forget(*proving.AUDIT_KEYS).go("Claims", f"no ledger needs what {run.bookie} had")


def claims(run: Run) -> Decision:
    """They stay until the pod is gone, and then their successors are empty."""
    if (taken := gates.claims_own(run.world, run.bookie)) is not None:  # the labels were taken off meanwhile
        return run.blocked(taken, run.patience)
    left = [one for one in Claims.read(run.operation).left(run.world) if not one.deleting]
    if not left:
        return run.go("Pod", f"the claims of {run.bookie} are deleted")
    proof = proving.standing(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    claim = left[0]
    return run.act(DeleteClaim(claim.name, claim.uid, proof), f"{run.bookie} starts again; no ledger needs what it had")


def pod(run: Run) -> Decision:
    left, found = Claims.read(run.operation).left(run.world), run.pod
    if found is not None and (found.uid == run.saved(POD_UID) or (left and found.node)):
        if not found.deleting:
            return run.act(DeletePod(found.name, found.uid), f"{run.bookie} lets go of its claims")
        stuck = stuck_on_node(run.world, found)
        return run.wait_at_most(run.patience, "StoppingBookie", f"waits until the pod of {run.bookie} is gone{stuck}")
    if left:
        gone = view.terminating(left)
        return run.wait_at_most(run.patience, "DeletingClaims", f"waits until {gone} are gone")
    if run.saved(relocate.SERVES):  # the new bookie may have a cookie of its own already
        return run.go("Start", f"{run.bookie} has nothing of what it had, and its cookie went before")
    return run.go("Cookie", f"{run.bookie} has nothing of what it had")


def cookie(run: Run) -> Decision:
    """Delete the cookie only now: a bookie whose directories are empty would start at once, on volumes that are about
    to go."""
    assert run.world.facts is not None
    now = {_COOKIE_GONE: operations.written(run.world.now)}
    if run.bookie_id not in run.world.facts.cookies:
        return run.go("Start", f"{run.bookie} has no cookie any more", saved=now)
    proof = proving.standing(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    action = DeleteCookie(run.bookie_id, proof, draining.accepted_by(run.operation))
    return run.act(action, f"{run.bookie} may start again", then="Start", saved=now)


def start(run: Run) -> Decision:
    found = run.pod
    late = operations.overdue(run.world, run.operation, run.world.cluster.spec.update.progress_deadline_seconds)
    helped = _helped(run)
    if helped is not None:
        helped = run.in_time(helped, f"{run.bookie} is helped to take new data")
    if helped is not None:
        return helped
    if found is not None and found.ready and gates.is_writable(run.world, run.desired, run.bookie):
        message = f"{run.bookie} was started again with empty disks; what it held has its copies elsewhere"
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
    """Put right what keeps it from taking new data."""
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
    """Undo it: the bookie came back, or is not asked for any more; nothing of it was deleted yet."""
    facts = run.world.drains.get(run.bookie_id)
    if facts is None:
        return run.wait_at_most(run.patience, gates.METADATA_UNREACHABLE, f"the drain of {run.bookie} is unknown")
    message = f"{run.bookie} is not replaced: {run.saved(WHY_NOT) or 'it is back, or is not asked for any more'}"
    wanted = relocate.taken_back(run, facts) if run.saved(relocate.SERVES) else _taken_back(run, facts)
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
    relocate.READ_ONLY: relocate.read_only,
    relocate.DRAIN: relocate.drain,
    relocate.STOP: relocate.stop,
    "Check": check,
    "Drain": drain,
    "Prove": prove,
    "Claims": claims,
    "Pod": pod,
    "Cookie": cookie,
    "Start": start,
    "Undo": undo,
}


def why_lost(world: World, desired: Desired, name: str) -> str:
    """Return why it is lost; empty: it is not, or that is unknown."""
    pod = view.pod(world, name)
    if pod is None or pod.ready or pod.deleting or world.facts is None:
        return ""
    if gates.is_registered(world, desired, name):
        return ""
    gone = next((claim.name for claim in view.claims_of(world, name) if claim.lost), "")
    if gone:
        return f"the volume of claim {gone} is gone"
    if pod.fault is PodFault.COOKIE:
        return f"its directories are not those of its cookie ({pod.fault_message})"
    if pod.fault is PodFault.VOLUME:
        return f"a volume of it is missing, or cannot be reached ({pod.fault_message})"
    return ""


def lost_bookies(world: World, desired: Desired) -> list[str]:
    return [name for name in view.expected_pods(world) if why_lost(world, desired, name)]


def lost_since(pod: PodView) -> float:
    """Seconds since 1970: since when it is not ready, at least."""
    return pod.created_at if pod.unready_since is None else max(pod.created_at, pod.unready_since)


def why_not_anew(world: World, desired: Desired, name: str) -> gates.Obstacle | None:
    """Return why it may not start again with empty disks."""
    bookie_id = desired.bookie_id(name)
    return gates.first(
        stopped(world, desired, name),
        gates.claims_own(world, name),
        gates.renamed(world, desired, name),
        gates.copies_can_be_made(world),
        gates.elsewhere(world, bookie_id),
        copies_elsewhere(world, bookie_id),
    )


def stopped(world: World, desired: Desired, name: str) -> gates.Obstacle | None:
    """Return why it may still run; None: it runs nowhere, as far as is known. That may be a bookie that does not count
    as lost."""
    missing = gates.told(world)
    if missing is not None:
        return missing
    pod = view.pod(world, name)
    if gates.is_registered(world, desired, name) or (pod is not None and pod.ready):
        return gates.Obstacle("BookieUnavailable", f"{name} comes or goes: waits until it serves, or is stopped")
    if stuck := stuck_on_node(world, pod):
        return gates.Obstacle("NodeLost", f"{name} is not gone yet{stuck}", needs_person=True)
    return _silent_node(world, pod)


def _silent_node(world: World, pod: PodView | None) -> gates.Obstacle | None:
    """A volume that cannot be reached may be on a node that only does not answer."""
    if pod is None or pod.fault is not PodFault.VOLUME or world.nodes is None:
        return None
    silent = sorted(node.name for node in world.nodes.values() if not node.ready and not node.out_of_service)
    if not silent:
        return None
    return gates.Obstacle(
        "NodeLost",
        f"{', '.join(silent)} do not answer, and the volumes of {pod.name} may be there: wait, or delete the Node, or"
        f" give it the taint node.kubernetes.io/out-of-service if it is off for good",
        needs_person=True,
    )


def nodes_known(world: World, name: str) -> gates.Obstacle | None:
    """Return why it is unknown whether the volume is on a node that the operator may not look at.

    Such a bookie is not replaced automatically.
    """
    pod = view.pod(world, name)
    if pod is None or pod.fault is not PodFault.VOLUME or world.nodes is not None:
        return None
    if any(claim.lost for claim in view.claims_of(world, name)):
        return None
    return gates.Obstacle(
        "BookieLost",
        f"{name} cannot reach a volume ({pod.fault_message}), and the operator may not read nodes to tell whether its"
        f" node is gone: replace it with a BookieTask of type Replace that names {name}",
        needs_person=True,
    )


def template_works(world: World, desired: Desired, pod: PodView) -> gates.Obstacle | None:
    """Return why the template, not the volumes, may be what keeps a bookie down.

    Such a bookie is not replaced automatically: no bookie works with the template, or this one was started again
    already and did not come up.
    """
    if any(claim.lost for claim in view.claims_of(world, pod.name)):
        return None
    alike = rollout_state.alike(world, desired, pod.stateful_set, pod.template_hash)
    if not any(rollout_state.works(world, desired, one) for one in alike):
        why = "and no bookie works with the template that it has"
    elif _in_vain(world, desired, pod.name):
        why = "also with empty disks"
    else:
        return None
    return gates.Obstacle(
        "BookieLost",
        f"{pod.name} does not get to what it stored ({pod.fault_message}), {why}: change spec, or put it back; or, if"
        f" its volumes are gone, replace it with a BookieTask of type Replace that names {pod.name}",
        needs_person=True,
    )


def _in_vain(world: World, desired: Desired, name: str) -> bool:
    """Return whether the last thing done about it was to start it again, and it did not come up since."""
    last = next((one for one in world.cluster.status.history if one.bookie == name), None)
    failed = last is not None and last.type is OperationType.REPLACE and last.outcome == "Failed"
    return failed and gates.never_served(world, desired, name)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_hash(ledgers: Iterable[int]) -> str:
    """Return the hash of a loss that a person accepts: SHA-256, in hex, of the sorted ids with commas."""
    return hashlib.sha256(",".join(map(str, sorted(ledgers))).encode()).hexdigest()


def copies_elsewhere(world: World, bookie_id: str) -> gates.Obstacle | None:
    """Return an obstacle unless every ledger has a copy beside this bookie's, or people gave up what has none."""
    safety = world.safety.get(frozenset({bookie_id}))
    if safety is None:
        return gates.Obstacle("SafetyUnknown", f"it is not known yet which ledgers have their last copy on {bookie_id}")
    if safety.unknown:
        return gates.Obstacle(
            "SafetyUnknown",
            f"of {safety.unknown} ledgers it is unknown whether they have a copy beside {bookie_id}{_shown(safety)}",
        )
    if not safety.without_copy or given_up(world, safety):
        return None
    return gates.Obstacle(
        "LedgersUnrecoverable",
        f"{safety.without_copy} ledgers have entries whose only copy is on {bookie_id}{_shown(safety)}: bring it or"
        f" its volumes back; {_how_to_give_up(safety)}",
        needs_person=True,
    )


def _how_to_give_up(safety: SafetyFacts) -> str:
    if not safety.unrecoverable_hash:
        return "they are too many to be given up by name: delete those of them that nobody needs"
    return (
        f"to give these entries up annotate the BookieCluster with {names.ACCEPT_LEDGER_LOSS}="
        f"{safety.unrecoverable_hash}, or create a BookieTask of type AcceptLoss with the ids of these ledgers"
    )


def _shown(safety: SafetyFacts) -> str:
    return f" ({'; '.join(safety.examples)})" if safety.examples else ""


def given_up(world: World, safety: SafetyFacts) -> bool:
    """Return whether the loss of just these ledgers, or of more, was accepted."""
    tasks = view.accepted_losses(world)
    if safety.unrecoverable and set(safety.unrecoverable) <= set(tasks):
        return True
    if not safety.unrecoverable_hash:
        return False
    annotated = world.cluster.annotations.get(names.ACCEPT_LEDGER_LOSS, "")
    return annotated == safety.unrecoverable_hash or (bool(tasks) and loss_hash(tasks) == safety.unrecoverable_hash)
