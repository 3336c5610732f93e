"""StatefulSets, pods, Deployments and Jobs as the planner sees them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.builders import location
from bookie_operator.builders.inputs import recorded
from bookie_operator.crds import names
from bookie_operator.observe.faults import bookie_runs, fault_of, kept_by_cordon
from bookie_operator.observe.times import condition, created_at, seconds
from bookie_operator.world.model import PodFault, PodView, StatefulSetView

_BOOKIE: Final = "bookie"
_ORDINAL: Final = re.compile(r"(?P<set>.+)-(?P<ordinal>\d+)")
_AMOUNTS: Final = ("limits", "requests")
_TEMPLATE: Final = re.compile(r"(?P<kind>journal|ledger|index)-\d+")


def component_of(obj: Mapping[str, Any]) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.COMPONENT, ""))


def is_bookie(obj: Mapping[str, Any]) -> bool:
    return component_of(obj) == _BOOKIE


def stateful_set_view(obj: Mapping[str, Any]) -> StatefulSetView:
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    annotations, template = metadata.get("annotations") or {}, spec["template"]
    return StatefulSetView(
        name=metadata["name"],
        zone=(metadata.get("labels") or {}).get(names.ZONE, ""),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        replicas=spec.get("replicas", 1),
        generation=metadata.get("generation", 0),
        observed_generation=status.get("observedGeneration", 0),
        template_hash=annotations.get(names.TEMPLATE_HASH, ""),
        volume_sizes=_template_sizes(spec.get("volumeClaimTemplates") or ()),
        volume_attributes=_named_in(spec.get("volumeClaimTemplates") or (), "volumeAttributesClassName"),
        volume_classes=_named_in(spec.get("volumeClaimTemplates") or (), "storageClassName"),
        deleting="deletionTimestamp" in metadata,
        config_maps=config_maps(template.get("spec") or {}),
        inputs_hash=recorded(annotations),
        restart=((template.get("metadata") or {}).get("annotations") or {}).get(names.RESTART, ""),
    )


def config_maps(pod_spec: Mapping[str, Any]) -> frozenset[str]:
    """Names of the ConfigMaps that a pod of this spec uses: as volumes, and as sources of its environment."""
    found = set()
    for volume in pod_spec.get("volumes") or ():
        found.add((volume.get("configMap") or {}).get("name"))
        for source in (volume.get("projected") or {}).get("sources") or ():
            found.add((source.get("configMap") or {}).get("name"))
    for container in [*(pod_spec.get("initContainers") or ()), *(pod_spec.get("containers") or ())]:
        for source in container.get("envFrom") or ():
            found.add((source.get("configMapRef") or {}).get("name"))
        for variable in container.get("env") or ():
            found.add(((variable.get("valueFrom") or {}).get("configMapKeyRef") or {}).get("name"))
    return frozenset(name for name in found if name)


def _template_sizes(templates: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    sizes: dict[str, str] = {}
    for template in templates:
        if kind := _kind_of(template):
            sizes[kind] = template["spec"]["resources"]["requests"]["storage"]
    return sizes


def _named_in(templates: Iterable[Mapping[str, Any]], field: str) -> dict[str, str]:
    """Return what a field of claim templates names, by kind of volume. An empty storage class is a name too."""
    named = ((_kind_of(each), each["spec"].get(field)) for each in templates)
    return {kind: name for kind, name in named if kind and name is not None}


def _kind_of(template: Mapping[str, Any]) -> str:
    """Return the kind of volume; the name shows it unless the bookies were taken over in place.

    Empty: it is for no bookie's data.
    """
    found = _TEMPLATE.fullmatch(template["metadata"]["name"])
    return found["kind"] if found else str((template["metadata"].get("labels") or {}).get(names.VOLUME, ""))


def pod_view(obj: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> PodView | None:
    """Return the pod; None if it is not of a StatefulSet: its name has no ordinal."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    numbered = _ORDINAL.fullmatch(metadata["name"])
    if not numbered:
        return None
    owner = _owner(metadata)
    ready = condition(obj, "Ready")
    is_ready = ready.get("status") == "True"
    fault, message = fault_of(obj, events)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        stateful_set=numbered["set"],
        ordinal=int(numbered["ordinal"]),
        zone=(metadata.get("labels") or {}).get(names.ZONE, ""),
        node=(obj.get("spec") or {}).get("nodeName", ""),
        ready=is_ready,
        running=status.get("phase") == "Running" and "deletionTimestamp" not in metadata,
        bookie_runs=bookie_runs(obj),
        deleting="deletionTimestamp" in metadata,
        template_hash=(metadata.get("annotations") or {}).get(names.TEMPLATE_HASH, ""),
        fault=fault,
        fault_message=message,
        kept_by_cordon=kept_by_cordon(obj),
        created_at=created_at(obj),
        ready_since=seconds(ready.get("lastTransitionTime")) if is_ready else None,
        unready_since=None if is_ready else seconds(ready.get("lastTransitionTime")),
        owner_uid=owner.get("uid", ""),
        config_maps=config_maps(obj.get("spec") or {}),
        awaits_location=_awaits_location(obj),
    )


def _awaits_location(pod: Mapping[str, Any]) -> bool:
    learns = any(each["name"] == location.NAME for each in (pod.get("spec") or {}).get("initContainers") or ())
    return learns and names.NETWORK_LOCATION not in (pod["metadata"].get("annotations") or {})


def is_made_of(pod: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """Return whether it was made of the template that its StatefulSet has, as far as that is known.

    The revision alone would be too much: whatever people add to a template makes another one. The containers alone
    would be too: webhooks change pods, each time that they are made.
    """
    status, template = owner.get("status") or {}, owner["spec"]["template"]
    told = (pod["metadata"].get("labels") or {}).get("controller-revision-hash", "")
    wanted = status.get("updateRevision", "")
    busy = status.get("observedGeneration", 0) < owner["metadata"].get("generation", 0)
    if not told or not wanted or told == wanted or busy:
        return True
    hashes = [(each["metadata"].get("annotations") or {}).get(names.TEMPLATE_HASH) for each in (pod, template)]
    if hashes[0] != hashes[1]:
        return True  # of an older template, as it says itself
    containers = {each["name"]: each for each in (pod.get("spec") or {}).get("containers") or ()}
    return all(_alike(containers.get(each["name"], {}), each) for each in template["spec"].get("containers") or ())


def _alike(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a pod is as it was to be; what it has besides does not count.

    Kubernetes gives it requests where there are limits alone, and what a LimitRange says.
    """
    if any(made.get(key) != wanted.get(key) for key in ("image", "command", "args")):
        return False
    has, asked = made.get("resources") or {}, wanted.get("resources") or {}
    if any((has.get(key) or {}).get(name) != each for key in _AMOUNTS for name, each in (asked.get(key) or {}).items()):
        return False
    given = {each["name"]: each for each in made.get("env") or ()}
    return all(given.get(each["name"]) == each for each in wanted.get("env") or ())


def _owner(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == "StatefulSet":
            return dict(owner)
    return {}


@dataclass(frozen=True)
class JobView:
    state: str = ""
    """Empty (there is none), `Running`, `Complete` or `Failed`."""
    message: str = ""
    finished_at: float | None = None
    """Seconds since 1970."""
    told: str = ""
    """Termination message of a pod of it that succeeded, the last line."""


def pods_of_job(job: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those of `pods` that are the job's own."""
    uid = job["metadata"]["uid"] if job is not None else None
    return [
        pod for pod in pods if any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
    ]


def job_view(
    job: Mapping[str, Any] | None,
    pods: Iterable[Mapping[str, Any]],
    events: Mapping[str, Iterable[Mapping[str, Any]]] | None = None,
) -> JobView:
    """`pods`: those among which its own are. `events`: by UID of the pod, where they were read."""
    if job is None:
        return JobView()
    told, problem = _ends(pods_of_job(job, pods), events or {})
    for kind in ("Complete", "Failed"):
        found = condition(job, kind)
        if found.get("status") == "True":
            words = problem if kind == "Failed" else ""
            finished = seconds((job.get("status") or {}).get("completionTime") or found.get("lastTransitionTime"))
            return JobView(kind, words or str(found.get("message", "")), finished, told)
    return JobView("Running", problem, None, told)


def _ends(pods: Iterable[Mapping[str, Any]], events: Mapping[str, Iterable[Mapping[str, Any]]]) -> tuple[str, str]:
    """Return the last message of the pod that succeeded, and the last failure of any pod."""
    told, problem = "", ""
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated")
            if ended and ended.get("exitCode") == 0:
                told = str(ended.get("message") or "").strip().rpartition("\n")[2]
        fault, message = fault_of(pod, events.get(pod["metadata"].get("uid", ""), ()))
        problem = message if fault is not PodFault.NONE else problem
    return told, problem


def ready_replicas(deployment: Mapping[str, Any] | None) -> tuple[int, int]:
    """Ready and wanted pods of a Deployment that has seen its own spec; 0 and 0 without one."""
    if deployment is None:
        return 0, 0
    status = deployment.get("status") or {}
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return 0, wanted
    return min(status.get("readyReplicas") or 0, status.get("updatedReplicas") or 0), wanted
