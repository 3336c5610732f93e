"""The creation of a cluster: metadata, then StatefulSets.

A StatefulSet that vanished is made again. A cluster that was deleted with its volumes retained is taken over: by its
name, its instance id and its claims.

Invariants
- Claims of another cluster, or of an unknown one, are never taken over silently: `bootstrap.mode: Adopt` asks for it.
- The metadata are made by an idempotent Job, once; nothing here formats what is there.
- A metadata root belongs to one resource: what is made has its UID as instance id, and a root that has another one is
  never joined unless `bootstrap.instanceId` names it.
- A StatefulSet that is missing while pods or claims of it live gets as many replicas as they are, never those of a new
  cluster.
- Where a cluster is taken over the metadata are never made: what the bookies find there must have the instance id of
  the volumes, or all stops. Nothing starts while more bookies' volumes are missing than a ledger can bear. It starts
  with the bookies that there were; `spec.replicas` counts afterwards.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import gates, operations, view
from bookie_operator.planner.actions import AdoptClaim, ApplyObjects, CreateStatefulSet, DeleteObject, RecordState
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Wait
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.planner.flows import support
from bookie_operator.world.model import ClaimView, World

JOB_RETRY_SECONDS: Final = 300.0


def foreign_claims(world: World) -> Wait | None:
    """Volumes of this name are there before the cluster was made: nothing is touched."""
    if view.adopts(world) or not view.is_new(world):
        return None
    own = world.cluster.status.instance_id
    foreign = [one for one in view.claims(world) if not one.instance_id or one.instance_id != own]
    if not foreign:
        return None
    ids = sorted({one.instance_id or "unknown" for one in foreign})
    return Wait(
        "AdoptRequired",
        f"{len(foreign)} claims such as {foreign[0].name} hold data of another cluster (instance id "
        f"{', '.join(ids[:3])}): set spec.bootstrap.mode to Adopt to take them over, with Helm also "
        "after `helm uninstall --wait`, or delete the claims if their data are not needed",
        seconds=30.0,
        stalled=True,
    )


def adopted_claims(world: World, desired: Desired) -> Act | None:
    """A claim that a person gave to this cluster gets its labels, without which nothing looks after it."""
    for claim in view.claims(world):
        # Bookies that are taken over in place get their labels from the takeover, and lose them when it is undone.
        restored = view.adopts(world) and world.cluster.spec.bootstrap.in_place is None and not claim.instance_id
        asked = claim.adoption or restored
        wanted = claim.foreign and asked and claim.mounted
        if wanted and not claim.deleting and world.cluster.status.instance_id:
            asks = "its annotation podkeeper.dev/adopt" if claim.adoption else "bootstrap.mode Adopt"
            return Act(
                AdoptClaim(claim.name, claim.uid),
                f"claim {claim.name} is taken over, as {asks} asks",
                event=Event("ClaimAdopted", f"claim {claim.name} belongs to {claim.bookie} from now on"),
            )
    return None


def unadopted(world: World, desired: Desired) -> Wait | None:
    """A bookie uses a claim of another owner: it grows with nothing, and goes with nothing. Or a claim that no bookie
    mounts was to be adopted."""
    for name in view.expected_pods(world):
        if (why := gates.claims_own(world, name)) is not None:
            return Wait(why.reason, why.message, seconds=30.0, stalled=True)
    for claim in view.claims(world):
        if claim.adoption and claim.foreign and not claim.mounted:
            message = f"claim {claim.name} cannot be adopted: spec has no bookie that mounts it; remove its annotation"
            return Wait("AdoptionRefused", f"{message} podkeeper.dev/adopt", seconds=30.0, stalled=True)
    return None


def metadata(world: World, desired: Desired) -> Decision | None:
    """The cluster in the metadata service: made once, and its instance id recorded before any claim is labelled."""
    if world.cluster.status.instance_id:
        return None
    made = view.is_new(world) and world.metadata_job
    if made and (outdated := _outdated_job(world, desired)) is not None:
        return outdated
    found = view.instance_id(world)
    if found and found not in (world.cluster.uid, world.cluster.spec.bootstrap.instance_id):
        return _taken_root(world, found)
    if found:
        return Act(RecordState(instance_id=found), f"the cluster's instance id is {found}")
    if not view.is_new(world) or world.metadata_job == "Complete":
        return None
    if world.metadata_job == "":
        return Act(ApplyObjects((desired.metadata_job,)), "the cluster is not in the metadata service yet")
    if world.metadata_job == "Failed":
        return _failed_job(world, desired)
    problem = f": {world.metadata_job_message}" if world.metadata_job_message else ""
    return Wait(
        "Creating",
        f"waits for {desired.metadata_job} to make the cluster in the metadata service{problem}",
        seconds=2.0,
    )


def _taken_root(world: World, found: str) -> Wait:
    """Report a root that another cluster uses.

    Two clusters that share a root store each other's ledgers: the deletion of one destroys those of the other.
    """
    root = world.cluster.spec.metadata_service.root_path
    return Wait(
        "RootTaken",
        f"the metadata service has another cluster below {root}, with instance id {found}: nothing is made. Give "
        "this one a root of its own by spec.metadataService.rootPath; if that cluster is gone for good, remove what is "
        "left of it with `bookie cluster nuke`, and delete Job "
        f"{world.cluster.name}-metadata-init; to add bookies to that cluster on purpose set "
        f"spec.bootstrap.instanceId to {found}",
        seconds=30.0,
        stalled=True,
    )


def _outdated_job(world: World, desired: Desired) -> Act | None:
    """Delete a Job of an earlier `spec`, while the cluster is not recorded.

    No Job takes another image or configuration, and what it found may be another metadata service's.
    """
    uid, made_of = world.object_uids.get(desired.metadata_job), world.object_hashes.get(desired.metadata_job)
    if uid is None or not made_of or made_of == desired.metadata_job_hash:
        return None
    return Act(
        DeleteObject(desired.metadata_job, uid),
        f"{desired.metadata_job} is not what spec asks for by now: it is made again",
    )


def _failed_job(world: World, desired: Desired) -> Decision:
    finished = world.metadata_job_finished_at
    uid = world.object_uids.get(desired.metadata_job)
    told = world.metadata_job_message or "its pod's log says why"
    if finished is not None and uid is not None and world.now - finished >= JOB_RETRY_SECONDS:
        return Act(
            DeleteObject(desired.metadata_job, uid),
            f"{desired.metadata_job} failed ({told}): it is tried again",
            event=Event("MetadataInitRetried", f"{desired.metadata_job} failed: {told}", EventType.WARNING),
        )
    return Wait(
        "MetadataInitFailed",
        f"{desired.metadata_job} failed: {told}. Is spec.metadataService.uri right, and does it answer? The Job is "
        f"made again after {JOB_RETRY_SECONDS:.0f} s, or at once when you delete it",
        seconds=30.0,
        stalled=True,
    )


def stateful_sets(world: World, desired: Desired) -> Decision | None:
    """Return the first that is missing."""
    for wanted in desired.stateful_sets:
        if view.stateful_set(world, wanted.name) is None:
            if f"StatefulSet/{wanted.name}" in world.taken:
                return support.names_taken(world, desired)
            return _given_back(world, wanted) or _missing(world, desired, wanted)
    return None


def _given_back(world: World, wanted: DesiredStatefulSet) -> Wait | None:
    """The former owner's StatefulSet may be away only for a moment: nothing takes its bookies over unasked."""
    claims = view.given_back(world)
    if not claims:
        return None
    name = world.cluster.name
    return _stalled(
        "AdoptRequired",
        f"StatefulSet {wanted.name} is not made: claim {claims[0]} does not have the labels of this cluster, so its "
        f"bookie belongs to the owner that it had before. To take it over, run `kubectl bookie migrate run {name} "
        f"--in-place`, or `kubectl bookie adopt {name} {' '.join(claims[:3])}` if the old StatefulSet is gone for good",
    )


def _missing(world: World, desired: Desired, wanted: DesiredStatefulSet) -> Act:
    alive = live_replicas(world, wanted.name)
    if alive == 0:
        number = _first_replicas(world, desired, wanted)
        return Act(
            CreateStatefulSet(wanted.name, number),
            f"StatefulSet {wanted.name} is made with {number} bookies",
            event=Event("StatefulSetCreated", f"StatefulSet {wanted.name} with {number} bookies"),
        )
    return Act(
        CreateStatefulSet(wanted.name, alive),
        f"StatefulSet {wanted.name} is missing although bookies of it live: it is made again with {alive}",
        event=Event(
            "StatefulSetRecreated",
            f"StatefulSet {wanted.name} was missing; it takes its {alive} bookies over again",
            EventType.WARNING,
        ),
    )


def live_replicas(world: World, name: str) -> int:
    """Replicas that a StatefulSet needs to keep everything that lives of it: the highest ordinal and one; 0: nothing.

    What the operator recorded counts too: a bookie that lost both pod and volumes is still one. Claims count only
    where nothing is recorded: those of a bookie that was just taken out are still there.
    """
    pods = [one.ordinal for one in world.pods if one.stateful_set == name and not one.deleting]
    recorded = operations.least_replicas(world.cluster.status, name)
    if not recorded:
        pods += [
            view.ordinal_of(one.bookie)
            for one in view.claims(world)
            if view.set_of(one.bookie) == name and not one.retired and not one.deleting
        ]
    return max([recorded, *(ordinal + 1 for ordinal in pods)])


def _first_replicas(world: World, desired: Desired, wanted: DesiredStatefulSet) -> int:
    """All of them, unless something of an earlier bookie has to be cleared away first, or those that could tell do not:
    that is scaling up. Where no pod is there that could, a bookie that finds a cookie of its name does not start."""
    ids = {desired.bookie_id(view.pod_name(wanted.name, ordinal)) for ordinal in range(wanted.replicas)}
    leftover = any(view.set_of(one.bookie) == wanted.name for one in view.claims(world))
    if world.facts is None:
        return 0 if leftover or any(pod.ready for pod in world.pods) else wanted.replicas
    return 0 if leftover or ids & world.facts.cookies else wanted.replicas


def adopt(world: World, desired: Desired) -> Decision | None:
    """Take a cluster over until the instance id is recorded; from then on the StatefulSets are made as if they had
    vanished."""
    if not view.adopts(world) or world.cluster.status.instance_id:
        return None
    wanted, refused = _instance_id(world)
    refused = refused or _claims_refused(world, desired, wanted)
    if refused is not None:
        return refused
    return Act(
        RecordState(instance_id=wanted),
        f"the cluster with instance id {wanted} is taken over",
        event=Event("Adopted", f"volumes and metadata of the cluster with instance id {wanted} are taken over"),
    )


def _instance_id(world: World) -> tuple[str, Wait | None]:
    asked = world.cluster.spec.bootstrap.instance_id
    kept = (world.identity or {}).get("instanceId", "")
    if asked and kept and asked != kept:
        return "", _stalled(
            "AdoptMismatch",
            f"bootstrap.instanceId is {asked}, the identity Secret of this name says {kept}: apply the right one",
        )
    if not asked and not kept:
        return "", _stalled(
            "AdoptUnknown",
            "there is no identity Secret of this name: tell bootstrap.instanceId, as the metadata service has it",
        )
    return asked or kept, None


def _claims_refused(world: World, desired: Desired, wanted: str) -> Wait | None:
    live = [one for one in view.claims(world) if not one.retired and not one.deleting]
    foreign = [one for one in live if one.instance_id and one.instance_id != wanted]
    if foreign:
        return _stalled(
            "AdoptMismatch",
            f"claim {foreign[0].name} is of the cluster with instance id {foreign[0].instance_id}, not {wanted}: "
            "tell the right bootstrap.instanceId, or delete the claims that do not belong to it",
        )
    whole = _whole_bookies(live)
    known = (world.identity or {}).get("replicas", "")
    before = int(known) if known.isdigit() else world.cluster.spec.replicas
    least = before - (world.cluster.spec.durability.write_quorum - 1)
    if len(whole) < max(1, least):
        return _stalled(
            "AdoptIncomplete",
            f"volumes of {len(whole)} of {before} bookies are there, and at least {max(1, least)} have to be: restore "
            f"the claims of {_named(desired, whole)}",
        )
    return None


def _whole_bookies(live: list[ClaimView]) -> set[str]:
    """Bookies of which journal and ledger volumes are there."""
    kinds: dict[str, set[str]] = {}
    for one in live:
        if not one.lost:
            kinds.setdefault(one.bookie, set()).add(one.volume)
    return {bookie for bookie, volumes in kinds.items() if {"journal", "ledger"} <= volumes}


def _named(desired: Desired, whole: set[str]) -> str:
    pods = [view.pod_name(one.name, n) for one in desired.stateful_sets for n in range(one.replicas)]
    missing = [pod for pod in pods if pod not in whole]
    return ", ".join(missing[:5]) or "the others"


def _stalled(reason: str, message: str) -> Wait:
    return Wait(reason, message, seconds=30.0, stalled=True)
