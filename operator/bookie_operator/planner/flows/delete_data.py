"""The end of a cluster that is deleted with its data: claims, metadata, identity.

Invariants
- Asked for twice: recorded when the deletion began, and still so in `spec` and annotation at each claim.
- Claims of another instance id, and those that appeared later, stay.
- Nothing goes while bookies that are none of this cluster's have cookies in the same metadata: ledgers of theirs may
  have copies here. Nobody who could tell is needed where the root was made for this very resource.
- The metadata are cleaned up as well as it goes within five minutes: a service that is gone holds nobody up.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import MetadataServiceKind, WhenDeleted
from bookie_operator.crds.cluster_status import Operation
from bookie_operator.planner import operations
from bookie_operator.planner.actions import DeleteClaim, DeleteObject, DestroyMetadata
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Record
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import ClaimView, World

DELETE_CLAIMS: Final = "DeleteClaims"
DESTROY_METADATA: Final = "DestroyMetadata"
DELETE_IDENTITY: Final = "DeleteIdentity"

METADATA_SECONDS: Final = 300.0
_METADATA_VOLUME: Final = "metadata"
_CLAIMS_KEY: Final = "claims/"
_PER_KEY: Final = 400
"""UIDs in one saved value, which may have 16384 characters."""


def confirmed(world: World) -> bool:
    return world.cluster.annotations.get(names.CONFIRM_DELETE) == world.cluster.name


def shared(world: World, desired: Desired) -> str:
    """Why its data may be others' too; empty: they are its own."""
    keep = "set spec.storage.retention.whenDeleted to Retain to delete the resource and keep the volumes"
    sets = {f"StatefulSet/{one.name}" for one in desired.stateful_sets}
    if given_back := sorted(sets & world.taken.keys() - world.outlived):
        return f"{given_back[0]} is somebody else's, and its bookies use the same metadata: {keep}"
    if world.facts is None:
        if world.cluster.status.instance_id == world.cluster.uid:
            return ""
        return f"nobody can tell whether other bookies use its metadata: bring one of its bookies up, or {keep}"
    present = world.facts.cookies | world.facts.registered
    others = sorted(one for one in present if not one.endswith(desired.bookie_id_suffix))
    if not others:
        return ""
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (
        f"{shown} use the same metadata ({world.cluster.spec.metadata_service.root_path}), and ledgers of theirs may "
        f"have copies here: take these bookies out first (`bookie cluster decommission`), or {keep}"
    )


def recorded(world: World) -> dict[str, str]:
    """To be saved when the deletion begins: that data go, and which claims."""
    uids = sorted(one.uid for one in world.claims if own(world, one))
    chunks = [uids[at : at + _PER_KEY] for at in range(0, len(uids), _PER_KEY)] or [[]]
    return {f"{_CLAIMS_KEY}{number}": ",".join(chunk) for number, chunk in enumerate(chunks)}


def own(world: World, claim: ClaimView) -> bool:
    """Whether it goes with this cluster."""
    own = world.cluster.status.instance_id
    return claim.volume == _METADATA_VOLUME or (bool(own) and claim.instance_id == own)


def goes(world: World, operation: Operation) -> bool:
    """Whether data are to be deleted: recorded so, and still wanted."""
    wanted = world.cluster.spec.storage.retention.when_deleted is WhenDeleted.DELETE
    return (
        bool(world.cluster.status.instance_id)
        and wanted
        and confirmed(world)
        and any(key.startswith(_CLAIMS_KEY) for key in operation.saved)
    )


def proceed(world: World, operation: Operation, last: str) -> Decision:
    if operation.step != DELETE_IDENTITY and not goes(world, operation):
        return Record(operations.stepped(world, operation, last), "data are kept after all: spec or annotation changed")
    match operation.step:
        case "DeleteClaims":
            return _delete_claims(world, operation)
        case "DestroyMetadata":
            return _destroy_metadata(world, operation)
        case _:
            return _delete_identity(world, operation, last)


def _delete_claims(world: World, operation: Operation) -> Decision:
    uids = {uid for key, text in operation.saved.items() if key.startswith(_CLAIMS_KEY) for uid in text.split(",")}
    for claim in sorted(world.claims, key=lambda one: one.name):
        if claim.uid in uids and own(world, claim) and not claim.deleting and claim.volume != _METADATA_VOLUME:
            return Act(
                DeleteClaim(claim.name, claim.uid, None),
                f"the cluster is deleted with its data, as {names.CONFIRM_DELETE} confirms: claim {claim.name}",
                operation=operations.progressed(world, operation),
            )
    return Record(operations.stepped(world, operation, DESTROY_METADATA), "no claims of the cluster are left")


def _destroy_metadata(world: World, operation: Operation) -> Decision:
    following = operations.stepped(world, operation, DELETE_IDENTITY)
    if world.cluster.spec.metadata_service.type is MetadataServiceKind.EMBEDDED:
        return Record(following, "the embedded metadata service goes with the cluster")
    if world.cleanup_job == "Complete":
        return Record(following, "the cluster's metadata are removed")
    if world.cleanup_job == "Failed" or operations.overdue(world, operation, METADATA_SECONDS):
        message = (
            f"metadata below {world.cluster.spec.metadata_service.root_path} could not be removed: "
            "`bookie cluster nuke` does it by hand"
        )
        return Record(following, message, event=Event("MetadataNotRemoved", message, EventType.WARNING))
    if not world.cleanup_job:
        return Act(DestroyMetadata(), "the cluster is deleted with its data: its metadata go too")
    return operations.wait(operation, "Deleting", "waits for the metadata to be removed")


def _delete_identity(world: World, operation: Operation, last: str) -> Decision:
    for claim in world.claims:
        if claim.volume == _METADATA_VOLUME and not claim.deleting:
            return Act(DeleteClaim(claim.name, claim.uid, None), "the embedded metadata service's volume goes too")
    key = f"Secret/{world.cluster.name}-identity"
    uid = world.object_uids.get(key)
    if uid is not None:
        return Act(DeleteObject(key, uid), "nothing is left that the identity could belong to")
    return Record(operations.stepped(world, operation, last), "all data of the cluster are deleted")
