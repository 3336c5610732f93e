"""The reason why a pod does not become ready, or is not made at all.

It is read from the pod's status; why its volumes are not there, from the events of kubelet and attach controller; and
why it is not made, from the events of its maker.

Invariants
- Only the volume of a claim can be lost: what a ConfigMap or a Secret lacks is a fault of the configuration.
- A fault that was overcome is not reported: the newest event counts, and none that is older than a sign that all is
  mounted.
- A state that passes by itself is not a fault: caches of a kubelet that fill, a volume that another node does not let
  go of yet.

Threads: pure functions for any thread, but for `refusals`, which belongs to the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from bookie_operator.api.kinds import DEPLOYMENT, JOB, STATEFUL_SET, KubernetesObject
from bookie_operator.builders.container import NAME
from bookie_operator.observe.times import condition, created_at, seconds, told_at
from bookie_operator.world.model import PodFault

_COOKIE_EXIT: Final = 2
"""Exit code of a bookie whose cookie and directories disagree; of another container it says nothing about disks."""
_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CONFIG: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_GONE: Final = re.compile(r'persistentvolumeclaim "[^"]*" not found|bound to non-existent persistentvolume')
_NODES: Final = re.compile(r"\b0/(\d+) nodes are available")
_ELSEWHERE: Final = re.compile(
    r"(\d+) node\(s\) (?:had volume node affinity conflict|didn't match persistentvolume's node affinity)"
)
"""The second is how Kubernetes 1.34 says it."""
_CORDONED: Final = re.compile(r"(\d+) node\(s\) were unschedulable")
_FAILED: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_MOUNTED: Final = frozenset(
    {"Pulling", "Pulled", "BackOff", "Created", "Started", "FailedCreatePodSandBox", "SandboxChanged"}
)
"""Reasons of events that the kubelet sends only when every volume is mounted."""
_PASSES: Final = ("failed to sync secret cache", "failed to sync configmap cache", "multi-attach error")
_NAMED: Final = ('secret "', 'configmap "', 'object "')
_VOLUME: Final = re.compile(r'for volume "([^"]+)"')
_PATIENCE_S: Final = 20.0
_UNMOUNTED: Final = re.compile(r"unmounted volumes=\[([^\]]*)\]")


def fault_of(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> tuple[PodFault, str]:
    """The fault, and what Kubernetes says of it. `events` are those about the pod, where they were read."""
    for status in _container_statuses(pod):
        fault, message = _of_container(status)
        if fault is not PodFault.NONE:
            return fault, message
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return _of_scheduler(str(scheduled.get("message", "")))
    return fault_of_mounts(pod, events)


def bookie_runs(pod: Mapping[str, Any], container: str = NAME) -> bool:
    """Return whether the container of the bookie itself runs, or another one."""
    return any(
        one.get("name") == container and "running" in (one.get("state") or {}) for one in _container_statuses(pod)
    )


def elsewhere(pod: Mapping[str, Any]) -> bool:
    """Return whether some nodes do not fit its volumes, and others were not asked: those may be cordoned, tainted or
    full."""
    fault, message = fault_of(pod)
    return fault is PodFault.UNSCHEDULABLE and _ELSEWHERE.search(message.lower()) is not None


def fits_nowhere(pod: Mapping[str, Any]) -> bool:
    """Return whether no node at all fits its volumes, as the scheduler says."""
    fault, message = fault_of(pod)
    return fault is PodFault.VOLUME and _ELSEWHERE.search(message.lower()) is not None


def kept_by_cordon(pod: Mapping[str, Any]) -> bool:
    """Return whether the scheduler says that the only nodes that fit its volumes are cordoned: another template cannot
    help it. Of nodes that are full or tainted it does not say what fits them."""
    fault, message = fault_of(pod)
    if fault is not PodFault.UNSCHEDULABLE:
        return False
    lowered = message.lower()
    nodes, cordoned = _NODES.search(lowered), [int(each) for each in _CORDONED.findall(lowered)]
    elsewhere = sum(map(int, _ELSEWHERE.findall(lowered)))
    return nodes is not None and sum(cordoned) > 0 and elsewhere > 0 and sum(cordoned) + elsewhere >= int(nodes[1])


def starts_slowly(pod: Mapping[str, Any], now: float) -> bool:
    """Return whether its events may tell more: it is on a node, and none of its containers has begun for a while."""
    if (pod.get("status") or {}).get("phase") != "Pending" or not pod["spec"].get("nodeName"):
        return False
    since = seconds(condition(pod, "PodScheduled").get("lastTransitionTime"))
    return since is not None and now - since > _PATIENCE_S


def _container_statuses(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _of_container(status: Mapping[str, Any]) -> tuple[PodFault, str]:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in _IMAGE:
        return PodFault.IMAGE, _words(status, reason, message or f"image {status.get('image', '')}")
    if reason in _CONFIG:
        return PodFault.CONFIG, _words(status, reason, message)
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    code = ended.get("exitCode")
    if "running" in state or not ended or code == 0:
        return PodFault.NONE, ""
    # Everything that it wrote may be there; the line that tells why it ended is the last one.
    said = str(ended.get("message") or "").strip().rpartition("\n")[2] or f"exit code {code}"
    if code == _COOKIE_EXIT and status.get("name") == NAME:
        return PodFault.COOKIE, _words(status, "", said)
    return PodFault.CRASHING, _words(status, reason or str(ended.get("reason", "")), said)


def _words(status: Mapping[str, Any], reason: str, message: str) -> str:
    return f"container {status.get('name', '')}: {': '.join(part for part in (reason, message) if part)}"[:500]


_PREEMPTION: Final = re.compile("preemption:", re.IGNORECASE)
"""The scheduler says for each node once more why nothing makes room there."""


def _of_scheduler(message: str) -> tuple[PodFault, str]:
    """Return the fault in a message of the scheduler.

    A volume is lost only if no node at all fits the pod's volumes: a node that is cordoned, tainted or full is passed
    over before the scheduler looks whether the volumes are there.
    """
    message = _PREEMPTION.split(message)[0].strip()
    lowered = message.lower()
    nodes, conflicts = _NODES.search(lowered), _ELSEWHERE.findall(lowered)
    everywhere = nodes is not None and sum(map(int, conflicts)) >= int(nodes[1]) > 0
    lost = everywhere or _GONE.search(lowered) is not None
    return PodFault.VOLUME if lost else PodFault.UNSCHEDULABLE, message[:500]


def fault_of_mounts(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> tuple[PodFault, str]:
    """The fault, and the event that tells of it."""
    told = list(events)
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    plain = frozenset(str(each.get("name", "")) for each in volumes if "persistentVolumeClaim" not in each)
    mounted_at = max((told_at(event) for event in told if event.get("reason") in _MOUNTED), default=0.0)
    failed = (event for event in told if event.get("reason") in _FAILED and told_at(event) >= mounted_at)
    for event in sorted(failed, key=told_at, reverse=True):
        message = str(event.get("message") or event.get("note") or "")
        fault = _meaning(message, plain)
        if fault is not PodFault.NONE:
            return fault, message[:500]
    return PodFault.NONE, ""


def _meaning(message: str, plain: frozenset[str]) -> PodFault:
    """`plain`: the pod's names of volumes that are of no claim."""
    lowered = message.lower()
    if any(words in lowered for words in _PASSES):
        return PodFault.NONE
    if "references non-existent" in lowered:
        return PodFault.CONFIG
    if any(words in lowered for words in _NAMED) and "not found" in lowered:
        return PodFault.CONFIG
    waiting = _UNMOUNTED.search(message)
    if waiting is not None and waiting[1] and set(waiting[1].replace(",", " ").split()) <= plain:
        return PodFault.NONE  # the reason is in another event
    volume = _VOLUME.search(message)
    return PodFault.CONFIG if volume is not None and volume[1] in plain else PodFault.VOLUME


_REASON: Final = "FailedCreate"
_RECENT_S: Final = 1200.0
"""A controller that goes on trying says so again in that time."""
_ASKED: Final = 4
_LONGEST: Final = 500

Events = Callable[[Mapping[str, Any]], Awaitable[list[KubernetesObject]]]


async def refusals(
    makers: Iterable[KubernetesObject], pods: Iterable[KubernetesObject], events_of: Events, now: float
) -> dict[str, str]:
    """Return what was refused, by `Kind/name`."""
    made: dict[str, list[KubernetesObject]] = {}
    for pod in pods:
        for owner in pod["metadata"].get("ownerReferences") or ():
            made.setdefault(owner["uid"], []).append(pod)
    found, asked = {}, 0
    for maker in makers:
        metadata = maker["metadata"]
        if maker["kind"] == DEPLOYMENT.kind:
            words = _of_deployment(maker)
        elif asked < _ASKED and len(own := made.get(metadata["uid"], [])) < _wanted(maker):
            asked += 1
            since = max(map(created_at, own), default=0.0)
            words = _last_refusal(await events_of(maker), max(since, now - _RECENT_S))
        else:
            continue
        if words:
            found[f"{maker['kind']}/{metadata['name']}"] = words[:_LONGEST]
    return found


def _wanted(maker: KubernetesObject) -> int:
    """Pods that it is to have; 0 of a Job that is over or suspended."""
    spec, status = maker["spec"], maker.get("status") or {}
    if maker["kind"] == STATEFUL_SET.kind:
        return int(spec.get("replicas", 1))
    over = any(condition(maker, kind).get("status") == "True" for kind in ("Complete", "Failed"))
    return 0 if maker["kind"] != JOB.kind or over or spec.get("suspend") or status.get("succeeded") else 1


def _of_deployment(maker: KubernetesObject) -> str:
    failure = condition(maker, "ReplicaFailure")
    return str(failure.get("message", "")) if failure.get("status") == "True" else ""


def _last_refusal(events: Iterable[Mapping[str, Any]], since: float) -> str:
    told = [(told_at(each), str(each.get("message") or each.get("note") or "")) for each in events if _refuses(each)]
    at, words = max(told, default=(0.0, ""))
    return words if at >= since else ""


def _refuses(event: Mapping[str, Any]) -> bool:
    return event.get("type") == "Warning" and event.get("reason") == _REASON
