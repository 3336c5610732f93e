"""Claims and storage classes as the planner sees them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bookie_operator.builders import common, in_place, naming
from bookie_operator.builders.claims import volume_kinds
from bookie_operator.crds import names
from bookie_operator.observe.times import condition, seconds
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import AttributesView, ClaimView, ClusterView, ModifyState, ResizeState

_NAME: Final = re.compile(r"(?:(?P<volume>journal|ledger|index)-\d+|data)-(?P<pod>.+-\d+)")
VOLUME_KINDS: Final = frozenset({naming.JOURNAL, naming.LEDGER, naming.INDEX})
_HOST_NAME: Final = "kubernetes.io/hostname"
_PROTECTION: Final = "kubernetes.io/pvc-protection"
"""Kubernetes' own finalizer, which ends with the pods that use the claim."""


def claim_view(obj: Mapping[str, Any], cluster: ClusterView) -> ClaimView | None:
    """Return what the claim is to the cluster, or None if its name is not that of a bookie's claim or of the embedded
    metadata service's. Its name makes it what it is, since Kubernetes mounts it by name, and its labels say whose."""
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    named, taken_over = _NAME.fullmatch(metadata["name"]), _taken_over(metadata["name"], cluster)
    if named is None and taken_over is None:
        return None
    if taken_over is not None:  # also where the name of its template is one of the operator's own
        pod, volume = taken_over
    elif named is not None:
        pod, volume = named["pod"], named["volume"] or labels.get(names.VOLUME, "")
    if not volume:
        return None
    phase = status.get("phase", "")
    resize, since, message = _resize(obj)
    return ClaimView(
        name=metadata["name"],
        uid=metadata["uid"],
        bookie=pod,
        ordinal=int(pod.rpartition("-")[2]),
        volume=volume,
        requested=spec["resources"]["requests"]["storage"],
        actual=(status.get("capacity") or {}).get("storage", "") if phase != "Pending" else "",
        bound=phase == "Bound",
        lost=phase == "Lost",
        deleting="deletionTimestamp" in metadata,
        instance_id=labels.get(names.INSTANCE_ID, ""),
        foreign=_is_foreign(labels, volume, cluster),
        adoption=annotations.get(names.ADOPT) == cluster.name,
        retired=names.RETIRED in labels,
        retired_proof=annotations.get(names.RETIRED, ""),
        storage_class=spec.get("storageClassName") or "",
        resize=resize,
        resize_since=since,
        message=message,
        deleting_since=seconds(metadata.get("deletionTimestamp")),
        finalizers=tuple(each for each in metadata.get("finalizers") or () if each != _PROTECTION),
        zone=labels.get(names.ZONE, ""),
        attributes=_attributes(obj),
    )


def _taken_over(name: str, cluster: ClusterView) -> tuple[str, str] | None:
    """Return the pod and the kind of volume of a bookie that was taken over in place, or None."""
    in_place = cluster.spec.bootstrap.in_place
    if in_place is None:
        return None
    pod = re.escape(naming.bookies(cluster.name))
    for kind, template in ((naming.JOURNAL, in_place.journal.claim), (naming.LEDGER, in_place.ledger.claim)):
        # The whole name of the template comes first: a restored copy has another name there, and the same labels.
        if found := re.fullmatch(rf"{re.escape(template)}-({pod}-\d+)", name):
            return found[1], kind
    return None


def _is_foreign(labels: Mapping[str, str], volume: str, cluster: ClusterView) -> bool:
    own = cluster.status.instance_id
    ours = labels.get(names.NAME) == common.APP and labels.get(names.INSTANCE) == cluster.name
    if volume not in VOLUME_KINDS or not own:
        return not ours
    return not ours or labels.get(names.INSTANCE_ID) != own


def _resize(obj: Mapping[str, Any]) -> tuple[ResizeState, float | None, str]:
    allocated = str(((obj.get("status") or {}).get("allocatedResourceStatuses") or {}).get("storage", ""))
    for kind in ("ControllerResizeError", "NodeResizeError"):
        failed = condition(obj, kind)
        if failed.get("status") == "True":
            return ResizeState.FAILED, seconds(failed.get("lastTransitionTime")), str(failed.get("message", ""))
    if allocated.endswith(("Infeasible", "Failed")):
        return ResizeState.FAILED, None, allocated
    waiting = condition(obj, "FileSystemResizePending")
    if waiting.get("status") == "True":
        since = seconds(waiting.get("lastTransitionTime"))
        return ResizeState.FILE_SYSTEM_PENDING, since, str(waiting.get("message", ""))
    resizing = condition(obj, "Resizing")
    if resizing.get("status") == "True" or allocated:
        since = seconds(resizing.get("lastTransitionTime"))
        return ResizeState.RESIZING, since, str(resizing.get("message", "")) or allocated
    return ResizeState.NONE, None, ""


def _attributes(obj: Mapping[str, Any]) -> AttributesView:
    """Return the class of a volume, without news of a class that is not asked for any more."""
    spec, status = obj["spec"], obj.get("status") or {}
    requested = str(spec.get("volumeAttributesClassName") or "")
    current = str(status.get("currentVolumeAttributesClassName") or "")
    told = status.get("modifyVolumeStatus") or {}
    if requested == current or not told or told.get("targetVolumeAttributesClassName", requested) != requested:
        return AttributesView(requested, current)
    problem = condition(obj, "ModifyVolumeError")
    message = str(problem.get("message", "")) if problem.get("status") == "True" else ""
    if told.get("status") == "Pending":
        return AttributesView(requested, current, ModifyState.PENDING, message)
    failed = told.get("status") == "Infeasible" or problem.get("status") == "True"
    return AttributesView(requested, current, ModifyState.FAILED if failed else ModifyState.IN_PROGRESS, message)


def of_one_node(volume: Mapping[str, Any]) -> bool:
    """Return whether a PersistentVolume is on the disk of a node: it goes with that."""
    spec = volume["spec"]
    if "local" in spec or "hostPath" in spec:
        return True
    terms = ((spec.get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    keys = {each.get("key") for term in terms for each in term.get("matchExpressions") or ()}
    return _HOST_NAME in keys or any(term.get("matchFields") for term in terms)


def fits(volume: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Return whether a PersistentVolume may be used on this node. A rule that is not understood fits: it is not a sign
    of a loss."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if not required:
        return True
    return any(
        all(_met(each, node["metadata"].get("labels") or {}) for each in term.get("matchExpressions") or ())
        and all(_met(each, {"metadata.name": node["metadata"]["name"]}) for each in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
    )


def _met(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = requirement.get("key", ""), requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return True


def growing_classes(classes: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Storage class to whether its volumes grow."""
    return {each["metadata"]["name"]: each.get("allowVolumeExpansion") is True for each in classes}


def claim_names(cluster: ClusterView, desired: Desired) -> frozenset[str]:
    """Return the names of the claims of all bookies that are to be, or were recorded."""
    replicas = dict(cluster.status.recorded_replicas)
    for each in desired.stateful_sets:
        replicas[each.name] = max(each.replicas, replicas.get(each.name, 0))
    return frozenset(
        naming.claim(template, naming.pod(name, ordinal))
        for name, number in replicas.items()
        for ordinal in range(number)
        for template in claim_templates(cluster)
    )


def claim_templates(cluster: ClusterView) -> list[str]:
    """Return the names of the claim templates of a bookie: one for each of its volumes."""
    return [
        in_place.claim_template(cluster.spec, kind, index)
        for kind, volume in volume_kinds(cluster.spec.storage).items()
        for index in range(volume.volumes)
    ]
