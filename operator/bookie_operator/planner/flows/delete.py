"""The cluster is deleted: bookies stop in good order; volumes and metadata stay, or go if that was confirmed.

Invariants
- Nothing is stopped before it is clear what becomes of the data: `Delete` takes the confirming annotation, and that
  nobody else's bookies use the same metadata.
- Auto-recovery stops first: otherwise it would copy while bookies stop one after the other. Gateways stop with it: they
  close the ledgers that are written through them, for which bookies and metadata have to be there.
- A resource that never got an instance id deletes nothing: volumes, metadata and identity of its name are another's.
- Only claims go that bear this cluster's instance id and whose UIDs were recorded before the first bookie stopped; and
  only while `spec` and annotation still ask for it.
- The finalizer goes last, and never waits for ever for a metadata service that may be gone.

Steps: `Cancel` (of an operation that ran), `StopAutorecovery`, `StopBookies`, then for data that go `DeleteClaims`,
`DestroyMetadata`, `DeleteIdentity`; last `Release`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import operations, view
from bookie_operator.planner.actions import DeleteObject, ReleaseFinalizer, ScaleStatefulSet, UndoDrain
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Finish, Needs, Record, Rest, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import delete_data
from bookie_operator.planner.run import Run, unknown_step
from bookie_operator.world.model import World

CANCEL: Final = "Cancel"
STOP_AUTORECOVERY: Final = "StopAutorecovery"
STOP_BOOKIES: Final = "StopBookies"
RELEASE: Final = "Release"

_DRAINING: Final = frozenset({OperationType.DECOMMISSION, OperationType.REPLACE})
_UNDO_SECONDS: Final = 60.0
_AUTORECOVERY_SECONDS: Final = 120.0
_BOOKIES_SECONDS: Final = 900.0
_BEFORE_BOOKIES: Final = {
    "autorecovery": "auto-recovery stops before the bookies: it would copy what they have",
    "gateway": "gateways stop before the bookies: they close the ledgers that are written through them",
}


def begin(world: World, desired: Desired) -> Decision:
    """Everything that a pass does while the cluster is being deleted."""
    if not world.cluster.has_finalizer:
        return Rest()
    if world.cluster.paused:
        return _blocked(world, "the cluster is paused: remove the annotation podkeeper.dev/paused to let it go on")
    operation = world.cluster.status.operation
    if operation is not None and operation.type is OperationType.DELETE:
        return proceed(world, desired, operation)
    if _wants_data_gone(world) and not delete_data.confirmed(world):
        return _blocked(
            world,
            "spec.storage.retention.whenDeleted is Delete: set the annotation podkeeper.dev/confirm-delete to "
            f"{world.cluster.name} to delete all data, or whenDeleted to Retain to keep them; nothing was stopped yet",
        )
    if _wants_data_gone(world) and (why := delete_data.shared(world, desired)):
        return _blocked(world, f"{why}; nothing was stopped yet")
    if operation is not None:
        return _cancel(world, desired, operation)
    return _record(world)


def _wants_data_gone(world: World) -> bool:
    """A cluster that never came to be has no data: what bears its name is another's."""
    made = bool(world.cluster.status.instance_id)
    return made and world.cluster.spec.storage.retention.when_deleted is WhenDeleted.DELETE


def _blocked(world: World, why: str) -> Wait:
    event = Event("DeletionBlocked", f"{world.cluster.name} is not deleted yet: {why}", EventType.WARNING)
    return Wait("DeletionBlocked", why, seconds=30.0, stalled=True, event=event)


def _cancel(world: World, desired: Desired, operation: Operation) -> Decision:
    """Whatever ran is over; a bookie that was being drained and stays is no longer read-only, if that can be told."""
    if operation.type in _DRAINING and _stays(world, operation.bookie) and world.facts is not None:
        if operation.step != CANCEL:
            return Record(operations.stepped(world, operation, CANCEL), f"{operation.id} ends: the cluster is deleted")
        if "undone" not in operation.saved and not operations.overdue(world, operation, _UNDO_SECONDS):
            undone = operations.stepped(world, operation, CANCEL, saved={"undone": "true"})
            bookie_id = desired.bookie_id(operation.bookie)
            return Act(UndoDrain(bookie_id), f"{operation.bookie} is not taken out any more", operation=undone)
    return Finish(operation, "Cancelled", "the cluster is deleted")


def _stays(world: World, bookie: str) -> bool:
    return bookie in set(view.expected_pods(world))


def _record(world: World) -> Record:
    saved = delete_data.recorded(world) if _wants_data_gone(world) else {}
    kept = "deleted with them" if saved else "kept"
    operation = operations.new(world, OperationType.DELETE, STOP_AUTORECOVERY, saved=saved)
    message = f"the cluster stops; its volumes and metadata are {kept}"
    return Record(operation, message, event=Event("Deleting", message))


def needs(operation: Operation, desired: Desired) -> Needs:
    return Needs()


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    match operation.step:
        case "StopAutorecovery":
            return _stop_autorecovery(world, operation)
        case "StopBookies":
            return _stop_bookies(world, operation)
        case "Release":
            return Act(ReleaseFinalizer(), "the cluster has stopped; nothing of it needs the operator any more")
        case delete_data.DELETE_CLAIMS | delete_data.DESTROY_METADATA | delete_data.DELETE_IDENTITY:
            return delete_data.proceed(world, operation, RELEASE)
        case _:
            return unknown_step(Run(world, desired, operation))


def _stop_autorecovery(world: World, operation: Operation) -> Decision:
    """And gateways: both are told to, then both are waited for."""
    for part, why in _BEFORE_BOOKIES.items():
        key = f"Deployment/{world.cluster.name}-{part}"
        uid = world.object_uids.get(key)
        if uid is not None:
            return Act(DeleteObject(key, uid), why)
    left = world.autorecovery.pods + world.gateway.pods
    if left and not operations.overdue(world, operation, _AUTORECOVERY_SECONDS):
        message = f"waits for {left} pods of auto-recovery and gateways to stop"
        return operations.wait(operation, "Stopping", message, seconds=2.0)
    return Record(operations.stepped(world, operation, STOP_BOOKIES), "auto-recovery and gateways have stopped")


def _stop_bookies(world: World, operation: Operation) -> Decision:
    """By one replica a pass: each StatefulSet's controller stops the pods with their grace."""
    for one in world.stateful_sets:
        if one.replicas > 0 and not one.deleting:
            if not one.settled:
                return operations.wait(operation, "Stopping", f"waits for the controller of {one.name}", seconds=1.0)
            return Act(
                ScaleStatefulSet(one.name, one.resource_version, one.replicas, one.replicas - 1),
                f"the cluster is deleted: {view.pod_name(one.name, one.replicas - 1)} stops",
                operation=operations.progressed(world, operation),
            )
    if world.pods:
        names = ", ".join(sorted(one.name for one in world.pods)[:5])
        late = operations.overdue(world, operation, _BOOKIES_SECONDS)
        remedy = "; if its node is lost, taint it node.kubernetes.io/out-of-service or delete it" if late else ""
        return operations.wait(operation, "Stopping", f"waits for {names} to stop{remedy}", stalled=late)
    following = delete_data.DELETE_CLAIMS if delete_data.goes(world, operation) else RELEASE
    return Record(operations.stepped(world, operation, following), "all bookies have stopped")
