"""Claims and storage classes as the planner sees them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.crds import names
from bookie_operator.observe.times import condition, seconds
from bookie_operator.world.model import AttributesView, ClaimView, ModifyState, ResizeState

_NAME: Final = re.compile(r"(?:(?P<volume>journal|ledger|index)-\d+|data)-(?P<pod>.+-(?P<ordinal>\d+))")


def claim_view(obj: Mapping[str, Any], templates: Iterable[str] = ()) -> ClaimView | None:
    """None for a claim that is no volume of a bookie or of the embedded metadata service. `templates`: names of those
    of bookies that were taken over in place."""
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    named = _NAME.fullmatch(metadata["name"]) or _taken_over(
        metadata["name"], labels.get(names.INSTANCE, ""), templates
    )
    if not named:
        return None
    volume = named.groupdict().get("volume") or labels.get(names.VOLUME, "")
    if not volume:
        return None
    phase = status.get("phase", "")
    resize, since, message = _resize(obj)
    return ClaimView(
        name=metadata["name"],
        uid=metadata["uid"],
        bookie=named["pod"],
        ordinal=int(named["ordinal"]),
        volume=volume,
        requested=spec["resources"]["requests"]["storage"],
        actual=(status.get("capacity") or {}).get("storage", "") if phase != "Pending" else "",
        bound=phase == "Bound",
        lost=phase == "Lost",
        deleting="deletionTimestamp" in metadata,
        instance_id=labels.get(names.INSTANCE_ID, ""),
        retired=names.RETIRED in labels,
        retired_proof=annotations.get(names.RETIRED, ""),
        storage_class=spec.get("storageClassName") or "",
        resize=resize,
        resize_since=since,
        message=message,
        zone=labels.get(names.ZONE, ""),
        attributes=_attributes(obj),
    )


def _taken_over(name: str, cluster: str, templates: Iterable[str]) -> re.Match[str] | None:
    """With the whole name of a template in front: a restored copy has something else there, and the same labels."""
    known = "|".join(map(re.escape, templates))
    pod = rf"(?P<pod>{re.escape(naming.bookies(cluster))}-(?P<ordinal>\d+))"
    return re.fullmatch(rf"(?:{known})-{pod}", name) if known else None


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
    """What is told about a class that is not asked for any more is left out."""
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


def fits(volume: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a PersistentVolume may be used on this node. What nobody understands fits: it is no sign of a loss."""
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
