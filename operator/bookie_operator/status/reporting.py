"""The whole status of a pass, with its numbers, and how it is written: on change only, by server-side apply.

Invariants
- The status says what the pass found, and the operation as it is after the pass. A pass over an unchanged cluster
  makes the status that it read, and writes nothing.
- An unknown value stays as it was last known where it is a count of bookies, and is absent where it is a fact about
  ledgers.
- Percentages move in steps, with hysteresis: a status does not change because a disk breathes.
- It is written for the resource version that the plan was made for: an operator that reads older things writes nothing.

Threads: pure functions, but for `write_status`, which belongs to the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, Final

from bookie_operator.api.kinds import CLUSTER
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.common import content_hash
from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import (
    BookieClusterStatus,
    BookieState,
    BookieStatus,
    CookieState,
    LedgersStatus,
    Operation,
    OperationType,
    RevisionStatus,
    StorageStatus,
    VersionStatus,
    VolumeStatus,
)
from bookie_operator.crds.model import MESSAGE_LENGTH, shortened
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.planner import view
from bookie_operator.planner.decision import Plan
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.operations import written
from bookie_operator.status import conditions
from bookie_operator.status.backups import backup_status
from bookie_operator.status.metadata_members import metadata_members
from bookie_operator.status.steps import stepped
from bookie_operator.world.facts import ClusterFacts
from bookie_operator.world.model import PodFault, PodView, World


def status_after(
    world: World, desired: Desired, plan: Plan, base: BookieClusterStatus, metadata_service_uri: str
) -> BookieClusterStatus:
    """`base`: the status with the operation, history and recorded replicas as they are after the pass. `desired`: as
    the plan was made for it."""
    before = world.cluster.status
    found = conditions.findings(world, desired, plan, base.operation)
    changes: dict[str, object] = {
        "observed_generation": world.cluster.generation,
        "conditions": conditions.dated(found, before.conditions, world.cluster.generation, written(world.now)),
        **replicas(world, desired, before),
        "metadata_service_uri": metadata_service_uri,
        "version": version(world, desired, before.version),
        "revision": revision(world, desired),
        "ledgers": ledgers(world.facts, before.ledgers),
        "storage": storage(world),
        "metadata_members": metadata_members(world, desired),
        "backup": backup_status(world),
        "bookies": bookies(world, desired, before.bookies, base.operation),
    }
    return base.model_copy(update=changes)


def unreadable(
    status: BookieClusterStatus, generation: int, errors: tuple[str, ...], now: float
) -> BookieClusterStatus:
    """The status of a cluster whose spec cannot be read at all: what was known stays."""
    words = "; ".join(errors)
    found = [
        conditions.Finding("Ready", conditions.FALSE, "Blocked", words),
        conditions.Finding("Reconciling", conditions.FALSE, "Stalled"),
        conditions.Finding("Stalled", conditions.TRUE, "InvalidSpec", words),
        conditions.Finding("SpecValid", conditions.FALSE, "InvalidSpec", words),
    ]
    known = {each.type for each in found}
    dated = conditions.dated(found, status.conditions, generation, written(now))
    kept = [each for each in status.conditions if each.type not in known]
    return status.model_copy(update={"observed_generation": generation, "conditions": [*dated, *kept]})


async def tell_unreadable_status(kubernetes: Kubernetes, resource: Mapping[str, Any], words: str, now: float) -> bool:
    """Write the conditions alone, since the rest cannot be understood; return whether anything had to be written."""
    before = list((resource.get("status") or {}).get("conditions") or ())
    told = [
        {
            "type": kind,
            "status": status,
            "reason": "UnreadableStatus",
            "message": words[:MESSAGE_LENGTH],
            "observedGeneration": resource["metadata"].get("generation", 0),
            "lastTransitionTime": written(now),
        }
        for kind, status in (("Ready", conditions.FALSE), ("Stalled", conditions.TRUE))
    ]
    known = {(each.get("type"), each.get("status"), each.get("message")) for each in before}
    if all((each["type"], each["status"], each["message"]) in known for each in told):
        return False
    kept = [each for each in before if each.get("type") not in ("Ready", "Stalled")]
    metadata = resource["metadata"]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"conditions": [*told, *kept]}}
    await kubernetes.merge(CLUSTER, metadata["namespace"], metadata["name"], patch, "status")
    return True


def body(status: BookieClusterStatus) -> dict[str, Any]:
    """Return the status as it is in the resource."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


async def write_status(
    kubernetes: Kubernetes,
    metadata: Mapping[str, Any],
    before: BookieClusterStatus,
    after: BookieClusterStatus,
    vital: Collection[str] = (),
) -> frozenset[str] | None:
    """None: nothing had to be written; else the fields that the definition lacks. `metadata`: of the resource as it was
    read.

    Raises Conflict: the resource is not what the plan was made for; and Undeclared: nothing was written, because the
    definition lacks one of the fields that are `vital`.
    """
    if after == before:
        return None
    named = {key: metadata[key] for key in ("name", "namespace", "resourceVersion")}
    return await kubernetes.apply_status(
        {"apiVersion": CLUSTER.api_version, "kind": CLUSTER.kind, "metadata": named, "status": body(after)},
        vital,
    )


_MESSAGES: Final = 100_000
"""Characters of the messages of all bookies: etcd takes 1.5 MiB, of which everything else needs its share."""
_SHORTEST: Final = 60
_LOST: Final = frozenset({PodFault.COOKIE, PodFault.VOLUME})
_DRAINS: Final = frozenset({OperationType.DECOMMISSION, OperationType.REPLACE})


def pods_of(world: World, desired: Desired) -> list[str]:
    """Names of the pods that there are or should be, StatefulSet by StatefulSet in the order of their ordinals."""
    expected = set(view.expected_pods(world)) | {pod.name for pod in world.pods}
    expected |= {
        view.pod_name(one.name, ordinal) for one in desired.stateful_sets for ordinal in range(min(one.replicas, 1000))
    }
    return sorted(expected, key=lambda name: (view.set_of(name), view.ordinal_of(name)))


def is_updated(desired: Desired, pod: PodView) -> bool:
    return any(one.name == pod.stateful_set and one.template_hash == pod.template_hash for one in desired.stateful_sets)


def replicas(world: World, desired: Desired, before: BookieClusterStatus) -> dict[str, object]:
    """Fields of the status."""
    serving = [pod for pod in world.pods if pod.ready and not pod.deleting]
    writable = before.writable_replicas
    if world.facts is not None:
        writable = sum(desired.bookie_id(pod.name) in world.facts.writable for pod in world.pods)
    return {
        "replicas": len(world.pods),
        "ready_replicas": len(serving),
        "updated_replicas": sum(is_updated(desired, pod) for pod in world.pods),
        "writable_replicas": writable,
        "selector": ",".join(
            (f"{names.NAME}=podkeeper", f"{names.INSTANCE}={world.cluster.name}", f"{names.COMPONENT}=bookie")
        ),
    }


def version(world: World, desired: Desired, before: VersionStatus) -> VersionStatus:
    """`current` is what all pods were made of; while a roll to the same version is under way it stays."""
    target = world.cluster.spec.version
    updated = [is_updated(desired, pod) for pod in world.pods]
    if not updated or all(updated):
        current = target if updated else ""
    elif any(updated):
        current = before.current if before.current == target else ""
    else:
        current = before.current
    return VersionStatus(current=current, target=target)


def revision(world: World, desired: Desired) -> RevisionStatus:
    """Return the revision by StatefulSets and their pods."""
    wanted = {one.name: one.template_hash for one in desired.stateful_sets}
    current: dict[str, set[str]] = {}
    for pod in world.pods:
        current.setdefault(pod.stateful_set, set()).add(pod.template_hash)
    alike = all(len(hashes) == 1 for hashes in current.values())
    found = {name: "".join(hashes) for name, hashes in current.items()} if alike else {}
    return RevisionStatus(current=_together(found), update=_together(wanted))


def _together(hashes: Mapping[str, str]) -> str:
    """One hash of those of all StatefulSets; empty: there is none."""
    if len(hashes) < 2:
        return next(iter(hashes.values()), "")
    return content_hash(hashes)


def ledgers(facts: ClusterFacts | None, before: LedgersStatus) -> LedgersStatus:
    if facts is None:
        return LedgersStatus(last_audit=before.last_audit, auditor="")
    return LedgersStatus(
        under_replicated=facts.under_replicated,
        last_audit=written(facts.last_audit) if facts.last_audit is not None else "",
        auditor=facts.auditor or "",
        unrecoverable=facts.unrecoverable,
    )


def storage(world: World) -> StorageStatus:
    wanted = world.cluster.spec.storage
    sizes = {
        "journal": wanted.journal.size,
        "ledger": wanted.ledger.size,
        "index": wanted.index.size if wanted.index is not None else "",
    }
    return StorageStatus(
        **{kind: VolumeStatus(requested=size, smallest_actual=_smallest(world, kind)) for kind, size in sizes.items()},
        shared_by=_sharing(world),
    )


def _sharing(world: World) -> list[str]:
    """Return the bookies that share a file system. While one does not answer, those that were known count too."""
    told = {name: one.file_systems for name, one in world.bookies.items() if one is not None and one.file_systems}
    users = Counter(chain.from_iterable(told.values()))
    found = {name for name, each in told.items() if any(users[one] > 1 for one in each)}
    if len(told) < len(world.bookies):
        found |= set(world.cluster.status.storage.shared_by) & set(world.bookies)
    return sorted(found)


def _smallest(world: World, kind: str) -> str:
    found = [claim.actual for claim in world.claims if claim.volume == kind and not claim.retired]
    known = [(size, text) for text in found if (size := known_bytes(text)) is not None]
    return min(known)[1] if known and len(known) == len(found) else ""


def bookies(
    world: World, desired: Desired, before: list[BookieStatus], operation: Operation | None
) -> list[BookieStatus]:
    earlier = {each.name: each for each in before}
    faulty = sum(bool(pod.fault_message) for pod in world.pods)
    room = min(MESSAGE_LENGTH, max(_SHORTEST, _MESSAGES // max(1, faulty)))
    return [_bookie(world, desired, name, earlier.get(name), operation, room) for name in pods_of(world, desired)]


def _bookie(
    world: World, desired: Desired, name: str, before: BookieStatus | None, operation: Operation | None, room: int
) -> BookieStatus:
    """`room`: characters of its message."""
    pod = view.pod(world, name)
    bookie_id = desired.bookie_id(name)
    leaving = operation is not None and operation.bookie == name and operation.type in _DRAINS
    drain = world.drains.get(bookie_id)
    facts = world.bookies.get(name)
    zone = next((one.zone for one in desired.stateful_sets if one.name == view.set_of(name)), pod.zone if pod else "")
    state = _state(world, bookie_id, pod, leaving=leaving)
    unchanged = before is not None and before.state is state and before.since
    return BookieStatus(
        name=name,
        ordinal=view.ordinal_of(name),
        zone=zone,
        bookie_id=bookie_id,
        state=state,
        since=before.since if before is not None and unchanged else written(world.now),
        cookie=_cookie(world, bookie_id, pod),
        pod_uid=pod.uid if pod else "",
        template_hash=pod.template_hash if pod else "",
        disk_used_percent=stepped(facts.used_percent if facts else None, before.disk_used_percent if before else None),
        ledgers_remaining=drain.ledgers_left if leaving and drain is not None else None,
        message=shortened(pod.fault_message, room) if pod else "",
    )


def _state(world: World, bookie_id: str, pod: PodView | None, *, leaving: bool) -> BookieState:
    if pod is not None and pod.fault in _LOST and not pod.ready:
        return BookieState.LOST
    if world.facts is None:
        return BookieState.UNKNOWN
    if bookie_id in world.facts.registered:
        if leaving:
            return BookieState.DRAINING
        return BookieState.WRITABLE if bookie_id in world.facts.writable else BookieState.READ_ONLY
    if pod is None or pod.deleting:
        return BookieState.STOPPED if bookie_id in world.facts.cookies else BookieState.PENDING
    return BookieState.PENDING


def _cookie(world: World, bookie_id: str, pod: PodView | None) -> CookieState | None:
    """A bookie registers only after it has compared its cookie."""
    if pod is not None and pod.fault is PodFault.COOKIE and not pod.ready:
        return CookieState.MISMATCH
    if world.facts is None:
        return None
    if bookie_id not in world.facts.cookies:
        return CookieState.MISSING
    return CookieState.MATCH if bookie_id in world.facts.registered else None
