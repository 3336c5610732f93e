"""The cluster's own resource, nodes, tasks and Secrets as the planner sees them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from bookie_operator.api.kinds import CLUSTER
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.task_spec import BookieTaskSpec, BookieTaskStatus
from bookie_operator.crds.validation import known_spec, readable_status
from bookie_operator.observe.times import condition, created_at, seconds
from bookie_operator.world.model import ClusterView, NodeView, TaskView

_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"


def cluster_view(obj: Mapping[str, Any], spec: BookieClusterSpec | None = None) -> ClusterView:
    """Return the cluster, without what a newer release wrote beside what counts.

    `spec`: the spec, if it has been read already. Raises ValidationError for a spec or a status that cannot be read all
    the same.
    """
    metadata = obj["metadata"]
    deleting = "deletionTimestamp" in metadata
    status, _ = readable_status(obj.get("status") or {}, deleting=deleting)
    return ClusterView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=spec or BookieClusterSpec.model_validate(known_spec(obj.get("spec") or {})[0]),
        status=BookieClusterStatus.model_validate(status),
        annotations=metadata.get("annotations") or {},
        deleting=deleting,
        has_finalizer=names.FINALIZER in (metadata.get("finalizers") or ()),
        created_at=created_at(obj),
    )


def node_view(obj: Mapping[str, Any], zone_key: str = "") -> NodeView:
    """`zone_key`: label that tells the zone."""
    spec = obj.get("spec") or {}
    taints = spec.get("taints") or ()
    return NodeView(
        name=obj["metadata"]["name"],
        ready=condition(obj, "Ready").get("status") == "True",
        out_of_service=any(taint.get("key") == _OUT_OF_SERVICE for taint in taints),
        unschedulable=spec.get("unschedulable") is True,
        zone=str((obj["metadata"].get("labels") or {}).get(zone_key, "")),
    )


def task_views(
    tasks: Iterable[Mapping[str, Any]], cluster: ClusterView
) -> tuple[tuple[TaskView, ...], tuple[TaskView, ...]]:
    """The tasks of this cluster that are not finished, the oldest first; what no version of ours can read is left
    alone. And those of an earlier cluster of its name."""
    found: tuple[list[TaskView], list[TaskView]] = ([], [])
    for metadata, spec, status in _readable(tasks, cluster.name):
        if status.finished:
            continue
        found[_outlived(metadata, cluster)].append(
            TaskView(
                name=metadata["name"],
                uid=metadata["uid"],
                type=spec.type,
                bookies=tuple(spec.bookies),
                phase=status.phase.value,
                created_at=seconds(metadata.get("creationTimestamp")) or 0.0,
                ledgers=tuple(spec.ledgers),
                started_at=seconds(status.started_at) or 0.0,
            )
        )
    own, outlived = (tuple(sorted(each, key=lambda task: (task.created_at, task.name))) for each in found)
    return own, outlived


def _outlived(metadata: Mapping[str, Any], cluster: ClusterView) -> bool:
    """Return whether the task is an earlier cluster's: by the UID of the cluster that owns it, which it gets when it is
    taken up; else by its age."""
    owners = [each["uid"] for each in metadata.get("ownerReferences") or () if each.get("kind") == CLUSTER.kind]
    if owners:
        return cluster.uid not in owners
    return (seconds(metadata.get("creationTimestamp")) or 0.0) < cluster.created_at


def expired_tasks(tasks: Iterable[Mapping[str, Any]], cluster: str, now: float) -> tuple[tuple[str, str], ...]:
    """Return name and UID of those that have been over for longer than they were to be kept."""
    found = []
    for metadata, spec, status in _readable(tasks, cluster):
        over = seconds(status.finished_at) if status.finished else None
        if over is not None and now - over >= spec.ttl_seconds_after_finished:
            found.append((metadata["name"], metadata["uid"]))
    return tuple(found)


def _readable(
    tasks: Iterable[Mapping[str, Any]], cluster: str
) -> Iterator[tuple[Mapping[str, Any], BookieTaskSpec, BookieTaskStatus]]:
    for task in tasks:
        try:
            spec = BookieTaskSpec.model_validate(task.get("spec") or {})
            status = BookieTaskStatus.model_validate(task.get("status") or {})
        except ValidationError:
            continue
        if spec.cluster == cluster and "deletionTimestamp" not in task["metadata"]:
            yield task["metadata"], spec, status
