"""The cluster is deleted: bookies stop in good order; volumes and metadata stay, or go if that was confirmed.

Invariants
- Nothing is stopped before it is clear what happens to the data: `Delete` takes the confirming annotation, and that no
  bookies of another owner use the same metadata.
- Auto-recovery stops first: otherwise it would copy while bookies stop one after the other. Gateways stop with it: they
  close the ledgers that are written through them, for which bookies and metadata have to be there.
- A resource that never got an instance id deletes nothing: volumes, metadata and identity of its name are another's.
- Only claims go that bear this cluster's instance id and whose UIDs were recorded before the first bookie stopped; and
  only while `spec` and annotation still ask for it, at each claim.
- No volume is deleted while bookies of another cluster use the same metadata: their ledgers may have copies here. The
  facts are asked before anything stops and until the metadata are removed. The Job that removes them asks once more,
  and no volume is deleted before it has succeeded. If no pod can answer, or the service has another cluster or none,
  the deletion waits. Only the Job is asked where no bookie runs; one that served before, and crashes, counts too.
- Bookies of another owner are neither stopped nor waited for, and keep their metadata, also while none of them runs.
- A metadata service that is gone holds up only a deletion with volumes: without any left to delete, the metadata are
  removed within five minutes or left behind. `Retain` ends every wait.
- Before the metadata are removed no backup begins any more. Two minutes are waited for one that a node keeps from
  ending: it fails, because the removal marks the metadata first.

Steps: `Cancel` (of an operation that ran), `StopAutorecovery`, `StopBookies`, then for data that go `StopBackups`,
`DestroyMetadata`, `DeleteClaims`, `DeleteIdentity`; last `Release`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import operations, view
from bookie_operator.planner.actions import (
    DeleteClaim,
    DeleteObject,
    DeletePod,
    DestroyMetadata,
    ReleaseFinalizer,
    ScaleStatefulSet,
    UndoDrain,
)
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Finish, Needs, Record, Rest, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.run import Run, unknown_step
from bookie_operator.world.model import ClaimView, PodFault, World

CANCEL: Final = "Cancel"
STOP_AUTORECOVERY: Final = "StopAutorecovery"
STOP_BOOKIES: Final = "StopBookies"
STOP_BACKUPS: Final = "StopBackups"
RELEASE: Final = "Release"

_STOPPING: Final = frozenset({STOP_AUTORECOVERY, STOP_BOOKIES, STOP_BACKUPS})
_DRAINING: Final = frozenset({OperationType.DECOMMISSION, OperationType.REPLACE})
_UNDO_SECONDS: Final = 60.0
_AUTORECOVERY_SECONDS: Final = 120.0
_BOOKIES_SECONDS: Final = 900.0
_BACKUPS_SECONDS: Final = 120.0
_CRON_JOB: Final = "backups"
"""Key of `saved`: the UID of the CronJob whose deletion was asked for. `_BACKUPS_SECONDS` count from then."""
_BEFORE_BOOKIES: Final = {
    "autorecovery": "auto-recovery stops before the bookies: it would copy what they have",
    "gateway": "gateways stop before the bookies: they close the ledgers that are written through them",
}


def begin(world: World, desired: Desired) -> Decision:
    """Do the work of a pass while the cluster is being deleted."""
    if not world.cluster.has_finalizer:
        return Rest()
    if world.cluster.paused:
        return _blocked(world, "the cluster is paused: remove the annotation podkeeper.dev/paused to let it go on")
    operation = world.cluster.status.operation
    if operation is not None and operation.type is OperationType.DELETE:
        return proceed(world, desired, operation)
    if _wants_data_gone(world) and not confirmed(world):
        return _blocked(
            world,
            "spec.storage.retention.whenDeleted is Delete: set the annotation podkeeper.dev/confirm-delete to "
            f"{world.cluster.name} to delete all data, or whenDeleted to Retain to keep them; nothing was stopped yet",
        )
    if _wants_data_gone(world) and (why := shared(world, desired)):
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
    """End whatever ran; a bookie that was being drained and stays is no longer read-only, if that can be asked in
    time."""
    if operation.type in _DRAINING and _stays(world, operation.bookie):
        if operation.step != CANCEL:
            return Record(operations.stepped(world, operation, CANCEL), f"{operation.id} ends: the cluster is deleted")
        if "undone" not in operation.saved and not operations.overdue(world, operation, _UNDO_SECONDS):
            if world.facts is None:
                why = f"waits until {operation.bookie} can be given back: {world.facts_error or 'no pod answers'}"
                return operations.wait(operation, "Stopping", why, seconds=2.0)
            undone = operations.stepped(world, operation, CANCEL, saved={"undone": "true"})
            bookie_id = desired.bookie_id(operation.bookie)
            return Act(UndoDrain(bookie_id), f"{operation.bookie} is not taken out any more", operation=undone)
    return Finish(operation, "Cancelled", "the cluster is deleted")


def _stays(world: World, bookie: str) -> bool:
    return bookie in set(view.expected_pods(world))


def _record(world: World) -> Record:
    saved = recorded(world) if _wants_data_gone(world) else {}
    kept = "deleted with them" if saved else "kept"
    operation = operations.new(world, OperationType.DELETE, STOP_AUTORECOVERY, saved=saved)
    message = f"the cluster stops; its volumes and metadata are {kept}"
    return Record(operation, message, event=Event("Deleting", message))


def needs(operation: Operation, desired: Desired) -> Needs:
    return Needs()


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    asked = operation.step in _STOPPING or (operation.step == DESTROY_METADATA and world.cleanup_job != "Complete")
    if asked and goes(world, operation) and (why := shared(world, desired)):
        return operations.wait(operation, "DeletionBlocked", why, seconds=30.0, stalled=True)
    match operation.step:
        case "StopAutorecovery":
            return _stop_autorecovery(world, operation)
        case "StopBookies":
            return _stop_bookies(world, operation)
        case "Release":
            why = "the cluster has stopped; nothing of it needs the operator any more"
            return Act(ReleaseFinalizer(), why, event=_claims_left(world, operation))
        case "StopBackups" | "DestroyMetadata" | "DeleteClaims" | "DeleteIdentity" if not goes(world, operation):
            kept = "data are kept after all: spec or annotation changed"
            return Record(operations.stepped(world, operation, RELEASE), kept)
        case "StopBackups":
            return _stop_backups(world, operation)
        case "DeleteClaims":
            return _delete_claims(world, operation)
        case "DestroyMetadata":
            return _destroy_metadata(world, operation)
        case "DeleteIdentity":
            return _delete_identity(world, operation)
        case _:
            return unknown_step(Run(world, desired, operation))


def _stop_autorecovery(world: World, operation: Operation) -> Decision:
    """Stop auto-recovery and gateways: both are deleted, then both are waited for."""
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
    """Stop bookies by one replica a pass: each StatefulSet's controller stops the pods with their grace.

    A controller that has not seen the last change may still make a pod, and its claims with it. Pods that lost their
    StatefulSet have no controller: they are deleted.
    """
    for one in world.stateful_sets:
        if one.deleting:
            continue
        if not one.settled:
            return operations.wait(operation, "Stopping", f"waits for the controller of {one.name}", seconds=1.0)
        if one.replicas > 0:
            return Act(
                ScaleStatefulSet(one.name, one.resource_version, one.replicas, one.replicas - 1),
                f"the cluster is deleted: {view.pod_name(one.name, one.replicas - 1)} stops",
                operation=operations.progressed(world, operation),
            )
    own_pods = [one for one in world.pods if not _belongs_to_another(world, one.stateful_set)]
    for pod in reversed(own_pods):
        if not pod.owner_uid and not pod.deleting:
            return Act(
                DeletePod(pod.name, pod.uid),
                f"the cluster is deleted: {pod.name} stops, which has no StatefulSet any more",
                operation=operations.progressed(world, operation),
            )
    left = sorted(one.name for one in own_pods)
    if left:
        names = ", ".join(left[:5])
        late = operations.overdue(world, operation, _BOOKIES_SECONDS)
        remedy = "; if its node is lost, taint it node.kubernetes.io/out-of-service or delete it" if late else ""
        return operations.wait(operation, "Stopping", f"waits for {names} to stop{remedy}", stalled=late)
    following = STOP_BACKUPS if goes(world, operation) else RELEASE
    return Record(operations.stepped(world, operation, following), "all bookies have stopped")


def _stop_backups(world: World, operation: Operation) -> Decision:
    """Delete the CronJob, and with it its Jobs, then wait for these; for what stays, as long as `_BACKUPS_SECONDS`."""
    key = f"CronJob/{world.cluster.name}-backup"
    uid, is_asked = world.object_uids.get(key), _CRON_JOB in operation.saved
    late = (is_asked or uid is None) and operations.overdue(world, operation, _BACKUPS_SECONDS)
    if uid is not None and not late:
        asked = operation if is_asked else operations.progressed(world, operation, saved={_CRON_JOB: uid})
        why = "backups stop before the metadata go: nothing whole is left to back up"
        return Act(DeleteObject(key, uid), why, operation=asked)
    left = world.backup.at_work if world.backup is not None else ("those that the operator may not read",)
    if left and not late:
        return operations.wait(operation, "Stopping", f"waits for backups to stop: {', '.join(left[:5])}", seconds=2.0)
    return Record(operations.stepped(world, operation, DESTROY_METADATA), "no backup of the metadata begins any more")


DELETE_CLAIMS: Final = "DeleteClaims"
DESTROY_METADATA: Final = "DestroyMetadata"
DELETE_IDENTITY: Final = "DeleteIdentity"

METADATA_SECONDS: Final = 300.0
JOB_RETRY_SECONDS: Final = 300.0
_KEEP: Final = "set spec.storage.retention.whenDeleted to Retain to delete the resource and keep the volumes"
_METADATA_VOLUME: Final = "metadata"
_CLAIMS_KEY: Final = "claims/"
_REMOVED: Final = "metadata-removed"
_PER_KEY: Final = 400
"""UIDs in one saved value, which may have 16384 characters."""


def confirmed(world: World) -> bool:
    return world.cluster.annotations.get(names.CONFIRM_DELETE) == world.cluster.name


def shared(world: World, desired: Desired) -> str:
    """Return why other clusters may need its data; empty if they do not, or if no volume is left to delete.

    Bookies that were given back to another owner need it in any case: the volumes that they mount are theirs too.

    Once no bookie serves, no pod may be left that knows: then the Job that removes the metadata is asked.
    """
    if theirs := [one.name for one in desired.stateful_sets if _belongs_to_another(world, one.name)]:
        return f"StatefulSet/{theirs[0]} belongs to another owner, and its bookies use the same metadata: {_KEEP}"
    if given_back := view.given_back(world):
        return (
            f"claim {given_back[0]} was given back to another owner, whose bookies use the same metadata: delete the "
            f"claim if its data are not needed, or {_KEEP}"
        )
    if not _volumes_left(world):
        return ""
    if world.facts is None:
        waited = _who_may_tell(world)
        return _untold(world.facts_error or f"{waited[0]} does not reach the metadata service") if waited else ""
    if world.facts.instance_id != world.cluster.status.instance_id:
        found = f"cluster {world.facts.instance_id}" if world.facts.instance_id else "no cluster"
        return _untold(f"the metadata service has {found}, and not {world.cluster.status.instance_id}")
    present = world.facts.cookies | world.facts.registered
    others = sorted(one for one in present if not one.endswith(desired.bookie_id_suffix))
    if not others:
        return ""
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (
        f"{shown} use the same metadata ({world.cluster.spec.metadata_service.root_path}), and ledgers of theirs may "
        f"have copies here: take these bookies out first (`bookie cluster decommission`), or {_KEEP}"
    )


def _untold(why: str) -> str:
    return f"cannot tell whether other clusters use its metadata ({why}): bring the metadata service back, or {_KEEP}"


def _who_may_tell(world: World) -> list[str]:
    """Return the pods of bookies that run, or crash though they served before: they are asked before they are stopped,
    also those of a StatefulSet that is gone.

    They are not ready while the metadata service does not answer. Others that cannot start are not waited for.
    """
    served = bool(world.cluster.status.ledgers.last_audit)
    return [
        pod.name
        for pod in world.pods
        if pod.ready or (not pod.deleting and (pod.bookie_runs or (served and pod.fault is PodFault.CRASHING)))
    ]


def _belongs_to_another(world: World, stateful_set: str) -> bool:
    key = f"StatefulSet/{stateful_set}"
    return key in world.taken and key not in world.outlived


def _volumes_left(world: World) -> bool:
    return any(own(world, one) and not one.deleting for one in world.claims)


def recorded(world: World) -> dict[str, str]:
    """Return what is saved when the deletion begins: that data go, and which claims."""
    uids = sorted(one.uid for one in world.claims if own(world, one))
    chunks = [uids[at : at + _PER_KEY] for at in range(0, len(uids), _PER_KEY)] or [[]]
    return {f"{_CLAIMS_KEY}{number}": ",".join(chunk) for number, chunk in enumerate(chunks)}


def own(world: World, claim: ClaimView) -> bool:
    """Return whether the claim goes with this cluster."""
    own = world.cluster.status.instance_id
    if claim.foreign:
        return False
    return claim.volume == _METADATA_VOLUME or (bool(own) and claim.instance_id == own)


def goes(world: World, operation: Operation) -> bool:
    """Return whether data are to be deleted: recorded so, and still wanted."""
    wanted = world.cluster.spec.storage.retention.when_deleted is WhenDeleted.DELETE
    return (
        bool(world.cluster.status.instance_id)
        and wanted
        and confirmed(world)
        and any(key.startswith(_CLAIMS_KEY) for key in operation.saved)
    )


def _delete_claims(world: World, operation: Operation) -> Decision:
    if world.cleanup_job != "Complete" and _REMOVED not in operation.saved and _volumes_left(world):
        # An earlier release deleted claims first, and its operation may have been under way when this one came.
        return Record(operations.stepped(world, operation, DESTROY_METADATA), "the cluster's metadata go first")
    for claim in _left(world, operation):
        if claim.volume != _METADATA_VOLUME:
            return Act(
                DeleteClaim(claim.name, claim.uid, None),
                f"the cluster is deleted with its data, as {names.CONFIRM_DELETE} confirms: claim {claim.name}",
                operation=operations.progressed(world, operation),
            )
    return Record(operations.stepped(world, operation, DELETE_IDENTITY), "all claims of the cluster are deleted")


def _left(world: World, operation: Operation) -> list[ClaimView]:
    """Return the claims that were recorded and have to be deleted."""
    uids = {uid for key, text in operation.saved.items() if key.startswith(_CLAIMS_KEY) for uid in text.split(",")}
    found = (one for one in world.claims if one.uid in uids and own(world, one) and not one.deleting)
    return sorted(found, key=lambda one: one.name)


def _claims_left(world: World, operation: Operation) -> Event | None:
    """Name the claims that were created while the cluster was deleted with its data: they keep the next cluster of
    this name from its volumes."""
    left = sorted(one.name for one in world.claims if own(world, one) and not one.deleting)
    if not left or not goes(world, operation):
        return None
    names = ", ".join(left[:5])
    words = f"claims were created while {world.cluster.name} was deleted, and are kept: {names}; no cluster takes them"
    return Event("ClaimsLeft", words, EventType.WARNING)


def _destroy_metadata(world: World, operation: Operation) -> Decision:
    following = operations.stepped(world, operation, DELETE_CLAIMS)
    if world.cleanup_job == "Complete":
        # For good: a Job that is gone, or run again, finds no cluster and fails.
        removed = operations.stepped(world, operation, DELETE_CLAIMS, saved={_REMOVED: "yes"})
        return Record(removed, "the cluster's metadata are removed")
    late = world.cleanup_job == "Failed" or operations.overdue(world, operation, METADATA_SECONDS)
    if late and not _volumes_left(world):
        message = (
            f"metadata below {world.cluster.spec.metadata_service.root_path} could not be removed: "
            "`bookie cluster nuke` does it by hand"
        )
        return Record(following, message, event=Event("MetadataNotRemoved", message, EventType.WARNING))
    if not world.cleanup_job:
        return Act(DestroyMetadata(), "the cluster is deleted with its data: its metadata go first")
    if world.cleanup_job == "Failed" and (again := _ask_again(world)) is not None:
        return again
    if not late:
        return operations.wait(operation, "Deleting", "waits for the metadata to be removed")
    told = world.cleanup_job_message or "the log of its pod says why"
    message = (
        f"no volume is deleted before the cluster's metadata are removed, and Job {_cleanup_name(world)} did not do "
        f"that ({told}): if bookies of another cluster use the same metadata take them out first, or {_KEEP}"
    )
    return operations.wait(operation, "DeletionBlocked", message, seconds=30.0, stalled=True)


def _ask_again(world: World) -> Act | None:
    """Delete the failed Job after a while, so that it is made again."""
    name, finished = _cleanup_name(world), world.cleanup_job_finished_at
    uid = world.object_uids.get(f"Job/{name}")
    if finished is None or uid is None or world.now - finished < JOB_RETRY_SECONDS:
        return None
    return Act(DeleteObject(f"Job/{name}", uid), f"Job {name} failed: it is tried again")


def _cleanup_name(world: World) -> str:
    return f"{world.cluster.name}-metadata-destroy"


def _delete_identity(world: World, operation: Operation) -> Decision:
    for claim in _left(world, operation):
        if claim.volume == _METADATA_VOLUME:
            return Act(DeleteClaim(claim.name, claim.uid, None), "the embedded metadata service's volume goes too")
    key = f"Secret/{world.cluster.name}-identity"
    uid = world.object_uids.get(key)
    if uid is not None:
        return Act(DeleteObject(key, uid), "nothing is left that the identity could belong to")
    return Record(operations.stepped(world, operation, RELEASE), "all data of the cluster are deleted")
