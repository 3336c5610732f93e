"""The addition of bookies: what is left of earlier ones of the same names is cleared away first, with proof.

Invariants
- A volume or a cookie of an earlier bookie is deleted only with a proof of this pass, after an audit that the operation
  asked for; anything else that is left stops it, and a person has to decide.
- One patch makes all new bookies of a StatefulSet; those that were there are not touched.

- A claim goes only if it was retired with a proof, belongs to this cluster, and a proof of this pass holds again.
- A cookie goes only with such a proof too, and after the claims.

Steps: `Audit` and `Clean` only if something is left, then `Grow`, then `Settle`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import operations, view
from bookie_operator.planner.actions import (
    DeleteClaim,
    DeleteCookie,
    ScaleStatefulSet,
    SetReadOnly,
    TriggerAudit,
    UndoDrain,
)
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Finish, Needs, Record, Wait
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.planner.flows import rollout_state
from bookie_operator.planner.run import Run, unknown_step
from bookie_operator.world.facts import DrainPhase, Proof
from bookie_operator.world.model import ClaimView, PodFault, StatefulSetView, World

AUDIT: Final = "Audit"
CLEAN: Final = "Clean"
GROW: Final = "Grow"
SETTLE: Final = "Settle"
STEPS: Final = frozenset({AUDIT, CLEAN, GROW, SETTLE})

_SET: Final = "set"
_FROM: Final = "from"
_TO: Final = "to"
_TEMPLATE: Final = "templateWanted"
"""Another one in `spec` meanwhile may be what the new bookies wait for."""
_ASKED: Final = "auditAskedAt"
_UP: Final = "writable"
_UNDONE: Final = "undone/"
"""Key before the name of a pod: what was undone of an earlier drain, `record` or `mode` too."""
_OF_ITS_OWN: Final = frozenset({PodFault.NONE, PodFault.UNSCHEDULABLE})
"""Faults that may keep one bookie from coming up, and another one not."""
_MOST_UNDONE: Final = 200
"""Pods for which that is saved: the saved values of an operation have a bound."""
_ASK_AGAIN_SECONDS: Final = 600.0
_TERMINATING_SECONDS: Final = 60.0
"""Seconds after which a claim that does not go needs a person."""


def begin(world: World, desired: Desired) -> Decision | None:
    blocked: Wait | None = None
    for wanted in desired.stateful_sets:
        have = view.stateful_set(world, wanted.name)
        if have is None or have.deleting or wanted.replicas <= have.replicas:
            continue
        pods = _pods(wanted.name, have.replicas, wanted.replicas)
        refused = _would_fail(world, desired, have) or why_not_cleared(world, desired, pods)
        if refused is None:
            return _record(world, desired, wanted, have)
        blocked = blocked or refused
    return blocked


def _would_fail(world: World, desired: Desired, have: StatefulSetView) -> Wait | None:
    """Wait if some bookies do not come up with the template that new ones would have, and those that work have another
    one."""
    alike = rollout_state.alike(world, desired, have.name, have.template_hash)
    broken = [pod for pod in alike if pod.fault not in _OF_ITS_OWN and rollout_state.replaceable(world, desired, pod)]
    working = {pod.name for pod in world.pods if rollout_state.works(world, desired, pod)}
    if not broken or not working or not working.isdisjoint(pod.name for pod in alike):
        return None
    message = (
        f"no bookie works with the template that new ones would have, and {broken[0].name} does not come up with it."
        " Change spec, or put it back; more bookies come then"
    )
    return Wait("TemplateFails", message, seconds=10.0, stalled=True)


def _pods(name: str, first: int, end: int) -> list[str]:
    return [view.pod_name(name, ordinal) for ordinal in range(first, end)]


def _record(world: World, desired: Desired, wanted: DesiredStatefulSet, have: StatefulSetView) -> Record:
    pods = _pods(wanted.name, have.replicas, wanted.replicas)
    step = AUDIT if dirty(world, desired, pods) else GROW
    saved = {
        _SET: wanted.name,
        _FROM: str(have.replicas),
        _TO: str(wanted.replicas),
        _TEMPLATE: wanted.template_hash,
    }
    message = f"{wanted.name} grows from {have.replicas} to {wanted.replicas} bookies"
    return Record(
        operations.new(world, OperationType.SCALE_UP, step, saved=saved), message, event=Event("ScalingUp", message)
    )


def needs(operation: Operation, desired: Desired) -> Needs:
    ids = frozenset(desired.bookie_id(pod) for pod in _new_pods(operation))
    if operation.step == CLEAN:
        return Needs(proofs=ids)
    return Needs(drains=ids) if operation.step == SETTLE else Needs()


def needs_to_begin(world: World, desired: Desired) -> Needs:
    """Proofs for what earlier bookies of the new names left."""
    found: set[str] = set()
    for wanted in desired.stateful_sets:
        have = view.stateful_set(world, wanted.name)
        if have is not None and wanted.replicas > have.replicas:
            left = dirty(world, desired, _pods(wanted.name, have.replicas, wanted.replicas))
            found.update(desired.bookie_id(pod) for pod in left)
    return Needs(proofs=frozenset(found))


def _new_pods(operation: Operation) -> list[str]:
    return _pods(operation.saved[_SET], int(operation.saved[_FROM]), int(operation.saved[_TO]))


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    if operation.step not in STEPS:
        return unknown_step(Run(world, desired, operation))
    have = view.stateful_set(world, operation.saved[_SET])
    wanted = next((one for one in desired.stateful_sets if one.name == operation.saved[_SET]), None)
    if have is None or wanted is None:
        return Finish(operation, "Cancelled", f"StatefulSet {operation.saved[_SET]} is not asked for any more")
    if operation.step == SETTLE:
        return _settle(world, desired, operation, wanted, have)
    if have.replicas >= int(operation.saved[_TO]):
        return Record(operations.stepped(world, operation, SETTLE), f"{have.name} has {have.replicas} replicas")
    if wanted.replicas < int(operation.saved[_TO]):
        return Finish(operation, "Cancelled", f"{have.name} is to have {wanted.replicas} bookies now")
    match operation.step:
        case "Audit":
            saved = {_ASKED: operations.written(world.now)}
            return Act(
                TriggerAudit(),
                "an audit has to be newer than this before anything of an earlier bookie is deleted",
                operation=operations.stepped(world, operation, CLEAN, saved=saved),
            )
        case "Clean":
            return _clean(world, desired, operation)
        case _:
            return _grow(world, desired, operation, have)


def _clean(world: World, desired: Desired, operation: Operation) -> Decision:
    left = dirty(world, desired, _new_pods(operation))
    if not left and world.facts is not None:
        return Record(operations.stepped(world, operation, GROW), "nothing of earlier bookies is left")
    refused = why_not_cleared(world, desired, left)
    if refused is not None and refused.stalled:
        return Finish(operation, "Cancelled", refused.message)
    since = operations.read_time(operation.saved[_ASKED])
    cleared = refused or clear(world, desired, left[0], since)
    if isinstance(cleared, Act):
        return cleared
    if cleared.reason == AUDIT_PENDING and operations.overdue(world, operation, _ASK_AGAIN_SECONDS):
        return Record(operations.stepped(world, operation, AUDIT), "the audit did not come: it is asked for again")
    late = operations.overdue(world, operation, world.cluster.spec.decommission.stall_seconds)
    return operations.wait(operation, cleared.reason, cleared.message, seconds=cleared.seconds, stalled=late)


def _grow(world: World, desired: Desired, operation: Operation, have: StatefulSetView) -> Decision:
    if dirty(world, desired, _pods(have.name, have.replicas, int(operation.saved[_TO]))):
        return Record(operations.stepped(world, operation, AUDIT), "something of an earlier bookie appeared")
    if world.facts is None:
        return operations.wait(operation, "MetadataUnreachable", world.facts_error or "no pod reaches the metadata")
    target = int(operation.saved[_TO])
    return Act(
        ScaleStatefulSet(have.name, have.resource_version, have.replicas, target),
        f"{have.name} gets {target - have.replicas} more bookies",
        operation=operations.stepped(world, operation, SETTLE),
    )


def _settle(
    world: World, desired: Desired, operation: Operation, wanted: DesiredStatefulSet, have: StatefulSetView
) -> Decision:
    pods = [pod for pod in _new_pods(operation) if view.ordinal_of(pod) < have.replicas]
    up = [pod for pod in pods if _writable(world, desired, pod)]
    if len(up) == len(pods):
        message = f"{have.name} has {have.replicas} bookies; those that are new take writes"
        return Finish(operation, "Done", message, event=Event("ScaledUp", message))
    waiting = ", ".join(pod for pod in pods if pod not in up)
    if wanted.template_hash != operation.saved[_TEMPLATE] or wanted.replicas < int(operation.saved[_TO]):
        return Finish(operation, "Cancelled", f"spec changed before {waiting} took writes")
    message = f"waits for {waiting} to take writes"
    if str(len(up)) != operation.saved.get(_UP, "0"):
        nearer = operations.progressed(world, operation, message, saved={_UP: str(len(up))})
        return Wait("Scaling", message, operation=nearer)
    late = operations.overdue(world, operation, world.cluster.spec.update.progress_deadline_seconds)
    if late and world.facts is None:  # it is unknown which take writes: that is not a verdict on the new ones
        why = world.facts_error or "no pod reaches the metadata"
        return Wait("MetadataUnreachable", why, operation=operations.progressed(world, operation, why))
    undone = _undo_drain(world, desired, operation, pods)
    if undone is not None and not late:
        return undone
    if undone is not None and not operation.attempts and operations.BEGUN_AGAIN not in operation.saved:
        # A request that is refused again and again must not block others; but it may be that it could not be sent until
        # now.
        return Record(operations.progressed(world, operation, saved=operations.AGAIN), f"{waiting} may take writes")
    if late:
        message = (
            f"{waiting} did not take writes in time: `kubectl describe pod` and its log say why, or the events of "
            f"StatefulSet {have.name} if there is no pod. Lower spec.replicas to take them away again"
        )
        return Finish(operation, "Failed", message, event=Event("ScaleUpFailed", message, EventType.WARNING))
    return operations.wait(operation, "Scaling", message)


def _writable(world: World, desired: Desired, name: str) -> bool:
    found = view.pod(world, name)
    ready = found is not None and found.ready and not found.deleting
    return ready and world.facts is not None and desired.bookie_id(name) in world.facts.writable


def _undo_drain(world: World, desired: Desired, operation: Operation, pods: list[str]) -> Act | None:
    """A new bookie of a name that was drained once may start read-only: the record goes, then the mode. Each once: it
    may be read-only for another reason, such as a full disk."""
    for pod in pods[:_MOST_UNDONE]:
        bookie_id = desired.bookie_id(pod)
        drain = world.drains.get(bookie_id)
        if world.facts is None or bookie_id not in world.facts.read_only:
            continue
        if drain is None or drain.phase in (DrainPhase.ABSENT, DrainPhase.REFUSED):
            continue
        done = operation.saved.get(f"{_UNDONE}{pod}", "")
        if not done:
            why = f"{pod} is new, and a record of an earlier drain may hold it read-only"
            return Act(UndoDrain(bookie_id), why, operation=_undone(operation, pod, "record"))
        if done == "record":
            why = f"{pod} is new, and takes new data"
            return Act(SetReadOnly(pod, False), why, operation=_undone(operation, pod, "mode"))
    return None


def _undone(operation: Operation, pod: str, what: str) -> Operation:
    return operation.model_copy(update={"saved": {**operation.saved, f"{_UNDONE}{pod}": what}})


AUDIT_PENDING: Final = "AuditPending"


def dirty(world: World, desired: Desired, pods: Sequence[str]) -> list[str]:
    """Return those of the pods of which a claim or a cookie is left, in their order. Of cookies only what is known."""
    return [pod for pod in pods if view.claims_of(world, pod) or _has_cookie(world, desired, pod)]


def _has_cookie(world: World, desired: Desired, pod: str) -> bool:
    return world.facts is not None and desired.bookie_id(pod) in world.facts.cookies


def why_not_cleared(world: World, desired: Desired, pods: Sequence[str]) -> Wait | None:
    """Return why bookies of these names cannot be made (yet); None: what is left of them, if anything, can be
    cleared."""
    if world.facts is None:
        why = world.facts_error or "no pod reaches the metadata service"
        return Wait("MetadataUnreachable", f"cannot tell whether cookies of earlier bookies are left: {why}")
    for pod in dirty(world, desired, pods):
        found = _claims_refused(world, pod) or _terminating(world, pod) or _proof_refused(world, desired, pod)
        if found is not None:
            return found
    return None


def _claims_refused(world: World, pod: str) -> Wait | None:
    """Return which claim is in the way of a new bookie, which begins with empty volumes; adoption does not help."""
    for claim in view.claims_of(world, pod):
        if not claim.deleting and (claim.foreign or not _retired(world, claim)):
            return Wait(
                "LeftoverClaims",
                f"claim {claim.name} has the name of a claim of {pod}, and is not marked as retired with a proof, so"
                " it may hold the last copy of a ledger: delete it if its data are not needed, or leave"
                " spec.replicas as it was",
                seconds=30.0,
                stalled=True,
            )
    return None


def _terminating(world: World, pod: str) -> Wait | None:
    """All that is left are claims that go: nothing can be done but wait, and nothing else has to."""
    left = view.claims_of(world, pod)
    if not left or not all(one.deleting for one in left):
        return None
    since = [one.deleting_since for one in left if one.deleting_since is not None]
    late = bool(since) and world.now - min(since) >= _TERMINATING_SECONDS
    return Wait(
        "ClaimsTerminating",
        f"{pod} can be made once these claims of the earlier bookie are gone: {view.terminating(left)}",
        seconds=10.0 if late else 2.0,
        stalled=late,
    )


def _retired(world: World, claim: ClaimView) -> bool:
    own = world.cluster.status.instance_id
    return claim.retired and bool(claim.retired_proof) and bool(own) and claim.instance_id == own


def _proof_refused(world: World, desired: Desired, pod: str) -> Wait | None:
    bookie_id = desired.bookie_id(pod)
    proof = world.proofs.get(bookie_id)
    if proof is None:
        return Wait("ProofUnknown", f"cannot tell whether ledgers need what is left of {bookie_id}", seconds=10.0)
    if proof.auditor is None:
        return Wait(
            "NoAuditor",
            f"no auditor is elected, so it cannot be proved that no ledger needs what is left of {bookie_id}: enable "
            "spec.autorecovery, and see that it runs",
            seconds=30.0,
            stalled=True,
        )
    if proof.registered:
        return Wait("StillRegistered", f"{bookie_id} is still registered", seconds=10.0)
    if proof.ledgers or proof.marks:
        return Wait(
            "LeftoverBookie",
            f"{proof.ledgers} ledgers still name {bookie_id}, an earlier bookie of this name ({proof.marks} of them "
            "are marked as under-replicated): auto-recovery has to copy them first; until then leave spec.replicas as "
            "it was",
            seconds=60.0,
            stalled=True,
        )
    return None


def clear(world: World, desired: Desired, pod: str, since: float) -> Act | Wait:
    """Delete the next thing that is left of it, if an audit newer than `since` agrees; who calls asked
    `why_not_cleared`."""
    bookie_id = desired.bookie_id(pod)
    proof: Proof | None = world.proofs.get(bookie_id)
    if proof is None or not proof.holds(instance_id=world.cluster.status.instance_id, drained_since=since):
        return Wait(AUDIT_PENDING, f"waits for an audit, to prove that no ledger needs what is left of {bookie_id}")
    left = view.claims_of(world, pod)
    for claim in left:
        if not claim.deleting:
            return Act(
                DeleteClaim(claim.name, claim.uid, proof),
                f"claim {claim.name} was retired, and no ledger names {bookie_id}",
            )
    return Act(DeleteCookie(bookie_id, proof), f"an earlier {bookie_id} left its cookie, and no ledger names it")
