"""Pods that are not made, because a quota, a policy or a missing account forbids it: why, in Kubernetes' own words.

StatefulSets and Jobs tell it by events alone, a Deployment by a condition too. Events are read only of what has fewer
pods than it is to have.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from bookie_operator.api.kinds import DEPLOYMENT, JOB, STATEFUL_SET, KubernetesObject
from bookie_operator.observe.times import condition, created_at, told_at

_REASON: Final = "FailedCreate"
_RECENT_S: Final = 1200.0
"""A controller that goes on trying says so again in that time."""
_ASKED: Final = 4
_LONGEST: Final = 500

Events = Callable[[Mapping[str, Any]], Awaitable[list[KubernetesObject]]]


async def refusals(
    makers: Iterable[KubernetesObject], pods: Iterable[KubernetesObject], events_of: Events, now: float
) -> dict[str, str]:
    """What was refused, by `Kind/name`."""
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
