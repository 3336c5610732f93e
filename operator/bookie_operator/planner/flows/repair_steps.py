"""The steps that start a lost bookie anew.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import auditing, draining, gates, operations, proving
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, DeletePod, SetReadOnly, UndoDrain
from bookie_operator.planner.decision import Decision, Event, EventType
from bookie_operator.planner.flows import repair_gates
from bookie_operator.planner.proving import Claims, disproof, unproven
from bookie_operator.planner.remedies import remedy, stuck_on_node
from bookie_operator.planner.run import Run
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import PodFault

POD_UID: Final = "podUid"
WHY_NOT: Final = "whyNot"
"""Why it is not replaced after all."""
_COOKIE_GONE: Final = "cookieGone"


def patience(run: Run) -> float:
    return run.world.cluster.spec.decommission.stall_seconds


def check(run: Run) -> Decision:
    obstacle = repair_gates.obstacle(run.world, run.desired, run.bookie)
    if obstacle is not None:
        return run.blocked(obstacle, patience(run))
    safety = run.world.safety.get(frozenset({run.bookie_id}))
    lost = safety.unrecoverable if safety is not None else ()
    saved = draining.accepting(lost)
    return run.forget(*draining.KEYS).go("Drain", f"every ledger has a copy beside {run.bookie}", saved=saved)


def drain(run: Run) -> Decision:
    following = draining.drain(run, stopped=True, stall_s=patience(run))
    return following or run.go("Prove", f"what {run.bookie} held has its copies elsewhere")


def prove(run: Run) -> Decision:
    # Those that no node or quota lets in may wait for the room of a surplus bookie, which leaves when this one is back.
    crowded = gates.without_room(run.world, run.desired, run.bookie)
    away = frozenset({run.bookie, *repair_gates.lost_bookies(run.world, run.desired), *crowded})
    audited = auditing.audit(run, away, patience(run), writable=False)
    if audited is not None:
        return audited
    proof = proving.told(run, patience(run))
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        return run.forget(*auditing.KEYS, *draining.KEYS).go("Drain", f"{run.bookie} is drained again: {named}")
    if (why := unproven(run, proof)) is not None:
        return run.wait_at_most(patience(run), "WaitingForProof", why)
    return run.forget(*auditing.KEYS).go("Claims", f"no ledger needs what {run.bookie} had")


def claims(run: Run) -> Decision:
    """They stay until the pod is gone, and then their successors are empty."""
    left = [one for one in Claims.read(run.operation).left(run.world) if not one.deleting]
    if not left:
        return run.go("Pod", f"the claims of {run.bookie} are deleted")
    proof = proving.standing(run, patience(run))
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
        return run.wait_at_most(patience(run), "StoppingBookie", f"waits until the pod of {run.bookie} is gone{stuck}")
    if left:
        gone = ", ".join(one.name for one in left)
        return run.wait_at_most(patience(run), "DeletingClaims", f"waits until {gone} are gone")
    return run.go("Cookie", f"{run.bookie} has nothing of what it had")


def cookie(run: Run) -> Decision:
    """Only now: a bookie whose directories are empty would start at once, on volumes that are about to go."""
    assert run.world.facts is not None
    now = {_COOKIE_GONE: operations.written(run.world.now)}
    if run.bookie_id not in run.world.facts.cookies:
        return run.go("Start", f"{run.bookie} has no cookie any more", saved=now)
    proof = proving.standing(run, patience(run))
    if not isinstance(proof, Proof):
        return proof
    action = DeleteCookie(run.bookie_id, proof, draining.accepted_by(run.operation))
    return run.act(action, f"{run.bookie} may start anew", then="Start", saved=now)


def start(run: Run) -> Decision:
    found = run.pod
    late = operations.overdue(run.world, run.operation, run.world.cluster.spec.update.progress_deadline_seconds)
    helped = None if late else _helped(run)  # what is refused again and again must not keep it here
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
        return run.wait_at_most(patience(run), gates.METADATA_UNREACHABLE, f"nobody could tell who drains {run.bookie}")
    if facts.phase in draining.UNDER_WAY:
        return run.act(UndoDrain(run.bookie_id), f"{run.bookie} is not replaced: its drain is taken back")
    assert run.world.facts is not None
    if run.bookie_id in run.world.facts.read_only and run.saved(draining.SINCE):
        return run.forget(draining.SINCE).act(SetReadOnly(run.bookie, False), f"{run.bookie} is not replaced")
    why = run.saved(WHY_NOT) or "it is back, or nobody asks for it any more"
    message = f"{run.bookie} is not replaced: {why}"
    return run.finish(message, outcome="Cancelled", event=Event("ReplacementCancelled", message))
