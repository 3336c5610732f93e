"""Names and labels of what belongs to a BookieJob.

Invariants
- Every name is a DNS label of at most 52 characters, which a CronJob's may have, and none that an object of a cluster
  has.
- Pods bear the cluster's labels, so that its NetworkPolicies take them for its own; no other object does, so that
  nothing of a cluster's takes them for something that is left over.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders.common import APP, Manifest, stamped
from bookie_operator.crds import names
from bookie_operator.world.model import JobResource

KIND: Final = "BookieJob"
MANAGER: Final = "podkeeper-jobs"
"""Another one than that of clusters: an instance may be called as a cluster is."""
DRIVER: Final = "job"
EXECUTOR: Final = "job-executor"

DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
"""Port of Spark's block managers, on driver and executors alike: results and shuffles pass there."""


def object_name(job: str) -> str:
    """Return the name of every object of a BookieJob."""
    return f"{job}-job"


def default_account(cluster: str) -> str:
    """Service account of drivers that make executors; the chart of the cluster makes it."""
    return f"{cluster}-spark"


def pod_labels(job: JobResource, component: str) -> dict[str, str]:
    cluster = job.spec.cluster_ref.name
    return {
        names.NAME: APP,
        names.INSTANCE: cluster,
        names.COMPONENT: component,
        names.PART_OF: cluster,
        names.MANAGED_BY: MANAGER,
        names.JOB: job.name,
    }


def object_labels(job: JobResource) -> dict[str, str]:
    return {
        names.NAME: f"{APP}-job",
        names.INSTANCE: job.name,
        names.PART_OF: job.spec.cluster_ref.name,
        names.MANAGED_BY: MANAGER,
        names.JOB: job.name,
    }


def owner_reference(job: JobResource) -> dict[str, Any]:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def job_object(
    job: JobResource,
    api_version: str,
    kind: str,
    content: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """An object with labels, owner and hash. `content`: everything beside kind and metadata."""
    metadata: dict[str, Any] = {
        "name": object_name(job.name),
        "namespace": job.namespace,
        "labels": object_labels(job),
        "annotations": dict(annotations or {}),
        "ownerReferences": [owner_reference(job)],
    }
    return stamped({"apiVersion": api_version, "kind": kind, "metadata": metadata, **content})
