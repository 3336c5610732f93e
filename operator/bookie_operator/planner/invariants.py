"""Invariants that no plan may break, whatever its flows think: checked before anything is carried out.

    I1   a claim or a cookie goes only with a proof of this very pass
    I2   who cannot tell does not stop a bookie
    I3   one operation, recorded before its first side effect
    I4   what is deleted or scaled is what was seen
    I5   no StatefulSet shrinks by more than one
    I7   what a StatefulSet stops is the bookie that was drained
    I8   a pod that serves is evicted, never deleted, but with its cluster
    I10  a StatefulSet is left alone until its controller has caught up
    I11  replicas that others took away are put back before anything else
    I12  no pod that is all that keeps a deleted claim is stopped, unless its bookie is replaced or its cluster deleted
    I13  etcd's list of members changes only for a pod whose volume is empty, and a majority of the others serves
    I14  bookies look for the metadata elsewhere only if none is registered where they look now, or some are there;
         where that is unknown, the annotation `podkeeper.dev/accept-metadata` has to name the place

I6 (no sleeping), and that no pod is deleted by force, follow from the actions that there are; I9 (claims are retained
by StatefulSets) is the builders'. A paused cluster and one with another instance id are not changed at all.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import operations, view
from bookie_operator.planner.actions import (
    Action,
    AddMember,
    AdoptClaim,
    ApplyObjects,
    ApplyTemplate,
    BeginDrain,
    CreateStatefulSet,
    DeleteClaim,
    DeleteCookie,
    DeleteObject,
    DeletePod,
    EvictPod,
    ExpandClaim,
    ModifyClaim,
    OrphanStatefulSet,
    RecordState,
    RemoveMember,
    RestoreTemplate,
    RetireClaim,
    ScaleStatefulSet,
    SetReadOnly,
    TellPod,
    UpdateTask,
)
from bookie_operator.planner.decision import Act, Finish, Plan, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import delete, members
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import World

_OF_OPERATIONS: Final = (ApplyTemplate, EvictPod, BeginDrain, DeleteCookie, ExpandClaim, ModifyClaim, SetReadOnly)
_ON_SETS: Final = (ScaleStatefulSet, ApplyTemplate, RestoreTemplate, OrphanStatefulSet)
_HARMLESS: Final = (
    ApplyObjects,
    CreateStatefulSet,
    RecordState,
    DeleteObject,
    UpdateTask,
    AdoptClaim,
    TellPod,
    AddMember,
    RemoveMember,
)


def check(world: World, desired: Desired, plan: Plan) -> list[str]:
    """Which of them the plan violates, one line each; empty: none."""
    decision = plan.decision
    broken = [*_operation(world, plan)]
    if isinstance(decision, Act | Record | Finish):
        broken += _untouchable(world)
    if isinstance(decision, Act):
        for rule in _RULES:
            broken += rule(world, desired, decision.action)
    return broken


def _untouchable(world: World) -> Iterator[str]:
    if world.cluster.paused:
        yield "paused: nothing may be changed"
    recorded, facts = world.cluster.status.instance_id, world.facts
    if facts is not None and recorded and facts.instance_id not in ("", recorded) and not world.cluster.deleting:
        yield f"instance id: the metadata are of {facts.instance_id}, the cluster is {recorded}"


def _operation(world: World, plan: Plan) -> Iterator[str]:
    running, decision = world.cluster.status.operation, plan.decision
    match decision:
        case Record(operation=operation):
            if running is not None and running.id != operation.id:
                yield f"I3: {operation.id} would begin while {running.id} runs"
            if running is None and operations.number(operation) != world.cluster.status.operations_begun + 1:
                yield f"I3: {operation.id} is not the next operation"
        case Act(operation=operation) | Wait(operation=operation) if operation is not None:
            if running is None or running.id != operation.id:
                yield f"I3: {operation.id} was never recorded"
        case Finish(operation=operation):
            if running is None or running.id != operation.id:
                yield f"I3: {operation.id} does not run"
        case _:
            return


def _recorded(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I3."""
    shrinks = isinstance(action, ScaleStatefulSet) and action.after < action.before
    if (isinstance(action, _OF_OPERATIONS) or shrinks) and world.cluster.status.operation is None:
        yield f"I3: {action} without an operation"


def _proven(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I1."""
    if isinstance(action, DeleteClaim | RetireClaim):
        claim = next((one for one in world.claims if one.name == action.name), None)
        if claim is None:
            yield f"I1: claim {action.name} was not observed"
            return
        if claim.foreign:
            yield f"I1: claim {claim.name} does not have the labels of this cluster"
        if action.proof is None and not delete.own(world, claim):
            yield f"I1: claim {claim.name} is of another cluster: {claim.instance_id or 'unknown'}"
        bookie_id = desired.bookie_id(claim.bookie)
    elif isinstance(action, DeleteCookie):
        bookie_id = action.bookie_id
    elif isinstance(action, DeleteObject) and action.key.startswith("PersistentVolumeClaim/"):
        yield f"I1: {action}, which may hold backups"
        return
    else:
        return
    if action.proof is None:
        if not _deleted_with_data(world):
            yield f"I1: {action} without a proof"
        return
    yield from (f"I1: {action}: {why}" for why in _doubts(world, bookie_id, action.proof))


def _deleted_with_data(world: World) -> bool:
    operation = world.cluster.status.operation
    if operation is None or operation.type is not OperationType.DELETE or not world.cluster.deleting:
        return False
    return delete.confirmed(world) and not any(one.running for one in world.pods)


def _doubts(world: World, bookie_id: str, proof: Proof) -> Iterator[str]:
    operation = world.cluster.status.operation
    since = operations.read_time(operation.started_at) if operation is not None else 0.0
    if proof.bookie_id != bookie_id:
        yield f"the proof is about {proof.bookie_id}"
    if world.proofs.get(bookie_id) != proof:
        yield "the proof is not of this pass"
    if not proof.holds(instance_id=view.instance_id(world), drained_since=since):
        yield f"the proof does not hold: {proof}"


def _known(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I2."""
    shrinks = isinstance(action, ScaleStatefulSet) and action.after < action.before
    if world.facts is None and not world.cluster.deleting and (shrinks or isinstance(action, EvictPod)):
        yield f"I2: {action} while the state of the cluster is unknown"


def _seen(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I4."""
    match action:
        case DeleteClaim() | RetireClaim() | ExpandClaim() | ModifyClaim() | AdoptClaim():
            seen = {(one.name, one.uid) for one in world.claims}
        case DeletePod() | EvictPod() | TellPod():
            seen = {(one.name, one.uid) for one in (*world.pods, *world.members)}
        case OrphanStatefulSet():
            seen = {(one.name, one.uid) for one in world.stateful_sets}
        case DeleteObject(key=key, uid=uid):
            if not uid or world.object_uids.get(key) != uid:
                yield f"I4: {action} is not what was seen"
            return
        case ScaleStatefulSet(name=name, resource_version=version, before=before):
            found = view.stateful_set(world, name)
            if found is None or (found.resource_version, found.replicas) != (version, before):
                yield f"I4: {action} is not what was seen"
            return
        case _:
            return
    if not action.uid or (action.name, action.uid) not in seen:
        yield f"I4: {action} is not what was seen"


def _one_down(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I5 and I7."""
    if not isinstance(action, ScaleStatefulSet) or action.after >= action.before:
        return
    if action.after < action.before - 1:
        yield f"I5: {action} takes more than one"
    operation = world.cluster.status.operation
    stopped = view.pod_name(action.name, action.after)
    if operation is None or operation.type is OperationType.DELETE:
        return
    if operation.bookie != stopped:
        yield f"I7: {action} stops {stopped}, and {operation.id} is about {operation.bookie}"


def _serving(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I8."""
    if isinstance(action, DeletePod) and not world.cluster.deleting:
        found = view.pod(world, action.name)
        writable = world.facts is not None and desired.bookie_id(action.name) in world.facts.writable
        if found is not None and found.ready and writable:
            yield f"I8: {action.name} serves, and would be deleted"


def _kept(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I12."""
    operation = world.cluster.status.operation
    replaced = operation.bookie if operation is not None and operation.type is OperationType.REPLACE else ""
    if world.cluster.deleting:
        return
    if isinstance(action, EvictPod | DeletePod) and action.name != replaced and view.going_claim(world, action.name):
        yield f"I12: {action} would let a deleted claim go"


def _majority(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I13."""
    if not isinstance(action, RemoveMember | AddMember):
        return
    if not any(one.name == action.pod and one.awaits_start for one in world.members):
        yield f"I13: {action}, whose volume is not known to be empty"
    listed = world.etcd.members if world.etcd is not None else ()
    others = [each.id for each in listed if not isinstance(action, RemoveMember) or each.id != action.member]
    serving = members.serving_ids(world.etcd) if world.etcd is not None else frozenset()
    most = max(len(listed), len(others) + isinstance(action, AddMember))
    if sum(each in serving for each in others) < most // 2 + 1:
        yield f"I13: {action} without a majority of {most}"


def _moved(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I14."""
    if not isinstance(action, RecordState) or not action.metadata_service_uri:
        return
    before = world.cluster.status.metadata_service_uri
    if before in ("", action.metadata_service_uri) or set(world.check_instance_id.split()[1:]) - {"0"}:
        return
    vouched = world.cluster.annotations.get(names.ACCEPT_METADATA) == action.metadata_service_uri
    if (world.facts is None and not vouched) or (world.facts is not None and world.facts.registered):
        yield f"I14: {action}, where no bookie is registered"


def _caught_up(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I10."""
    if isinstance(action, _ON_SETS):
        found = view.stateful_set(world, action.name)
        if found is not None and not found.settled:
            yield f"I10: {action} before its controller has caught up"


def _put_back(world: World, desired: Desired, action: Action) -> Iterator[str]:
    """I11."""
    grows = isinstance(action, ScaleStatefulSet) and action.after > action.before
    if world.cluster.deleting or grows or isinstance(action, _HARMLESS):
        return
    for one in world.stateful_sets:
        least = operations.least_replicas(world.cluster.status, one.name)
        if one.replicas < least and not one.deleting:
            yield f"I11: {action} while {one.name} has {one.replicas} of {least} bookies"


_RULES: Final[tuple[Callable[[World, Desired, Action], Iterator[str]], ...]] = (
    _recorded,
    _proven,
    _known,
    _seen,
    _one_down,
    _serving,
    _kept,
    _majority,
    _moved,
    _caught_up,
    _put_back,
)
